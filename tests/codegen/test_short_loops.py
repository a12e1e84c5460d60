"""Short loops inside longer ones, values that rows share, lanes of reductions: results, and how the loops change."""

from __future__ import annotations

import re

import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen.test_stages import checked

SUM = """
add_f32 {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}
"""
POINTS = """
    points = f32[1000,4] parameter(0)
    depth = f32[1000] parameter(1)
    near = f32[1000,{n}] slice(points), slice={{[0:1000], [0:{n}]}}
    wide = f32[1000,{n}] broadcast(depth), dimensions={{0}}
    scaled = f32[1000,{n}] divide(near, wide)
    size = f32[1000,{n}] multiply(scaled, scaled)
    more = f32[1000,{n}] add(size, scaled)
    ROOT r = f32[1000,{n}] multiply(more, wide)
"""


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("short", [0, 2, 4])
@pytest.mark.parametrize("threads", [0, 1])
def test_short_loops_are_unrolled(n: int, short: int, threads: int) -> None:
    source = checked(POINTS.format(n=n), Schedule(short=short, threads=threads, grain=1000, stages=0, tile=0))
    assert ("_e1" in source) == (n <= short)


def test_light_loops_are_not_unrolled() -> None:
    text = """
    a = f32[1000,4] parameter(0)
    b = f32[4] parameter(1)
    w = f32[1000,4] broadcast(b), dimensions={1}
    ROOT r = f32[1000,4] add(a, w)
    """
    assert "_e1" not in checked(text, Schedule())


@pytest.mark.parametrize("columns", [2, 3, 4, 5])
@pytest.mark.parametrize("rows", [40, 1000, 200000])
def test_narrow_columns_are_one_reduction(columns: int, rows: int) -> None:
    text = f"""
    a = f32[{rows},{columns}] parameter(0)
    zero = f32[] constant(0)
    e = f32[{rows},{columns}] multiply(a, a)
    s = f32[{columns}] reduce(e, zero), dimensions={{0}}, to_apply=add_f32
    h = f32[] constant(0.5)
    w = f32[{columns}] broadcast(h), dimensions={{}}
    ROOT r = f32[{columns}] multiply(s, w)
    """
    source = checked(text, Schedule(threads=0, splits=1), SUM)
    assert ("_e1" in source) == (columns <= 4)


def test_what_copies_share_is_computed_once() -> None:
    text = """
    p = f32[64,3] parameter(0)
    a = f32[64,64,3] broadcast(p), dimensions={0,2}
    b = f32[64,64,3] broadcast(p), dimensions={1,2}
    d = f32[64,64,3] subtract(a, b)
    i = s32[64,64] iota(), iota_dimension=0
    f = f32[64,64] convert(i)
    e = f32[64,64] exponential(f)
    w = f32[64,64,3] broadcast(e), dimensions={0,1}
    m = f32[64,64,3] multiply(d, w)
    zero = f32[] constant(0)
    ROOT s = f32[64,3] reduce(m, zero), dimensions={1}, to_apply=add_f32
    """
    assert checked(text, Schedule(hoist=0, threads=0), SUM).count("expf(") == 1


SHARED = """
    x = f32[{rows},{columns}] parameter(0)
    v = f32[{columns}] parameter(1)
    e = f32[{columns}] exponential(v)
    w = f32[{rows},{columns}] broadcast(e), dimensions={{1}}
    ROOT r = f32[{rows},{columns}] multiply(x, w)
"""


@pytest.mark.parametrize("rows", [3, 8, 500])
@pytest.mark.parametrize("columns", [7, 300, 20000])
@pytest.mark.parametrize("hoist", [0, 1])
def test_values_of_columns_are_computed_once(rows: int, columns: int, hoist: int) -> None:
    source = checked(SHARED.format(rows=rows, columns=columns), Schedule(hoist=hoist, grain=1000))
    # Three rows are too few, and 20,000 values too many.
    assert ("_shared[" in source) == (hoist == 1 and rows > 3 and columns < 20000)


