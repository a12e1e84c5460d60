"""Simplification of comparisons, selects, logic and shifts."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import (
    Scalar,
    all_ones,
    is_integral,
    is_op,
    is_splat,
    operands_with_constant_right,
    other_operand,
    single_use,
    splat_value,
)
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()

INVERSE = {"EQ": "NE", "NE": "EQ", "LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT"}
SWAPPED = {"EQ": "EQ", "NE": "NE", "LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}


@register
@dataclass(frozen=True)
class CompareSelectLogic(RewritePass):
    """Simplify comparisons of equal or extreme operands, selects of known or negated predicates, logic and shifts."""

    name: ClassVar[str] = "compare-select-logic"
    rules: ClassVar[RuleSet] = RULES


def _is_pred(i: HloInstruction) -> bool:
    return i.shape.element_type.text == "pred"


def _by_total_order(i: HloInstruction) -> bool:
    """Check whether a comparison distinguishes signed zeros and NaN."""
    return bool(i.attr("type") == "TOTALORDER") and i.operands[0].shape.element_type.is_float


def _negation(x: HloInstruction, y: HloInstruction) -> bool:
    return (is_op(x, Opcode.NOT) and x.operands[0] is y) or (is_op(y, Opcode.NOT) and y.operands[0] is x)


# ---- logic


@RULES.on(Opcode.NOT)
def _not(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x = i.operands[0]
    if is_op(x, Opcode.NOT):
        return x.operands[0]
    if not is_op(x, Opcode.COMPARE) or not single_use(x):
        return None
    direction = x.attributes["direction"]
    # not (a < b) differs from a >= b if an operand may be NaN
    total_order = not x.operands[0].shape.element_type.is_float and not x.operands[0].shape.element_type.is_complex
    if total_order or direction in ("EQ", "NE"):
        return b.add(Opcode.COMPARE, *x.operands, **{**x.attributes, "direction": INVERSE[direction]})
    return None


@RULES.on(Opcode.AND, Opcode.OR)
def _and_or(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = operands_with_constant_right(i)
    if x is y:
        return x
    ones = all_ones(i.shape.element_type)
    neutral, absorbing = (ones, 0) if i.opcode is Opcode.AND else (0, ones)
    if is_splat(y, neutral):
        return x
    if is_splat(y, absorbing):
        return b.splat(absorbing, i.shape)
    if _negation(x, y):
        return b.splat(absorbing, i.shape)
    dual = Opcode.OR if i.opcode is Opcode.AND else Opcode.AND
    for p, q in ((x, y), (y, x)):
        if is_op(p, i.opcode) and q in p.operands:
            return p
        if is_op(p, dual) and q in p.operands:
            return q
    if is_op(x, Opcode.NOT) and is_op(y, Opcode.NOT) and single_use(x) and single_use(y):
        return b.add(Opcode.NOT, b.add(dual, x.operands[0], y.operands[0]))
    return None


@RULES.on(Opcode.AND, Opcode.OR)
def _and_or_of_bounds(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Merge two bounds on the same side: x < c and x < d -> x < min(c, d)."""
    x, y = i.operands
    if not is_op(x, Opcode.COMPARE) or not is_op(y, Opcode.COMPARE) or x.operands[0] is not y.operands[0]:
        return None
    if _by_total_order(x) or _by_total_order(y):
        return None
    direction = x.attributes["direction"]
    c, d = splat_value(x.operands[1]), splat_value(y.operands[1])
    if direction not in ("LT", "LE", "GT", "GE") or direction != y.attributes["direction"] or c is None or d is None:
        return None
    if not (c <= d or d <= c):
        return None  # one bound is NaN
    narrow = x if (c <= d) == (direction in ("LT", "LE")) else y
    wide = y if narrow is x else x
    return narrow if i.opcode is Opcode.AND else wide


