"""Tests in vector loops of which the C compiler does not know for which elements they hold.

Where a test such as `i <= 0` holds for one element of a loop, the C compiler reads what is behind it from one address,
and cannot make vectors of a loop with such a read behind a test. If it does not know the bound, it reads under a mask.

Of a sum behind a test that it knows to hold for a whole vector, gcc 12 makes a wrong one if the other branch gives
a product: it takes the product for a term of the sum, whose multiplication and addition it joins.
"""

from __future__ import annotations

import math
from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Runtime, Var
from compiler.codegen.nest.loop_ir import Body, For
from compiler.codegen.nest.traversal import map_bodies, walk
from compiler.codegen.schedules.loop_transforms import map_vector_loops
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

_MIXED = ({Opcode.ADD, Opcode.MULTIPLY}, {Opcode.SUBTRACT, Opcode.MULTIPLY})
UNROLLED = 8
"""Iterations of loops around a vector loop which the C compiler may unroll."""


def hide_single_elements(body: Body) -> Body:
    """Return bound statements with the bounds of such tests in vector loops hidden."""
    return map_vector_loops(body, _loop)


def _loop(s: For) -> Body:
    branches = [x for x in walk(s.body) if isinstance(x, lir.If)]
    names = {x.condition for x in branches}
    mixed = {x.condition for x in branches if _mixes_sums_and_products(x)}
    lets = [x for x in walk(s.body) if isinstance(x, lir.Let) and x.name in names]
    found = [(x.name, x.value) for x in lets if isinstance(x.value, lir.IndexTest)]
    moving = [(name, test) for name, test in found if s.var in test.value.variables()]
    tests = {test for name, test in moving if name in mixed or _is_single(test, s.var)}
    if not tests:
        return (s,)
    zero = Runtime(f"{s.var.name}_zero", 0, 0)

    def statement(x: lir.Stmt) -> lir.Stmt:
        if isinstance(x, lir.Let) and isinstance(x.value, lir.IndexTest) and x.value in tests:
            return replace(x, value=replace(x.value, value=x.value.value + ix.of(zero)))
        return map_bodies(x, lambda inner: tuple(map(statement, inner)))

    return lir.Let(zero.name, T.S32, lir.Opaque(0)), replace(s, body=tuple(map(statement, s.body)))


def _mixes_sums_and_products(s: lir.If) -> bool:
    """Check whether one branch assigns a float sum and the other one a product."""
    first, second = _assigned(s.then), _assigned(s.otherwise)
    return any({op, second.get(name)} in _MIXED for name, op in first.items())


def _assigned(body: Body) -> dict[str, Opcode]:
    """Return the ops of the floats that statements assign, by the name of the accumulator."""
    values = {x.name: x.value for x in body if isinstance(x, lir.Let)}
    found = {x.name: values.get(x.value) for x in body if isinstance(x, lir.Assign)}
    return {n: v.op.opcode for n, v in found.items() if isinstance(v, lir.Apply) and v.op.type.is_float}


def _is_single(test: lir.IndexTest, var: Var) -> bool:
    """Check whether a test of a loop variable may hold, or not hold, for just one of its values.

    Other variables in the test are those of loops around this one; the C compiler unrolls a few iterations of them.
    """
    if abs(test.value.coefficient(var)) != 1 or var.extent < 2:
        return False
    around = set(test.value.variables()) - {var}
    if math.prod(v.extent if isinstance(v, Var) else UNROLLED + 1 for v in around) > UNROLLED:
        return False
    ends = [] if test.low is None else [test.low]
    ends += [] if test.high is None else [test.high + 1]
    # The outcome changes between two elements of the loop: the first and the second, or the last two.
    return any((end - test.value.const) % var.extent in (1, var.extent - 1) for end in ends)
