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
_CONTINUING = _MOVED | {Opcode.REDUCE, Opcode.TRANSPOSE, Opcode.SLICE, Opcode.CONCATENATE, Opcode.PAD}
"""Opcodes besides elementwise ones whose kernels can make what follows a product."""
UNITS = 132
"""Multiprocessors of an H100, for which all figures here are estimates: none has been measured."""
RATES = {T.F16: 7e14, T.BF16: 7e14, T.F32: 5e13, T.F64: 5e13}
"""Flops per second of a library. The data sheet of the H100 says 9.9e14, 9.9e14, 6.7e13 and 6.7e13 (tensor cores)."""
SLOWDOWNS = {T.F16: 2.0, T.BF16: 2.0, T.F32: 1.2, T.F64: 2.0}
"""Estimated time of a large generated product relative to a library: it uses `mma` instead of `wgmma`, and no tensor
cores for f64."""
BANDWIDTH, CACHE_BANDWIDTH = 2.5e12, 4.5e12
"""Bytes per second from memory, and from the level 2 cache."""
LOAD_SHARE = 0.5
"""Share of the latency of a step that each load of an element adds, if more than two compute it."""
LARGE_TILES = ((128, 128), (128, 64), (64, 64), (32, 32))
"""Rows and columns of the tiles that generated kernels prefer."""
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
            region = _without_widening(product_region(computation, dot, fixed))
            if generated_seconds(dot, region) < library_seconds(dot) + spared_seconds(dot, region):
                outline(computation, region, "product")
                changed = True
        return changed


def _without_widening(region: Sequence[HloInstruction]) -> list[HloInstruction]:
    """Return a region without the conversions at its end to wider types, which the kernels that read it can make."""
    kept = list(region)
    for i in reversed(region):
        inside = set(kept)
        if i.opcode is not Opcode.CONVERT or not inside.isdisjoint(i.users) or not _is_continued(i):
            continue
        source = i.operands[0]
        if source in inside and len(source.users) == 1 and source.shape.byte_size < i.shape.byte_size:
            kept.remove(i)
    return kept


def _is_continued(i: HloInstruction) -> bool:
    """Check whether all users of a value compute something from its elements, in kernels of their own."""
    return not i.is_root and all(u.opcode.is_elementwise or u.opcode in _CONTINUING for u in i.users)


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


def generated_seconds(dot: HloInstruction, region: Sequence[HloInstruction]) -> float:
    """Return the estimated seconds of a dot in a generated kernel with what is computed before it.

    Each tile of the result reads what its rows and columns are computed from.

    Args:
        dot: the dot.
        region: what the fusion would consist of.
    """
    s, t = ProductSizes.of(dot), _type_of(dot)
    edges = _tile_edges(s, t)
    tiles = s.batch * -(-s.m // TILE) * -(-s.n // TILE)
    whole = tiles * (TILE * TILE * 2.0 * s.k) / (RATES[t] / SLOWDOWNS[t])
    waiting = -(-s.k // STEP) * STEP_SECONDS * -(-tiles // (4 * UNITS))
    (lhs, left), (rhs, right) = (_reads(o, region) for o in dot.operands)
    waiting *= max(1.0, LOAD_SHARE * max(left, right))
    reading = (lhs * -(-s.n // edges[1]) + rhs * -(-s.m // edges[0])) / CACHE_BANDWIDTH
    return max(whole, waiting, reading, _traffic(dot))


def _tile_edges(s: ProductSizes, t: T) -> tuple[int, int]:
    """Return the rows and columns of a tile: the largest of which there are enough for all multiprocessors."""
    sizes = LARGE_TILES if t in _HALVES else LARGE_TILES[1:]
    enough = (size for size in sizes if s.batch * -(-s.m // size[0]) * -(-s.n // size[1]) >= UNITS)
    return next(enough, sizes[-1])


def _reads(operand: HloInstruction, region: Sequence[HloInstruction]) -> tuple[float, int]:
    """Return the bytes and the number of loads per element by which an operand is computed inside of a region."""
    inside = set(region)
    if operand not in inside:
        return operand.shape.byte_size, 1
    seen, work, total, loads = {operand}, [operand], 0.0, 0
    while work:
        i = work.pop()
        for o in i.operands:
            if o in inside and o.operands:
                work += [] if o in seen else [o]
                seen.add(o)
            elif not o.shape.is_scalar:
                total += min(o.shape.byte_size, operand.shape.num_elements * o.shape.element_type.byte_size)
                loads += 1
    return total, max(1, loads)


def spared_seconds(dot: HloInstruction, region: Sequence[HloInstruction]) -> float:
    """Return the seconds of passes over memory and launches that a library would need besides the dot.

    What follows the dot costs nothing where a kernel that exists in any case can make it.

    Args:
        dot: the dot.
        region: what the fusion would consist of.
    """
    inside = set(region)
    before = [o for o in dot.operands if o in inside and o.opcode not in (Opcode.RESHAPE, Opcode.BITCAST)]
    above = _above(dot, inside)
    after = [i for i in region if i is not dot and i not in above]
    seconds = _pass_seconds([i for i in above if i.opcode not in _MOVED], set(before), inside)
    outputs = {i for i in after if i.is_root or any(u not in inside for u in i.users)}
    if not all(_is_continued(i) for i in outputs):
        seconds += _pass_seconds([i for i in after if i.opcode not in _MOVED], outputs, inside - {dot})
    elif dot not in outputs and all(u in inside for u in dot.users):  # the kernels that follow read the product instead
        extra = dot.shape.byte_size - sum(i.shape.byte_size for i in outputs)
        seconds += max(0, extra) / BANDWIDTH
    for operand in dot.operands:
        if operand not in before and needs_transpose(dot, operand):
            seconds += LAUNCH + 2.0 * operand.shape.byte_size / BANDWIDTH
    return seconds


def _above(dot: HloInstruction, inside: set[HloInstruction]) -> set[HloInstruction]:
    """Return the instructions of a region from which the operands of its dot are computed."""
    found, work = set[HloInstruction](), list(dot.operands)
    while work:
        i = work.pop()
        if i in inside and i not in found:
            found.add(i)
            work += i.operands
    return found


def _pass_seconds(
    computed: Sequence[HloInstruction], written: set[HloInstruction], inside: set[HloInstruction]
) -> float:
    """Return the seconds of a kernel of some instructions, which reads what is not inside and writes some of them."""
    if not computed:
        return 0.0
    read = {o for i in computed for o in i.operands if o not in inside and o.opcode not in _MOVED}
    size = sum(i.shape.byte_size for i in read | written)
    return size / BANDWIDTH + LAUNCH
