"""Tests of elements inside of tiles that are tests of the tiles."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.schedules.tile_tests import tests_of_tiles as of_tiles
from compiler.ir.types import PrimitiveType as T
from tests.codegen import running
from tests.codegen.test_stages import checked

ADD = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }"
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


PARTS = """
    x = f32[{rows},{n}] parameter(0)
    y = f32[{rows},{h}] parameter(1)
    zero = f32[] constant(0)
    a = f32[{rows},{h}] negate(y)
    left = f32[{rows},{k}] slice(x), slice={{[0:{rows}], [0:{k}]}}
    b = f32[{rows},{n}] concatenate(a, left), dimensions={{1}}
    d = f32[{rows},{n}] subtract(b, x)
    sums = f32[{n}] reduce(d, zero), dimensions={{0}}, to_apply=add
    ROOT r = (f32[{n}], f32[{rows},{n}]) tuple(sums, d)
"""


@pytest.mark.parametrize("schedule", [Schedule(threads=0, splits=1), Schedule(), Schedule(splits=3, columns=32)])
@pytest.mark.parametrize(("rows", "half"), [(40, 512), (40, 500), (100, 1024)])
def test_columns_of_a_concatenation_are_summed_without_branches_in_the_loops(
    rows: int, half: int, schedule: Schedule
) -> None:
    source = summed(PARTS.format(rows=rows, n=2 * half, h=half, k=half), schedule)
    if half % 256 == 0:  # the tiles end where a part does
        assert "if (" in source
        vectors = [loop.split("}")[0] for loop in source.split("#pragma omp simd")[1:]]
        assert not any("if (" in loop for loop in vectors)


def test_summands_that_a_branch_chooses_are_computed_once() -> None:
    source = summed(PARTS.format(rows=40, n=1024, h=512, k=512), Schedule(threads=0, splits=1))
    assert source.count("o1[") == 2  # one store for each part, in the loops that sum


def test_many_parts_do_not_multiply_the_copies_of_a_loop() -> None:
    """Five concatenations whose parts end at different tiles have 32 combinations of outcomes."""
    text = "x = f32[40,4096] parameter(0)\nzero = f32[] constant(0)\nd0 = f32[40,4096] copy(x)\n"
    for k in range(5):
        left, right = 512 * (k + 1), 4096 - 512 * (k + 1)
        text += f"""
            l{k} = f32[40,{left}] slice(x), slice={{[0:40], [{right}:4096]}}
            r{k} = f32[40,{right}] slice(x), slice={{[0:40], [0:{right}]}}
            c{k} = f32[40,4096] concatenate(l{k}, r{k}), dimensions={{1}}
            d{k + 1} = f32[40,4096] subtract(c{k}, d{k})
        """
    source = summed(
        text + "ROOT s = f32[4096] reduce(d5, zero), dimensions={0}, to_apply=add", Schedule(threads=0, splits=1)
    )
    assert source.count("#pragma omp simd") < 16


def summed(text: str, schedule: Schedule) -> str:
    """Return the source of the kernel of a computation with sums, after comparing it with the interpreter."""
    fused = running.fused(text, ADD)
    case = running.case_of(fused, running.random_args(fused.parameter_shapes, np.random.default_rng(0)), "c", schedule)
    assert running.problem(running.run_c([case])[0], case) is None
    return case.spec.source
