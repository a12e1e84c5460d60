"""Masks of indices: for which blocks of queries and keys all scores are one constant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from compiler.codegen.nest import index as ix
from compiler.codegen.nest.index import Index, IndexExpr, IndexSymbol, Var
from compiler.codegen.nest.indexing_maps import INDEXING_MAPS
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode

_NEGATED = {"LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT"}


@dataclass(frozen=True, slots=True)
class BlockMask:
    """A test of a block: all its scores are `value` unless `bound`, an upper bound over it, is at least `low`."""

    bound: IndexExpr
    low: int
    value: float


def block_mask(
    scores: HloInstruction, index: Index, mapping: Mapping[IndexSymbol, IndexExpr], *inside: Var
) -> BlockMask | None:
    """Return the mask of scores, or None if they are not masked by a comparison of indices.

    Args:
        scores: select(mask, scores, constant), or scores + select(mask, 0, -inf).
        index: of one score.
        mapping: the positions in a block that the variables in `index` stand for.
        inside: the variables of a position within a block.
    """
    i, index = _source(scores, index)
    if i.opcode is Opcode.ADD:
        for operand in i.operands:
            found = _of_select(*_source(operand, index), mapping, inside)
            if found is not None and found.value == -math.inf:
                return found
        return None
    return _of_select(i, index, mapping, inside)


def _source(i: HloInstruction, index: Index) -> tuple[HloInstruction, Index]:
    """Return the instruction and index that an element is moved or converted from."""
    while i.opcode in INDEXING_MAPS or i.opcode is Opcode.CONVERT:
        index = INDEXING_MAPS[i.opcode](i, index) if i.opcode in INDEXING_MAPS else index
        i = i.operands[0]
    return i, index


def _of_select(
    i: HloInstruction, index: Index, mapping: Mapping[IndexSymbol, IndexExpr], inside: tuple[Var, ...]
) -> BlockMask | None:
    if i.opcode is not Opcode.SELECT:
        return None
    condition, chosen, other = i.operands
    for scores, constant, holds in ((chosen, other, True), (other, chosen, False)):
        value = _value(constant)
        if value is None or value > 0 or math.isnan(value) or _value(scores) not in (None, 0.0):
            continue
        found = _visible(*_source(condition, index), holds)
        if found is not None:
            bound, low = found[0].substitute(mapping), found[1]
            high: dict[IndexSymbol, IndexExpr] = {}
            for v in inside:
                high[v] = ix.const(v.extent - 1 if bound.coefficient(v) > 0 else 0)
            return BlockMask(bound.substitute(high), low, value)
    return None


def _value(i: HloInstruction) -> float | None:
    while i.opcode in (Opcode.BROADCAST, Opcode.RESHAPE, Opcode.CONVERT):
        i = i.operands[0]
    if i.opcode is not Opcode.CONSTANT or not i.shape.is_scalar or not i.shape.element_type.is_float:
        return None
    return float(i.value.value.flat[0])


def _visible(i: HloInstruction, index: Index, holds: bool) -> tuple[IndexExpr, int] | None:
    """Return (x, low) such that a comparison of indices is `holds` where x >= low."""
    if i.opcode is Opcode.NOT:
        return _visible(*_source(i.operands[0], index), not holds)
    if i.opcode is not Opcode.COMPARE or i.attr("direction") not in _NEGATED:
        return None
    a, b = (_integer(o, index) for o in i.operands)
    if a is None or b is None:
        return None
    direction = i.attr("direction") if holds else _NEGATED[i.attr("direction")]
    difference = a - b if direction in ("GE", "GT") else b - a
    if any(not isinstance(symbol, Var) for symbol, _ in difference.terms):
        return None
    return difference, int(direction in ("GT", "LT"))


def _integer(i: HloInstruction, index: Index) -> IndexExpr | None:
    """Return an integer element as an index expression, if it is computed from iotas and constants."""
    i, index = _source(i, index)
    t = i.shape.element_type
    if not t.is_integer or t.bits < 32:
        return None
    if i.opcode is Opcode.IOTA:
        dimension: int = i.attributes["iota_dimension"]
        return index[dimension]
    if i.opcode is Opcode.CONSTANT and i.shape.is_scalar:
        value = int(i.value.value.flat[0])
        return ix.const(value) if abs(value) < 2**30 else None
    if i.opcode in (Opcode.ADD, Opcode.SUBTRACT) and t.is_signed:
        a, b = (_integer(o, index) for o in i.operands)
        if a is not None and b is not None:
            return a + b if i.opcode is Opcode.ADD else a - b
    return None
