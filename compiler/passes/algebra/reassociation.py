"""Reassociation: moves constants to the right, and combines constants in a chain of the same op.

(x + c1) + c2 -> x + (c1 + c2) is exact for integers and within rounding for floats, as in XLA.
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
    """Canonicalize constants to the right and combine them: (x+c)+d, (x*c)*d, (x-c)+d, (x+c)+y -> (x+y)+c etc."""

    name: ClassVar[str] = "reassociation"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(*COMMUTATIVE)
def _constant_right(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, y = i.operands
    return b.with_operands(i, (y, x)) if is_constant(x) and not is_constant(y) else None


@RULES.on(*COMMUTATIVE)
def _combine_constants(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite op(op(x, c), d) -> op(x, op(c, d))."""
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
    """Rewrite op(op(x, C), D) -> op(x, op(C, D)) for constant arrays of integers or pred, where it is exact."""
    x, y = i.operands
    if y.opcode is not Opcode.CONSTANT or not is_op(x, i.opcode) or not single_use(x):
        return None
    exact = is_integral(i.shape) or i.shape.element_type.text == "pred"
    if x.operands[1].opcode is not Opcode.CONSTANT or is_constant(x.operands[0]) or not exact:
        return None
    return b.add(i.opcode, x.operands[0], b.add(i.opcode, x.operands[1], y))


@RULES.on(Opcode.ADD, Opcode.SUBTRACT)
def _combine_sums(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Combine the constants of (x - c) + d, (c - x) + d, (x + c) - d and (x - c) - d."""
    x, y = i.operands
    d = splat_value(y)
    if d is None or not is_op(x, Opcode.ADD, Opcode.SUBTRACT) or not _reassociates(i):
        return None
    if i.opcode is Opcode.ADD and x.opcode is Opcode.ADD:
        return None  # see _combine_constants
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
    """Rewrite x - c -> x + (-c), so that sums have one form, and c - (x + d) -> (c - d) - x."""
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
    """Rewrite (x + c) + y -> (x + y) + c, if x + c has no other user, so that constants of a chain meet."""
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
    """Check whether the only user of `i` adds (multiplies) a constant, which a constant moved out of `i` would meet."""
    if not single_use(i):
        return False
    (user,) = i.users
    return is_op(user, i.opcode) and any(splat_value(o) is not None for o in user.operands)


@RULES.on(Opcode.ADD, Opcode.MULTIPLY)
def _two_constants_meet(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite (x + c) + (y + d) -> (x + y) + (c + d)."""
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
    """Rewrite (x * c) * s -> x * (c * s) for a constant c and a broadcast scalar s, with one op per element less."""
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
    """Check whether the factor is so moderate that applying it earlier hardly causes overflow or underflow."""
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
    """Compute op(c, d) for two scalars of the same type; integers wrap; return None if a float is not finite.

    Overflow or underflow of the constant could change results that were in range before.
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
