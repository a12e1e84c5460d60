"""Vector loops that divide by a value that is the same for all of their elements, such as the sum of a row.

A division takes a vector about eight cycles, in which nothing else is divided. Where that is most of what a loop over
f32 does, elements are multiplied by the reciprocal of the divisor, which is computed once, and the quotient is
corrected by what it leaves: three cycles for the same result (`uniform_quotient_f32` of the preamble).
"""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.loop_ir import Body, For
from compiler.codegen.nest.traversal import names_defined
from compiler.codegen.schedules.loop_transforms import map_vector_loops
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

SHORTEST = 32
"""Elements of a loop from which on the reciprocal is worth computing."""
MOST_WORK = 6
"""Additions for each division up to which the divisions take longer than everything else."""
FUNCTION = 16
"""Additions that take as long as a function such as an exponential."""
OTHER = 3
"""Additions that take as long as another operation, such as a maximum, a rounding or a conversion."""
ADDITIONS = frozenset({Opcode.ADD, Opcode.SUBTRACT, Opcode.MULTIPLY, Opcode.NEGATE, Opcode.ABS, Opcode.SELECT})
"""Opcodes that take as long as an addition."""
DIVIDED = frozenset({Opcode.DIVIDE, Opcode.SQRT, Opcode.RSQRT})
"""Opcodes for which the unit that divides is busy, and little else."""


def is_quotient(x: lir.Stmt) -> bool:
    """Check whether a statement divides values of f32."""
    return (
        isinstance(x, lir.Let)
        and isinstance(x.value, lir.Apply)
        and x.value.op.opcode is Opcode.DIVIDE
        and x.value.op.type is T.F32
    )


def mark_uniform_divisors(body: Body) -> Body:
    """Return bound statements whose vector loops multiply by reciprocals where that is faster than dividing."""
    return map_vector_loops(body, _loop)


def _loop(s: For) -> Body:
    quotients = [x for x in s.body if is_quotient(x)]
    if s.var.extent < SHORTEST or not quotients:
        return (s,)
    varying = {s.var.name, *names_defined(s.body)}
    if all(_divisor(x) in varying for x in quotients) or _work(s.body) > MOST_WORK * len(quotients):
        return (s,)
    return (replace(s, body=tuple(_marked(x, varying) for x in s.body)),)


def _divisor(x: lir.Stmt) -> str:
    assert isinstance(x, lir.Let) and isinstance(x.value, lir.Apply)  # noqa: S101 - a quotient
    return x.value.args[1]


def _work(body: Body) -> int:
    return sum(map(_additions, body))


def _additions(x: lir.Stmt) -> int:
    """Return the number of additions that take as long as a statement beside a division."""
    if not isinstance(x, lir.Let | lir.Store | lir.LocalStore):
        return FUNCTION
    if not isinstance(x, lir.Let) or not isinstance(x.value, lir.Apply) or x.value.op.opcode in DIVIDED:
        return 0
    if x.value.op.is_expensive:
        return FUNCTION
    return 1 if x.value.op.opcode in ADDITIONS else OTHER


def _marked(x: lir.Stmt, varying: set[str]) -> lir.Stmt:
    if not is_quotient(x) or _divisor(x) in varying:
        return x
    assert isinstance(x, lir.Let) and isinstance(x.value, lir.Apply)  # noqa: S101 - a quotient
    return replace(x, value=replace(x.value, op=replace(x.value.op, uniform=True)))
