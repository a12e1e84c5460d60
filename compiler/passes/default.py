"""The default pipeline, and XLA's order of the same passes, as lists to read."""

from __future__ import annotations

from compiler.passes.base import HloPass
from compiler.passes.pipeline import FixedPoint, PassPipeline
from compiler.passes.registry import make_pass

SIMPLIFY = ("dce",)
"""What runs to a fixed point first."""


def default_pipeline() -> PassPipeline:
    """Target-independent optimisation as `compile` runs it before fusion."""
    return PassPipeline("default", (FixedPoint("simplify", _passes(SIMPLIFY)),))


def xla_order() -> PassPipeline:
    """Our passes in the order in which XLA's own pipelines run theirs, each once: a fixed baseline to compare with."""
    return PassPipeline("xla-order", _passes(SIMPLIFY))


def _passes(names: tuple[str, ...]) -> tuple[HloPass, ...]:
    return tuple(make_pass(n) for n in names)
