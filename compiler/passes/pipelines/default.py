"""The default pipeline, and XLA's order of the same passes, as lists."""

from __future__ import annotations

from collections.abc import Set
from functools import cache

from compiler.ir import HloComputation, HloModule
from compiler.passes.algebra.compared_values import ComparedValues
from compiler.passes.dots.attention_fusion import AttentionFusion
from compiler.passes.dots.attention_gradients import AttentionGradients
from compiler.passes.dots.boolean_dots import BooleanDots
from compiler.passes.dots.convolution_reversal import ConvolutionReversal
from compiler.passes.dots.deep_products import DeepProducts
from compiler.passes.dots.features_last import FeaturesLast
from compiler.passes.dots.half_operands import HalfOperands
from compiler.passes.dots.integer_parts import IntegerParts
from compiler.passes.dots.product_fusion import ProductFusion
from compiler.passes.dots.sparse_matrices import SparseMatrices
from compiler.passes.dots.tile_product_fusion import TileProductFusion
from compiler.passes.dots.vector_product_sums import VectorProductSums
from compiler.passes.expanders.complex_expander import ComplexExpander
from compiler.passes.expanders.fft_to_dot import FftToDot
from compiler.passes.expanders.reduce_precision_expander import ReducePrecisionExpander
from compiler.passes.infrastructure.base import HloPass, rewrite_each
from compiler.passes.infrastructure.pipeline import FixedPoint, PassPipeline, PipelineRun
from compiler.passes.infrastructure.registry import make_pass
from compiler.passes.infrastructure.rewrite_limits import treatable
from compiler.passes.infrastructure.sparing import Keeps, sparing
from compiler.passes.loops.linear_recurrences import LinearRecurrences
from compiler.passes.loops.loop_products import LoopProducts
from compiler.passes.loops.loop_weights import LoopWeightTranspose
from compiler.passes.loops.stack_allocation import LoopStackAllocation
from compiler.passes.movement.scatter_select import ScatterSelect
from compiler.passes.movement.short_rows import ShortRows
from compiler.passes.movement.spaced_constants import SpacedConstants

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
"""Passes on the structure of the program: calls, branches, loops and tuples."""

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
"""All rewrite rules in one walk, cleanup after rewrites, and passes that match more than operands."""

LOOPS = (
    "while-loop-unroller{max_trips=8,max_ops=2000}",
    "range-simplifier",
    "while-loop-invariant-code-motion",
    "while-loop-widening",
    "while-loop-slice-sinking",
    "state-splitting",
)
"""Passes on whole loops: carried state, invariants, and unrolling of short loops."""

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
    "while-loop-constant-sinking", "while-loop-simplifier", "while-loop-widening",
    "while-loop-slice-sinking", "state-splitting",
    "range-simplifier", "dce", "reshape-mover", "constant-folding", "conditional-simplifier",
    "conditional-dead-output", "transpose-folding", "transposed-dot-cse", "cse", "dce",
)  # fmt: skip
"""The passes of the default pipeline, once each (dce three times), in the order in which XLA:CPU simplifies.

The order is that of RunHloPassesThroughLayoutAssn in `cpu_compiler.cc`; the parts of XLA's single algebraic simplifier
are adjacent here as individual passes.
"""

LOWERING = (
    "rng-expander", "bitcast-width", "complex-expander", "batch-norm-expander", "sort-by-rank", "map-inliner",
    "floor-division", "select-and-scatter-expander", "scan-expander",
    "reduce-window-rewriter", "reduce-window-to-slices", "operand-upcaster", "convolution-to-dot",
    "convolution-to-patches", "topk-by-rank", "scatter-expander{simple=false}", "argmax-rewriter",
    "loop-vector-weights{max_multiplications=4096}",
    "dot-strength-reduction{max_contracted=4096,max_multiplications=4096,half_vectors=true,short_vectors=16}",
)  # fmt: skip
"""Expanders of ops that kernels cannot compute, of dots so small that a library call takes longer than the dot (about a
microsecond, or four thousand multiplications, on a CPU of 2020), of half-type matrices times vectors, which kernels
read as fast as memory delivers them, and of matrices times vectors of a few elements."""


@cache
def simplification() -> FixedPoint:
    """Return the part of the default pipeline that does not change loops."""
    return FixedPoint("simplify", passes(*STRUCTURE, *SIMPLIFICATION))


@cache
def default_pipeline() -> PassPipeline:
    """Return the target-independent optimizations that `compile` runs before fusion."""
    return _optimizations()


@cache
def gpu_pipeline() -> PassPipeline:
    """Return the default pipeline for a GPU, where more loops have kernels.

    They carry complex numbers as their parts, and products of few elements are sums. Long linear recurrences run in
    segments.
    """
    return _optimizations(ComplexExpander(wide=True, in_loops=True), LoopProducts(), LinearRecurrences())


def _optimizations(*on_loops: HloPass) -> PassPipeline:
    """Return the default pipeline with more passes on loops."""
    simplify = simplification()
    loops = FixedPoint("loops", (*passes(*LOOPS), *on_loops, simplify), limit=8)
    return PassPipeline("default", (simplify, loops, *passes("computation-deduplication", "cse", "dce")))


def xla_order() -> PassPipeline:
    """Return our passes in XLA's order, each run once: a fixed baseline for learned orders."""
    return PassPipeline("xla-order", passes(*XLA_ORDER))


