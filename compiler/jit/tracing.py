"""Tracing of functions: from a function and its arguments to a closed jaxpr over arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from compiler.frontends.names import set_argument_name
from compiler.ir.module import HloModule
from compiler.jit.arguments import DONATED, STATIC, Arguments
from compiler.jit.lowering import check_effects, lower_jaxpr, spec

__all__ = ["Traced", "is_key", "trace_function", "wrapped_results"]

LARGEST_CONSTANT = 16 << 10
"""Size in bytes up to which an array that a function closes over becomes a constant of its program."""


@dataclass(eq=False)
class Traced:
    """A function traced for the shapes and types of its arguments.

    Attributes:
        jaxpr: closed jaxpr over the hoisted arrays and the leaves of the arguments.
        hoisted: large arrays, or tracers of an outer function, that the function closes over.
        values: leaves of the arguments, typed keys as raw data.
        names: name of each leaf.
        donated: numbers of the jaxpr's arguments that results may take over.
        out_tree: structure of the results.
        keys: for each result the implementation of its typed key, or None.
    """

    jaxpr: Any
    hoisted: list[Any]
    values: list[Any]
    names: list[str]
    donated: tuple[int, ...]
    out_tree: Any
    keys: list[Any]

    def module(self) -> HloModule:
        """Return the program as a module whose parameters have the names of the arguments.

        Raises:
            UnsupportedError: the function has effects.
        """
        check_effects(self.jaxpr)
        module = lower_jaxpr(self.jaxpr, self.donated).module()
        names = [*(f"closure[{n}]" for n in range(len(self.hoisted))), *self.names]
        for p in module.entry.parameters:
            set_argument_name(p, names[p.parameter_number or 0])
        return module


def is_key(leaf: Any) -> bool:
    """Check whether an array contains typed keys of random numbers."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def trace_function(function: Callable[..., Any], arguments: Arguments, args: Any, kwargs: Any) -> Traced:
    """Trace a function.

    Args:
        function: the function.
        arguments: which arguments are static or donated, and their names.
        args: arrays, tracers or `jax.ShapeDtypeStruct`, and any value where an argument is static.
        kwargs: the same by name.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path((args, kwargs))
    leaves = [leaf for _, leaf in paths]
    marks = arguments.marks(args, kwargs)
    dynamic = [n for n, mark in enumerate(marks) if mark != STATIC]
    avals = [_aval(leaves[n]) for n in dynamic]
    impls = [jax.random.key_impl(leaves[n]) if is_key(leaves[n]) else None for n in dynamic]
    trees, keys = [], []

    def flat(*given: Any) -> list[Any]:
        filled = list(leaves)
        for n, v, impl in zip(dynamic, given, impls, strict=True):
            filled[n] = v if impl is None else jax.random.wrap_key_data(v, impl=impl)
        given_args, given_kwargs = jax.tree.unflatten(tree, filled)
        results, out_tree = jax.tree.flatten(function(*given_args, **given_kwargs))
        trees.append(out_tree)
        keys.append([jax.random.key_impl(r) if is_key(r) else None for r in results])
        return [jax.random.key_data(r) if is_key(r) else r for r in results]

    flat.__name__ = getattr(function, "__name__", None) or type(function).__name__
    flat.__wrapped__ = function  # type: ignore[attr-defined]  # messages of JAX show the place of the function
    closed = jax.make_jaxpr(flat)(*avals)
    jaxpr, hoisted = _hoist(closed)
    values = [leaves[n] if impl is None else _raw(leaves[n]) for n, impl in zip(dynamic, impls, strict=True)]
    donated = tuple(len(hoisted) + k for k, n in enumerate(dynamic) if marks[n] == DONATED)
    names = [arguments.leaf_name(paths[n][0]) for n in dynamic]
    return Traced(jaxpr, hoisted, values, names, donated, trees[-1], keys[-1])


def _aval(leaf: Any) -> Any:
    if is_key(leaf):
        return jax.eval_shape(jax.random.key_data, leaf)
    return spec(leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf))


def _raw(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.random.key_data(leaf)


def wrapped_results(traced: Traced, results: list[Any]) -> list[Any]:
    """Return results with typed keys where the function returns them."""
    return [
        r if impl is None else jax.random.wrap_key_data(r, impl=impl)
        for r, impl in zip(results, traced.keys, strict=True)
    ]


def _hoist(closed: Any) -> tuple[Any, list[Any]]:
    """Return a closed jaxpr whose first arguments are its large constants and tracers, and these."""
    consts = closed.consts
    large = [isinstance(c, jax.core.Tracer) or getattr(c, "nbytes", 0) > LARGEST_CONSTANT for c in consts]
    if not any(large):
        return closed, []
    hoisted = [c for c, is_large in zip(consts, large, strict=True) if is_large]
    small = [None if is_large else c for c, is_large in zip(consts, large, strict=True)]

    def flat(*args: Any) -> Any:
        first = iter(args[: len(hoisted)])
        filled = [next(first) if c is None else c for c in small]
        return jax.core.eval_jaxpr(closed.jaxpr, filled, *args[len(hoisted) :])

    flat.__name__ = getattr(closed.jaxpr.debug_info, "func_name", None) or "program"
    specs = [*(spec(jax.typeof(h)) for h in hoisted), *map(spec, closed.in_avals)]
    return jax.make_jaxpr(flat)(*specs), hoisted