@RULES.on(Opcode.XOR)
def _xor(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = operands_with_constant_right(i)
    if x is y:
        return b.splat(0, i.shape)
    if is_splat(y, 0):
        return x
    if is_splat(y, all_ones(i.shape.element_type)):
        return b.add(Opcode.NOT, x)
    for p, q in ((x, y), (y, x)):
        if is_op(p, Opcode.XOR) and q in p.operands:
            return p.operands[1] if p.operands[0] is q else p.operands[0]
    if is_op(x, Opcode.NOT) and is_op(y, Opcode.NOT):
        return b.add(Opcode.XOR, x.operands[0], y.operands[0])
    return None


_SHIFTS = (Opcode.SHIFT_LEFT, Opcode.SHIFT_RIGHT_LOGICAL, Opcode.SHIFT_RIGHT_ARITHMETIC)


@RULES.on(*_SHIFTS)
def _shift(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = i.operands
    bits = i.shape.element_type.bits
    amount = splat_value(y)
    if is_splat(x, 0):
        return b.splat(0, i.shape)
    if amount is None:
        return None
    if amount == 0:
        return x
    if i.opcode is not Opcode.SHIFT_RIGHT_ARITHMETIC and not 0 <= int(amount) < bits:
        return b.splat(0, i.shape)
    if not is_op(x, i.opcode) or not 0 <= int(amount) < bits:
        return None
    first = splat_value(x.operands[1])
    if first is None or not 0 <= int(first) < bits or int(first) + int(amount) >= bits:
        return None
    return b.add(i.opcode, x.operands[0], b.splat(int(first) + int(amount), i.shape))


@RULES.on(Opcode.AND)
def _one_bit(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite (x >> iota) & 1 of 8 and 16 bits as (x & (1 << iota)) != 0: no vector shifts bytes."""
    t, (x, y) = i.shape.element_type, operands_with_constant_right(i)
    if not is_op(x, *_SHIFTS[1:]) or not is_splat(y, 1) or t.bits not in (8, 16):
        return None
    amount = x.operands[1]
    counted = amount.operands[0] if is_op(amount, Opcode.BROADCAST) else amount
    if not is_op(counted, Opcode.IOTA) or counted.shape.dimensions[counted.attributes["iota_dimension"]] > t.bits:
        return None
    bit = b.add(Opcode.SHIFT_LEFT, b.splat(1, i.shape), amount)
    masked = b.add(Opcode.AND, x.operands[0], bit)
    return b.convert(b.add(Opcode.COMPARE, masked, b.splat(0, i.shape), direction="NE"), t)


# ---- compare


@RULES.on(Opcode.COMPARE)
def _compare(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = i.operands
    direction = i.attributes["direction"]
    t = x.shape.element_type
    exact = t.is_integer or _is_pred(x)
    if x is y and exact:
        return b.splat(direction in ("EQ", "LE", "GE"), i.shape)
    if splat_value(x) is not None and splat_value(y) is None:
        return b.add(Opcode.COMPARE, y, x, **{**i.attributes, "direction": SWAPPED[direction]})
    value = splat_value(y)
    if value is None:
        return None
    if _is_pred(x) and direction in ("EQ", "NE"):
        return x if (direction == "EQ") == bool(value) else b.add(Opcode.NOT, x)
    if is_op(x, Opcode.CONVERT) and _is_pred(x.operands[0]) and value in (0, 1) and direction in ("EQ", "NE"):
        p = x.operands[0]
        return p if (direction == "EQ") == bool(value == 1) else b.add(Opcode.NOT, p)
    if t.is_unsigned and value == 0 and direction in ("LT", "GE"):
        return b.splat(direction == "GE", i.shape)
    return None


@RULES.on(Opcode.COMPARE)
def _compare_shifted(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite (x + c) == d -> x == d - c and a ^ b == 0 -> a == b for integers; `<` would require no overflow."""
    x, y = i.operands
    direction = i.attributes["direction"]
    d = splat_value(y)
    if d is None or not is_integral(x.shape) or direction not in ("EQ", "NE") or x.shape.element_type.bits < 8:
        return None
    if d == 0 and is_op(x, Opcode.XOR, Opcode.SUBTRACT):
        return b.add(Opcode.COMPARE, *x.operands, **i.attributes)
    if not is_op(x, Opcode.ADD):
        return None
    c = splat_value(x.operands[1])
    if c is None:
        return None
    bits = x.shape.element_type.bits
    wrapped = (int(d) - int(c)) % (1 << bits)
    if x.shape.element_type.is_signed and wrapped >= 1 << (bits - 1):
        wrapped -= 1 << bits
    return b.add(Opcode.COMPARE, x.operands[0], b.splat(wrapped, y.shape), **i.attributes)


@RULES.on(Opcode.COMPARE)
def _compare_iota(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Decide the comparison of an iota with a constant, if the result is the same for all elements."""
    x, y = i.operands
    d = splat_value(y)
    if d is None or not is_op(x, Opcode.IOTA) or not is_integral(x.shape):
        return None
    last = x.shape.dimensions[x.attributes["iota_dimension"]] - 1
    if last < 0 or last >= 1 << (x.shape.element_type.bits - 1):
        return None
    limit = int(d)
    outcome = {
        "LT": (last < limit, limit <= 0),
        "LE": (last <= limit, limit < 0),
        "GT": (limit < 0, last <= limit),
        "GE": (limit <= 0, last < limit),
        "EQ": (last == 0 == limit, not 0 <= limit <= last),
        "NE": (not 0 <= limit <= last, last == 0 == limit),
    }[i.attributes["direction"]]
    return b.splat(outcome[0], i.shape) if any(outcome) else None


@RULES.on(Opcode.COMPARE)
def _compare_extremum(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite max(x, y) > x -> y > x and max(x, y) == x -> x >= y; with a NaN, all of these are false."""
    if _by_total_order(i):
        return None
    direction = i.attributes["direction"]
    for side, (m, x) in enumerate((i.operands, (i.operands[1], i.operands[0]))):
        if not is_op(m, Opcode.MAXIMUM, Opcode.MINIMUM) or x not in m.operands or _is_pred(x):
            continue
        says = SWAPPED[direction] if side else direction
        beyond = "GT" if m.opcode is Opcode.MAXIMUM else "LT"
        if says == beyond:
            return b.compare(other_operand(m, x), x, beyond)
        if says == "EQ":
            return b.compare(x, other_operand(m, x), "GE" if beyond == "GT" else "LE")
    return None


@RULES.on(Opcode.COMPARE)
def _compare_magnitude(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite |x| < 0 -> false for floats; the absolute value of the smallest integer is negative."""
    x, y = i.operands
    if not is_op(x, Opcode.ABS) or not x.shape.element_type.is_float or i.attributes["direction"] != "LT":
        return None
    if _by_total_order(i):
        return None
    bound = splat_value(y)
    return b.splat(0, i.shape) if bound is not None and bound <= 0 else None


@RULES.on(Opcode.COMPARE)
def _compare_choice(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite select(p, c, d) == e with constants c, d, e -> p, not p, true or false; other directions likewise."""
    x, y = i.operands
    if not is_op(x, Opcode.SELECT) or x.operands[0].shape.rank != i.shape.rank:
        return None
    c, d, e = splat_value(x.operands[1]), splat_value(x.operands[2]), splat_value(y)
    holds = _HOLDS[i.attributes["direction"]]
    if c is None or d is None or e is None or _by_total_order(i):
        return None
    first, second = bool(holds(c, e)), bool(holds(d, e))
    if first == second:
        return b.splat(first, i.shape)
    return x.operands[0] if first else b.add(Opcode.NOT, x.operands[0])


_HOLDS: Mapping[str, Callable[[Scalar, Scalar], bool]] = MappingProxyType(
    {"EQ": operator.eq, "NE": operator.ne, "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge}
)


# ---- select


@RULES.on(Opcode.SELECT)
def _select(i: HloInstruction, b: Builder) -> HloInstruction | None:
    p, x, y = i.operands
    if x is y:
        return x
    value = splat_value(p)
    if value is not None:
        return x if value else y
    if is_op(p, Opcode.NOT):
        return b.add(Opcode.SELECT, p.operands[0], y, x)
    if not _is_pred(i) or p.shape.rank != i.shape.rank:
        return None
    if is_splat(x, 1):
        return p if is_splat(y, 0) else b.add(Opcode.OR, p, y)
    if is_splat(y, 0):
        return b.add(Opcode.AND, p, x)
    if is_splat(x, 0) and is_splat(y, 1):
        return b.add(Opcode.NOT, p)
    return None


@RULES.on(Opcode.SELECT)
def _select_of_select(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Simplify nested selects with the same predicate, which decides the inner one, too."""
    p, x, y = i.operands
    if is_op(x, Opcode.SELECT) and x.operands[0] is p:
        return b.add(Opcode.SELECT, p, x.operands[1], y)
    if is_op(y, Opcode.SELECT) and y.operands[0] is p:
        return b.add(Opcode.SELECT, p, x, y.operands[2])
    return None


@RULES.on(Opcode.SELECT)
def _select_of_same_op(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite select(p, -a, -b) -> -select(p, a, b), which is one op less."""
    p, x, y = i.operands
    if x.opcode is not y.opcode or len(x.operands) != 1 or not x.opcode.is_elementwise or not x.shape.is_array:
        return None
    if not (single_use(x) and single_use(y)) or not x.attributes.keys() | y.attributes.keys() <= {"metadata"}:
        return None
    s, t = x.operands[0].shape, y.operands[0].shape
    if s.element_type is not t.element_type or s.dimensions != i.shape.dimensions or x.opcode is Opcode.COPY:
        return None
    return b.add(x.opcode, b.add(Opcode.SELECT, p, x.operands[0], y.operands[0]), shape=i.shape)


@RULES.on(Opcode.SELECT)
def _select_extremum(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite select(a < b, a, b) -> minimum(a, b) for integers; they differ for NaN."""
    p, x, y = i.operands
    if not is_op(p, Opcode.COMPARE) or not is_integral(i.shape) or p.operands[0].shape != i.shape:
        return None
    direction = p.attributes["direction"]
    if p.operands == (y, x):
        direction = SWAPPED[direction]
    elif p.operands != (x, y):
        return None
    if direction in ("LT", "LE"):
        return b.add(Opcode.MINIMUM, x, y)
    return b.add(Opcode.MAXIMUM, x, y) if direction in ("GT", "GE") else None


@RULES.on(Opcode.SELECT)
def _select_of_equal(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite select(a == b, a, b) -> b and select(a != b, a, b) -> a, but not for floats, where 0 == -0."""
    p, x, y = i.operands
    if not is_op(p, Opcode.COMPARE) or set(p.operands) != {x, y} or not (is_integral(i.shape) or _is_pred(i)):
        return None
    return {"EQ": y, "NE": x}.get(p.attributes["direction"])


@RULES.on(Opcode.SELECT)
def _select_magnitude(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite select(x < 0, -x, x) -> |x| and its three variants, also with |x| instead of -x."""
    p, x, y = i.operands
    t = i.shape.element_type
    if not is_op(p, Opcode.COMPARE) or not (t.is_float or (t.is_integer and t.is_signed)):
        return None
    if p.attributes["direction"] in ("GT", "GE"):
        x, y = y, x
    elif p.attributes["direction"] not in ("LT", "LE"):
        return None
    if p.operands[0] is not y or not is_splat(p.operands[1], 0) or not is_op(x, Opcode.NEGATE, Opcode.ABS):
        return None
    # Comparisons with NaN are false: with GT and GE, NaN would be negated, but it stays NaN.
    return b.add(Opcode.ABS, y) if x.operands[0] is y else None