def test_shared_values_of_two_loops_are_one_array() -> None:
    text = """
    x = f32[100,40] parameter(0)
    v = f32[40] parameter(1)
    e = f32[40] exponential(v)
    w = f32[100,40] broadcast(e), dimensions={1}
    m = f32[100,40] multiply(x, w)
    zero = f32[] constant(0)
    s = f32[100] reduce(m, zero), dimensions={1}, to_apply=add_f32
    b = f32[100,40] broadcast(s), dimensions={0}
    ROOT r = f32[100,40] subtract(m, b)
    """
    source = checked(text, Schedule(cache=0, stages=0), SUM)
    assert source.count("expf(") == 1 and source.count("_shared[40]") == 1


def test_shared_indices_of_gathers() -> None:
    text = """
    x = f32[50,64] parameter(0)
    i = s32[64] parameter(1)
    three = s32[] constant(3)
    t = s32[64] broadcast(three), dimensions={}
    j = s32[64] multiply(i, t)
    c = s32[64] and(j, j)
    f = f32[64] convert(c)
    g = f32[64] sine(f)
    w = f32[50,64] broadcast(g), dimensions={1}
    ROOT r = f32[50,64] add(x, w)
    """
    assert "_shared[64]" in checked(text, Schedule())


REDUCED = """
    a = {t}[20,{n}] parameter(0)
    mask = pred[20,{n}] parameter(1)
    least = {t}[] constant({least})
    w = {t}[20,{n}] broadcast(least), dimensions={{}}
    m = {t}[20,{n}] select(mask, a, w)
    ROOT r = {t}[20] reduce(m, least), dimensions={{1}}, to_apply=larger
"""


@pytest.mark.parametrize(("t", "least"), [("f32", "-inf"), ("f64", "-inf"), ("bf16", "-inf"), ("s32", -9), ("u8", 0)])
@pytest.mark.parametrize("n", [5, 16, 33, 64, 100, 257])
@pytest.mark.parametrize("vector", [0, 256, 512])
def test_lanes_of_reductions(t: str, least: object, n: int, vector: int) -> None:
    larger = f"""
larger {{
  x = {t}[] parameter(0)
  y = {t}[] parameter(1)
  ROOT s = {t}[] maximum(x, y)
}}
"""
    checked(REDUCED.format(t=t, n=n, least=least), Schedule(vector=vector, stages=0), larger)


ROWS_OF_POINTS = """
    a = {t}[3,33,{n}] parameter(0)
    b = {t}[3,33] parameter(1)
    none = {t}[] constant(0)
    least = {t}[] constant({least})
    w = {t}[3,33,{n}] broadcast(b), dimensions={{0,1}}
    d = {t}[3,33,{n}] subtract(a, w)
    s = {t}[3] reduce(d, none), dimensions={{1,2}}, to_apply=sum
    m = {t}[3] reduce(d, least), dimensions={{1,2}}, to_apply=larger
    ROOT r = ({t}[3], {t}[3]) tuple(s, m)
"""


@pytest.mark.parametrize(("t", "least"), [("f32", "-inf"), ("f64", "-inf"), ("s32", -99), ("s8", -128)])
@pytest.mark.parametrize("n", [4, 5, 6, 7, 8, 10, 15, 16])
@pytest.mark.parametrize("vector", [0, 256, 512])
def test_lanes_of_short_loops_are_combined_after_the_loops_around_them(
    t: str, least: object, n: int, vector: int
) -> None:
    combiners = "".join(
        f"{name} {{ x = {t}[] parameter(0)\n y = {t}[] parameter(1)\n ROOT s = {t}[] {op}(x, y) }}\n"
        for name, op in (("sum", "add"), ("larger", "maximum"))
    )
    source = checked(ROWS_OF_POINTS.format(t=t, n=n, least=least), Schedule(vector=vector, short=0), combiners)
    assert ("_lanes[" in source) == (vector > 0 and (n > 4 or (t, vector) == ("f64", 256)))


