"""Vector loops over f16, whose elements are converted by whole vectors."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.schedules.halves import convert_halves
from compiler.codegen.schedules.schedule import Schedule
from tests.codegen import running

SCALED = """
    a = f16[{m},{n}] parameter(0)
    b = f16[{n}] parameter(1)
    s = f16[{m},{n}] broadcast(b), dimensions={{1}}
    ROOT r = f16[{m},{n}] add(a, s)
"""
SQUARES = """
    a = f16[{m},{n}] parameter(0)
    w = f32[{m},{n}] convert(a)
    q = f32[{m},{n}] multiply(w, w)
    z = f32[] constant(0)
    t = f32[{m}] reduce(q, z), dimensions={{1}}, to_apply=add
    l = f32[{m},{n}] broadcast(t), dimensions={{0}}
    d = f32[{m},{n}] add(w, l)
    ROOT r = f16[{m},{n}] convert(d)
"""
ROTATED = """
    a = f16[{m},{n}] parameter(0)
    b = f16[{m},{h}] slice(a), slice={{[0:{m}], [0:{h}]}}
    c = f16[{m},{h}] slice(a), slice={{[0:{m}], [{h}:{n}]}}
    d = f16[{m},{h}] subtract(b, c)
    e = f16[{m},{h}] add(b, c)
    ROOT r = f16[{m},{n}] concatenate(d, e), dimensions={{1}}
"""
"""Rows whose halves are computed from each other, as in rotary embeddings; h is half of n."""
DEQUANTIZED = """
    q = {t}[{m},{n}] parameter(0)
    b = f16[{n}] parameter(1)
    s = f16[{m},{n}] broadcast(b), dimensions={{1}}
    c = f16[{m},{n}] convert(q)
    ROOT r = f16[{m},{n}] multiply(c, s)
"""
SCATTERED = """
    x = f16[10,{n}] parameter(0)
    i = s32[50,1] parameter(1)
    u = f16[50,{n}] parameter(2)
    ROOT r = f16[10,{n}] scatter(x, i, u), update_window_dims={{1}}, inserted_window_dims={{0}},
      scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=combine
"""
PAIRS = """
    a = f16[{m},{n},{k}] parameter(0)
    p = f16[{m},{n}] parameter(1)
    e = f16[{m},{n},1] slice(a), slice={{[0:{m}], [0:{n}], [0:1]}}
    o = f16[{m},{n},1] slice(a), slice={{[0:{m}], [0:{n}], [{l}:{k}]}}
    x = f16[{m},{n}] reshape(e)
    y = f16[{m},{n}] reshape(o)
    v = f16[{m},{n}] multiply(x, p)
    ROOT r = f16[{m},{n}] subtract(v, y)
"""
"""The first and the last number of groups of k, of which l is k - 1."""
TURNED = """
    a = f16[{m},{n},2] parameter(0)
    p = f16[{m},{n}] parameter(1)
    e = f16[{m},{n},1] slice(a), slice={{[0:{m}], [0:{n}], [0:1]}}
    o = f16[{m},{n},1] slice(a), slice={{[0:{m}], [0:{n}], [1:2]}}
    x = f16[{m},{n}] reshape(e)
    y = f16[{m},{n}] reshape(o)
    v = f16[{m},{n}] multiply(x, p)
    w = f16[{m},{n}] multiply(y, p)
    s = f16[{m},{n}] subtract(v, y)
    t = f16[{m},{n}] add(w, x)
    s1 = f16[{m},{n},1] reshape(s)
    t1 = f16[{m},{n},1] reshape(t)
    ROOT r = f16[{m},{n},2] concatenate(s1, t1), dimensions={{2}}
