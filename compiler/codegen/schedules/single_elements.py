"""Tests in vector loops that hold for one element: the C compiler does not know for which.

Where a test such as `i <= 0` holds for one element of a loop, the C compiler reads what is behind it from one address,
and cannot make vectors of a loop with such a read behind a test. If it does not know the bound, it reads under a mask.
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
from compiler.ir.types import PrimitiveType as T

UNROLLED = 8
"""Iterations of loops around a vector loop which the C compiler may unroll."""


def hide_single_elements(body: Body) -> Body:
    """Return bound statements whose vector loops have no test that the C compiler knows to hold for one element."""
    return map_vector_loops(body, _loop)


def _loop(s: For) -> Body:
    names = {x.condition for x in walk(s.body) if isinstance(x, lir.If)}
    lets = [x for x in walk(s.body) if isinstance(x, lir.Let) and x.name in names]
    tests = {x.value for x in lets if isinstance(x.value, lir.IndexTest) and _is_single(x.value, s.var)}
    if not tests:
        return (s,)
    zero = Runtime(f"{s.var.name}_zero", 0, 0)

    def statement(x: lir.Stmt) -> lir.Stmt:
        if isinstance(x, lir.Let) and isinstance(x.value, lir.IndexTest) and x.value in tests:
            return replace(x, value=replace(x.value, value=x.value.value + ix.of(zero)))
        return map_bodies(x, lambda inner: tuple(map(statement, inner)))

    return lir.Let(zero.name, T.S32, lir.Opaque(0)), replace(s, body=tuple(map(statement, s.body)))


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
