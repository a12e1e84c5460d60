"""Tests of elements inside of tiles that are tests of the tiles."""

from __future__ import annotations

from itertools import product

import pytest

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.schedules.tile_tests import tests_of_tiles as of_tiles
from compiler.ir.types import PrimitiveType as T
from tests.codegen.test_stages import checked

TILE, POINT = Var("tile", 5), Var("point", 8)


def outcome(t: lir.IndexTest, tile: int, point: int) -> bool:
    """Return the outcome of a test of the two variables."""
    value = t.value.substitute({TILE: ix.const(tile), POINT: ix.const(point)})
    assert value.is_const
    return (t.low is None or value.const >= t.low) and (t.high is None or value.const <= t.high)


@pytest.mark.parametrize("start", [-9, -8, 0, 3, 8])
@pytest.mark.parametrize("sign", [1, -1])
def test_outcomes_stay_the_same(start: int, sign: int) -> None:
    value = (ix.of(TILE) * 8 + ix.of(POINT)) * sign + start
    simpler = 0
    for low, high in [*product(range(-20, 30, 3), range(-20, 45)), *((None, h) for h in range(-20, 45))]:
        test = lir.IndexTest(value, low, high)
        (let,) = of_tiles((lir.Let("t", T.PRED, test),))
        assert isinstance(let, lir.Let)
        assert isinstance(let.value, lir.IndexTest)
        assert all(outcome(test, i, j) == outcome(let.value, i, j) for i in range(5) for j in range(8))
        simpler += set(let.value.value.variables()) == {TILE}
    assert simpler


@pytest.mark.parametrize("rows", [64, 50])
def test_transposed_parts_of_a_concatenation(rows: int) -> None:
    text = f"""
    x = f32[{2 * rows},96] parameter(0)
    s = f32[{2 * rows},96] sine(x)
    a = f32[{rows},96] slice(s), slice={{[{rows}:{2 * rows}], [0:96]}}
    b = f32[{rows},96] slice(x), slice={{[0:{rows}], [0:96]}}
    n = f32[{rows},96] negate(a)
    u = f32[96,{rows}] transpose(n), dimensions={{1,0}}
    v = f32[96,{rows}] transpose(b), dimensions={{1,0}}
    ROOT r = f32[96,{2 * rows}] concatenate(u, v), dimensions={{1}}
    """
    source = checked(text, Schedule(threads=0))
    if rows == 64:  # the tiles end where a part does
        assert "if (" in source
        assert "if (" not in source[source.index("for (index_t i2i") :]
