"""Shared memory of more than 48 KiB: rows, sorts and tiles that have it, and how a launch gets it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiler import compile, load
from compiler.backends.cuda import emulation
from compiler.backends.cuda.cubins import compile_cubins
from compiler.backends.cuda.emulation import stand_in
from compiler.backends.cuda.gpu_models import GPUS
from compiler.codegen.languages import default_schedule
from compiler.codegen.schedules.cuda_shapes import BLOCK_BYTES
from compiler.errors import BackendError
from compiler.interpreter import evaluate
from compiler.ir import HloComputation
from compiler.text import parse
from tests.codegen import running
from tests.codegen.nvrtc_errors import has_nvrtc

needs_emulator = pytest.mark.skipif(not emulation.available(), reason="the emulator needs g++")
STATIC = 48 << 10

SORT = """HloModule m
less { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = pred[] compare(a, b), direction=LT }
ENTRY e { x = f32[2,9000] parameter(0) y = f32[2,9000] negate(x)
  ROOT s = f32[2,9000] sort(y), dimensions={1}, is_stable=true, to_apply=less }
"""


def gradient(rows: int, n: int) -> HloComputation:
    """Return p * (d - the sum of p * d over its row): both arrays are read before and after the sum."""
    shape = f"f32[{rows},{n}]"
    return running.fused(
        f"""
        p = {shape} parameter(0)
        d = {shape} parameter(1)
        q = {shape} multiply(p, d)
        zero = f32[] constant(0)
        s = f32[{rows}] reduce(q, zero), dimensions={{1}}, to_apply=add
        b = {shape} broadcast(s), dimensions={{0}}
        r = {shape} subtract(d, b)
        ROOT m = {shape} multiply(p, r)
        """,
        "add { a = f32[] parameter(0)\n c = f32[] parameter(1)\n ROOT r = f32[] add(a, c) }",
    )


def product() -> HloComputation:
    return running.fused("""
        p0 = bf16[128,96] parameter(0)
        p1 = bf16[96,128] parameter(1)
        ROOT d = f32[128,128] dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    """)


TILES = {"tiles.rows": 128, "tiles.columns": 128, "tiles.depth": 32, "tiles.stages": 4}


def cases() -> dict[str, running.Case]:
    rng = np.random.default_rng(0)
    usual = default_schedule("cuda")
    made = {
        "rows": (gradient(2, 20480), usual),
        "rows with a rest": (gradient(2, 20003), usual),
        "tiles": (product(), usual.with_values(TILES)),
    }
    return {
        name: running.case_of(f, running.random_args(f.parameter_shapes, rng), "cuda", schedule)
        for name, (f, schedule) in made.items()
    }


@needs_emulator
def test_kernels_with_much_shared_memory_match_the_interpreter(tmp_path: Path) -> None:
    made = cases()
    for name, run in zip(made, running.run_emulated(list(made.values()), tmp_path), strict=True):
        assert STATIC < made[name].spec.shared_bytes <= BLOCK_BYTES
        assert not run.error, name
        assert running.problem(run.outputs, made[name], 1e-3) is None, name


SOFTMAX = """
    x = {shape} parameter(0)
    low = f32[] constant(-inf)
    zero = f32[] constant(0)
    m = f32[3] reduce(x, low), dimensions={{1}}, to_apply=max
    mb = {shape} broadcast(m), dimensions={{0}}
    d = {shape} subtract(x, mb)
    e = {shape} exponential(d)
    s = f32[3] reduce(e, zero), dimensions={{1}}, to_apply=add
    sb = {shape} broadcast(s), dimensions={{0}}
    ROOT r = {shape} divide(e, sb)
    """
REDUCERS = """add { a = f32[] parameter(0)
 c = f32[] parameter(1)
 ROOT r = f32[] add(a, c) }
