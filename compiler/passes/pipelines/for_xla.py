"""The pipeline in front of stock XLA, which leaves alone what XLA recognises and rewrites itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compiler.ir import HloModule
from compiler.passes.infrastructure.base import HloPass
from compiler.passes.infrastructure.pipeline import FixedPoint, PassPipeline, PipelineRun
from compiler.passes.pipelines.default import LOOPS, SIMPLIFICATION, STRUCTURE, passes

__all__ = ["LEFT_TO_XLA", "FirstAccepted", "xla_pipeline"]

LEFT_TO_XLA = (
    "scan-expander",
    "batch-norm-expander",
    "select-and-scatter-expander",
    "reduce-window-rewriter",
    "convolution-to-dot",
    "dot-simplifier",
    "transpose-folding",
    "reassociation",
    "compare-select-logic",
    "reshape-mover",
)
"""Members of the algebraic simplifier that are left out.

XLA has rewrites of its own for cumulative reductions and for composite ops, and chooses the layouts of matrix products:
a transpose that is folded into a product or moved away from it takes that choice away. XLA combines constants of
elementwise chains, too, but after the choice of layouts, and thereby reads fewer arrays in two orders. Comparisons
that several fusions share are stored by one and loaded by the others, where repeating them is faster.
"""

_LEFT_OUT = ("matrix-chain", "transposed-dot-cse", "state-splitting", "while-loop-widening")
"""Passes of the default pipeline that change the matrix products and the loop states that XLA gets.

A widened loop trades many small products for a large one and its slices, which XLA:CPU computes in separate kernels.
"""

_FOLDING = "constant-folding{iotas=false}"
"""XLA computes an iota, and what is made of it, inside of fusions, while it loads constant arrays from memory."""

REWRITES = (
    "reshape-mover{shared_products=false}",
    "argmax-rewriter",
    "select-and-scatter-expander",
    "reduce-window-to-slices{max_parts=16}",
    "convolution-to-dot{shared=false}",
    "convolution-to-patches{max_elements=0,max_batches=1}",
    "sort-by-integer-key",
)
"""Ops for which XLA:CPU generates scalar loops, in forms that it vectorises.

Of the convolutions these are those of single window positions, which are products, and those of one feature per group.
"""


@dataclass(frozen=True)
class FirstAccepted:
    """Runs the first of several pipelines whose result is accepted, or the first if none is; itself a pass.

    Attributes:
        name: its name in records.
        passes: the pipelines, the preferred one first.
        accepts: says of a module whether it is accepted; it may not change the module.
    """

    name: str
    passes: tuple[HloPass, ...]
    accepts: Callable[[HloModule], bool]

    def run(self, module: HloModule) -> bool:
        """Run the chosen pipeline; return whether the module changed."""
        return PipelineRun().run(self, module)

    def run_within(self, run: PipelineRun, module: HloModule) -> bool:
        """Choose by trials on copies, run the chosen pipeline and record its passes in `run`."""
        return run.apply(self.passes[self._chosen(module)], module)

    def _chosen(self, module: HloModule) -> int:
        for n, candidate in enumerate(self.passes):
            trial = module.clone()
            PipelineRun().run(candidate, trial)
            if self.accepts(trial):
                return n
        return 0


def xla_pipeline(is_cheap: Callable[[HloModule], bool] | None = None) -> PassPipeline:
    """Return the passes that `compile(..., backend="xla")` runs.

    Args:
        is_cheap: says whether XLA runs a module in the thread that calls it. If given, loops are unrolled, and ops
            written out, only in modules that stay cheap, or that cannot be.
    """
    full = _pipeline(LOOPS, REWRITES)
    if is_cheap is None:
        return full
    candidates = (full, _pipeline(LOOPS[1:], REWRITES), _pipeline((), ()), PassPipeline("none", ()))
    return PassPipeline("xla", (FirstAccepted("cheap", candidates, is_cheap),))


def _pipeline(loop_passes: tuple[str, ...], rewrites: tuple[str, ...]) -> PassPipeline:
    algebra = "algebraic-simplifier{without=" + "+".join(LEFT_TO_XLA) + "}"
    own = {"algebraic-simplifier": algebra, "constant-folding": _FOLDING}
    simple = [own.get(name, name) for name in SIMPLIFICATION if name not in _LEFT_OUT]
    simplify = FixedPoint("simplify", passes(*STRUCTURE, *simple))
    loop_passes = tuple(p.replace("unroller{", "unroller{stencils=false,") for p in loop_passes if p not in _LEFT_OUT)
    loops = FixedPoint("loops", (*passes(*loop_passes), simplify), limit=8)
    last = FixedPoint("rewrites", (*passes(*rewrites), simplify), limit=8)
    return PassPipeline("xla", (simplify, loops, last, *passes("computation-deduplication", "cse", "dce")))
