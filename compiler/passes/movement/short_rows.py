"""Short rows outward: what computes rows of a few elements, and is then transposed, computes the transposed array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.passes.infrastructure.base import InstructionPass
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import splat_value
from compiler.passes.infrastructure.rewriting import ELEMENTWISE

SHORT = 16
"""Elements per row below which vectors along rows are partly empty."""
_MAX_OPS = 256
"""Maximum number of ops that are transposed."""
_MOVABLE = frozenset(op for op in ELEMENTWISE if op not in (Opcode.COPY, Opcode.STOCHASTIC_CONVERT, Opcode.MAP))


@dataclass(frozen=True)
class ShortRows(InstructionPass):
    """Rewrite transpose(op(slice(a), broadcast(b))) -> op(slice(transpose(a)), broadcast(b)), up to broadcasts.

    Only if short rows become long ones, nothing else reads the ops, and all their leaves are broadcasts or splats, so
    no transpose is left. B-splines of a KAN layer are of this kind: their bases are short rows, and slices of
    longer ones, which a kernel would read element by element.
    """

    name: ClassVar[str] = "short-rows"
    opcodes: ClassVar[frozenset[Opcode] | None] = frozenset({Opcode.TRANSPOSE})

    def visit(self, instruction: HloInstruction) -> bool:
        """Rewrite a transpose; return whether anything changed."""
        i, computation = instruction, instruction.parent
        if computation is None or i.control_predecessors or not _lengthens_rows(i):
            return False
        region = _region(i)
        if region is None:
            return False
        order = tuple(i.dimensions)
        b, made = Builder(computation), dict[HloInstruction, HloInstruction]()
        for op in region:
            made[op] = _transposed(op, order, made, b)
        computation.replace(i, made[i.operands[0]])
        return True


def _lengthens_rows(i: HloInstruction) -> bool:
    short, long = i.operands[0].shape.dimensions[-1:], i.shape.dimensions[-1:]
    return (1,) < short < (SHORT,) <= long


def _region(transpose: HloInstruction) -> list[HloInstruction] | None:
    """Return the ops that only a transpose reads, operands first, or None if they have a leaf that would stay."""
    found: dict[HloInstruction, None] = {}
    computes = False
    work = [transpose.operands[0]]
    while work:
        i = work.pop()
        if i in found:
            continue
        found[i] = None
        if i.opcode is Opcode.BROADCAST or splat_value(i) is not None:
            continue
        if len(found) > _MAX_OPS or i.is_root or i.control_predecessors:
            return None
        if i.opcode is not Opcode.SLICE and (i.opcode not in _MOVABLE or _has_other_shape(i)):
            return None
        computes |= i.opcode is not Opcode.SLICE
        work += i.operands
    inner = [i for i in found if i.opcode is not Opcode.BROADCAST and splat_value(i) is None]
    if not computes or any(u is not transpose and u not in found for i in inner for u in i.users):
        return None
    return [i for i in transpose.parent.post_order() if i in found] if transpose.parent else None


def _has_other_shape(i: HloInstruction) -> bool:
    """Check for an operand with other dimensions, such as a scalar predicate of a select."""
    return any(o.shape.dimensions != i.shape.dimensions for o in i.operands)


def _transposed(
    i: HloInstruction, order: tuple[int, ...], made: dict[HloInstruction, HloInstruction], b: Builder
) -> HloInstruction:
    dims = tuple(i.shape.dimensions[d] for d in order)
    value = splat_value(i)
    if value is not None:
        return b.splat(value, i.shape.with_dimensions(dims))
    if i.opcode is Opcode.BROADCAST:
        moved = [order.index(d) for d in i.dimensions]
        rising = sorted(range(len(moved)), key=moved.__getitem__)
        return b.broadcast(b.transpose(i.operands[0], rising), dims, sorted(moved))
    operands = [made[o] for o in i.operands]
    if i.opcode is Opcode.SLICE:
        return b.slice(operands[0], [i.attributes["slice"][d] for d in order])
    return b.with_operands(i, operands, i.shape.with_dimensions(dims))
