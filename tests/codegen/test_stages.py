"""Chains of expensive operations in stages: the same results for every shape, type and schedule."""

from __future__ import annotations

import re

import numpy as np
import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen import running

CHAIN = """
    a = {t}[{dims}] parameter(0)
    b = {t}[{dims}] parameter(1)
    small = {t}[{dims}] tanh(a)
    e = {t}[{dims}] exponential(small)
    l = {t}[{dims}] log-plus-one(e)
    m = {t}[{dims}] maximum(a, b)
    wide = pred[{dims}] compare(small, b), direction=GT
    s = {t}[{dims}] select(wide, l, m)
    t = {t}[{dims}] add(s, e)
    ROOT r = ({t}[{dims}], {t}[{dims}]) tuple(t, small)
"""


def checked(text: str, schedule: Schedule, reducer: str = "") -> str:
    """Compare a fused computation with the interpreter, and return the source of its kernel."""
    fused = running.fused(text, reducer) if reducer else running.fused(text)
    args = running.random_args(fused.parameter_shapes, np.random.default_rng(1))
    case = running.case_of(fused, args, "c", schedule)
    assert running.problem(running.run_c([case])[0], case) is None
    return case.spec.source


@pytest.mark.parametrize("dims", ["128", "256", "257", "4099", "300000", "3,5000", "70,4500", "5,130"])
@pytest.mark.parametrize(("stages", "loops"), [(0, 1), (1, 3), (2, 2), (3, 1)])
@pytest.mark.parametrize("threads", [0, 1])
def test_results_are_those_of_the_interpreter(dims: str, stages: int, loops: int, threads: int) -> None:
    source = checked(CHAIN.format(t="f32", dims=dims), Schedule(stages=stages, threads=threads, grain=2000))
    assert source.count("#pragma omp simd") == loops


def long_chain(value: str, links: int, t: str, dims: str) -> str:
    """Return a polynomial of a value in Horner's form, whose name is `{value}{links}`."""
    lines = [f"{value}0 = {t}[{dims}] multiply({value}, {value})"]
    for k in range(links):
        lines += [f"{value}m{k} = {t}[{dims}] multiply({value}{k}, {value})"]
        lines += [f"{value}{k + 1} = {t}[{dims}] subtract({value}, {value}m{k})"]
    return "\n".join(lines)


@pytest.mark.parametrize("dims", ["1000", "7,300", "40,64"])
@pytest.mark.parametrize(("before", "after", "loops"), [(12, 12, 3), (12, 3, 2), (3, 12, 2), (3, 3, 1)])
def test_long_chains_beside_a_function_are_stages(dims: str, before: int, after: int, loops: int) -> None:
    text = f"""
    a = f32[{dims}] parameter(0)
    {long_chain("a", before, "f32", dims)}
    e = f32[{dims}] tanh(a{before})
    {long_chain("e", after, "f32", dims)}
    ROOT r = f32[{dims}] negate(e{after})"""
    assert checked(text, Schedule(stages=1)).count("#pragma omp simd") == loops


@pytest.mark.parametrize(
    ("first", "root"),
    [
        ("e = f32[1000] tanh(a)", "ROOT r = f32[1000] add(e, a12)"),  # which does not wait for the chain
        ("e = f16[1000] tanh(h)\nb = f32[1000] convert(e)", "ROOT r = f32[1000] multiply(b, a12)"),
        (
            "e = f32[1000] tanh(a12)\np = pred[1000] compare(e, a), direction=LT",
            "ROOT r = (pred[1000], f32[1000]) tuple(p, e)",
        ),
    ],
)  # fmt: skip
def test_chains_that_nothing_waits_for_and_narrow_elements_make_no_stages(first: str, root: str) -> None:
    text = f"""
    a = f32[1000] parameter(0)
    h = f16[1000] parameter(1)
    {long_chain("a", 12, "f32", "1000")}
    {first}
    {root}"""
    assert "_block[" not in checked(text, Schedule(stages=1))


@pytest.mark.parametrize(("dims", "block"), [("7,64", 64), ("9,100", 100), ("7,32", 224), ("12,64", 256)])
def test_rows_of_a_few_vectors(dims: str, block: int) -> None:
    n = dims.split(",")[1]
    text = f"""
    a = f32[{dims}] parameter(0)
    b = f32[{n}] parameter(1)
    w = f32[{dims}] broadcast(b), dimensions={{1}}
    e = f32[{dims}] exponential(a)
    m = f32[{dims}] multiply(e, w)
    t = f32[{dims}] tanh(m)
    ROOT r = f32[{dims}] add(t, a)"""
    assert f"_block[{block}]" in checked(text, Schedule(stages=1))
    assert "_block[" not in checked(text, Schedule(stages=0))