"""
"""Pairs that are computed from pairs, as in rotary embeddings of adjacent elements."""
COMBINE = "combine {{ a = f16[] parameter(0) b = f16[] parameter(1) ROOT r = f16[] {combiner}(a, b) }}\n"
ADD = "add { x = f32[] parameter(0) y = f32[] parameter(1) ROOT r = f32[] add(x, y) }\n"
SHAPES = [(3, 16), (5, 33), (7, 100), (40, 64), (2, 3000), (1, 70000), (300, 512), (64, 15)]


def source_of(text: str, m: int, n: int, schedule: Schedule | None = None) -> str:
    """Return the source of the kernel of a computation, after comparing it with the interpreter."""
    fused = running.fused(text.format(m=m, n=n, h=n // 2), ADD)
    arguments = running.random_args(fused.parameter_shapes, np.random.default_rng(n))
    case = running.case_of(fused, arguments, "c", schedule)
    assert running.problem(running.run_c([case])[0], case) is None
    return case.spec.source


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_elementwise_loops(m: int, n: int) -> None:
    source = source_of(SCALED, m, n)
    assert ("narrow_halves(" in source) == (n >= 16)
    assert ("narrow_8_halves(" in source) == (n % 16 >= 8)


@pytest.mark.parametrize("n", range(4, 34))
def test_what_remains_over_is_converted_by_narrower_vectors(n: int) -> None:
    source = source_of(SCALED, 7, n)
    assert [f"widen_{k}_halves(" in source for k in (8, 4)] == [n % 16 >= 8, n % 8 >= 4]


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_a_copy_is_rounded_where_it_is_read(m: int, n: int) -> None:
    source = source_of("a = f32[{m},{n}] parameter(0)\n ROOT r = f16[{m},{n}] convert(a)", m, n)
    assert "o0_halves" not in source


@pytest.mark.parametrize(("m", "n"), [(3, 32), (5, 66), (64, 400), (7, 30), (9, 8)])
def test_pairs_of_pairs(m: int, n: int) -> None:
    source = source_of(TURNED, m, n)
    assert "halves(" in source[source.index("part0(") if "part0(" in source else 0 :]


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_whole_groups_are_converted_together(k: int, m: int, n: int) -> None:
    text = PAIRS.replace("{k}", str(k)).replace("{l}", str(k - 1))
    assert ("halves(" in source_of(text, m, n)) == (k == 2 and n >= 8)


@pytest.mark.parametrize(("m", "n"), [(3, 32), (5, 66), (64, 4000), (7, 30)])
def test_loops_that_write_both_halves_of_rows(m: int, n: int) -> None:
    source = source_of(ROTATED, m, n)
    assert ("narrow_halves(" in source) == (n >= 32)


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_rows_that_are_read_twice(m: int, n: int) -> None:
    source_of(SQUARES, m, n)


@pytest.mark.parametrize(
    "schedule", [Schedule(vector=256), Schedule(unroll=4), Schedule(threads=0), Schedule(vector=0)]
)
def test_schedules(schedule: Schedule) -> None:
    for m, n in ((5, 100), (3, 2048)):
        source_of(SCALED, m, n, schedule)
        source_of(SQUARES, m, n, schedule)


def test_moved_elements_are_not_converted() -> None:
    text = "a = f16[{m},{n}] parameter(0)\n ROOT r = f16[{m},{n}] negate(a)"
    assert "halves(" not in source_of(text, 4, 256)


def test_a_result_keeps_infinities_and_nan() -> None:
    text = "a = f16[{n}] parameter(0)\n b = f16[{n}] parameter(1)\n ROOT r = f16[{n}] multiply(a, b)"
    fused = running.fused(text.format(n=64))
    a = np.full(64, 300, np.float16)
    a[:4] = np.inf, -np.inf, np.nan, 6e-8
    case = running.case_of(fused, [a, a], "c")
    ((found,),) = running.run_c([case])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, a * a)


def test_copies_of_a_loop_side_by_side_have_arrays_of_their_own() -> None:
    fused = running.fused(SCALED.format(m=2, n=32), ADD)
    nest = lower(fused)
    (rows,) = nest.body
    assert isinstance(rows, lir.For)
    loops = tuple(replace(s, kind=lir.LoopKind.VECTOR) if isinstance(s, lir.For) else s for s in rows.body)
    found = convert_halves(nest, (*loops, *loops))
    arrays = [s.name for s in found if isinstance(s, lir.LocalArray)]
    assert arrays
    assert len(set(arrays)) == len(arrays)


@pytest.mark.parametrize(("t", "lanes"), [("s8", 64), ("u8", 64), ("s16", 32), ("s32", 16)])
@pytest.mark.parametrize(("m", "n"), [*SHAPES, (9, 80), (4, 143)])
def test_blocks_beside_narrower_elements_fill_vectors_of_these(t: str, lanes: int, m: int, n: int) -> None:
    source = source_of(DEQUANTIZED.replace("{t}", t), m, n)
    sizes = {int(size) for size in re.findall(r"o0_halves\d+\[(\d+)\]", source)}
    rest = n % lanes if n >= lanes else n
    blocks = {lanes} if n >= lanes else set()
    fewer = {k for k, has in ((16, rest >= 16), (8, rest % 16 >= 8), (4, rest % 8 >= 4)) if has}
    assert {min(k, lanes) for k in sizes} == blocks | (fewer if m * n < 70_000 else set())


@pytest.mark.parametrize("combiner", ["add", "maximum"])
@pytest.mark.parametrize("n", [8, 16, 40, 64, 300])
def test_rows_of_updates_are_converted(combiner: str, n: int) -> None:
    fused = running.fused(SCATTERED.format(n=n), COMBINE.format(combiner=combiner))
    arguments = running.random_args(fused.parameter_shapes, np.random.default_rng(n))
    arguments[1] = np.random.default_rng(n).integers(-1, 12, (50, 1)).astype(np.int32)  # some of them more than once
    case = running.case_of(fused, arguments, "c", None)
    assert running.problem(running.run_c([case])[0], case) is None
    assert ("narrow_halves(" in case.spec.source) == (n >= 16)
