"""`JitFunction`: what `hlogym.jit` returns."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import debug_infs, debug_nans

from compiler.ir.module import HloModule
from compiler.jit.arguments import Arguments, check_leaves, explained
from compiler.jit.lowering import SeveralDevicesError, check_effects
from compiler.jit.numpy_calls import NumpyCall, leaf_key
from compiler.jit.parts import call_in_parts, is_program
from compiler.jit.primitive import compiled
from compiler.jit.programs import Program, Settings
from compiler.jit.tracing import Traced, is_key, trace_function, wrapped_results
from compiler.plan import CompilationPlan
from compiler.runtime.executable import Executable
from compiler.runtime.explanation import Explanation

try:
    from jax._src.config import trace_context  # the key of JAX's own caches, which nothing public returns
except ImportError:  # of another version of JAX: programs obey the settings of their first call

    def trace_context() -> Any:
        """Return the setting of JAX that changes the types of arguments."""
        return jax.config.jax_enable_x64  # type: ignore[attr-defined]


__all__ = ["CacheInfo", "JitFunction"]

MOST_SIGNATURES = 1024
"""Number of signatures that a function remembers."""
MOST_CONTEXTS = 16
"""Number of settings of JAX for which a function remembers signatures."""
_JAX_TYPES: set[type] = set()
"""Types of JAX arrays and tracers that were met; a look-up takes less time than `isinstance`."""
_CONTAINERS = frozenset((dict, list, tuple))
_NumpyCalls: TypeAlias = dict[Hashable, NumpyCall | None]
"""Calls with numpy arrays by signature; None for one that JAX calls."""


class CacheInfo(NamedTuple):
    """What a function of `hlogym.jit` has compiled, without derivatives and batches.

    Attributes:
        programs: number of programs, one for each signature.
        loaded: number of them that were loaded from disk.
        seconds: time that compiling and loading took.
    """

    programs: int
    loaded: int
    seconds: float


class JitFunction:
    """A JAX function that this compiler compiles; `hlogym.jit` returns it."""

    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any], arguments: Arguments, settings: Settings, output: str) -> None:
        self._function, self._arguments, self._settings, self._output = (
            function,
            arguments,
            replace(settings, note=self._note),
            output,
        )
        self._lock = threading.Lock()
        self._numpy_calls: dict[Hashable, _NumpyCalls] = {}
        self._latest: tuple[Any, _NumpyCalls] = (None, {})
        self._programs: dict[int, Program] = {}
        functools.update_wrapper(self, function)
        self._jitted = jax.jit(
            self._traced_call(),
            static_argnums=arguments.static_numbers,
            static_argnames=arguments.static_names,
            donate_argnums=arguments.donated_numbers,
            donate_argnames=arguments.donated_names,
            inline=True,  # so that a call within the function of a reduction is seen there
        )

    def _traced_call(self) -> Callable[..., Any]:
        def traced(*args: Any, **kwargs: Any) -> Any:
            return self._call_traced(args, kwargs)

        functools.update_wrapper(traced, self._function)
        return traced

    def __repr__(self) -> str:
        name = getattr(self._function, "__qualname__", None) or repr(self._function)
        return f"<hlogym.jit of {name}, {len(self._programs)} program(s)>"

    def __reduce__(self) -> Any:
        return JitFunction, (self._function, self._arguments, replace(self._settings, note=None), self._output)

    def __copy__(self) -> JitFunction:
        return self  # like functions, so that trees and modules with one can be copied

    def __deepcopy__(self, memo: Any) -> JitFunction:
        return self

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    # ---- calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; compile it at the first call with a signature."""
        if not (args and type(args[0]) in _JAX_TYPES) and self._output != "jax" and not _are_of_jax(args, kwargs):
            found = self._numpy_call(args, kwargs)
            if found is not None:
                call, leaves = found
                if call is None:
                    return _as_numpy(self._call_by_jax(args, kwargs))
                results = call(leaves)
                if debug_nans.value or debug_infs.value:
                    self._check_numbers(results, args, kwargs)
                return results
        results = self._call_by_jax(args, kwargs)
        return _as_numpy(results) if self._output == "numpy" else results

    def _call_by_jax(self, args: Any, kwargs: Any) -> Any:
        try:
            return self._jitted(*args, **kwargs)
        except (TypeError, ValueError) as e:
            raise explained(e, self._arguments, args, kwargs) from None

    def _numpy_call(self, args: Any, kwargs: Any) -> tuple[NumpyCall | None, list[Any]] | None:
        """Return the program for numpy arrays, None if JAX calls it, and the arrays; None if there are others."""
        static, leaves, tree = self._arguments.split(args, kwargs)
        keys = []
        for leaf in leaves:
            found = leaf_key(leaf)
            if found is None:
                if isinstance(leaf, jax.Array):
                    _JAX_TYPES.add(type(leaf))
                return None
            keys.append(found)
        if not (self._output == "numpy" or any(isinstance(a, np.ndarray) for a in leaves)):
            return None
        context = trace_context()
        latest, calls = self._latest
        if context != latest:  # comparing takes less time than hashing
            calls = self._numpy_calls_in(context)
        key = (static, tree, tuple(keys))
        try:
            call = calls[key]
        except KeyError:
            call = self._make_numpy_call(args, kwargs, leaves)
            with self._lock:
                _remember(calls, key, call, MOST_SIGNATURES)
        except TypeError as e:
            raise explained(e, self._arguments, args, kwargs) from None
        return call, leaves

    def _numpy_calls_in(self, context: Hashable) -> _NumpyCalls:
        """Return the calls of programs that were traced under the same settings of JAX."""
        with self._lock:
            calls = self._numpy_calls.get(context)
            if calls is None:
                calls = {}
                _remember(self._numpy_calls, context, calls, MOST_CONTEXTS)
            self._latest = (context, calls)
        return calls

    def _make_numpy_call(self, args: Any, kwargs: Any, leaves: list[Any]) -> NumpyCall | None:
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return None
        traced = self._trace(args, kwargs)
        if any(traced.keys) or any(isinstance(h, jax.core.Tracer) for h in traced.hoisted):
            return None
        if not is_program(traced.jaxpr):
            return None
        try:
            return NumpyCall(traced, self._compiled(traced), leaves)
        except SeveralDevicesError:
            return None

    def _check_numbers(self, results: Any, args: Any, kwargs: Any) -> None:
        """Raise FloatingPointError if results have NaNs or infinities and JAX is set to look for them."""
        numbers = [r for r in jax.tree.leaves(results) if jnp.issubdtype(r.dtype, np.inexact)]
        for kind, is_found, sought in (("nan", np.isnan, debug_nans), ("inf", np.isinf, debug_infs)):
            if sought.value and any(is_found(r).any() for r in numbers):
                self._jitted(*args, **kwargs)  # JAX says which op makes it
                raise FloatingPointError(f"invalid value ({kind}) in the results of {self!r}")

    # ---- tracing

    def _trace(self, args: Any, kwargs: Any) -> Traced:
        """Trace the function for the shapes and types of its arguments."""
        check_leaves(self._arguments, args, kwargs)
        try:
            return trace_function(self._function, self._arguments, args, kwargs)
        except (TypeError, ValueError) as e:
            raise explained(e, self._arguments, args, kwargs) from None

    def _call_traced(self, args: Any, kwargs: Any) -> Any:
        """Call the program as a part of a function that JAX traces; under `jax.disable_jit`, call the function."""
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return self._function(*args, **kwargs)
        traced = trace_function(self._function, self._arguments, args, kwargs)
        results = call_in_parts(traced.jaxpr, self._settings, *traced.hoisted, *traced.values, donated=traced.donated)
        return jax.tree.unflatten(traced.out_tree, wrapped_results(traced, results))

    def _note(self, program: Program) -> None:
        with self._lock:
            _remember(self._programs, program.key, program, MOST_SIGNATURES)

    def _compiled(self, traced: Traced) -> Program:
        check_effects(traced.jaxpr)
        return compiled(traced.jaxpr, self._settings, traced.donated)

    # ---- what a person asks for

    def lower(self, *args: Any, **kwargs: Any) -> HloModule:
        """Return the program for the shapes of these arguments as HLO, before any pass.

        The parameters are large arrays that the function closes over, then the leaves of the arguments, which may be
        `jax.ShapeDtypeStruct` too.
        """
        return self._trace(args, kwargs).module()

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Return the function traced for the shapes of these arguments, as `jax.jit(f).trace` does.

        Its jaxpr is that of a function of JAX which calls a program of this compiler.
        """
        return self._jitted.trace(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> Executable:
        """Return the executable for the shapes of these arguments, which takes and returns numpy arrays."""
        return self._compiled(self._trace(args, kwargs)).executable

    def plan(self, *args: Any, **kwargs: Any) -> CompilationPlan | None:
        """Return the decisions of the program for the shapes of these arguments."""
        return self.compile(*args, **kwargs).plan

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Return which decisions made each kernel of the program for the shapes of these arguments."""
        return self.compile(*args, **kwargs).explain()

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Return the shapes and types of the results; nothing is compiled."""
        return jax.eval_shape(self._jitted, *args, **kwargs)

    def cache_info(self) -> CacheInfo:
        """Return what has been compiled since the last `clear_cache`."""
        programs = list(self._programs.values())
        return CacheInfo(len(programs), sum(p.loaded for p in programs), sum(p.seconds for p in programs))

    def clear_cache(self) -> None:
        """Forget all signatures; programs on disk stay."""
        with self._lock:
            self._programs.clear()
            self._numpy_calls.clear()
            self._latest = (None, {})
        self._jitted.clear_cache()  # type: ignore[attr-defined]


def _remember(table: dict[Any, Any], key: Any, value: Any, limit: int) -> None:
    """Store a value, and forget the oldest one of a table that has `limit`."""
    if len(table) >= limit:
        del table[next(iter(table))]
    table[key] = value


def _as_numpy(results: Any) -> Any:
    """Return results as numpy arrays, which share the memory of the JAX arrays and are read-only; typed keys stay."""
    return jax.tree.map(lambda r: np.asarray(r) if _has_memory(r) else r, results)


def _has_memory(result: Any) -> bool:
    return isinstance(result, jax.Array) and not (isinstance(result, jax.core.Tracer) or is_key(result))


def _are_of_jax(args: Any, kwargs: Any) -> bool:
    """Check whether an argument is known to have an array of JAX."""
    return any(map(_is_of_jax, args)) or any(map(_is_of_jax, kwargs.values()))


def _is_of_jax(tree: Any) -> bool:
    """Check whether the first leaf of a tree of built-in containers is of a type of JAX that was met."""
    while type(tree) in _CONTAINERS and tree:
        tree = next(iter(tree.values())) if type(tree) is dict else tree[0]
    return type(tree) in _JAX_TYPES
