"""Product fusion for a GPU: the dots that generated kernels compute best, each with the elementwise ops around it.

A library computes a large product faster than the generated kernel does: it uses instructions of one generation of
GPUs, and divides long sums among blocks. The generated kernel spares what the library cannot do: passes over memory for
elementwise ops before and after the product, transposes of operands that the library cannot read as they are, and the
launches of these kernels. A product is fused if it is estimated to take less time with what it spares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.ir.types import PrimitiveType as T
from compiler.passes.dots.dot_properties import is_plain_dot, needs_transpose
from compiler.passes.dots.outlining import is_fused, outline
from compiler.passes.dots.product_fusion import ProductSizes, product_region
from compiler.passes.infrastructure.base import ComputationPass
from compiler.passes.infrastructure.rewrite_limits import pinned

_TYPES = frozenset({T.F32, T.F64, T.F16, T.BF16})
_HALVES = frozenset({T.F16, T.BF16})
_MOVED = frozenset({Opcode.RESHAPE, Opcode.BITCAST, Opcode.BROADCAST, Opcode.CONSTANT})
"""Opcodes that cost no pass over memory by themselves."""
UNITS = 132
"""Multiprocessors of an H100, for which all figures here are estimates: none has been measured."""
RATES = {T.F16: 7e14, T.BF16: 7e14, T.F32: 5e13, T.F64: 5e13}
"""Flops per second of a library. The data sheet of the H100 says 9.9e14, 9.9e14, 6.7e13 and 6.7e13 (tensor cores)."""
SLOWDOWNS = {T.F16: 1.7, T.BF16: 1.7, T.F32: 1.2, T.F64: 2.0}
"""Estimated time of a large generated product relative to a library: it uses `mma` instead of `wgmma`, and no tensor
cores for f64."""
BANDWIDTH = 2.5e12
"""Bytes per second from memory."""
LAUNCH = 3e-6
"""Seconds that a kernel takes longer than its work, in a graph."""
TILE, STEP, STEP_SECONDS = 64, 32, 4e-7
"""Edge of a tile, elements along the depth that are loaded at a time, and the latency of such a load. A product with
too few tiles for all multiprocessors takes that long per step, because nothing else overlaps with it; where groups of
threads divide the steps, one multiprocessor takes as long to multiply them."""


@dataclass(frozen=True)
class TileProductFusion(ComputationPass):
    """Make a fusion of each dot that a generated GPU kernel computes faster than a library, with the ops around it."""

    name: ClassVar[str] = "tile-product-fusion"

    def run_on(self, computation: HloComputation) -> bool:
        """Rewrite one computation; return whether it changed."""
        if computation.parent is None or is_fused(computation):
            return False
        changed = False
        fixed = pinned(computation)
        for dot in [i for i in computation.post_order() if i.opcode is Opcode.DOT]:
            if dot in fixed or not _has_tiles(dot):
                continue
            region = product_region(computation, dot, fixed)
            if generated_seconds(dot) <= library_seconds(dot) + spared_seconds(dot, region):
                outline(computation, region, "product")
                changed = True
        return changed


def _has_tiles(dot: HloInstruction) -> bool:
    """Check whether a dot has a kernel that divides it into tiles; a product with a vector is a reduction instead."""
    if not is_plain_dot(dot) or any(x.shape.element_type not in _TYPES for x in (dot, *dot.operands)):
        return False
    sizes = ProductSizes.of(dot)
    return 0 not in (sizes.batch, sizes.k) and min(sizes.m, sizes.n) > 1


def _type_of(dot: HloInstruction) -> T:
    """Return the type in which a generated kernel multiplies: that from which all elements were converted, if any."""
    sources = [o.operands[0] if o.opcode is Opcode.CONVERT else o for o in dot.operands]
    types = {o.shape.element_type for o in sources}
    if len(types) == 1 and types <= _HALVES:
        return types.pop()
    return max((o.shape.element_type for o in dot.operands), key=lambda t: t.byte_size)


def _flops(dot: HloInstruction) -> float:
    s = ProductSizes.of(dot)
    return 2.0 * s.batch * s.m * s.n * s.k


def _traffic(dot: HloInstruction) -> float:
    return sum(x.shape.byte_size for x in (dot, *dot.operands)) / BANDWIDTH


def library_seconds(dot: HloInstruction) -> float:
    """Return the estimated seconds of a dot alone in a library, without what it needs before."""
    return max(_flops(dot) / RATES[dot.operands[0].shape.element_type], _traffic(dot))


def generated_seconds(dot: HloInstruction) -> float:
    """Return the estimated seconds of a dot alone in a generated kernel."""
    s, t = ProductSizes.of(dot), _type_of(dot)
    tiles = s.batch * -(-s.m // TILE) * -(-s.n // TILE)
    whole = tiles * (TILE * TILE * 2.0 * s.k) / (RATES[t] / SLOWDOWNS[t])
    waiting = -(-s.k // STEP) * STEP_SECONDS * -(-tiles // (4 * UNITS))
    return max(whole, waiting, _traffic(dot))


def spared_seconds(dot: HloInstruction, region: Sequence[HloInstruction]) -> float:
    """Return the seconds of passes over memory and launches that a library would need besides the dot.

    Args:
        dot: the dot.
        region: what the fusion would consist of.
    """
    inside = set(region)
    seconds = 0.0
    around = [i for i in region if i is not dot and i.opcode not in _MOVED]
    read = {o for i in around for o in i.operands if (o not in inside or o is dot) and o.opcode not in _MOVED}
    before = [o for o in dot.operands if o in inside and o.opcode not in (Opcode.RESHAPE, Opcode.BITCAST)]
    written = {i for i in around if i.is_root or any(u not in inside for u in i.users)} | set(before)
    if around or before:
        seconds += sum(i.shape.byte_size for i in read | written) / BANDWIDTH
        seconds += LAUNCH * (bool(before) + any(i in around for i in written - set(before)))
    for operand in dot.operands:
        if operand not in before and needs_transpose(dot, operand):
            seconds += LAUNCH + 2.0 * operand.shape.byte_size / BANDWIDTH
    return seconds
