"""Schedules of loops on a GPU: every choice is right, and what the emulator counts is what they are for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiler.backends.cuda import emulation
from compiler.backends.cuda.emulation.counting import KernelCounts
from compiler.codegen.languages import CUDA, default_schedule
from compiler.codegen.schedules.schedule import FIELD_RANGES
from compiler.codegen.schedules.schedule_space import schedule_space, typical_values
from compiler.errors import UnsupportedError
from compiler.ir import HloComputation
from tests.codegen import fusions, running

pytestmark = pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")
GPU_FIELDS = tuple(name for name in FIELD_RANGES if name.startswith("gpu."))


def _transpose(dims: str, result: str, order: str, kind: str = "f32") -> HloComputation:
    """Return a transpose with elementwise ops before and after it, and a bias of the last dimension."""
    last = result.rsplit(",", 1)[-1]
    rank = result.count(",")
    return running.fused(f"""
        a = {kind}[{dims}] parameter(0)
        b = {kind}[{last}] parameter(1)
        n = {kind}[{dims}] negate(a)
        t = {kind}[{result}] transpose(n), dimensions={{{order}}}
        bb = {kind}[{result}] broadcast(b), dimensions={{{rank}}}
        ROOT r = {kind}[{result}] add(t, bb)
    """)


TRANSPOSES = {
    "whole tiles": _transpose("64,96", "96,64", "1,0"),
    "edges": _transpose("70,3,65", "65,3,70", "2,1,0"),
    "one edge": _transpose("5,33,64", "5,64,33", "0,2,1"),
    "f64": _transpose("40,50", "50,40", "1,0", "f64"),
    "bf16": _transpose("130,70", "70,130", "1,0", "bf16"),
    "s8": _transpose("64,128", "128,64", "1,0", "s8"),
    "narrow": _transpose("300,5", "5,300", "1,0"),
    "merged source": _transpose("40,6,3,3", "3,3,6,40", "2,3,1,0"),
    "merged result": _transpose("3,3,20,33", "33,20,3,3", "3,2,0,1"),
    "short source": _transpose("20,21,3,3", "3,3,20,21", "2,3,0,1"),
    "short result": _transpose("2,3,10,9", "2,10,9,3", "0,2,3,1"),
    "three groups": _transpose("18,5,7,20", "20,5,7,18", "3,1,2,0"),
}


def _problems(cases: dict[str, running.Case], folder: Path, max_grid: int = 3) -> dict[str, str]:
    runs = running.run_emulated(list(cases.values()), folder, max_grid)
    found = {
        name: run.error or running.problem(run.outputs, case)
        for (name, case), run in zip(cases.items(), runs, strict=True)
    }
    return {name: text for name, text in found.items() if text}


def _counts(f: HloComputation, **choices: int) -> KernelCounts:
    schedule = CUDA.default_schedule.with_values({k.replace("gpu_", "gpu."): v for k, v in choices.items()})
    case = running.case_of(f, running.random_args(f.parameter_shapes, np.random.default_rng(0)), "cuda", schedule)
    arrays = [*map(np.ascontiguousarray, case.args), *(np.zeros(s.dimensions, s.dtype) for s in case.spec.outputs)]
    counts, error = emulation.build([case.spec]).count(case.spec.symbol, [a.ctypes.data for a in arrays])
    assert error == ""
    return counts


@pytest.mark.parametrize("tile", [0, 16, 32, 64])
@pytest.mark.parametrize("block", [0, 32, 1024])
def test_transposes_match_the_interpreter(tile: int, block: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    schedule = CUDA.default_schedule.with_values({"gpu.tile": tile, "block": block})
    cases = {
        name: running.case_of(f, running.random_args(f.parameter_shapes, rng), "cuda", schedule)
        for name, f in TRANSPOSES.items()
    }
    assert {c.spec.kind for c in cases.values()} == ({"transpose"} if tile else {"loop"})
    assert _problems(cases, tmp_path) == {}


def test_a_tiled_transpose_is_coalesced_both_ways_without_bank_conflicts() -> None:
    f = _transpose("1024,1024", "1024,1024", "1,0")
    tiled, plain = _counts(f), _counts(f, gpu_tile=0)
    assert tiled.coalescing == 1.0
    assert tiled.bank_conflicts == 0.0
    assert plain.coalescing < 0.5


@pytest.mark.parametrize(
    ("dims", "result", "order"),
    [
        ("64,32,3,3", "3,3,32,64", "2,3,1,0"),
        ("3,3,64,32", "32,64,3,3", "3,2,0,1"),
        ("96,96,3,3", "3,3,96,96", "2,3,0,1"),
    ],
)
def test_kernels_of_convolutions_are_transposed_in_whole_sectors(dims: str, result: str, order: str) -> None:
    f = _transpose(dims, result, order)
    assert _counts(f).coalescing > 0.95
    assert _counts(f, gpu_tile=0).coalescing < 0.5


SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in ("elementwise", "layer_norm", "full_sum", "column_batch")]


@pytest.mark.parametrize("name", ["softmax", "column_sum", *SLOW])
def test_every_choice_matches_the_interpreter(name: str, tmp_path: Path) -> None:
    f = fusions.fusion(name)
    args = running.random_args(f.parameter_shapes, np.random.default_rng(1))
    cases = {}
    for field in ("block", "cache", *GPU_FIELDS):
        for value in typical_values(field, CUDA.default_schedule.value(field)):
            schedule = CUDA.default_schedule.with_values({field: value})
            cases[f"{field}={value}"] = running.case_of(f, args, "cuda", schedule)
    assert len({c.spec.source for c in cases.values()}) > 5
    assert _problems(cases, tmp_path, 2) == {}


def test_the_fields_of_a_gpu_are_knobs_of_its_kernels_alone() -> None:
    def knobs(name: str, language: str) -> set[str]:
        f = fusions.fusion(name)

        def generate(schedule: object) -> str | None:
            try:
                return running.kernel_of(f, language, schedule).source  # type: ignore[arg-type]
            except UnsupportedError:
                return None

        default = default_schedule(language)
        return {k.name for k in schedule_space(generate, default).knobs}

    assert {"block", "cache", "gpu.team", "gpu.resident"} <= knobs("softmax", "cuda")
    assert "gpu.tile" in knobs("transpose", "cuda")
    assert not {"tile", "columns", "unroll", "splits"} & knobs("column_sum", "cuda")
    assert not [k for k in knobs("softmax", "c") if k.startswith("gpu.")]


def test_elements_are_read_sixteen_bytes_at_a_time() -> None:
    f = running.fused("a = f32[1024,512] parameter(0)\n ROOT r = f32[1024,512] negate(a)")
    wide, narrow = _counts(f), _counts(f, gpu_width=1)
    assert wide.coalescing == narrow.coalescing == 1.0
    assert narrow.arrays[0].load_requests == 4 * wide.arrays[0].load_requests


def test_short_rows_have_no_barriers_and_share_a_block() -> None:
    f = running.fused(fusions.softmax("5000,64", "5000", "1", "0"), fusions.REDUCERS)
    counts = _counts(f)
    assert counts.barriers == 0
    assert counts.grid >= 132
    assert counts.coalescing == 1.0
    loaded = counts.arrays[0]
    assert loaded.load_sectors * 32 == loaded.size  # the row stays in registers


def test_columns_are_read_along_columns_by_many_blocks() -> None:
    f = running.fused(
        "x = f32[2048,4096] parameter(0)\n z = f32[] constant(0)\n"
        "ROOT s = f32[4096] reduce(x, z), dimensions={0}, to_apply=add",
        fusions.REDUCERS,
    )
    counts = _counts(f)
    assert counts.coalescing == 1.0
    assert counts.grid * counts.block >= 132 * 512


@pytest.mark.parametrize(("columns", "blocks"), [(50, 7), (1023, 128), (4095, 128), (24, 3)])
def test_columns_that_are_no_whole_sectors_run_on_many_blocks(columns: int, blocks: int) -> None:
    f = running.fused(
        f"x = f32[3000,{columns}] parameter(0)\n z = f32[] constant(0)\n"
        f"ROOT s = f32[{columns}] reduce(x, z), dimensions={{0}}, to_apply=add",
        fusions.REDUCERS,
    )
    assert running.kernel_of(f, "cuda").grid == blocks


def test_nests_that_share_nothing_run_on_blocks_of_their_own(tmp_path: Path) -> None:
    f = running.fused(
        """
        x = f32[40,300] parameter(0)
        y = f32[5000] parameter(1)
        w = f32[64,96] parameter(2)
        zero = f32[] constant(0)
        s = f32[] reduce(x, zero), dimensions={0,1}, to_apply=add
        q = f32[5000] abs(y)
        t = f32[96,64] transpose(w), dimensions={1,0}
        ROOT r = (f32[], f32[5000], f32[96,64]) tuple(s, q, t)
        """,
        fusions.REDUCERS,
    )
    case = running.case_of(f, running.random_args(f.parameter_shapes, np.random.default_rng(2)), "cuda")
    assert case.spec.grid > 3
    assert _problems({"few blocks": case}, tmp_path, 2) == {}
    assert _problems({"all blocks": case}, tmp_path, case.spec.grid) == {}


def test_blocks_of_a_nest_do_not_compute_what_another_needs() -> None:
    text = """
      x = f32[4] parameter(0)
      y = f32[300] parameter(1)
      z = f32[5000] parameter(2)
      zero = f32[] constant(0)
      sum = f32[] reduce(x, zero), dimensions={0}, to_apply=add
      sums = f32[300] broadcast(sum), dimensions={}
      a = f32[300] multiply(y, sums)
      b = f32[5000] negate(z)
      ROOT r = (f32[300], f32[5000]) tuple(a, b)"""
    source = running.kernel_of(running.fused(text, fusions.REDUCERS), "cuda").source
    assert source.index("p0[") > source.index("block_ < ")
