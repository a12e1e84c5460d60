"""Threads of a GPU that reduce adjacent columns together match the interpreter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiler.codegen.languages import CUDA
from compiler.ir import HloComputation
from tests.codegen import running

pytestmark = pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")

ADD = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }"
SCALED = running.fused(
    """
    x = bf16[40] parameter(0)
    w = s8[40,48] parameter(1)
    s = f32[48] parameter(2)
    f = f32[40,48] convert(w)
    g = f32[40] convert(x)
    b = f32[40,48] broadcast(g), dimensions={0}
    p = f32[40,48] multiply(b, f)
    z = f32[] constant(0)
    t = f32[48] reduce(p, z), dimensions={0}, to_apply=add
    ROOT r = f32[48] multiply(t, s)
    """,
    ADD,
)
BATCHED = running.fused(
    """
    x = f32[3,20,5,24] parameter(0)
    z = f32[] constant(1)
    y = f32[3,20,5,24] exponential(x)
    ROOT t = f32[3,24] reduce(y, z), dimensions={1,2}, to_apply=add
    """,
    ADD,
)
TWO = running.fused(
    """
    x = f32[60,32] parameter(0)
    d = f32[60,32] parameter(1)
    z = f32[] constant(0)
    p = f32[60,32] multiply(x, d)
    s = f32[32] reduce(d, z), dimensions={0}, to_apply=add
    t = f32[32] reduce(p, z), dimensions={0}, to_apply=add
    ROOT r = (f32[32], f32[32]) tuple(s, t)
    """,
    ADD,
)
INTERLEAVED = running.fused(
    """
    w = u8[20,1,32] parameter(0)
    x = f32[40] parameter(1)
    m = u8[] constant(15)
    k = u8[] constant(4)
    ms = u8[20,1,32] broadcast(m), dimensions={}
    ks = u8[20,1,32] broadcast(k), dimensions={}
    low = u8[20,1,32] and(w, ms)
    high = u8[20,1,32] shift-right-logical(w, ks)
    both = u8[20,2,32] concatenate(low, high), dimensions={1}
    q = u8[40,32] reshape(both)
    f = f32[40,32] convert(q)
    b = f32[40,32] broadcast(x), dimensions={0}
    p = f32[40,32] multiply(f, b)
    z = f32[] constant(0)
    ROOT t = f32[32] reduce(p, z), dimensions={0}, to_apply=add
    """,
    ADD,
)
"""The branch depends on the row, and is the same for all columns."""
CHOSEN = running.fused(
    """
    x = f32[30,32] parameter(0)
    i = s32[30,1] parameter(1)
    g = f32[30,32] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,
        slice_sizes={1,32}
    z = f32[] constant(0)
    ROOT t = f32[32] reduce(g, z), dimensions={0}, to_apply=add
    """,
    ADD,
)
"""Rows whose numbers are loaded."""
SHIFTED = running.fused(
    """
    x = f32[30,33] parameter(0)
    s = f32[30,32] slice(x), slice={[0:30], [1:33]}
    z = f32[] constant(0)
    ROOT t = f32[32] reduce(s, z), dimensions={0}, to_apply=add
    """,
    ADD,
)
"""Elements that are adjacent, but not at multiples of a width."""


def _case(f: HloComputation, width: int) -> running.Case:
    rng = np.random.default_rng(0)
    args = running.random_args(f.parameter_shapes, rng)
    args = [rng.integers(0, 15, a.shape).astype(a.dtype) if a.dtype.kind in "iu" else a for a in args]
    return running.case_of(f, args, "cuda", CUDA.default_schedule.with_values({"gpu.width": width}))


@pytest.mark.parametrize("width", [2, 8])
def test_adjacent_columns_match_the_interpreter(tmp_path: Path, width: int) -> None:
    cases = {
        "scaled": _case(SCALED, width), "batched": _case(BATCHED, width), "two": _case(TWO, width),
        "interleaved": _case(INTERLEAVED, width), "chosen": _case(CHOSEN, width), "shifted": _case(SHIFTED, width),
    }  # fmt: skip
    for name, case in cases.items():
        assert ("load_wide" in case.spec.source) == (name != "shifted"), name
    for grid in (2, 1000):
        runs = running.run_emulated(list(cases.values()), tmp_path, grid)
        for (name, case), run in zip(cases.items(), runs, strict=True):
            assert not (run.error or running.problem(run.outputs, case)), (name, grid, run.error)


def test_threads_reduce_adjacent_columns_where_there_are_enough() -> None:
    large = running.fused(
        """
        x = bf16[8192,1024] parameter(0)
        f = f32[8192,1024] convert(x)
        z = f32[] constant(0)
        ROOT t = f32[1024] reduce(f, z), dimensions={0}, to_apply=add
        """,
        ADD,
    )
    assert "load_wide<8>" in running.kernel_of(large, "cuda").source
    assert "load_wide" not in running.kernel_of(TWO, "cuda").source
