"""Reassociation: constants to the right, and constants that meet along a chain of one op are combined.

(x + c1) + c2 -> x + (c1 + c2) holds within rounding for floats, as XLA does it; exactly for integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from compiler.ir import HloInstruction, Opcode
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import (
    COMMUTATIVE,
    Scalar,
    has_room,
    is_constant,
    is_integral,
    is_numeric,
    is_op,
    single_use,
    splat_value,
)
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class Reassociation(RewritePass):
    """Constants right, and together: (x+c)+d, (x*c)*d, (x-c)+d, (x+c)+y -> (x+y)+c and their like."""

    name: ClassVar[str] = "reassociation"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(*COMMUTATIVE)
def _constant_right(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = i.operands
    return b.with_operands(i, (y, x)) if is_constant(x) and not is_constant(y) else None


@RULES.on(*COMMUTATIVE)
def _combine_constants(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """op(op(x, c), d) -> op(x, op(c, d))."""
    x, y = i.operands
    d = splat_value(y)
    if d is None or not is_op(x, i.opcode) or not _reassociates(i):
        return None
    c = splat_value(x.operands[1])
    combined = None if c is None else combine(i.opcode, c, d)
    if combined is None or splat_value(x.operands[0]) is not None:
        return None
    return b.add(i.opcode, x.operands[0], b.splat(combined, i.shape))


@RULES.on(*COMMUTATIVE)
def _combine_arrays(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """op(op(x, C), D) -> op(x, op(C, D)) of constant arrays, where it is exact: of integers and predicates."""
    x, y = i.operands
    if y.opcode is not Opcode.CONSTANT or not is_op(x, i.opcode) or not single_use(x):
        return None
    exact = is_integral(i.shape) or i.shape.element_type.text == "pred"
    if x.operands[1].opcode is not Opcode.CONSTANT or is_constant(x.operands[0]) or not exact:
        return None
    return b.add(i.opcode, x.operands[0], b.add(i.opcode, x.operands[1], y))


@RULES.on(Opcode.ADD, Opcode.SUBTRACT)
def _combine_sums(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """(x - c) + d, (c - x) + d, (x + c) - d, (x - c) - d: one constant remains."""
    x, y = i.operands
    d = splat_value(y)
    if d is None or not is_op(x, Opcode.ADD, Opcode.SUBTRACT) or not _reassociates(i):
        return None
    if i.opcode is Opcode.ADD and x.opcode is Opcode.ADD:
        return None  # _combine_constants has it
    p, q = x.operands
    left, right = splat_value(p), splat_value(q)
    if (left is None) == (right is None):
        return None
    signed = d if i.opcode is Opcode.ADD else _negated(d)
    if right is not None:
        c = right if x.opcode is Opcode.ADD else _negated(right)
        total = combine(Opcode.ADD, c, signed)
        return None if total is None else b.add(Opcode.ADD, p, b.splat(total, i.shape))
    total = combine(Opcode.ADD, left, signed)
    if total is None:
        return None
    return b.add(x.opcode, b.splat(total, i.shape), q)


@RULES.on(Opcode.SUBTRACT)
def _subtract_constant(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """X - c -> x + (-c), so that constants of sums have one form; c - (x + d) -> (c - d) - x."""
    x, y = i.operands
    c = splat_value(y)
    if c is not None and splat_value(x) is None and _reassociates(i):
        return b.add(Opcode.ADD, x, b.splat(_negated(c), i.shape))
    c = splat_value(x)
    if c is None or not is_op(y, Opcode.ADD, Opcode.SUBTRACT) or not _reassociates(i):
        return None
    d, e = splat_value(y.operands[1]), splat_value(y.operands[0])
    if d is not None and e is None:
        total = combine(Opcode.ADD, c, d if y.opcode is Opcode.SUBTRACT else _negated(d))
        return None if total is None else b.add(Opcode.SUBTRACT, b.splat(total, i.shape), y.operands[0])
    if e is not None and d is None and y.opcode is Opcode.SUBTRACT:
        total = combine(Opcode.ADD, c, _negated(e))
        return None if total is None else b.add(Opcode.ADD, y.operands[1], b.splat(total, i.shape))
    return None


@RULES.on(Opcode.ADD, Opcode.MULTIPLY)
def _constants_outwards(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """(x + c) + y -> (x + y) + c, so that constants of a chain meet; only where x + c has no other user."""
    if not _reassociates(i) or splat_value(i.operands[1]) is not None:
        return None
    for x, y in (i.operands, (i.operands[1], i.operands[0])):
        if not is_op(x, i.opcode) or not single_use(x) or x is y or _has_constant(y):
            continue
        c = splat_value(x.operands[1])
        if c is not None and splat_value(x.operands[0]) is None and _meets_constant(i):
            return b.add(i.opcode, b.add(i.opcode, x.operands[0], y), x.operands[1])
    return None


def _has_constant(i: HloInstruction) -> bool:
    return splat_value(i) is not None


def _meets_constant(i: HloInstruction) -> bool:
    """Whether moving a constant out of `i` lets it meet another one: its only user adds (multiplies) a constant."""
    if not single_use(i):
        return False
    (user,) = i.users
    return is_op(user, i.opcode) and any(splat_value(o) is not None for o in user.operands)


@RULES.on(Opcode.ADD, Opcode.MULTIPLY)
def _two_constants_meet(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """(x + c) + (y + d) -> (x + y) + (c + d)."""
    x, y = i.operands
    if not (is_op(x, i.opcode) and is_op(y, i.opcode) and single_use(x) and single_use(y) and x is not y):
        return None
    c, d = splat_value(x.operands[1]), splat_value(y.operands[1])
    if c is None or d is None or not _reassociates(i):
        return None
    total = combine(i.opcode, c, d)
    if total is None:
        return None
    return b.add(i.opcode, b.add(i.opcode, x.operands[0], y.operands[0]), b.splat(total, i.shape))


@RULES.on(Opcode.ADD, Opcode.MULTIPLY)
def _scalars_meet(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """(x * c) * s -> x * (c * s) with a constant c and a broadcast scalar s: one op an element less."""
    if i.shape.rank == 0 or not has_room(i.shape) or splat_value(i.operands[0]) is not None:
        return None
    for x, s in (i.operands, (i.operands[1], i.operands[0])):
        if not is_op(x, i.opcode) or not single_use(x) or not _repeats_a_scalar(s):
            continue
        c = splat_value(x.operands[1])
        if c is None or splat_value(x.operands[0]) is not None or not _moderate(i.opcode, c):
            continue
        scalar = s.operands[0]
        both = b.add(i.opcode, scalar, b.splat(c, scalar.shape))
        return b.add(i.opcode, x.operands[0], b.broadcast(both, i.shape.dimensions, ()))
    return None


def _repeats_a_scalar(i: HloInstruction) -> bool:
    return is_op(i, Opcode.BROADCAST) and i.operands[0].shape.rank == 0 and splat_value(i) is None


def _moderate(opcode: Opcode, c: Scalar) -> bool:
    """Whether a factor takes no other number out of the range of floats that the whole product stays in."""
    return opcode is Opcode.ADD or np.issubdtype(c.dtype, np.integer) or 1e-4 <= abs(float(c)) <= 1e4


def _reassociates(i: HloInstruction) -> bool:
    return is_numeric(i.shape) or i.shape.element_type.text == "pred"


def _negated(value: Scalar) -> Scalar:
    with np.errstate(all="ignore"):
        return (-np.asarray(value)).astype(value.dtype)[()] if value.dtype != np.bool_ else value


_COMBINE = {
    Opcode.ADD: np.add,
    Opcode.MULTIPLY: np.multiply,
    Opcode.MAXIMUM: np.maximum,
    Opcode.MINIMUM: np.minimum,
    Opcode.AND: np.bitwise_and,
    Opcode.OR: np.bitwise_or,
    Opcode.XOR: np.bitwise_xor,
}


def combine(opcode: Opcode, c: Scalar, d: Scalar) -> Scalar | None:
    """op(c, d) of two scalars of one type, wrapping for integers; None when a float leaves the finite range.

    An overflow or underflow in the constant could change results that stayed in range before.
    """
    with np.errstate(all="ignore"):
        value = _COMBINE[opcode](np.asarray(c), np.asarray(d)).astype(c.dtype)[()]
    if opcode not in (Opcode.ADD, Opcode.MULTIPLY) or np.issubdtype(value.dtype, np.integer) or value.dtype == np.bool_:
        return value
    wide = float(value)
    if not np.isfinite(wide):
        return None
    tiny = float(np.finfo(np.float16).tiny) if c.dtype.itemsize == 2 and c.dtype.kind == "f" else 1e-37
    return None if opcode is Opcode.MULTIPLY and wide != 0 and abs(wide) < tiny else value
