"""Value ranges: bounds of the integers of each instruction, from constants, iotas and loop counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from compiler.analysis.while_loop import induction, view_loop
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, PrimitiveType


class Range(NamedTuple):
    """All values are in [low, high]; for pred, 0 is false and 1 is true."""

    low: int
    high: int

    @property
    def is_point(self) -> bool:
        """Whether it contains a single value."""
        return self.low == self.high

    def union(self, other: Range) -> Range:
        """Return the smallest range that contains both."""
        return Range(min(self.low, other.low), max(self.high, other.high))


def type_range(element_type: PrimitiveType) -> Range | None:
    """Return the range of an integer type or pred; None for other types."""
    if element_type is PrimitiveType.PRED:
        return Range(0, 1)
    if element_type.is_unsigned:
        return Range(0, (1 << element_type.bits) - 1)
    if element_type.is_signed:
        return Range(-(1 << (element_type.bits - 1)), (1 << (element_type.bits - 1)) - 1)
    return None


def module_ranges(module: HloModule) -> dict[HloInstruction, Range]:
    """Return the ranges in all computations that run as sequences, in time linear in the size of the module.

    Only instructions of integer or pred type have a range. Conditions of loops are skipped.
    """
    found: dict[HloInstruction, Range] = {}
    seeds: dict[HloComputation, dict[int, Range]] = {}
    callers: dict[HloComputation, int] = {}
    order = module.control_flow_computations()
    conditions = set()
    for c in order:
        for i in c.notable:
            for callee in i.called_computations():
                callers[callee] = callers.get(callee, 0) + 1
            if i.opcode is Opcode.WHILE:
                conditions.add(i.attributes["condition"])
    # Callers before callees, so that the ranges of a loop's initial values are known when its body is analyzed. The
    # body of one loop only, because seeds are those of a single caller.
    for c in reversed(order):
        if c in conditions:
            continue
        computation_ranges(c, found, seeds.get(c, {}))
        for i in c.notable:
            if i.opcode is Opcode.WHILE and callers[i.attributes["body"]] == 1:
                seeds[i.attributes["body"]] = _carried_ranges(i, found)
    return found


def _carried_ranges(loop: HloInstruction, known: Mapping[HloInstruction, Range]) -> dict[int, Range]:
    """Return the ranges of carried elements in a loop's body: invariant elements, and the induction variable."""
    view = view_loop(loop)
    if view is None:
        return {}
    found = {
        n: known[start]
        for n, (start, out) in enumerate(zip(view.init, view.outputs, strict=True))
        if view.index_of(out) == n and start in known
    }
    counter = induction(view)
    if counter is not None and counter.trip_count > 0:
        ends = (counter.start, counter.last)
        found[counter.index] = Range(min(ends), max(ends))
    return found


def computation_ranges(
    computation: HloComputation, found: dict[HloInstruction, Range], seeds: Mapping[int, Range]
) -> None:
    """Add the ranges of one computation to `found`; `seeds` are those of the elements of its tuple parameter."""
    for i in computation.post_order():
        full = type_range(i.shape.element_type) if i.shape.is_array else None
        if full is None:
            continue
        rule = _RULES.get(i.opcode)
        if i.opcode is Opcode.GET_TUPLE_ELEMENT and i.operand(0).opcode is Opcode.PARAMETER:
            found[i] = seeds.get(i.attributes["index"], full)
            continue
        operands = [found.get(o) for o in i.operands]
        got = None if rule is None else rule(i, [r or _unknown(o) for r, o in zip(operands, i.operands, strict=True)])
        # A result that may overflow wraps around, so nothing is known about it.
        inside = got is not None and full.low <= got.low and got.high <= full.high
        found[i] = got if got is not None and inside else full


_ANYTHING = Range(-(1 << 200), 1 << 200)
Rule = Callable[[HloInstruction, list[Range]], "Range | None"]


def _unknown(operand: HloInstruction) -> Range:
    return (type_range(operand.shape.element_type) if operand.shape.is_array else None) or _ANYTHING


def _constant(i: HloInstruction, _: list[Range]) -> Range | None:
    value = i.value.array
    if value is None or value.size == 0 or value.size > 1 << 16:
        return None
    return Range(int(value.min()), int(value.max()))


def _iota(i: HloInstruction, _: list[Range]) -> Range:
    return Range(0, max(0, i.shape.dimensions[i.attributes["iota_dimension"]] - 1))


def _first(_: HloInstruction, r: list[Range]) -> Range:
    return r[0]


def _all(_: HloInstruction, r: list[Range]) -> Range:
    found = r[0]
    for other in r[1:]:
        found = found.union(other)
    return found


def _update(_: HloInstruction, r: list[Range]) -> Range:
    return r[0].union(r[1])


def _multiply(_: HloInstruction, r: list[Range]) -> Range:
    ends = [x * y for x in r[0] for y in r[1]]
    return Range(min(ends), max(ends))


def _and(i: HloInstruction, r: list[Range]) -> Range | None:
    positive = [x.high for x in r if x.low >= 0]
    return Range(1 if all(x == (1, 1) for x in r) else 0, min(positive)) if positive else None


def _or(i: HloInstruction, r: list[Range]) -> Range | None:
    if min(r[0].low, r[1].low) < 0:
        return None
    top = (1 << max(r[0].high, r[1].high).bit_length()) - 1
    return Range(max(r[0].low, r[1].low) if i.opcode is Opcode.OR else 0, top)


