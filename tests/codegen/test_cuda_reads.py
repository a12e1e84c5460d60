"""What the threads of a warp read together on a GPU: products of computed operands, and reductions of columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiler.backends.cuda import emulation
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.templates.warp_reads import orders_of, reads_of
from compiler.ir.types import PrimitiveType as T
from tests.codegen import running

needs_emulator = pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")

PATCHES = """
    x = f32[2,8,12,16] parameter(0)
    w = f32[32,8,3] parameter(1)
    z = f32[] constant(0)
    padded = f32[2,8,14,18] pad(x, z), padding=0_0x0_0x1_1x1_1
    {slices}
    parts = f32[2,8,12,48] concatenate({names}), dimensions={{3}}
    split = f32[2,8,12,3,16] reshape(parts)
    turned = f32[2,12,16,3,8] transpose(split), dimensions={{0,2,4,3,1}}
    lhs = f32[384,24] reshape(turned)
    kernel = f32[3,8,32] transpose(w), dimensions={{2,1,0}}
    rhs = f32[24,32] reshape(kernel)
    d = f32[384,32] dot(lhs, rhs), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
    back = f32[2,12,16,32] reshape(d)
    ROOT r = f32[2,32,12,16] transpose(back), dimensions={{0,3,1,2}}
"""
"""A convolution of windows of 1 x 3 with features first, as a product of patches whose depth is [window, feature]."""
SLICES = "\n".join(
    f"s{k} = f32[2,8,12,16] slice(padded), slice={{[0:2],[0:8],[1:13],[{k}:{k + 16}]}}" for k in range(3)
)

ADD = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }"

CASES = {
    "patches with features first": running.fused(PATCHES.format(slices=SLICES, names="s0, s1, s2")),
    "computed rows": running.fused("""
        x = f32[128,96] parameter(0)
        w = f32[96,64] parameter(1)
        n = f32[128,96] negate(x)
        ROOT d = f32[128,64] dot(n, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    """),
    "a turned kernel": running.fused("""
        x = f32[72,96] parameter(0)
        w = f32[64,8,9] parameter(1)
        t = f32[9,8,64] transpose(w), dimensions={2,1,0}
        r = f32[72,64] reshape(t)
        ROOT d = f32[96,64] dot(x, r), lhs_contracting_dims={0}, rhs_contracting_dims={0}
    """),
    "columns scaled by rows": running.fused(
        """
        x = f32[512,96] parameter(0)
        m = f32[512] parameter(1)
        s = f32[512] parameter(2)
        bm = f32[512,96] broadcast(m), dimensions={0}
        bs = f32[512,96] broadcast(s), dimensions={0}
        c = f32[512,96] subtract(x, bm)
        y = f32[512,96] multiply(c, bs)
        z = f32[] constant(0)
        ROOT r = f32[96] reduce(y, z), dimensions={0}, to_apply=add
        """,
        ADD,
    ),
    "few long columns": running.fused(
        """
        x = f32[1024,256] parameter(0)
        z = f32[] constant(0)
        ROOT r = f32[256] reduce(x, z), dimensions={0}, to_apply=add
        """,
        ADD,
    ),
    "few long columns of bf16": running.fused(
        """
        x = bf16[1000,240] parameter(0)
        c = f32[1000,240] convert(x)
        z = f32[] constant(0)
        ROOT r = f32[240] reduce(c, z), dimensions={0}, to_apply=add
        """,
        ADD,
    ),
}


@needs_emulator
def test_they_match_the_interpreter(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    cases = [running.case_of(f, running.random_args(f.parameter_shapes, rng), "cuda") for f in CASES.values()]
    for name, case, run in zip(CASES, cases, running.run_emulated(cases, tmp_path), strict=True):
        assert run.error == "", name
        assert running.problem(run.outputs, case) is None, name


@needs_emulator
@pytest.mark.parametrize("name", CASES)
def test_they_read_whole_sectors(name: str) -> None:
    f = CASES[name]
    case = running.case_of(f, running.random_args(f.parameter_shapes, np.random.default_rng(0)), "cuda")
    arrays = [*map(np.ascontiguousarray, case.args), *(np.zeros(s.dimensions, s.dtype) for s in case.spec.outputs)]
    counts, error = emulation.build([case.spec]).count(case.spec.symbol, [a.ctypes.data for a in arrays])
    assert error == ""
    assert counts.coalescing > 0.75


@pytest.mark.parametrize(("name", "size"), [("few long columns", 4), ("few long columns of bf16", 2)])
def test_few_columns_are_divided_into_blocks_of_whole_sectors(name: str, size: int) -> None:
    spec = running.kernel_of(CASES[name], "cuda")
    columns = spec.outputs[0].dimensions[0]
    assert spec.grid == -(-columns * size // 32)


def _load(offset: ix.IndexExpr) -> lir.Body:
    return (lir.Let("v", T.F32, lir.Load("p0", offset)),)


@pytest.mark.parametrize(
    ("coefficients", "along", "sectors"),
    [
        pytest.param((1, 1024), False, 4 / 32, id="free elements are adjacent"),
        pytest.param((1024, 1), True, 4 / 32, id="steps are adjacent"),
        pytest.param((2, 1024), False, 8 / 32, id="every other element"),
        pytest.param((1024, 4096), False, 1.0, id="nothing is adjacent"),
        pytest.param((0, 1024), False, 1 / 32, id="all elements are the same"),
    ],
)
def test_the_sectors_of_a_warp_are_counted(coefficients: tuple[int, int], along: bool, sectors: float) -> None:
    free, depth = Var("i", 512), Var("k", 512)
    offset = ix.of(free) * coefficients[0] + ix.of(depth) * coefficients[1]
    assert reads_of(_load(offset), free, depth) == (along, sectors)


def test_an_index_that_is_chosen_is_counted() -> None:
    free, depth = Var("i", 512), Var("k", 512)
    body = (
        lir.Let("step", T.S64, lir.IndexValue(ix.of(depth))),
        *_load(ix.of(free) * 512 + ix.of(ix.Runtime("step", 0, 511))),
    )
    assert reads_of(body, free, depth)[0]


def test_orders_of_sums_are_those_by_which_indices_divide_the_depth() -> None:
    depth = Var("k", 72)
    turned = ix.of(depth).mod(8) * 9 + ix.of(depth).floordiv(8)
    assert orders_of(_load(turned), depth) == {8}
    assert orders_of(_load(ix.of(depth)), depth) == set()
    assert orders_of(_load(ix.of(depth).floordiv(7)), depth) == set()
