"""JAX functions into an HloModule."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from compiler.frontends.names import argument_names as argument_names
from compiler.frontends.stablehlo import from_xla, jaxlib_modules
from compiler.frontends.stablehlo import stablehlo as stablehlo
from compiler.ir.module import HloModule


def lower(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> HloModule:
    """The HLO of a JAX function at the shapes of these arguments, not optimised, every constant in full.

    Args:
        fn: any function JAX can trace; one that is jitted already keeps its settings (static arguments, donation).
        *args: arrays, scalars, pytrees of them, or `jax.ShapeDtypeStruct` where no value is at hand.
        **kwargs: the same by name.

    Returns:
        A module whose parameters are the leaves of the arguments in order, unused ones included (unless `fn` is
        jitted and drops them), and whose result is a tuple of the leaves. `argument_names` tells which is which.

    Raises:
        BackendError: JAX is not installed.
    """
    _, hlo = jaxlib_modules()
    jax = importlib.import_module("jax")
    jitted = fn if hasattr(fn, "trace") else jax.jit(fn, keep_unused=True)
    lowered = jitted.trace(*args, **kwargs).lower(lowering_platforms=("cpu",))
    return from_xla(lowered.compiler_ir("hlo"), hlo)
