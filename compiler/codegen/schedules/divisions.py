"""Vector loops over f32 that wait for the unit that divides: quotients by one value, and reciprocals of square roots.

The unit takes eight cycles or more for a vector, in which it computes no other division or root. Where that is most of
what a loop does, divisions become multiplications:

- Where the divisor is the same for all elements, such as the sum of a row, they are multiplied by its reciprocal, which
  is computed once, and the quotient is corrected by what it leaves: three cycles for the same result.
- The reciprocal of a square root is found from the root by Newton's method, which halves the time. Nothing is lost,
  because a root is neither subnormal nor close to overflow.

`math_c.h` has both functions, `uniform_quotient_f32` and `reciprocal_root_f32`.
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
"""Elements of a loop from which on it is bound by the unit, not by the time of one division."""
MOST_WORK = {Opcode.DIVIDE: 6, Opcode.RSQRT: 20}
"""Additions for each operation up to which it takes longer than everything else of a loop."""
FUNCTION = 16
"""Additions that take as long as a function such as an exponential."""
OTHER = 3
"""Additions that take as long as another operation, such as a maximum, a rounding or a conversion."""
ADDITIONS = frozenset({Opcode.ADD, Opcode.SUBTRACT, Opcode.MULTIPLY, Opcode.NEGATE, Opcode.ABS, Opcode.SELECT})
"""Opcodes that take as long as an addition."""
DIVIDED = frozenset({Opcode.DIVIDE, Opcode.SQRT, Opcode.RSQRT})
"""Opcodes for which the unit is busy, and little else."""


def multiply_for_divisions(body: Body) -> Body:
    """Return bound statements whose vector loops multiply where they would wait for divisions."""
    return map_vector_loops(body, _loop)


def _loop(s: For) -> Body:
    if s.var.extent < SHORTEST:
        return (s,)
    ops = [x.value.op.opcode for x in s.body if isinstance(x, lir.Let) and isinstance(x.value, lir.Apply)]
    most = sum(MOST_WORK.get(op, 0) for op in ops)
    if not most or sum(map(_additions, s.body)) > most:
        return (s,)
    varying = {s.var.name, *names_defined(s.body)}
    return (replace(s, body=tuple(_multiplied(x, varying) for x in s.body)),)


def _additions(x: lir.Stmt) -> int:
    """Return the number of additions that take as long as a statement beside a division."""
    if not isinstance(x, lir.Let | lir.Store | lir.LocalStore):
        return FUNCTION
    if not isinstance(x, lir.Let) or not isinstance(x.value, lir.Apply) or x.value.op.opcode in DIVIDED:
        return 0
    if x.value.op.is_expensive:
        return FUNCTION
    return 1 if x.value.op.opcode in ADDITIONS else OTHER


def _multiplied(x: lir.Stmt, varying: set[str]) -> lir.Stmt:
    if not isinstance(x, lir.Let) or not isinstance(x.value, lir.Apply) or x.value.op.type is not T.F32:
        return x
    op, args = x.value.op, x.value.args
    by_one = op.opcode is Opcode.DIVIDE and args[1] not in varying
    if by_one or (op.opcode is Opcode.RSQRT and args[0] in varying):
        return replace(x, value=replace(x.value, op=replace(op, multiplied=True)))
    return x
