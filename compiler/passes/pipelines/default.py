"""The default pipeline, and XLA's order of the same passes, as lists to read."""

from __future__ import annotations

from functools import cache

from compiler.ir import HloModule
from compiler.passes.algebra.compared_values import ComparedValues
from compiler.passes.infrastructure.base import HloPass
from compiler.passes.infrastructure.pipeline import FixedPoint, PassPipeline, PipelineRun
from compiler.passes.infrastructure.registry import make_pass

STRUCTURE = (
    "async-expander",
    "call-inliner",
    "rng-expander",
    "collective-simplifier",
    "tuple-simplifier",
    "conditional-simplifier",
    "conditional-dead-output",
    "while-loop-simplifier",
    "while-loop-constant-sinking",
    "dce",
)
"""Calls, branches, loops and tuples: what the graph hangs on."""

SIMPLIFICATION = (
    "constant-folding",
    "cse",
    "dce",
    "algebraic-simplifier",
    "convert-mover",
    "unit-dimension-movement",
    "concatenate-sinking",
    "slice-movement",
    "sort-simplifier",
    "dead-output-elimination",
    "dot-slicing",
    "transposed-dot-cse",
    "matrix-chain",
)
"""The rules in one walk, what every rewrite leaves behind, and what looks at more than one instruction's operands."""

LOOPS = (
    "while-loop-unroller{max_trips=8,max_ops=2000}",
    "range-simplifier",
    "while-loop-invariant-code-motion",
    "while-loop-widening",
    "state-splitting",
)
"""Loops as a whole: their state, what does not change in them, and short ones written out."""

XLA_ORDER = (
    "async-expander", "collective-simplifier", "call-inliner", "dynamic-index-splitter", "batch-norm-expander",
    "select-and-scatter-expander", "scan-expander", "zero-sized-elimination", "map-inliner", "rng-expander",
    "convolution-to-dot",
    "while-loop-unroller{max_trips=8,max_ops=2000}", "arithmetic-identities", "reassociation", "compare-select-logic",
    "convert-chains", "convert-mover", "division-power", "exponential-products", "softmax-rewrites",
    "function-recognition", "distribution", "shape-movement", "broadcast-sinking",
    "slice-concat-pad", "concatenate-sinking", "slice-movement", "sort-simplifier", "dead-output-elimination",
    "reduce-window-rewriter",
    "dynamic-slice-simplifier", "unit-dimension-movement", "reduce-simplifier", "reduce-hoisting",
    "degenerate-dimensions", "dot-simplifier", "dot-of-blocks", "dot-slicing", "dot-distribution", "matrix-chain",
    "no-op-removal", "dce", "gather-simplifier", "while-loop-invariant-code-motion", "tuple-simplifier",
    "while-loop-constant-sinking", "while-loop-simplifier", "while-loop-widening", "state-splitting",
    "range-simplifier", "dce", "reshape-mover", "constant-folding", "conditional-simplifier",
    "conditional-dead-output", "transpose-folding", "transposed-dot-cse", "cse", "dce",
)  # fmt: skip
"""The passes of the default pipeline, once each (dce thrice), in the order in which XLA:CPU simplifies.

Source of the order: `cpu_compiler.cc`, RunHloPassesThroughLayoutAssn; what XLA does within its one algebraic
simplifier stands together here, as single passes.
"""

LOWERING = (
    "rng-expander", "batch-norm-expander", "map-inliner", "select-and-scatter-expander", "scan-expander",
    "reduce-window-rewriter", "reduce-window-to-slices", "operand-upcaster", "convolution-to-dot",
    "convolution-to-patches", "scatter-expander{simple=false}", "topk-decomposer",
    "dot-strength-reduction{max_contracted=4096,max_multiplications=4096}",
)  # fmt: skip
"""Ops that no kernel computes, written as ops that kernels do compute; and products so small that calling a library
costs more than the product (a microsecond, for four thousand multiplications, on a CPU of 2020)."""


def simplification() -> FixedPoint:
    """The part of the default pipeline that leaves loops as they are."""
    return FixedPoint("simplify", passes(*STRUCTURE, *SIMPLIFICATION))


def default_pipeline() -> PassPipeline:
    """Target-independent optimisation as `compile` runs it before fusion."""
    simplify = simplification()
    loops = FixedPoint("loops", (*passes(*LOOPS), simplify), limit=8)
    return PassPipeline("default", (simplify, loops, *passes("computation-deduplication", "cse", "dce")))


def xla_order() -> PassPipeline:
    """Our passes in XLA's order, each run once: a fixed baseline to compare learned orders with."""
    return PassPipeline("xla-order", passes(*XLA_ORDER))


def lower(module: HloModule) -> bool:
    """Write out what kernels would not compute, or not well, whatever passes ran before; whether anything changed.

    The default pipeline expands the same ops. Other orders may leave them behind, and the interpreter, which would
    compute them in the middle of a compiled program, is slower by orders of magnitude.
    """
    lowering, tidying = _lowering()
    run = PipelineRun()
    if not run.run(lowering, module):
        return False
    run.run(tidying, module)
    return True


@cache
def _lowering() -> tuple[PassPipeline, PassPipeline]:
    """Made once: each session lowers, and reading passes' texts takes longer than running them on a small module."""
    tidying = passes("tuple-simplifier", "constant-folding", "cse", "dce")
    lowering = PassPipeline("lowering", (*passes(*LOWERING), ComparedValues()))
    return lowering, PassPipeline("after-lowering", tidying)


def passes(*texts: str) -> tuple[HloPass, ...]:
    """Passes by their texts."""
    return tuple(make_pass(t) for t in texts)
