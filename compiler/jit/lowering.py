"""From a closed jaxpr to a compiled program."""

from __future__ import annotations

from collections import Counter
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

__all__ = [
    "LoweredJaxpr", "SeveralDevicesError", "check_effects", "compile_jaxpr", "depends_on_mesh", "effects_of",
    "lower_jaxpr", "makes_references", "spec",
]  # fmt: skip

_NAMED_AXIS = "NamedAxis"
"""Effect of the use of a named axis."""
_REFERENCES = "InternalMutableArray"
"""Effect of a reference that a function makes for itself."""


def spec(aval: Any) -> Any:
    """Return an abstract value, or a reference, as an argument for tracing.

    Inside `jax.shard_map`, and for arrays with explicit shardings, its type depends on axes of a mesh.
    """
    sharding = getattr(aval, "sharding", None)
    is_of_mesh = isinstance(sharding, jax.sharding.NamedSharding) and not sharding.mesh.empty
    return jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
        aval.shape,
        aval.dtype,
        weak_type=getattr(aval, "weak_type", False),
        is_ref=hasattr(aval, "inner_aval"),
        sharding=sharding if is_of_mesh else None,
        manual_axis_type=getattr(aval, "mat", None),
    )


def _spec_of_one_device(aval: Any) -> Any:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)  # type: ignore[no-untyped-call]


class SeveralDevicesError(UnsupportedError):
    """A function divides its arrays between several devices, so that XLA has to run it."""


@dataclass(frozen=True)
class LoweredJaxpr:
    """A program in XLA's representation.

    Attributes:
        computation: the XlaComputation.
        text: HLO text without metadata.
        devices: number of devices between which XLA would divide it.
    """

    computation: Any
    text: str
    devices: int

    def module(self) -> HloModule:
        """Return the program as a module."""
        return from_xla(self.computation, jaxlib_modules()[1])


def check_effects(closed: Any) -> None:
    """Raise UnsupportedError if a jaxpr has effects; programs have none, and a call without results is dropped.

    The use of a named axis counts as an effect in JAX; it is gone once the call is batched. So does that of a reference
    which the function makes for itself; JAX replaces it by values where it lowers the function.
    """
    names = effects_of(closed)
    if names:
        raise UnsupportedError(
            f"the function has effects ({', '.join(sorted(names))}), such as printing, so that it is not one program; "
            "a call runs it in parts"
        )


def makes_references(closed: Any) -> bool:
    """Check whether a jaxpr makes references, which are arrays that it changes."""
    return _REFERENCES in _all_effects(closed)


def depends_on_mesh(closed: Any) -> bool:
    """Check whether a jaxpr uses a named axis, or takes or returns values of which each device has its own."""
    return _NAMED_AXIS in _all_effects(closed) or not all(
        a.mat.empty for a in (*closed.in_avals, *closed.out_avals) if hasattr(a, "mat")
    )


def effects_of(jaxpr: Any) -> set[str]:
    """Return the names of the effects of a jaxpr or an equation that a program cannot have."""
    return _all_effects(jaxpr) - {_NAMED_AXIS, _REFERENCES}


def _all_effects(jaxpr: Any) -> set[str]:
    return {type(e).__name__.removesuffix("Effect") for e in jaxpr.effects}


def lower_jaxpr(closed: Any, donated: Sequence[int] = ()) -> LoweredJaxpr:
    """Lower a jaxpr whose arguments are arrays; `donated` are the numbers of arguments that results may take over."""
    jitted = jax.jit(_named(closed), keep_unused=True, donate_argnums=_usable(closed, donated))
    with inlining():
        lowered = jitted.trace(*map(_spec_of_one_device, closed.in_avals)).lower(lowering_platforms=("cpu",))
    computation = lowered.compiler_ir("hlo")
    devices = lowered.compiler_ir("stablehlo").operation.attributes["mhlo.num_partitions"].value
    _, hlo = jaxlib_modules()
    options = hlo.HloPrintOptions()
    options.print_large_constants = True
    options.print_metadata = False
    return LoweredJaxpr(computation, computation.get_hlo_module().to_string(options), devices)


def _usable(closed: Any, donated: Sequence[int]) -> tuple[int, ...]:
    """Return the donated arguments that there are results for; JAX warns of the others by itself."""
    left = Counter((a.shape, a.dtype) for a in closed.out_avals)
    usable = []
    for n in donated:
        of_type = closed.in_avals[n].shape, closed.in_avals[n].dtype
        if left[of_type]:
            left[of_type] -= 1
            usable.append(n)
    return tuple(usable)


def _named(closed: Any) -> Any:
    """Return the jaxpr as a function with the name of the function that was traced, which names the module."""
    fun = jex.jaxpr_as_fun(closed)

    def named(*args: Any) -> Any:
        return fun(*args)

    named.__name__ = getattr(closed.jaxpr.debug_info, "func_name", None) or "program"
    return named


def compile_jaxpr(closed: Any, settings: Settings, donated: Sequence[int] = ()) -> Program:
    """Return the compiled program of a jaxpr.

    Raises:
        SeveralDevicesError: it is for several devices.
        UnsupportedError: an op is not supported; the message names its source line.
    """
    lowered = lower_jaxpr(closed, donated)
    if lowered.devices > 1:
        raise SeveralDevicesError(f"the function is for {lowered.devices} devices, and a program runs on one")
    try:
        return PROGRAMS.get(lowered.text, settings, lowered.module)
    except UnsupportedError as e:
        raise with_source_line(e, closed) from None