max { a = f32[] parameter(0)
 c = f32[] parameter(1)
 ROOT r = f32[] maximum(a, c) }"""


@needs_emulator
@pytest.mark.parametrize("n", [40960, 50257, 33000])
def test_rows_longer_than_registers_are_partly_in_shared_memory_and_read_once(n: int) -> None:
    computation = running.fused(SOFTMAX.format(shape=f"f32[3,{n}]"), REDUCERS)
    args = running.random_args(computation.parameter_shapes, np.random.default_rng(0))
    case = running.case_of(computation, args, "cuda")
    # The exponentials take the place of the elements, of which 32 per thread are in registers.
    assert 0 < case.spec.shared_bytes <= 4 * (n - 32 * 1024) + 4 * 4 * 1024
    arrays = [*map(np.ascontiguousarray, case.args), *(np.zeros(s.dimensions, s.dtype) for s in case.spec.outputs)]
    counts, error = emulation.build([case.spec]).count(case.spec.symbol, [a.ctypes.data for a in arrays])
    assert not error
    assert counts.l2_bytes < 1.2 * sum(a.nbytes for a in arrays)
    assert running.problem(arrays[-1:], case, 1e-3) is None


@needs_emulator
def test_rows_in_shared_memory_are_read_once_without_bank_conflicts() -> None:
    (case, *_) = cases().values()
    arrays = [*map(np.ascontiguousarray, case.args), *(np.zeros(s.dimensions, s.dtype) for s in case.spec.outputs)]
    counts, error = emulation.build([case.spec]).count(case.spec.symbol, [a.ctypes.data for a in arrays])
    assert error == ""
    assert counts.l2_bytes == pytest.approx(case.spec.bytes, rel=0.01)
    assert counts.bank_conflicts < 0.05


def test_shorter_rows_have_none() -> None:
    short = gradient(2, 8192)
    case = running.case_of(short, running.random_args(short.parameter_shapes, np.random.default_rng(0)), "cuda")
    assert case.spec.shared_bytes == 0
    assert "dynamic" not in case.spec.source


@needs_emulator
def test_a_launch_gets_the_memory_that_its_kernel_asks_for() -> None:
    x = np.random.default_rng(0).integers(-9, 9, (2, 9000)).astype(np.float32)
    executable = compile(SORT, backend="cuda")
    assert max(k.shared_bytes for k in executable.kernels) == 4 * 16384
    with stand_in.installed():
        for _ in range(3):  # launched, and then captured
            (found,) = executable(x)
        np.testing.assert_array_equal(found.get(), evaluate(parse(SORT), [x])[0])


@needs_emulator
def test_a_saved_program_has_it_too(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (2, 9000)).astype(np.float32)
    compile(SORT, backend="cuda").save(tmp_path / "program")
    with stand_in.installed():
        (found,) = load(tmp_path / "program")(x)
        np.testing.assert_array_equal(found.get(), evaluate(parse(SORT), [x])[0])


@needs_emulator
def test_a_gpu_with_less_shared_memory_says_so() -> None:
    x = np.zeros((2, 9000), np.float32)
    with stand_in.installed() as gpu:
        gpu.most_shared = STATIC
        with pytest.raises(BackendError, match="needs 65536 bytes of shared memory per block, more than this GPU has"):
            compile(SORT, backend="cuda")(x)


def test_every_gpu_of_the_table_has_blocks_with_so_much() -> None:
    for gpu in GPUS.values():
        assert gpu.block_shared_bytes >= BLOCK_BYTES > STATIC


@pytest.mark.skipif(not has_nvrtc(), reason="NVRTC is not installed")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_the_assembler_accepts_them_and_they_count_as_resources(architecture: str) -> None:
    kernels = [*compile(SORT, backend="cuda").kernels, *(c.spec for c in cases().values())]
    for symbol, cubin in compile_cubins(kernels, architecture).items():
        (kernel,) = (k for k in kernels if k.symbol == symbol)
        assert cubin.resources.dynamic_bytes == kernel.shared_bytes > STATIC
        assert cubin.resources.shared_bytes >= cubin.resources.dynamic_bytes
        assert cubin.resources.spill_stores == 0