def _shift_right(i: HloInstruction, r: list[Range]) -> Range | None:
    bits = i.shape.element_type.bits
    # An arithmetic shift treats the top bit of an unsigned number as a sign, too.
    signed = i.opcode is Opcode.SHIFT_RIGHT_ARITHMETIC and r[0].high >> (bits - 1)
    if r[0].low < 0 or r[1].low < 0 or signed:
        return None
    if r[1].high >= bits:
        return Range(0, r[0].high >> min(r[1].low, bits))
    return Range(r[0].low >> r[1].high, r[0].high >> r[1].low)


def _shift_left(i: HloInstruction, r: list[Range]) -> Range | None:
    if r[0].low < 0 or r[1].low < 0 or r[1].high >= i.shape.element_type.bits:
        return None
    return Range(r[0].low << r[1].low, r[0].high << r[1].high)


def _divide(_: HloInstruction, r: list[Range]) -> Range | None:
    if r[0].low < 0 or r[1].low <= 0:
        return None
    return Range(r[0].low // r[1].high, r[0].high // r[1].low)


def _remainder(_: HloInstruction, r: list[Range]) -> Range | None:
    if r[1].low <= 0:
        return None
    if r[0].low >= 0:
        return r[0] if r[0].high < r[1].low else Range(0, min(r[0].high, r[1].high - 1))
    return Range(max(r[0].low, 1 - r[1].high), max(0, min(r[0].high, r[1].high - 1)))


def _abs(_: HloInstruction, r: list[Range]) -> Range:
    ends = (abs(r[0].low), abs(r[0].high))
    return Range(0 if r[0].low < 0 < r[0].high else min(ends), max(ends))


def _convert(i: HloInstruction, r: list[Range]) -> Range | None:
    source = i.operand(0).shape.element_type
    if type_range(source) is None:
        return None
    if i.shape.element_type is PrimitiveType.PRED:
        return Range(int(r[0].low > 0 or r[0].high < 0), int(r[0] != (0, 0)))
    return r[0]


def _select(_: HloInstruction, r: list[Range]) -> Range:
    if r[0].is_point:
        return r[1] if r[0].low else r[2]
    return r[1].union(r[2])


def _clamp(_: HloInstruction, r: list[Range]) -> Range:
    low, x, high = r
    return Range(min(max(x.low, low.low), high.low), min(max(x.high, low.high), high.high))


def _compare(i: HloInstruction, r: list[Range]) -> Range | None:
    if any(type_range(o.shape.element_type) is None for o in i.operands):
        return None
    decided = _decide(i.attributes["direction"], r[0], r[1])
    return None if decided is None else Range(int(decided), int(decided))


def _decide(direction: str, a: Range, b: Range) -> bool | None:
    """Return the result of a comparison if it is the same for all values of both ranges, else None."""
    if direction in ("GT", "GE"):
        return _decide("LT" if direction == "GT" else "LE", b, a)
    if direction == "LT":
        return True if a.high < b.low else False if a.low >= b.high else None
    if direction == "LE":
        return True if a.high <= b.low else False if a.low > b.high else None
    apart = a.high < b.low or b.high < a.low
    same = a.is_point and a == b
    if not (apart or same):
        return None
    return same if direction == "EQ" else apart


def _bits(i: HloInstruction, _: list[Range]) -> Range:
    return Range(0, i.operand(0).shape.element_type.bits)


_MOVES = (
    Opcode.BROADCAST,
    Opcode.RESHAPE,
    Opcode.TRANSPOSE,
    Opcode.SLICE,
    Opcode.REVERSE,
    Opcode.COPY,
    Opcode.DYNAMIC_SLICE,
    Opcode.GATHER,
)
_RULES: dict[Opcode, Rule] = {
    Opcode.CONSTANT: _constant,
    Opcode.IOTA: _iota,
    Opcode.CONCATENATE: _all,
    Opcode.PAD: _all,
    Opcode.DYNAMIC_UPDATE_SLICE: _update,
    Opcode.ADD: lambda _, r: Range(r[0].low + r[1].low, r[0].high + r[1].high),
    Opcode.SUBTRACT: lambda _, r: Range(r[0].low - r[1].high, r[0].high - r[1].low),
    Opcode.NEGATE: lambda _, r: Range(-r[0].high, -r[0].low),
    Opcode.MULTIPLY: _multiply,
    Opcode.DIVIDE: _divide,
    Opcode.REMAINDER: _remainder,
    Opcode.ABS: _abs,
    Opcode.MAXIMUM: lambda _, r: Range(max(r[0].low, r[1].low), max(r[0].high, r[1].high)),
    Opcode.MINIMUM: lambda _, r: Range(min(r[0].low, r[1].low), min(r[0].high, r[1].high)),
    Opcode.CLAMP: _clamp,
    Opcode.AND: _and,
    Opcode.OR: _or,
    Opcode.XOR: _or,
    Opcode.SHIFT_LEFT: _shift_left,
    Opcode.SHIFT_RIGHT_LOGICAL: _shift_right,
    Opcode.SHIFT_RIGHT_ARITHMETIC: _shift_right,
    Opcode.CONVERT: _convert,
    Opcode.SELECT: _select,
    Opcode.COMPARE: _compare,
    Opcode.POPULATION_COUNT: _bits,
    Opcode.COUNT_LEADING_ZEROS: _bits,
    **dict.fromkeys(_MOVES, _first),
}
