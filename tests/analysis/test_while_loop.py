"""Inferred trip counts equal the number of iterations that the interpreter runs."""

import itertools

import pytest

from compiler.analysis.value_range import Range, module_ranges
from compiler.analysis.while_loop import affine_in, induction, trip_count, view_loop
from compiler.ir import HloInstruction, HloModule, Opcode, PrimitiveType
from compiler.text import parse

HOLDS = {
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
    "NE": lambda a, b: a != b,
}
STARTS = (-128, -3, 0, 2, 5, 127)


@pytest.mark.parametrize("direction", HOLDS)
def test_trip_count_is_what_counting_gives(direction: str) -> None:
    for start, step, limit in itertools.product(STARTS, (-3, -1, 0, 1, 2, 50), STARTS):
        value, count = start, 0
        while HOLDS[direction](value, limit) and -128 <= value <= 127 and count < 300:
            value, count = value + step, count + 1
        ends_in_range = -128 <= value <= 127 and not HOLDS[direction](value, limit)
        expected = count if ends_in_range else None

        assert trip_count(start, step, limit, direction, PrimitiveType.S8) == expected, (start, step, limit)


TEXT = """HloModule loop
body {
  p = (s32[], s32[], s32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  x = s32[4] get-tuple-element(p), index=2
  two = s32[] constant(2)
  one = s32[] constant(1)
  ten = s32[] constant(10)
  down = s32[] subtract(i, one)
  next = s32[] subtract(down, two)
  turned = s32[] subtract(ten, i)
  is = s32[4] broadcast(turned), dimensions={}
  y = s32[4] add(x, is)
  ROOT t = (s32[], s32[], s32[4]) tuple(next, n, y)
}
condition {
  p = (s32[], s32[], s32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  ROOT gt = pred[] compare(n, i), direction=LT
}
ENTRY main {
  x = s32[4] parameter(0)
  twelve = s32[] constant(12)
  zero = s32[] constant(0)
  start = (s32[], s32[], s32[4]) tuple(twelve, zero, x)
  loop = (s32[], s32[], s32[4]) while(start), condition=condition, body=body
  ROOT y = s32[4] get-tuple-element(loop), index=2
}"""


def find(module: HloModule, name: str) -> HloInstruction:
    return next(i for c in module.computations for i in c.instructions if i.name == name)


def test_counter_that_counts_down_against_an_invariant() -> None:
    module = parse(TEXT)
    view = view_loop(find(module, "loop"))
    assert view is not None

    counter = induction(view)

    assert counter is not None
    assert (counter.index, counter.start, counter.step, counter.trip_count, counter.last) == (0, 12, -3, 4, 3)
    assert affine_in(view, find(module, "turned"), 0) == (-1, 10)
    assert affine_in(view, find(module, "y"), 0) is None


def test_ranges_in_a_loop_body() -> None:
    module = parse(TEXT)

    ranges = module_ranges(module)

    assert ranges[find(module, "turned")] == Range(-2, 7)
    assert ranges[find(module, "next")] == Range(0, 9)
    assert all(i.opcode is not Opcode.WHILE for i in ranges)