@pytest.mark.parametrize("columns", [512, 500])
def test_rows_of_which_each_is_one_task(columns: int) -> None:
    text = f"""
    a = f32[32,{columns}] parameter(0)
    b = f32[{columns}] parameter(1)
    w = f32[32,{columns}] broadcast(b), dimensions={{1}}
    e = f32[32,{columns}] exponential(a)
    m = f32[32,{columns}] multiply(e, w)
    t = f32[32,{columns}] tanh(m)
    s = f32[32,{columns}] multiply(t, w)
    ROOT r = f32[32,{columns}] exponential(s)"""
    source = checked(text, Schedule(grain=16000))
    assert "hlogym_parallel" in source
    assert source.count("_block[256]") == 2


@pytest.mark.parametrize(("dims", "divided"), [("7,64", False), ("7,640", True)])
def test_short_loops_that_would_pass_on_many_values_stay_whole(dims: str, divided: bool) -> None:
    others = [f"m{k} = f32[{dims}] multiply(a, p{k})\n n{k} = f32[{dims}] add(m{k}, a)" for k in range(3)]
    others += [f"q{k} = f32[{dims}] multiply(n{k}, m{k})" for k in range(3)]
    sums = [f"u{k + 1} = f32[{dims}] add(u{k}, q{k})" for k in range(3)]
    rows = [f"p{k} = f32[{dims}] broadcast(r{k}), dimensions={{0}}" for k in range(3)]
    parameters = [f"r{k} = f32[7] parameter({k + 1})" for k in range(3)]
    squares = [f"h{k} = f32[{dims}] multiply(q{k}, q{k})" for k in range(3)]
    text = "\n".join([
        f"a = f32[{dims}] parameter(0)", *parameters, *rows, *others, *squares,
        f"g0 = f32[{dims}] add(h0, h1)", f"g = f32[{dims}] add(g0, h2)", f"e = f32[{dims}] exponential(g)",
        f"t = f32[{dims}] tanh(e)", f"u0 = f32[{dims}] multiply(t, e)", *sums, f"ROOT r = f32[{dims}] negate(u3)",
    ])  # fmt: skip
    assert ("_block[" in checked(text, Schedule(stages=1))) == divided


@pytest.mark.parametrize("dims", ["40,64", "300,300"])
def test_columns_that_are_reduced(dims: str) -> None:
    text = f"""
    a = f32[{dims}] parameter(0)
    e = f32[{dims}] exponential(a)
    t = f32[{dims}] tanh(e)
    start = f32[] constant(-2)
    m = f32[{dims.split(",")[1]}] reduce(t, start), dimensions={{0}}, to_apply=most
    ROOT r = (f32[{dims.split(",")[1]}], f32[{dims}]) tuple(m, t)"""
    reducer = "most { x = f32[] parameter(0) y = f32[] parameter(1) ROOT m = f32[] maximum(x, y) }"
    assert "_block[" in checked(text, Schedule(stages=1), reducer)


@pytest.mark.parametrize("t", ["f64", "f16", "bf16"])
def test_other_types(t: str) -> None:
    checked(CHAIN.format(t=t, dims="1000"), Schedule(stages=1))


def test_short_loops_and_single_operations_are_not_divided() -> None:
    assert checked(CHAIN.format(t="f32", dims="31"), Schedule(stages=1, narrow=0)).count("omp simd") == 1
    text = "a = f32[1000] parameter(0)\ne = f32[1000] exponential(a)\nROOT r = f32[1000] divide(e, a)"
    assert checked(text, Schedule(stages=1)).count("omp simd") == 1


def test_values_that_are_cheap_are_computed_again() -> None:
    text = """
    a = f32[1000] parameter(0)
    n = f32[1000] negate(a)
    e = f32[1000] exponential(n)
    l = f32[1000] log-plus-one(e)
    ROOT r = f32[1000] multiply(l, n)"""
    assert len(re.findall(r"float \w+_block\[256\]", checked(text, Schedule(stages=1)))) == 1


def padded(low: str) -> str:
    """Return the logarithm of a sum of exponentials of neighbors, the first of which has a padding of LOW elements."""
    return f"""
    a = f32[128] parameter(0)
    inner = f32[127] slice(a), slice={{[0:127]}}
    edge = f32[] constant(-1e9)
    before = f32[128] pad(inner, edge), padding={low}
    d = f32[128] subtract(a, before)
    n = f32[128] abs(d)
    m = f32[128] negate(n)
    e = f32[128] exponential(m)
    l = f32[128] log-plus-one(e)
    high = f32[128] maximum(a, before)
    ROOT r = f32[128] add(high, l)"""


@pytest.mark.parametrize("low", ["1_0", "0_1"])
def test_elements_that_a_branch_chooses_are_passed_on(low: str) -> None:
    source = checked(padded(low), Schedule(stages=1, edges=0))
    assert source.count("if (") == 1
    assert len(re.findall(r"_block\[128\]", source)) == 2


