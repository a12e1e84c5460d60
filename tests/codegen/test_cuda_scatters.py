"""Scatters on a GPU: every form matches the interpreter, in the order of the program where the order matters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiler.codegen.languages import CUDA
from compiler.codegen.schedules.schedule_space import typical_values
from compiler.ir import HloComputation
from tests.codegen import running

pytestmark = pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")


def _embedding(kind: str, op: str, rows: int = 40, count: int = 300, width: int = 24) -> HloComputation:
    """Return the gradient of an embedding: rows of updates are combined into the rows of a table."""
    combine = f"combine {{ a = {kind}[] parameter(0) b = {kind}[] parameter(1) ROOT r = {kind}[] {op}(a, b) }}"
    if not op:
        combine = f"combine {{ a = {kind}[] parameter(0) ROOT b = {kind}[] parameter(1) }}"
    return running.fused(
        f"""
        x = {kind}[{rows},{width}] parameter(0)
        i = s32[{count},1] parameter(1)
        u = {kind}[{count},{width}] parameter(2)
        d = {kind}[{count},{width}] add(u, u)
        ROOT r = {kind}[{rows},{width}] scatter(x, i, d), to_apply=combine, update_window_dims={{1}},
            inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1
        """,
        combine,
    )


ADD = "combine { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }"
WINDOWS = running.fused(
    """
    x = f32[9,50] parameter(0)
    i = s32[5,6,2] parameter(1)
    u = f32[5,6,7] parameter(2)
    ROOT r = f32[9,50] scatter(x, i, u), to_apply=combine, update_window_dims={2}, inserted_window_dims={0},
        scatter_dims_to_operand_dims={0,1}, index_vector_dim=2
    """,
    ADD,
)
"""Windows of one row that overlap, because they start anywhere in it."""
BLOCKS = running.fused(
    """
    x = f32[30,20] parameter(0)
    i = s32[40,2] parameter(1)
    u = f32[40,3,4] parameter(2)
    ROOT r = f32[30,20] scatter(x, i, u), to_apply=combine, update_window_dims={1,2}, inserted_window_dims={},
        scatter_dims_to_operand_dims={0,1}, index_vector_dim=1
    """,
    ADD,
)
"""Windows of several rows, which no part of the output owns."""
ONE = running.fused(
    """
    x = f32[30,20] parameter(0)
    i = s32[1] parameter(1)
    u = f32[3,20] parameter(2)
    ROOT r = f32[30,20] scatter(x, i, u), to_apply=combine, update_window_dims={0,1}, inserted_window_dims={},
        scatter_dims_to_operand_dims={0}, index_vector_dim=0
    """,
    ADD,
)

CACHE = running.fused(
    """
    x = f32[6,10,2,4] parameter(0)
    i = s32[6] parameter(1)
    u = f32[6,1,2,4] parameter(2)
    ROOT r = f32[6,10,2,4] scatter(x, i, u), to_apply=combine, update_window_dims={1,2,3}, inserted_window_dims={},
        scatter_dims_to_operand_dims={1}, input_batching_dims={0}, scatter_indices_batching_dims={0}, index_vector_dim=1
    """,
    ADD,
)
"""One new row in each sequence of a batch."""
PAIRS = running.fused(
    """
    x = f32[6,10,2,4] parameter(0)
    i = s32[6,2] parameter(1)
    u = f32[6,2,1,2,4] parameter(2)
    ROOT r = f32[6,10,2,4] scatter(x, i, u), to_apply=combine, update_window_dims={2,3,4}, inserted_window_dims={},
        scatter_dims_to_operand_dims={1}, input_batching_dims={0}, scatter_indices_batching_dims={0}, index_vector_dim=2
    """,
    ADD,
)
"""Two new rows in each sequence of a batch, which may be the same row."""


def _case(f: HloComputation, high: int, **choices: int) -> running.Case:
    rng = np.random.default_rng(0)
    args = running.random_args(f.parameter_shapes, rng)
    args[1] = rng.integers(-1, high, args[1].shape).astype(np.int32)  # some are out of bounds
    schedule = CUDA.default_schedule.with_values({f"gpu.{k}": v for k, v in choices.items()})
    return running.case_of(f, args, "cuda", schedule)


def _check(cases: dict[str, running.Case], folder: Path) -> None:
    for grid in (2, 1000):
        runs = running.run_emulated(list(cases.values()), folder, grid)
        for (name, case), run in zip(cases.items(), runs, strict=True):
            assert not (run.error or running.problem(run.outputs, case)), (name, grid)


def test_embedding_gradients_match_the_interpreter(tmp_path: Path) -> None:
    kinds = (("f32", "add"), ("f64", "multiply"), ("bf16", "add"), ("f16", "maximum"), ("s32", "add"), ("s8", "add"))
    cases = {f"{t} {op}": _case(_embedding(t, op), 42) for t, op in (*kinds, ("f32", ""), ("u64", "minimum"))}
    cases["many rows"] = _case(_embedding("f32", "add", 700, 90, 5), 705)
    cases["wide"] = _case(_embedding("f32", "add", 12, 20, 600), 12)
    _check(cases, tmp_path)


def test_windows_match_the_interpreter(tmp_path: Path) -> None:
    _check({"overlapping": _case(WINDOWS, 46), "blocks": _case(BLOCKS, 30), "one": _case(ONE, 5)}, tmp_path)


def test_updates_that_cannot_meet_are_made_at_once(tmp_path: Path) -> None:
    apart, meeting = _case(CACHE, 11), _case(PAIRS, 11)
    _check({"apart": apart, "meeting": meeting}, tmp_path)
    assert "ballot" not in apart.spec.source
    assert "atomic" not in apart.spec.source
    assert "ballot" in meeting.spec.source


def test_sums_of_floats_are_in_order_unless_atomics_are_asked_for(tmp_path: Path) -> None:
    ordered, atomic = _case(_embedding("f32", "add"), 42), _case(_embedding("f32", "add"), 42, atomics=1)
    assert "atomic_update" not in ordered.spec.source
    assert "atomic_update" in atomic.spec.source
    assert ordered.spec.grid == 40  # a block for each row
    _check({"atomic": atomic}, tmp_path)
    # In the order of the program the results are those of the interpreter to the last bit.
    (run,) = running.run_emulated([ordered], tmp_path, 1000)
    x, i, u = ordered.args
    wanted = x.copy()
    for row, update in zip(i[:, 0], u + u, strict=True):
        if 0 <= row < len(wanted):
            wanted[row] += update
    np.testing.assert_array_equal(run.outputs[0], wanted)


def _elements(kind: str, op: str, rows: int, count: int) -> HloComputation:
    """Return a scatter of single elements into an array."""
    combine = f"combine {{ a = {kind}[] parameter(0) b = {kind}[] parameter(1) ROOT r = {kind}[] {op}(a, b) }}"
    if not op:
        combine = f"combine {{ a = {kind}[] parameter(0) ROOT b = {kind}[] parameter(1) }}"
    return running.fused(
        f"""
        x = {kind}[{rows}] parameter(0)
        i = s32[{count},1] parameter(1)
        u = {kind}[{count}] parameter(2)
        d = {kind}[{count}] add(u, u)
        ROOT r = {kind}[{rows}] scatter(x, i, d), to_apply=combine, update_window_dims={{}},
            inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1
        """,
        combine,
    )


def test_single_elements_are_owned_by_threads(tmp_path: Path) -> None:
    kinds = (("f32", "add"), ("f64", "multiply"), ("bf16", "add"), ("f32", ""), ("s32", ""), ("s16", ""))
    cases = {f"{t} {op}": _case(_elements(t, op, 300, 900), 305) for t, op in kinds}
    cases["few updates"] = _case(_elements("f32", "add", 1000, 5), 1000)
    cases["few rows"] = _case(_elements("f32", "add", 3, 700), 4)
    assert "_kept" in cases["f32 add"].spec.source
    assert "_kept" not in cases["bf16 add"].spec.source  # each sum is rounded
    _check(cases, tmp_path)


def test_sums_of_single_elements_are_in_order(tmp_path: Path) -> None:
    case = _case(_elements("f32", "add", 40, 3000), 42)
    (run,) = running.run_emulated([case], tmp_path, 1000)
    x, i, u = case.args
    wanted = x.copy()
    for row, update in zip(i[:, 0], u + u, strict=True):
        if 0 <= row < len(wanted):
            wanted[row] += update
    np.testing.assert_array_equal(run.outputs[0], wanted)


def test_parts_that_do_not_fit_into_shared_memory_are_not_owned() -> None:
    assert "_kept" not in _case(_elements("f64", "add", 132 * 2049, 4), 10).spec.source


def test_atomics_that_change_results_are_never_tried() -> None:
    assert typical_values("gpu.atomics", 0) == (0,)


def test_integers_are_updated_by_all_threads() -> None:
    spec = _case(_embedding("s32", "add"), 42).spec
    assert "atomic_update" in spec.source
    assert spec.grid * spec.block >= 300 * 24
