"""The pipeline in front of stock XLA, which leaves alone what XLA recognises and rewrites itself."""

from __future__ import annotations

from compiler.passes.infrastructure.pipeline import FixedPoint, PassPipeline
from compiler.passes.pipelines.default import LOOPS, SIMPLIFICATION, STRUCTURE, passes

LEFT_TO_XLA = (
    "scan-expander",
    "batch-norm-expander",
    "select-and-scatter-expander",
    "reduce-window-rewriter",
    "convolution-to-dot",
    "dot-simplifier",
    "transpose-folding",
)
"""Members of the algebraic simplifier that are left out.

XLA has rewrites of its own for cumulative reductions and for composite ops, and chooses the layouts of matrix products
and convolutions: a transpose that is folded into a product, or a convolution that becomes a product, takes that choice
away.
"""

_LEFT_OUT = ("matrix-chain", "transposed-dot-cse", "state-splitting")
"""Passes of the default pipeline that change the matrix products and the loop states that XLA gets."""


def xla_pipeline() -> PassPipeline:
    """Return the passes that `compile(..., backend="xla")` runs: structure, loops, algebra without `LEFT_TO_XLA`."""
    algebra = "algebraic-simplifier{without=" + "+".join(LEFT_TO_XLA) + "}"
    simple = [algebra if name == "algebraic-simplifier" else name for name in SIMPLIFICATION if name not in _LEFT_OUT]
    simplify = FixedPoint("simplify", passes(*STRUCTURE, *simple))
    loops = FixedPoint("loops", (*passes(*(p for p in LOOPS if p not in _LEFT_OUT)), simplify), limit=8)
    return PassPipeline("xla", (simplify, loops, *passes("computation-deduplication", "cse", "dce")))
