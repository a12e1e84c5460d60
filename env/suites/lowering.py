"""Lower JAX functions to HLO text. Needs JAX (`pip install 'hlogym[jax]'`); reading a suite does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax._src.lib import hlo  # type: ignore[attr-defined]  # no public name prints HLO with all its constants

__all__ = ["lower_to_text"]


def lower_to_text(fn: Callable[..., Any], *args: Any) -> str:
    """Return the unoptimised HLO text of a function for CPU, with full constants and unused arguments but no metadata.

    Args:
        fn: the function.
        args: arrays, or `jax.ShapeDtypeStruct` where only the shape is known.
    """
    lowered = jax.jit(fn, keep_unused=True).trace(*args).lower(lowering_platforms=("cpu",))
    options = hlo.HloPrintOptions()
    options.print_large_constants = True
    options.print_metadata = False
    text: str = lowered.compiler_ir("hlo").get_hlo_module().to_string(options)
    return text.rstrip() + "\n"
