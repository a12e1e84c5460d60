"""JAX frontend: converts JAX functions to an HloModule."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from compiler.errors import ArgumentError, UnsupportedError
from compiler.frontends.inlining import inlining
from compiler.frontends.names import argument_names as argument_names
from compiler.frontends.stablehlo import from_xla, jaxlib_modules
from compiler.frontends.stablehlo import stablehlo as stablehlo
from compiler.ir.module import HloModule


def lower(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> HloModule:
    """Lower a JAX function to HLO for the shapes of these arguments, unoptimized, with all constants.

    Args:
        fn: any function that JAX can trace; a jitted one keeps its settings (static arguments, donation).
        *args: arrays, scalars, pytrees of them, or `jax.ShapeDtypeStruct` instead of values.
        **kwargs: the same by name.

    Returns:
        A module whose parameters are the leaves of the arguments in order, including unused ones (unless `fn` is jitted
        and drops them), and whose result is a tuple of the output leaves. `argument_names` returns their names.

    Raises:
        ArgumentError: an argument cannot be traced (a string, for example) and is not marked static.
        UnsupportedError: an argument has a dimension without a fixed size.
        BackendError: JAX is not installed.
        Exception: any error of JAX while it traces the function.
    """
    _, hlo = jaxlib_modules()
    jax = importlib.import_module("jax")
    _check_arguments(jax, args, kwargs, may_be_static=hasattr(fn, "trace"))
    jitted = fn if hasattr(fn, "trace") else jax.jit(fn, keep_unused=True)
    with inlining():
        lowered = jitted.trace(*args, **kwargs).lower(lowering_platforms=("cpu",))
    return from_xla(lowered.compiler_ir("hlo"), hlo)


def _check_arguments(jax: Any, args: tuple[Any, ...], kwargs: dict[str, Any], may_be_static: bool) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path((args, kwargs)):
        where = "argument " + jax.tree_util.keystr(path[1:]).strip("[]'")
        shape = getattr(leaf, "shape", None)
        if shape is None and not may_be_static and not isinstance(leaf, bool | int | float | complex):
            raise ArgumentError(
                f"{where} is a {type(leaf).__name__}, which JAX cannot trace; if the program depends on it, "
                "mark it static: lower(jax.jit(fn, static_argnames=...), ...)"
            )
        if not all(isinstance(d, int) for d in shape or ()):
            raise UnsupportedError(
                f"{where} has shape {tuple(map(str, shape or ()))}: every dimension needs a fixed size; lower once for "
                "each size"
            )
