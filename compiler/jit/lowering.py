"""From a closed jaxpr to a compiled program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex

from compiler.errors import UnsupportedError
from compiler.frontends.inlining import inlining
from compiler.frontends.stablehlo import from_xla, jaxlib_modules
from compiler.ir.module import HloModule
from compiler.jit.programs import PROGRAMS, Program, Settings
from compiler.jit.source_lines import with_source_line

__all__ = ["LoweredJaxpr", "check_effects", "compile_jaxpr", "lower_jaxpr", "makes_references", "spec"]

_REFERENCES = "InternalMutableArray"
"""Effect of a reference that a function makes for itself."""


def spec(aval: Any) -> Any:
    """Return the shape, type and weak type of an abstract value as an argument for tracing."""
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class LoweredJaxpr:
    """A program in XLA's representation.

    Attributes:
        computation: the XlaComputation.
        text: HLO text without metadata.
    """

    computation: Any
    text: str

    def module(self) -> HloModule:
        """Return the program as a module."""
        return from_xla(self.computation, jaxlib_modules()[1])


def check_effects(closed: Any) -> None:
    """Raise UnsupportedError if a jaxpr has effects; programs have none, and a call without results is dropped.

    The use of a named axis counts as an effect in JAX; it is gone once the call is batched. So does that of a reference
    which the function makes for itself; JAX replaces it by values where it lowers the function.
    """
    names = _effects(closed) - {"NamedAxis", _REFERENCES}
    if names:
        raise UnsupportedError(
            f"the function has effects ({', '.join(sorted(names))}), such as printing, which hlogym does not compile"
        )


def makes_references(closed: Any) -> bool:
    """Check whether a jaxpr makes references, which are arrays that it changes."""
    return _REFERENCES in _effects(closed)


def _effects(closed: Any) -> set[str]:
    return {type(e).__name__.removesuffix("Effect") for e in closed.effects}


def lower_jaxpr(closed: Any, donated: Sequence[int] = ()) -> LoweredJaxpr:
    """Lower a jaxpr whose arguments are arrays; `donated` are the numbers of arguments that results may take over."""
    jitted = jax.jit(_named(closed), keep_unused=True, donate_argnums=tuple(donated))
    with inlining():
        lowered = jitted.trace(*map(spec, closed.in_avals)).lower(lowering_platforms=("cpu",))
    computation = lowered.compiler_ir("hlo")
    _, hlo = jaxlib_modules()
    options = hlo.HloPrintOptions()
    options.print_large_constants = True
    options.print_metadata = False
    return LoweredJaxpr(computation, computation.get_hlo_module().to_string(options))


def _named(closed: Any) -> Any:
    """Return the jaxpr as a function with the name of the function that was traced, which names the module."""
    fun = jex.jaxpr_as_fun(closed)

    def named(*args: Any) -> Any:
        return fun(*args)

    named.__name__ = getattr(closed.jaxpr.debug_info, "func_name", None) or "program"
    return named


def compile_jaxpr(closed: Any, settings: Settings, donated: Sequence[int] = ()) -> Program:
    """Return the compiled program of a jaxpr."""
    lowered = lower_jaxpr(closed, donated)
    try:
        return PROGRAMS.get(lowered.text, settings, lowered.module)
    except UnsupportedError as e:
        raise with_source_line(e, closed) from None
