"""Blocks along columns, as in batch normalization: reductions and loops that use their results, in one kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from compiler import compile
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir import HloComputation
from compiler.support.threads import program_threads
from compiler.text import parse
from tests.codegen import running

SHAPES = [
    ((37, 300), 1), ((17, 1), 1), ((40, 5), 1), ((4, 6, 7, 33), 3), ((3, 40, 70), 1), ((4, 6, 50, 9), 1),
    ((2, 40, 3), 2), ((3, 30, 300), 1), ((700, 257), 1),
]  # fmt: skip
"""Dimensions, and which of them is the channel."""


def adder(t: str) -> str:
    return f"add {{ a = {t}[] parameter(0)\n b = {t}[] parameter(1)\n ROOT r = {t}[] add(a, b) }}\n"


def batch_norm(dims: Sequence[int], channel: int, t: str = "f32") -> str:
    """Return the lines of a normalization by the mean and the centred variance of each channel."""
    d, c, n = ",".join(map(str, dims)), dims[channel], math.prod(dims) // dims[channel]
    reduced = ",".join(str(k) for k in range(len(dims)) if k != channel)
    return f"""
        x = {t}[{d}] parameter(0)
        g = {t}[{c}] parameter(1)
        zero = {t}[] constant(0)
        inv = {t}[] constant({1 / n})
        invb = {t}[{c}] broadcast(inv), dimensions={{}}
        s = {t}[{c}] reduce(x, zero), dimensions={{{reduced}}}, to_apply=add
        mean = {t}[{c}] multiply(s, invb)
        mb = {t}[{d}] broadcast(mean), dimensions={{{channel}}}
        xc = {t}[{d}] subtract(x, mb)
        sq = {t}[{d}] multiply(xc, xc)
        v = {t}[{c}] reduce(sq, zero), dimensions={{{reduced}}}, to_apply=add
        var = {t}[{c}] multiply(v, invb)
        eps = {t}[] constant(0.001)
        epsb = {t}[{c}] broadcast(eps), dimensions={{}}
        ve = {t}[{c}] add(var, epsb)
        rs = {t}[{c}] rsqrt(ve)
        scale = {t}[{c}] multiply(rs, g)
        sb = {t}[{d}] broadcast(scale), dimensions={{{channel}}}
        y = {t}[{d}] multiply(xc, sb)
        ROOT r = ({t}[{d}], {t}[{c}], {t}[{c}]) tuple(y, mean, var)"""


def fused(dims: Sequence[int], channel: int, t: str = "f32") -> HloComputation:
    return running.fused(batch_norm(dims, channel, t), adder(t))


def problems(cases: Sequence[running.Case]) -> list[str | None]:
    return [running.problem(found, c) for c, found in zip(cases, running.run_c(cases), strict=True)]


@pytest.mark.parametrize("splits", [0, 1, 2, 5])  # by size, together, and as nests of so many parts
def test_a_batch_norm_is_one_kernel(splits: int) -> None:
    rng = np.random.default_rng(splits)
    cases = []
    for dims, channel in SHAPES:
        f = fused(dims, channel)
        args = running.random_args(f.parameter_shapes, rng)
        cases.append(running.case_of(f, args, "c", Schedule(splits=splits)))
    assert {c.spec.kind for c in cases} == {"block"}
    assert problems(cases) == [None] * len(SHAPES)


@pytest.mark.parametrize("t", ["f64", "f16", "bf16"])
def test_types(t: str) -> None:
    rng = np.random.default_rng(1)
    cases = []
    for splits in (1, 3):
        for dims, channel in (((60, 70), 1), ((5, 9, 33), 1)):
            f = fused(dims, channel, t)
            args = running.random_args(f.parameter_shapes, rng)
            cases.append(running.case_of(f, args, "c", Schedule(splits=splits)))
    assert problems(cases) == [None] * len(cases)


@pytest.mark.parametrize(
    ("rows", "columns", "in_parts"), [(200, 512, False), (300, 200, False), (1000, 512, True), (2000, 200, True)]
)
def test_small_blocks_are_not_divided_for_threads(rows: int, columns: int, in_parts: bool) -> None:
    f = fused((rows, columns), 1)
    case = running.case_of(f, running.random_args(f.parameter_shapes, np.random.default_rng(0)), "c")
    assert problems([case]) == [None]
    assert ("_parts[" in case.spec.source) == in_parts
    assert "hlogym_parallel" in case.spec.source or not in_parts


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize(("dims", "channel"), [((50, 40), 1), ((6, 20, 30), 1)])
def test_what_is_not_finite_stays_in_its_channel(splits: int, dims: tuple[int, ...], channel: int) -> None:
    f = fused(dims, channel)
    args = running.random_args(f.parameter_shapes, np.random.default_rng(2))
    flat = np.moveaxis(args[0], channel, -1)
    flat[3, ..., 2], flat[4, ..., 7] = np.nan, np.inf
    case = running.case_of(f, args, "c", Schedule(splits=splits))
    (found,) = running.run_c([case])
    y, mean, _ = found
    assert np.isnan(mean[2])
    assert np.isposinf(mean[7])
    finite = np.isfinite(np.moveaxis(y, channel, -1)).reshape(-1, dims[channel]).all(axis=0)
    assert np.flatnonzero(~finite).tolist() == [2, 7]
    assert running.problem(found, case) is None


@pytest.mark.skipif(program_threads() < 2, reason="the cost model of one thread prefers other fusions")
def test_the_default_compilation_makes_one_kernel_of_batch_norms_whose_blocks_stay_in_a_cache() -> None:
    for dims, channel in (((256, 2048), 1), ((64, 256), 1), ((8, 16, 14, 14), 1)):
        text = f"HloModule m\n{adder('f32')}ENTRY main {{{batch_norm(dims, channel)}\n}}"
        exe = compile(text)
        assert [k.kind for k in exe.kernels] == ["block"]
        entry = parse(text).entry
        args = running.random_args(entry.parameter_shapes, np.random.default_rng(3))
        assert running.problem(exe(*args), running.case_of(entry, args, "c")) is None


def test_columns_of_exponentials() -> None:
    text = """
        x = f32[90,130] parameter(0)
        low = f32[] constant(-inf)
        zero = f32[] constant(0)
        m = f32[130] reduce(x, low), dimensions={0}, to_apply=max
        mb = f32[90,130] broadcast(m), dimensions={1}
        d = f32[90,130] subtract(x, mb)
        e = f32[90,130] exponential(d)
        s = f32[130] reduce(e, zero), dimensions={0}, to_apply=add
        sb = f32[90,130] broadcast(s), dimensions={1}
        ROOT r = f32[90,130] divide(e, sb)"""
    larger = "max { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT r = f32[] maximum(a, b) }\n"
    f = running.fused(text, adder("f32") + larger)
    args = running.random_args(f.parameter_shapes, np.random.default_rng(4))
    cases = [running.case_of(f, args, "c", Schedule(splits=n)) for n in (1, 3)]
    assert problems(cases) == [None, None]


@pytest.mark.parametrize("width", [2, 4, 24])
def test_sums_for_each_point_over_elements_that_lie_apart(width: int) -> None:
    text = f"""
    x = f32[600,{width}] parameter(0)
    points = f32[40] parameter(1)
    first = f32[600,1] slice(x), slice={{[0:600], [0:1]}}
    column = f32[600] reshape(first)
    c = f32[600,40] broadcast(column), dimensions={{0}}
    p = f32[600,40] broadcast(points), dimensions={{1}}
    d = f32[600,40] subtract(c, p)
    q = f32[600,40] multiply(d, d)
    z = f32[] constant(0)
    ROOT r = f32[40] reduce(q, z), dimensions={{0}}, to_apply=add
    """
    fused = running.fused(text, "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }")
    case = running.case_of(
        fused, running.random_args(fused.parameter_shapes, np.random.default_rng(0)), "c", Schedule()
    )
    assert running.problem(running.run_c([case])[0], case) is None
    assert "_lanes[40]" in case.spec.source  # a lane for each point


@pytest.mark.parametrize(("rows", "columns", "nests"), [(300, 4096, 3), (300, 4080, 1), (100, 4096, 1), (600, 4080, 3)])
def test_blocks_whose_rows_share_the_sets_of_a_cache_are_nests(rows: int, columns: int, nests: int) -> None:
    f = fused((rows, columns), 1)
    case = running.case_of(f, running.random_args(f.parameter_shapes, np.random.default_rng(3)), "c", Schedule())
    assert problems([case]) == [None]
    entry = case.spec.source[case.spec.source.rindex("arguments) {") :]
    assert entry.count("hlogym_parallel") == nests