def lower(module: HloModule, keeps: Keeps | None = None, features_last: FeaturesLast | None = None) -> bool:
    """Expand ops that kernels cannot compute, or not efficiently; return whether the module changed.

    The default pipeline expands the same ops, but other orders may leave them. In a compiled program such ops would run
    in the interpreter, which is orders of magnitude slower.

    Args:
        module: the module to change.
        keeps: says for an instruction whether it is kept as it is, because a library or a kernel computes it.
        features_last: moves the features of convolutions to the end; by default of those that are kept.
    """
    lowering, tidying = _lowering()
    if keeps is not None:
        spared = (sparing(p, keeps) for p in lowering.passes)
        lowering = PassPipeline(lowering.name, (ConvolutionReversal(), features_last or FeaturesLast(keeps), *spared))
    run = PipelineRun()
    changed = run.run(lowering, module)
    changed |= LoopStackAllocation().run(module)
    if changed:
        run.run(tidying, module)
    return SpacedConstants().run(module) | changed


def expand_transforms(module: HloModule, keeps: Keeps) -> bool:
    """Replace Fourier transforms by matrix products, and ops on c128 by ops on its parts; return whether any was.

    Args:
        module: the module to change, before `lower`.
        keeps: says for a transform whether it is kept as it is.
    """
    return sparing(FftToDot(), keeps).run(module) | ComplexExpander(wide=True).run(module)


def _cleaned(module: HloModule, changed: bool) -> bool:
    """Run the passes that clean up after a rewrite of a lowered module, if there was one; return whether there was."""
    if changed:
        PipelineRun().run(_lowering()[1], module)
    return changed


def select_updates(module: HloModule) -> bool:
    """Replace scatters of single elements into constant arrays by selections; return whether any was."""
    return _cleaned(module, ScatterSelect().run(module))


def expand_products(module: HloModule, keeps: Keeps) -> bool:
    """Rewrite products with sparse known matrices, and deep ones of short integers; return whether there were any.

    Args:
        module: the module to change, before `lower`.
        keeps: says for a dot whether it is kept as it is.
    """
    changed = sparing(SparseMatrices(), keeps).run(module)
    return _cleaned(module, changed) | divide_integer_products(module, keeps)


def divide_integer_products(module: HloModule, keeps: Keeps) -> bool:
    """Split deep products of short integers into parts whose sums are exact in f32; return whether any was split.

    Args:
        module: the module to change, before `lower`.
        keeps: says for a dot whether it is kept as it is.
    """
    return _cleaned(module, sparing(IntegerParts(), keeps).run(module))


def halve_products(module: HloModule, keeps: Keeps) -> bool:
    """Multiply halves where the operands of f32 products have no more bits than these; return whether any are.

    Args:
        module: the module to change, after `lower`.
        keeps: says for a dot whether it is kept as it is.
    """
    return _cleaned(module, sparing(HalfOperands(), keeps).run(module))


def stage_reductions(module: HloModule, keeps: Keeps) -> bool:
    """Divide large reductions to few results, and scans and topk of few rows, into stages; return whether any was.

    Args:
        module: the module to change, after `lower`.
        keeps: says for a reduction, scan or topk whether it is kept as it is.
    """
    divided = [sparing(make_pass(name), keeps).run(module) for name in ("scan-stages", "reduce-stages", "topk-stages")]
    return _cleaned(module, any(divided))


def group_products(module: HloModule, library: Keeps) -> bool:
    """Make fusions of the attention and the products that our own C kernels compute best; return whether any was made.

    Args:
        module: the module to change, after `lower`.
        library: says for a dot whether a library other than BLAS computes it.
    """
    products = ProductFusion()
    changed = DeepProducts().run(module)
    changed |= ShortRows().run(module)
    changed |= AttentionFusion().run(module)
    changed |= LoopWeightTranspose().run_where(module, products.is_small)
    changed |= products.run_beside(module, library)
    return _cleaned(module, changed)


def group_tile_products(module: HloModule, keeps: Keeps, spared: Set[HloComputation]) -> bool:
    """Make fusions of attention and of the products that GPU kernels compute best, and sums of those with vectors.

    Args:
        module: the module to change, after `lower`.
        spared: computations in which no fusions are made.
        keeps: says for a dot with a vector, and for the reduction that it becomes, whether it is kept as it is.

    Returns:
        Whether the module changed.
    """
    changed = False
    for group in (AttentionGradients(), AttentionFusion(few_queries=True, row_results=True), TileProductFusion()):
        changed |= rewrite_each([c for c in treatable(module) if c not in spared], group, group.run_on)
    sums = sparing(VectorProductSums(), keeps).run(module)
    changed = _cleaned(module, changed or sums)
    if sums:
        stage_reductions(module, keeps)
    return changed


@cache
def _lowering() -> tuple[PassPipeline, PassPipeline]:
    """Build the pipelines once: every session lowers, and parsing the specs takes longer than a small module."""
    tidying = passes("tuple-simplifier", "constant-folding", "cse", "dce")
    expanders = BooleanDots(), ReducePrecisionExpander(), *passes(*LOWERING)
    lowering = PassPipeline("lowering", (*expanders, ComparedValues()))
    return lowering, PassPipeline("after-lowering", tidying)


def passes(*specs: str) -> tuple[HloPass, ...]:
    """Make passes from specs such as "cse" or "dce@1"."""
    return tuple(make_pass(t) for t in specs)
