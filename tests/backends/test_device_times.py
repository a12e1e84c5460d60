"""The model of kernel times on a GPU: what limits a kernel, occupancy, products, and fits to measurements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler import compile
from compiler.backends.cuda import emulation
from compiler.backends.cuda.device_fit import MeasuredKernel, errors_of, fit
from compiler.backends.cuda.device_times import KernelWork, kernel_limits, kernel_seconds, product_seconds
from compiler.backends.cuda.gpu_models import GPUS, gpu_model, resident_blocks
from compiler.backends.cuda.program_times import PredictedTimes
from compiler.codegen.kernel_spec import flops_of
from compiler.errors import ArgumentError, UnknownNameError
from env.suites import load_suite
from tests.codegen.running import fused

H100, A100 = gpu_model("h100"), gpu_model("a100")


def copy(megabytes: float, grid: int = 4096, **changes: float) -> KernelWork:
    """Return the work of a copy in vectors of 16 bytes."""
    size = megabytes * 1e6
    requests = 2 * size / 512
    work = KernelWork(
        "copy", grid, 256, footprint=2 * size, loaded=size, reloaded=size, stored=size, l2_bytes=2 * size,
        requests=requests, turns=4 * requests,
    )  # fmt: skip
    return replace(work, **changes)  # type: ignore[arg-type]


def test_a_large_copy_takes_the_time_of_its_bytes() -> None:
    for gpu in GPUS.values():
        ideal = 2e9 / gpu.memory_bandwidth
        assert ideal < kernel_seconds(copy(1000, 1 << 16), gpu) < 1.15 * ideal


def test_an_empty_kernel_takes_a_launch() -> None:
    assert kernel_seconds(KernelWork("empty", 1, 32), H100) == H100.launch


def test_few_blocks_cannot_use_the_whole_gpu() -> None:
    spread, narrow = (kernel_seconds(copy(100, grid), H100) for grid in (4096, 8))
    assert narrow > 8 * spread
    limits = kernel_limits(copy(100, 8), H100)
    assert max(limits, key=lambda name: limits[name]) in ("l2", "latency", "accesses")


def test_work_that_one_block_more_than_the_multiprocessors_has_takes_two_rounds() -> None:
    work = KernelWork("arithmetic", 132, 256, flops=1e9)
    one = kernel_limits(work, H100)["arithmetic"]
    two = kernel_limits(replace(work, grid=133, flops=1e9 * 133 / 132), H100)["arithmetic"]
    assert two == pytest.approx(2 * one)


def test_data_that_does_not_fit_in_the_cache_is_loaded_again() -> None:
    small = KernelWork("again", 4096, 256, footprint=20e6, loaded=20e6, reloaded=200e6)
    large = replace(small, footprint=400e6, loaded=400e6, reloaded=4000e6)
    assert small.memory_bytes(H100) == 20e6
    assert large.memory_bytes(H100) == pytest.approx(400e6 + (1 - 50 / 400) * 3600e6)


def test_updates_of_one_address_follow_each_other() -> None:
    work = KernelWork("updates", 4096, 256, updates=1e6, most_updates=1e6)
    assert kernel_seconds(work, H100) > 1e6 * H100.update
    assert kernel_seconds(replace(work, most_updates=10), H100) < 1e5 * H100.update


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [(256, 32, 0, 8), (1024, 64, 0, 1), (256, 255, 0, 1), (128, 32, 100 << 10, 2), (32, 16, 0, 32), (96, 40, 0, 16)],
)
def test_blocks_per_multiprocessor(threads: int, registers: int, shared: int, blocks: int) -> None:
    assert resident_blocks(H100, threads, registers, shared) == blocks


def test_a_large_product_nearly_reaches_the_peak() -> None:
    flops = 2.0 * 8192**3
    for gpu, peak in ((H100, 989e12), (A100, 312e12)):
        rate = flops / product_seconds(1, 8192, 8192, 8192, 2, gpu, half=True)
        assert 0.6 * peak < rate < peak


def test_a_product_with_a_tile_more_than_a_wave_takes_longer_per_tile() -> None:
    def seconds(m: int) -> float:
        return product_seconds(1, m, 128, 4096, 4, H100)

    assert seconds(132 * 128 + 1) > 1.1 * seconds(132 * 128)


def test_a_deep_product_is_split() -> None:
    flops = 2.0 * 128 * 128 * (1 << 16)
    one_multiprocessor = flops / (2 * H100.float_rate * H100.clock)
    assert product_seconds(1, 128, 128, 1 << 16, 4, H100) < one_multiprocessor / 8


def test_the_operations_of_a_product_depend_on_its_depth() -> None:
    dot = "ROOT r = f32[8,32] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    computation = fused(f"x = f32[8,16] parameter(0)\ny = f32[16,32] parameter(1)\n{dot}")
    assert flops_of(computation) == 2 * 8 * 16 * 32


def test_elements_that_a_gather_does_not_take_are_not_computed() -> None:
    def taken(user: str) -> int:
        return flops_of(fused(f"x = f32[100,9] parameter(0)\nn = f32[100,9] negate(x)\nt = f32[9,100] transpose(n),"
                              f" dimensions={{1,0}}\nROOT r = {user}"))  # fmt: skip

    assert taken("f32[9,100] copy(t)") == 900
    assert taken("f32[2,3] slice(t), slice={[0:2],[4:7]}") == 6
    assert taken("f32[9,100] multiply(t, t)") == 1800


def _works(rng: np.random.Generator, count: int) -> list[KernelWork]:
    """Return kernels of many kinds: copies, arithmetic, few blocks, barriers, updates."""
    out = []
    for n in range(count):
        size, grid = 10 ** rng.uniform(4, 9), int(10 ** rng.uniform(0, 5))
        kind = n % 5
        out.append(
            KernelWork(
                f"k{n}",
                grid,
                int(rng.choice([64, 128, 256, 512])),
                registers=int(rng.integers(24, 96)),
                flops=size * (100 if kind == 1 else 1),
                footprint=size,
                loaded=size * 0.6,
                stored=size * 0.4,
                reloaded=size * 0.6,
                l2_bytes=size * (8 if kind == 2 else 1),
                requests=size / 128,
                turns=size / 128,
                barriers=grid * 8 * (100 if kind == 3 else 1),
                exchanges=grid * 80.0 * (kind == 3),
                updates=size / 100 * (kind == 4),
                most_updates=size / 1000 * (kind == 4),
            )
        )
    return out


def test_a_fit_finds_the_constants_that_made_the_measurements() -> None:
    rng = np.random.default_rng(0)
    true = replace(
        H100,
        memory_bandwidth=2.2e12,
        l2_bandwidth=3.5e12,
        memory_latency=7e-7,
        float_rate=60.0,
        update=4e-9,
        launch=3e-6,
    )
    measured = [MeasuredKernel(w, kernel_seconds(w, true) * rng.lognormal(0, 0.03)) for w in _works(rng, 150)]
    others = [MeasuredKernel(w, kernel_seconds(w, true)) for w in _works(rng, 60)]
    found = fit(measured, H100)
    assert found.after.typical < 1.05 < found.before.typical
    assert errors_of(others, found.gpu).typical < 1.05
    for name in ("memory_bandwidth", "float_rate", "update", "launch"):
        assert getattr(found.gpu, name) == pytest.approx(getattr(true, name), rel=0.1)
    assert found.gpu.multiprocessors == H100.multiprocessors


def test_a_fit_without_information_changes_little() -> None:
    works = [copy(s) for s in (10, 100, 1000)]
    found = fit([MeasuredKernel(w, kernel_seconds(w, H100)) for w in works], H100)
    assert all(0.99 < change < 1.01 for change in found.changes.values())


def test_errors_are_factors() -> None:
    measured = [MeasuredKernel(copy(100), kernel_seconds(copy(100), H100) * f) for f in (0.5, 1.0, 2.0)]
    found = errors_of(measured, H100)
    assert found.count == 3
    assert found.median == pytest.approx(2)
    assert found.worst == pytest.approx(2)
    assert found.typical == pytest.approx(4 ** (1 / 3))


def test_measurements_that_are_no_times_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no measured kernels"):
        fit([], H100)
    with pytest.raises(ArgumentError, match="must be positive"):
        errors_of([MeasuredKernel(copy(1), 0.0)], H100)
    with pytest.raises(UnknownNameError, match="unknown GPU"):
        gpu_model("h1000")


@pytest.mark.skipif(not emulation.available(), reason="the emulator needs g++")
def test_the_time_of_a_program_is_the_sum_of_its_steps() -> None:
    text = load_suite("quickstart").find("softmax").text()
    times = PredictedTimes(H100, assemble=False, keep=False)
    fused, unfused = (
        times.program(compile(text, backend="cuda", fusion_policy=policy).thunks) for policy in ("priority", "none")
    )
    assert fused.seconds == pytest.approx(sum(n * s for _, n, s in fused.steps))
    assert len(fused.steps) < len(unfused.steps)
    assert fused.seconds < unfused.seconds
    assert unfused.seconds >= len(unfused.steps) * H100.launch


def test_operations_that_need_each_other_take_their_latency() -> None:
    work = KernelWork("chain", 1, 32, flops=32e6, chain=1e6)
    seconds = kernel_seconds(work, H100)
    assert seconds > 1e6 * H100.dependent_cycles / H100.clock
    assert seconds > 2 * kernel_seconds(replace(work, chain=0), H100)
    rounds = kernel_limits(replace(work, grid=132 * 32 + 1), H100)["latency"]
    assert rounds == pytest.approx(2 * kernel_limits(work, H100)["latency"])