@pytest.mark.parametrize("accumulators", range(1, 17))
def test_any_number_of_accumulators(accumulators: int) -> None:
    text = """
    a = f32[3,1000] parameter(0)
    zero = f32[] constant(0)
    ROOT s = f32[3] reduce(a, zero), dimensions={1}, to_apply=add_f32
    """
    checked(text, Schedule(accumulators=accumulators, threads=0), SUM)


@pytest.mark.parametrize("count", range(1, 9))
def test_any_number_of_reductions_in_one_loop(count: int) -> None:
    shifted = "\n".join(
        f"c{n} = f32[] constant({n})\nw{n} = f32[3,1000] broadcast(c{n}), dimensions={{}}\n"
        f"m{n} = f32[3,1000] multiply(a, w{n})\n"
        f"r{n} = f32[3] reduce(m{n}, zero), dimensions={{1}}, to_apply=add_f32"
        for n in range(count)
    )
    types, names = ", ".join(["f32[3]"] * count), ", ".join(f"r{n}" for n in range(count))
    text = f"a = f32[3,1000] parameter(0)\nzero = f32[] constant(0)\n{shifted}\nROOT r = ({types}) tuple({names})"
    checked(text, Schedule(threads=0), SUM)


def test_reductions_of_many_rows_are_not_divided() -> None:
    text = """
    a = f32[{rows},4096] parameter(0)
    zero = f32[] constant(0)
    ROOT s = f32[{rows}] reduce(a, zero), dimensions={{1}}, to_apply=add_f32
    """
    assert "_parts" not in checked(text.format(rows=768), Schedule(), SUM)
    assert "_parts" in checked(text.format(rows=4), Schedule(grain=1000), SUM)


def test_few_of_many_adjacent_elements_are_not_read_in_vectors() -> None:
    text = """
    a = f32[100,64] parameter(0)
    first = f32[100,1] slice(a), slice={[0:100], [0:1]}
    last = f32[100,1] slice(a), slice={[0:100], [63:64]}
    ROOT r = f32[100,1] add(first, last)
    """
    assert "omp simd" not in checked(text, Schedule())


@pytest.mark.parametrize(("rows", "columns"), [(16, 40), (32, 32), (100, 40), (1000, 300), (9, 32)])
@pytest.mark.parametrize("stages", [0, 1])
def test_what_follows_reductions_of_rows_is_computed_for_many_rows(rows: int, columns: int, stages: int) -> None:
    text = f"""
    a = f32[{rows},{columns}] parameter(0)
    b = f32[{rows}] parameter(1)
    zero = f32[] constant(0)
    s = f32[{rows}] reduce(a, zero), dimensions={{1}}, to_apply=add_f32
    e = f32[{rows}] add(s, b)
    t = f32[{rows}] tanh(e)
    f = f32[{rows}] exponential(t)
    ROOT r = (f32[{rows}], f32[{rows}]) tuple(f, t)
    """
    source = checked(text, Schedule(stages=stages, grain=1000), SUM)
    assert ("_of[" in source) == (bool(stages) and rows >= 16)


@pytest.mark.parametrize(("columns", "are_groups"), [(2, True), (3, True), (4, False)])
def test_light_loops_of_less_than_four_elements_run_over_groups(columns: int, are_groups: bool) -> None:
    text = f"""
    a = f32[40,50,{columns}] parameter(0)
    b = f32[40,{columns}] parameter(1)
    w = f32[40,50,{columns}] broadcast(b), dimensions={{0,2}}
    ROOT r = f32[40,50,{columns}] subtract(a, w)
    """
    source = checked(text, Schedule())
    assert source.count("omp simd") == 1
    assert (f"_e{columns - 1} = " in source) == are_groups