def test_a_function_that_a_branch_computes_stays_with_what_follows() -> None:
    text = """
    a = f32[128] parameter(0)
    b = f32[100] parameter(1)
    zero = f32[] constant(0)
    t = f32[100] tanh(b)
    p = f32[128] pad(t, zero), padding=14_14
    e = f32[128] exponential(a)
    l = f32[128] log-plus-one(e)
    ROOT r = f32[128] add(l, p)"""
    assert "_block[" not in checked(text, Schedule(stages=1, edges=0, rare=0))


def test_a_gather_in_a_late_stage() -> None:
    dimensions = "offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1}"
    text = f"""
    table = f32[50] parameter(0)
    where = s32[700,1] parameter(1)
    a = f32[700] parameter(2)
    t = f32[700] tanh(a)
    e = f32[700] exponential(t)
    g = f32[700] gather(table, where), {dimensions}
    ROOT r = f32[700] add(e, g)"""
    assert checked(text, Schedule(stages=1)).count("omp simd") == 2


@pytest.mark.parametrize("dims", ["1000", "4096"])
@pytest.mark.parametrize("combiner", ["add", "maximum"])
def test_reductions(dims: str, combiner: str) -> None:
    text = f"""
    a = f32[7,{dims}] parameter(0)
    t = f32[7,{dims}] tanh(a)
    e = f32[7,{dims}] exponential(t)
    zero = f32[] constant(0)
    ROOT r = f32[7] reduce(e, zero), dimensions={{1}}, to_apply=combine"""
    reducer = f"combine {{ x = f32[] parameter(0) y = f32[] parameter(1) ROOT z = f32[] {combiner}(x, y) }}"
    assert "_block[" in checked(text, Schedule(stages=1), reducer)


ROWS = """
    a = {t}[{dims}] parameter(0)
    b = {t}[{dims}] parameter(1)
    low = {t}[] constant(-inf)
    zero = {t}[] constant(0)
    m = {t}[{rows}] reduce(a, low), dimensions={{{last}}}, to_apply=most
    mb = {t}[{dims}] broadcast(m), dimensions={{{kept}}}
    d = {t}[{dims}] subtract(a, mb)
    e = {t}[{dims}] exponential(d)
    s = {t}[{rows}] reduce(e, zero), dimensions={{{last}}}, to_apply=sum
    l = {t}[{rows}] log(s)
    lb = {t}[{dims}] broadcast(l), dimensions={{{kept}}}
    f = {t}[{dims}] subtract(d, lb)
    g = {t}[{dims}] multiply(f, b)
    h = {t}[{dims}] exponential(f)
    ROOT r = ({t}[{dims}], {t}[{dims}]) tuple(g, h)
"""
REDUCERS = """
most { x = f32[] parameter(0) y = f32[] parameter(1) ROOT z = f32[] maximum(x, y) }
sum { x = f32[] parameter(0) y = f32[] parameter(1) ROOT z = f32[] add(x, y) }
"""


@pytest.mark.parametrize("dims", ["64,10", "70,10", "16,4", "3,40,6", "1000,7", "200,16", "33,2", "5,3"])
@pytest.mark.parametrize("stages", [0, 1])
def test_short_rows(dims: str, stages: int) -> None:
    sizes = dims.split(",")
    given = {"dims": dims, "rows": ",".join(sizes[:-1]), "last": len(sizes) - 1}
    text = ROWS.format(t="f32", kept=",".join(map(str, range(len(sizes) - 1))), **given)
    source = checked(text, Schedule(stages=stages, short=0, threads=1, grain=1000), REDUCERS)
    # Rows of 16 elements are whole vectors, and five rows are too few.
    divided = bool(stages) and int(sizes[-2]) >= 16
    assert ("_rows[" in source) == divided
    assert ("_spread" in source) == (divided and sizes[-1] != "16")


SUM_OF_ROWS = """
    a = f32[{dims}] parameter(0)
    b = f32[{dims}] parameter(1)
    zero = f32[] constant(0)
    e = f32[{dims}] exponential(a)
    s = f32[{rows}] reduce(e, zero), dimensions={{{last}}}, to_apply=sum
    l = f32[{rows}] log(s)
    lb = f32[{dims}] broadcast(l), dimensions={{{kept}}}
    f = f32[{dims}] subtract(a, lb)
    g = f32[{dims}] multiply(f, b)
    ROOT r = f32[] reduce(g, zero), dimensions={{{all}}}, to_apply=sum
"""


