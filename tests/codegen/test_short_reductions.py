"""Reductions of a few elements outside of all loops: vectors in C, scalars in every thread of a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiler.codegen.build_target import CUDA_TARGET
from compiler.codegen.buildability import kernel_refusal
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir import HloComputation
from tests.codegen import running

ADD = "add { a = {t}[] parameter(0) b = {t}[] parameter(1) ROOT s = {t}[] add(a, b) }"
SHARES = """
    x = {t}[{n}] parameter(0)
    start = {t}[] constant(0.5)
    e = {t}[{n}] {summand}
    total = {t}[] reduce(e, start), dimensions={{0}}, to_apply=add
    totals = {t}[{n}] broadcast(total), dimensions={{}}
    ROOT share = {t}[{n}] divide(e, totals)
"""
TWO_NESTS = """
    x = f32[16] parameter(0)
    y = f32[300] parameter(1)
    zero = f32[] constant(0)
    e = f32[16] exponential(x)
    total = f32[] reduce(e, zero), dimensions={0}, to_apply=add
    totals = f32[300] broadcast(total), dimensions={}
    z = f32[300] multiply(y, totals)
    ROOT r = (f32[16], f32[300]) tuple(e, z)
"""
CONSTANTS = """
    x = f32[16] parameter(0)
    w = f32[16] constant({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
    zero = f32[] constant(0)
    d = f32[16] multiply(x, w)
    total = f32[] reduce(d, zero), dimensions={0}, to_apply=add
    totals = f32[16] broadcast(total), dimensions={}
    ROOT r = f32[16] subtract(x, totals)
"""
TABLE = """
    x = f32[4,16] parameter(0)
    low = f32[1,16] slice(x), slice={[2:3], [0:16]}
    e = f32[1,16] exponential(low)
    zero = f32[] constant(0)
    total = f32[1] reduce(e, zero), dimensions={1}, to_apply=add
    one = f32[] reshape(total)
    totals = f32[4,16] broadcast(one), dimensions={}
    ROOT r = f32[4,16] multiply(x, totals)
"""


def checked(fused: HloComputation, schedule: Schedule | None = None) -> str:
    """Return the C source of the kernel of a computation, after comparing it with the interpreter."""
    args = running.random_args(fused.parameter_shapes, np.random.default_rng(0))
    case = running.case_of(fused, args, "c", schedule)
    assert running.problem(running.run_c([case])[0], case) is None
    return case.spec.source


@pytest.mark.parametrize("t", ["f32", "bf16", "f64", "s32"])
@pytest.mark.parametrize("n", [7, 8, 13, 16])
def test_shares_of_a_total(t: str, n: int) -> None:
    for summand in ("exponential(x)", "multiply(x, x)") if t != "s32" else ("multiply(x, x)",):
        text = SHARES.format(t=t, n=n, summand=summand).replace("0.5", "1" if t == "s32" else "0.5")
        for schedule in (Schedule(), Schedule(vector=0), Schedule(accumulators=1, cache=0)):
            checked(running.fused(text, ADD.replace("{t}", t)), schedule)


def test_expensive_summands_are_computed_in_a_loop() -> None:
    source = checked(running.fused(SHARES.format(t="f32", n=16, summand="exponential(x)"), ADD.replace("{t}", "f32")))
    assert source.count("expf(") == 1


@pytest.mark.parametrize("text", [CONSTANTS, TABLE, TWO_NESTS])
def test_other_operands_of_short_reductions(text: str) -> None:
    checked(running.fused(text, ADD.replace("{t}", "f32")))


@pytest.mark.skipif(not running.has_emulator(), reason="the kernels of CUDA are emulated")
@pytest.mark.parametrize("text", [TWO_NESTS, TABLE, SHARES.format(t="f32", n=16, summand="exponential(x)")])
def test_every_thread_of_a_gpu_computes_a_short_reduction(text: str, tmp_path: Path) -> None:
    fused = running.fused(text, ADD.replace("{t}", "f32"))
    assert kernel_refusal(fused, CUDA_TARGET) is None
    args = running.random_args(fused.parameter_shapes, np.random.default_rng(0))
    case = running.case_of(fused, args, "cuda", None)
    assert "__syncthreads" not in case.spec.source
    (ran,) = running.run_emulated([case], tmp_path)
    assert not (ran.error or running.problem(ran.outputs, case))


@pytest.mark.skipif(not running.has_emulator(), reason="the kernels of CUDA are emulated")
@pytest.mark.parametrize("n", [0, 1])
def test_a_sum_of_at_most_one_element_contains_its_start(n: int, tmp_path: Path) -> None:
    text = f"""
    x = f32[{n}] parameter(0)
    start = f32[] constant(0.5)
    e = f32[{n}] negate(x)
    total = f32[] reduce(e, start), dimensions={{0}}, to_apply=add
    ROOT both = (f32[{n}], f32[]) tuple(e, total)
    """
    x = np.full(n, 0.25, np.float32)
    case = running.case_of(running.fused(text, ADD.replace("{t}", "f32")), [x], "cuda")
    (ran,) = running.run_emulated([case], tmp_path)
    assert ran.error == ""
    assert ran.outputs[1] == np.float32(0.5 - 0.25 * n)
    assert running.problem(ran.outputs, case) is None