@pytest.mark.parametrize("t", ["f32", "s32"])
def test_branches_that_the_short_loop_decides_are_no_obstacle(t: str) -> None:
    text = f"""
    a = {t}[100,4] parameter(0)
    b = {t}[100,4] parameter(1)
    early = {t}[100,2] slice(a), slice={{[0:100], [0:2]}}
    zero = {t}[] constant(0)
    shifted = {t}[100,4] pad(early, zero), padding=0_0x2_0
    s = {t}[100,4] add(shifted, b)
    m = {t}[100,4] multiply(s, a)
    d = {t}[100,4] subtract(m, b)
    q = {t}[100,4] multiply(d, d)
    n = {t}[100,4] negate(q)
    ROOT r = {t}[100,4] maximum(n, a)
    """
    source = checked(text, Schedule())
    assert "if (" not in source
    assert source.count("omp simd") == 1


@pytest.mark.parametrize(("function", "apart"), [("log", True), ("tanh", True), ("negate", False)])
def test_one_long_function_of_the_sums_of_rows_runs_in_vectors(function: str, apart: bool) -> None:
    text = f"""
    a = f32[64,40] parameter(0)
    q = f32[64,40] multiply(a, a)
    one = f32[] constant(1)
    s = f32[64] reduce(q, one), dimensions={{1}}, to_apply=add_f32
    ROOT r = f32[64] {function}(s)
    """
    assert ("_of[" in checked(text, Schedule(), SUM)) == apart


@pytest.mark.parametrize("t", ["s8", "u8", "s16", "u16"])
@pytest.mark.parametrize("source", ["f32", "f64", "f16", "bf16"])
def test_values_that_are_quantized_and_converted_back(t: str, source: str) -> None:
    text = f"""
    a = {source}[70] parameter(0)
    big = {source}[] constant(400)
    w = {source}[70] broadcast(big), dimensions={{}}
    m = {source}[70] multiply(a, w)
    zero = {source}[] constant(0)
    z = {source}[70] broadcast(zero), dimensions={{}}
    infinite = {source}[70] divide(m, z)
    q = {t}[70] convert(m)
    f = {source}[70] convert(q)
    i = {t}[70] convert(infinite)
    g = {source}[70] convert(i)
    ROOT r = ({source}[70], {t}[70], {source}[70], {t}[70]) tuple(f, q, g, i)
    """
    checked(text, Schedule())


@pytest.mark.parametrize("rows", [20, 1000])
def test_columns_of_sums_of_pairs_are_adjacent(rows: int) -> None:
    text = f"""
    a = f32[{rows},96,2] parameter(0)
    zero = f32[] constant(0)
    p = f32[{rows},96] reduce(a, zero), dimensions={{2}}, to_apply=add_f32
    m = f32[{rows},96] multiply(p, p)
    ROOT r = f32[96] reduce(m, zero), dimensions={{0}}, to_apply=add_f32
    """
    assert "_lanes[96]" in checked(text, Schedule(threads=0), SUM)


def test_rows_with_values_of_their_own_are_read_along_themselves() -> None:
    text = """
    x = f32[64,3000] parameter(0)
    mean = f32[64] parameter(1)
    scale = f32[64] parameter(2)
    means = f32[64,3000] broadcast(mean), dimensions={0}
    scales = f32[64,3000] broadcast(scale), dimensions={0}
    centred = f32[64,3000] subtract(x, means)
    scaled = f32[64,3000] multiply(centred, scales)
    zero = f32[] constant(0)
    ROOT r = f32[] reduce(scaled, zero), dimensions={0,1}, to_apply=add_f32
    """
    source = checked(text, Schedule(splits=64, grain=100), SUM)
    lanes = re.findall(r"omp simd\s+for \(index_t (\w+) =", source)
    assert lanes and not any(f"3000*{v}" in source for v in lanes)  # no elements of different rows in a vector


def test_reductions_with_distant_elements_are_not_in_vectors() -> None:
    text = """
    a = f32[100,9,40] parameter(0)
    first = f32[100,1,40] slice(a), slice={[0:100], [0:1], [0:40]}
    last = f32[100,1,40] slice(a), slice={[0:100], [8:9], [0:40]}
    m = f32[100,1,40] multiply(first, last)
    f = f32[100,40] reshape(m)
    t = f32[40,100] transpose(f), dimensions={1,0}
    zero = f32[] constant(0)
    ROOT r = f32[40] reduce(t, zero), dimensions={1}, to_apply=add_f32
    """
    checked(text, Schedule(threads=0), SUM)