@pytest.mark.parametrize("dims", ["64,10", "33,2", "4,20,6", "2000,5", "5,3"])
@pytest.mark.parametrize(("stages", "threads"), [(0, 0), (1, 0), (1, 1)])
def test_a_sum_over_short_rows(dims: str, stages: int, threads: int) -> None:
    sizes = dims.split(",")
    places = [str(n) for n in range(len(sizes))]
    given = {"dims": dims, "rows": ",".join(sizes[:-1]), "last": places[-1], "kept": ",".join(places[:-1])}
    text = SUM_OF_ROWS.format(all=",".join(places), **given)
    source = checked(text, Schedule(stages=stages, threads=threads, grain=1000), REDUCERS)
    if dims == "64,10" and not threads:
        assert ("_rows[" in source) == bool(stages)


GRADIENT_AND_LOSS = """
    a = f32[{n},{k}] parameter(0)
    b = f32[{n},{k}] parameter(1)
    c = f32[{n}] parameter(2)
    zero = f32[] constant(0)
    l = f32[{n}] log(c)
    lb = f32[{n},{k}] broadcast(l), dimensions={{0}}
    d = f32[{n},{k}] subtract(a, lb)
    e = f32[{n},{k}] exponential(d)
    s = f32[{n}] reduce(e, zero), dimensions={{1}}, to_apply=sum
    sb = f32[{n},{k}] broadcast(s), dimensions={{0}}
    m = f32[{n},{k}] multiply(sb, b)
    g = f32[{n},{k}] add(e, m)
    w = f32[{n},{k}] multiply(e, d)
    loss = f32[] reduce(w, zero), dimensions={{0,1}}, to_apply=sum
    ROOT r = (f32[{n},{k}], f32[]) tuple(g, loss)
"""


@pytest.mark.parametrize(("n", "k"), [(600, 6), (40, 13), (37, 2), (64, 16), (5, 6)])
@pytest.mark.parametrize(("stages", "threads"), [(0, 0), (1, 0), (1, 1)])
def test_a_sum_over_short_rows_that_also_stores_elements(n: int, k: int, stages: int, threads: int) -> None:
    """The logarithm and the sum of a row are computed once per row, in vectors over the rows."""
    schedule = Schedule(stages=stages, threads=threads, grain=1000)
    source = checked(GRADIENT_AND_LOSS.format(n=n, k=k), schedule, REDUCERS)
    if (n, k) == (40, 13) and not threads:
        assert ("_rows[" in source) == bool(stages)
        assert ("_spread[" in source) == bool(stages)


@pytest.mark.parametrize("k", [6, 12, 15, 16])
def test_functions_of_short_rows_run_over_many_rows(k: int) -> None:
    text = f"""
    a = f32[64,{k}] parameter(0)
    low = f32[] constant(-inf)
    m = f32[64] reduce(a, low), dimensions={{1}}, to_apply=most
    mb = f32[64,{k}] broadcast(m), dimensions={{0}}
    d = f32[64,{k}] subtract(a, mb)
    e = f32[64,{k}] exponential(d)
    h = f32[64,{k}] multiply(e, d)
    two = f32[64,{k}] add(h, a)
    ROOT r = (f32[64,{k}], f32[64,{k}]) tuple(h, two)
"""
    assert ("transpose_rows_32(" in checked(text, Schedule(threads=0), REDUCERS)) == (k < 16)
    source = checked(text, Schedule(threads=0, short=0), REDUCERS)  # without transposed rows
    assert ("_spread[" in source) == (k < 16)


SEVERAL = """
    a = f64[3,61] parameter(0)
    high = f64[] constant(5)
    least = f64[] reduce(a, high), dimensions={0,1}, to_apply=smaller
    t = f64[3,61] tanh(a)
    b = f64[3,61] add(a, t)
    u = f64[3,61] tanh(b)
    m = f64[3,61] multiply(a, u)
    l = f64[3,61] logistic(m)
    low = f64[] constant(-3)
    most = f64[] reduce(b, low), dimensions={0,1}, to_apply=larger
    half = f64[] constant(0.5)
    sum = f64[] reduce(l, half), dimensions={0,1}, to_apply=plus
    ROOT r = (f64[], f64[], f64[]) tuple(least, most, sum)
"""
COMBINERS = "\n".join(
    f"{name} {{\n  x = f64[] parameter(0)\n  y = f64[] parameter(1)\n  ROOT r = f64[] {op}(x, y)\n}}"
    for name, op in (("smaller", "minimum"), ("larger", "maximum"), ("plus", "add"))
)


@pytest.mark.parametrize("stages", [0, 1, 2])
@pytest.mark.parametrize("vector", [0, 256, 512])
@pytest.mark.parametrize("size", ["3,61", "700,61"])
def test_reductions_of_values_of_several_stages(stages: int, vector: int, size: str) -> None:
    checked(SEVERAL.replace("3,61", size), Schedule(stages=stages, vector=vector), COMBINERS)
