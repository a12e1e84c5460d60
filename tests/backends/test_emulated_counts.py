"""The counts of the emulator, on kernels whose traffic is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from compiler.backends.cuda import emulation
from compiler.backends.cuda.emulation.counting import KernelCounts, sample_windows
from tests.backends.cuda_text import Array, numbers, spec_of, zeros

pytestmark = pytest.mark.skipif(not emulation.available(), reason="the emulator needs g++")


def counted(
    text: str, inputs: Sequence[Array], outputs: Sequence[Array], grid: int = 1, block: int = 32
) -> KernelCounts:
    """Return the counts of a kernel."""
    spec = spec_of(text, inputs, outputs)
    pointers = [a.ctypes.data for a in (*inputs, *outputs)]
    counts, error = emulation.build([spec]).count(spec.symbol, pointers, grid, block)
    assert error == ""
    return counts


AT = "const int t = blockIdx.x * blockDim.x + threadIdx.x;"


def test_a_copy_moves_each_sector_once() -> None:
    found = counted(f"{AT} out[t] = x[t];", [numbers(1 << 14)], [zeros(1 << 14)], grid=64, block=256)
    read, written = found.arrays
    assert found.sampled_blocks == 9
    assert (read.load_requests, written.store_requests) == (512, 512)
    assert (read.load_sectors, written.store_sectors) == (2048, 2048)
    assert found.coalescing == 1
    assert (read.loaded_bytes, written.stored_bytes) == (1 << 16, 1 << 16)
    assert found.memory_bytes(1e9) == found.memory_bytes(0) == 1 << 17
    assert found.l2_bytes == 1 << 17
    assert found.active_lanes == 32


@pytest.mark.parametrize(("stride", "expected"), [(2, 0.5), (4, 0.25), (8, 0.125), (33, 0.125)])
def test_strided_loads_touch_more_sectors(stride: int, expected: float) -> None:
    found = counted(f"{AT} out[t] = x[{stride} * t];", [numbers(64 * stride)], [zeros(64)], block=64)
    assert found.arrays[0].coalescing == expected
    assert found.arrays[1].coalescing == 1


def test_vectors_of_16_bytes_take_a_quarter_of_the_instructions() -> None:
    text = f"{AT} ((float4 *)out)[t] = ((const float4 *)x)[t];"
    found = counted(text, [numbers(4096)], [zeros(4096)], grid=16, block=64)
    assert found.arrays[0].load_requests == 32
    assert found.arrays[0].load_sectors == 512
    assert found.coalescing == 1


def test_one_element_for_all_lanes_is_one_sector() -> None:
    found = counted(f"{AT} out[t] = x[7];", [numbers(8)], [zeros(32)])
    assert found.arrays[0].load_sectors == 1
    assert found.arrays[0].coalescing == 1


def test_data_that_all_blocks_read_comes_from_memory_once() -> None:
    text = f"{AT} float s = 0; for (int k = 0; k < 1024; k++) s += x[k]; out[t] = s;"
    found = counted(text, [numbers(1024)], [zeros(32 * 100)], grid=100)
    assert found.arrays[0].loaded_bytes == 4096
    assert found.arrays[0].l2_load_bytes == 100 * 4096
    assert found.memory_bytes(1e6) == 4096 + 100 * 128


def test_what_the_level_1_cache_holds_is_not_loaded_again() -> None:
    text = """
      float s = 0;
      for (int n = 0; n < 5; n++) for (int k = 0; k < SIZE; k += 32) s += x[k + threadIdx.x];
      out[0] = s;"""
    small = counted(text.replace("SIZE", "1024"), [numbers(1024)], [zeros(32)])
    assert small.arrays[0].l2_load_bytes == 4096
    # four times as much as the cache holds
    large = counted(text.replace("SIZE", "32768"), [numbers(32768)], [zeros(32)])
    assert large.arrays[0].l2_load_bytes == 5 * 131072


def test_lanes_that_leave_a_loop_early_are_counted_as_idle() -> None:
    text = "float s = 0; for (int k = 0; k <= threadIdx.x; k++) s += x[32 * k + threadIdx.x]; out[threadIdx.x] = s;"
    found = counted(text, [numbers(1024)], [zeros(32)])
    assert found.arrays[0].load_requests == 32
    assert found.active_lanes == (32 * 33 / 2 + 32) / 33


@pytest.mark.parametrize(("width", "turns"), [(32, 32), (33, 1), (34, 2)])
def test_columns_of_a_tile_in_shared_memory_conflict(width: int, turns: int) -> None:
    text = f"""
      __shared__ float tile[32 * {width}];
      for (int k = 0; k < 32; k++) tile[k * {width} + threadIdx.x] = x[k];
      __syncthreads();
      for (int k = 0; k < 32; k++) out[32 * k + threadIdx.x] = tile[threadIdx.x * {width} + k];"""
    found = counted(text, [numbers(32)], [zeros(1024)])
    assert found.shared_requests == 64
    assert found.shared_ideal == 64
    assert found.shared_turns == 32 + 32 * turns
    assert found.barriers == 1


def test_wide_accesses_to_shared_memory_take_several_turns_without_conflict() -> None:
    text = """
      __shared__ float4 tile[32];
      tile[threadIdx.x] = ((const float4 *)x)[threadIdx.x];
      __syncwarp();
      ((float4 *)out)[threadIdx.x] = tile[threadIdx.x ^ 1];"""
    found = counted(text, [numbers(128)], [zeros(128)])
    assert (found.shared_ideal, found.shared_turns) == (8, 8)
    assert found.bank_conflicts == 0
    assert found.exchanges == {"sync": 1}


def test_updates_of_one_address_are_counted_for_the_whole_grid() -> None:
    found = counted("atomicAdd(&out[0], 1.f); atomicAdd(&out[8 + threadIdx.x], 1.f);", [], [zeros(64)], grid=200)
    assert found.most_updates == 200 * 32
    assert found.arrays[0].updates == 200 * 64
    assert found.arrays[0].atomic_requests == 400


def test_shuffles_are_counted_per_warp() -> None:
    text = """
      float v = x[threadIdx.x];
      for (int s = 16; s; s >>= 1) v += __shfl_xor_sync(~0u, v, s);
      out[threadIdx.x] = v;"""
    assert counted(text, [numbers(64)], [zeros(64)], block=64).exchanges == {"shuffle": 10}


def test_counts_do_not_depend_on_the_memory_at_which_arrays_lie() -> None:
    text = f"{AT} out[t] = x[(7 * t) % 4096];"
    first = counted(text, [numbers(4096)], [zeros(4096)], grid=64, block=64)
    room = np.zeros(1 << 16, np.float32)
    assert counted(text, [room[1024:5120]], [room[8192 + 4 : 8192 + 4 + 4096]], grid=64, block=64) == first


def test_long_launches_are_extrapolated() -> None:
    out = zeros(1 << 14)
    spec = spec_of("for (int k = 0; k < 10000; k++) out[k % 512 * 32 + threadIdx.x] += k;", [], [out])
    counts, _ = emulation.build([spec]).count(spec.symbol, [out.ctypes.data], most_accesses=64000)
    assert counts.truncated
    assert counts.requests == 20000


def test_what_long_launches_touch_is_extrapolated_and_their_barriers_are_not() -> None:
    x = numbers(1 << 15)
    text = """
      float sum = 0;
      for (int k = 0; k < 1024; k++) {
        sum += __shfl_xor_sync(~0u, x[k * 32 + threadIdx.x], 1);
        __syncthreads();
      }
      out[threadIdx.x] = sum;"""
    out = zeros(32)
    spec = spec_of(text, [x], [out])
    counts, error = emulation.build([spec]).count(spec.symbol, [x.ctypes.data, out.ctypes.data], most_accesses=3280)
    assert error == ""
    assert counts.truncated
    assert counts.barriers == counts.exchanges["shuffle"] == 1024
    assert counts.arrays[0].loaded_bytes == pytest.approx(x.nbytes, rel=0.01)


def test_samples_have_blocks_from_both_ends() -> None:
    assert sample_windows(9) == [(0, 9)]
    assert sample_windows(1000) == [(0, 3), (498, 3), (997, 3)]
    assert sample_windows(9, parts=[4]) == [(0, 9)]
    # A twelfth of the blocks does something else.
    first, *rest = sample_windows(1200, parts=[100])
    assert first == (0, 3)
    assert len(rest) == 11
    assert rest[0] == (100, 3)
    assert rest[-1] == (1197, 3)
    assert sample_windows(1000, parts=[2]) == [(0, 2), *((2 + 995 * n // 11, 3) for n in range(12))]


def test_each_nest_of_a_kernel_is_sampled_by_its_share_of_the_blocks() -> None:
    """Ten blocks of 120 each read as much as eleven others."""
    text = (
        "const int block_ = blockIdx.x; if (block_ < 10) { float s = 0;"
        "for (int k = 0; k < 11; k++) s += x[(block_ * 11 + k) * 256 + threadIdx.x];"
        "out[block_ * 256 + threadIdx.x] = s; }"
        "else { if (block_ < 120) out1[(block_ - 10) * 256 + threadIdx.x] = x[(block_ - 10) * 256 + threadIdx.x]; }"
    )
    found = counted(text, [numbers(110 * 256)], [zeros(10 * 256), zeros(110 * 256)], grid=120, block=256)
    read, sums, copied = found.arrays
    assert read.load_requests == pytest.approx(2 * 110 * 8, rel=0.1)
    assert sums.store_requests == pytest.approx(10 * 8, rel=0.1)
    assert copied.store_requests == pytest.approx(110 * 8, rel=0.1)