def test_a_concatenation_beside_an_output_of_another_shape() -> None:
    text = """
    a = f32[32,2] parameter(0)
    b = f32[32,2] parameter(1)
    c = f32[32,4] concatenate(a, b), dimensions={1}
    zero = f32[] constant(0)
    s = f32[4] reduce(c, zero), dimensions={0}, to_apply=add_f32
    ROOT r = (f32[4], f32[32,4]) tuple(s, c)
    """
    checked(text, Schedule(), SUM)


@pytest.mark.parametrize("points", [20, 300])
def test_narrow_columns_of_many_points_are_lanes(points: int) -> None:
    """The forces on each point: a sum over the first of two dimensions, whose elements lie apart along it."""
    text = f"""
    p = f32[{points},3] parameter(0)
    w = f32[{points},{points}] parameter(1)
    a = f32[{points},{points},3] broadcast(p), dimensions={{0,2}}
    b = f32[{points},{points},3] broadcast(p), dimensions={{1,2}}
    d = f32[{points},{points},3] subtract(a, b)
    v = f32[{points},{points},3] broadcast(w), dimensions={{0,1}}
    m = f32[{points},{points},3] multiply(d, v)
    zero = f32[] constant(0)
    ROOT s = f32[{points},3] reduce(m, zero), dimensions={{0}}, to_apply=add_f32
    """
    source = checked(text, Schedule(), SUM)
    assert "_e2_lanes[i" in source  # an accumulator for each column of the tile


@pytest.mark.parametrize("splits", [1, 4, 16])
def test_loops_around_reductions_stay(splits: int) -> None:
    text = """
        x = s32[64,64] parameter(0)
        y = s32[64,64] parameter(1)
        z = s32[4,64] parameter(2)
        zero = s32[] constant(0)
        zeros = s32[4,64] broadcast(zero), dimensions={}
        after = pred[64,64] compare(x, y), direction=GE
        all = pred[4,64,64] broadcast(after), dimensions={1,2}
        some = pred[4,64] compare(z, zeros), direction=NE
        each = pred[4,64,64] broadcast(some), dimensions={0,2}
        both = pred[4,64,64] and(all, each)
        numbers = s32[4,64,64] convert(both)
        ROOT r = s32[4,64] reduce(numbers, zero), dimensions={2}, to_apply=add
    """
    add = "add { a = s32[] parameter(0) b = s32[] parameter(1) ROOT s = s32[] add(a, b) }"
    checked(text, Schedule(splits=splits), add)


PAIRS_OF_ROLLED_ROWS = """
    x = f32[200,100] parameter(0)
    least = f32[200] parameter(1)
    last = f32[1,100] slice(x), slice={[199:200], [0:100]}
    others = f32[199,100] slice(x), slice={[0:199], [0:100]}
    rolled = f32[200,100] concatenate(last, others), dimensions={0}
    change = f32[200,100] subtract(x, rolled)
    bound = f32[200,100] broadcast(least), dimensions={0}
    kept = f32[200,100] maximum(change, bound)
    even = f32[200,50] slice(kept), slice={[0:200], [0:100:2]}
    odd = f32[200,50] slice(kept), slice={[0:200], [1:100:2]}
    pairs = f32[200,50] multiply(even, odd)
    zero = f32[] constant(0)
    ROOT r = f32[200] reduce(pairs, zero), dimensions={1}, to_apply=add_f32
"""


def test_rows_read_in_steps_are_not_columns() -> None:
    # Neither the test for the first row nor the bound of each row makes the rows, 100 elements apart, a vector.
    source = checked(PAIRS_OF_ROLLED_ROWS, Schedule(), SUM)
    in_vectors = re.findall(r"omp simd\n *for \(index_t (\w+)", source)
    reads = re.findall(r"p0\[\(?([^\]]*)\]", source)
    assert in_vectors and reads
    assert not any(f"100*{name}" in r for name in in_vectors for r in reads)
