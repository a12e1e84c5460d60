"""The emulator of CUDA kernels: what threads, warps and blocks compute, and the errors that it detects."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.backends.cuda import emulation
from compiler.errors import ArgumentError, CodegenError, UnknownNameError
from tests.backends.cuda_text import numbers, run, spec_of, zeros

pytestmark = pytest.mark.skipif(not emulation.available(), reason="the emulator needs g++")


# ---- what kernels compute


def test_blocks_and_threads_have_three_dimensions() -> None:
    out = zeros(6 * 16, np.int32)
    text = """
      int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
      out[block * 16 + thread] = 100 * block + thread;"""
    assert run(text, [], [out], grid=(2, 3, 1), block=(4, 2, 2)) == ""
    assert out.tolist() == [100 * b + t for b in range(6) for t in range(16)]


def test_shuffles_follow_their_definition() -> None:
    x = numbers(32)
    outs = [zeros(32) for _ in range(5)]
    text = """
      int t = threadIdx.x;
      out[t] = __shfl_xor_sync(~0u, x[t], 4);
      out1[t] = __shfl_up_sync(~0u, x[t], 3);
      out2[t] = __shfl_down_sync(~0u, x[t], 5);
      out3[t] = __shfl_sync(~0u, x[t], 7);
      out4[t] = __shfl_down_sync(~0u, x[t], 1, 8);"""
    assert run(text, [x], outs) == ""
    lane = np.arange(32)
    assert outs[0].tolist() == (lane ^ 4).tolist()
    assert outs[1].tolist() == np.where(lane < 3, lane, lane - 3).tolist()
    assert outs[2].tolist() == np.where(lane > 26, lane, lane + 5).tolist()
    assert outs[3].tolist() == [7] * 32
    assert outs[4].tolist() == np.where(lane % 8 == 7, lane, lane + 1).tolist()


def test_one_warp_may_shuffle_while_others_wait_at_the_barrier() -> None:
    out = zeros(1)
    text = """
      float v = threadIdx.x;
      if (threadIdx.x < 32) for (int s = 16; s; s >>= 1) v += __shfl_xor_sync(~0u, v, s);
      __syncthreads();
      if (threadIdx.x == 0) out[0] = v;"""
    assert run(text, [], [out], block=128) == ""
    assert out[0] == sum(range(32))


def test_votes_and_reductions_of_a_warp() -> None:
    outs = [zeros(32, np.uint32) for _ in range(6)]
    text = """
      unsigned t = threadIdx.x;
      out[t] = __ballot_sync(~0u, t % 3 == 0);
      out1[t] = __any_sync(~0u, t == 9);
      out2[t] = __all_sync(~0u, t < 31);
      out3[t] = __reduce_max_sync(~0u, t ^ 5u);
      out4[t] = __match_any_sync(~0u, t / 8);
      out5[t] = t < 12 ? __ballot_sync(0xfffu, t > 3) : __activemask();"""
    assert run(text, [], outs) == ""
    assert set(outs[0].tolist()) == {sum(1 << t for t in range(0, 32, 3))}
    assert set(outs[1].tolist()) == {1}
    assert set(outs[2].tolist()) == {0}
    assert set(outs[3].tolist()) == {31}
    assert outs[4].tolist() == [0xFF << t // 8 * 8 for t in range(32)]
    assert outs[5].tolist() == [0xFF0] * 12 + [0xFFFFF000] * 20


def test_atomics_return_the_old_value() -> None:
    x, y = zeros(8, np.int32), numbers(3, np.uint64)
    old = zeros(64, np.int32)
    text = """
      int t = threadIdx.x;
      out2[t] = atomicAdd(&out[0], 2);
      atomicMax(&out[1], t);
      atomicMin(&out[2], -t);
      atomicExch(&out[3], 7);
      atomicOr(&out[4], 1 << t % 4);
      atomicCAS(&out[5], 0, 5);
      atomicInc((unsigned *)&out[6], 9u);
      atomicAdd(&out1[1], 1ull);
      __threadfence();"""
    assert run(text, [], [x, y, old], block=64) == ""
    assert x.tolist() == [128, 63, -63, 7, 15, 5, 64 % 10, 0]
    assert y.tolist() == [0, 65, 2]
    assert sorted(old.tolist()) == list(range(0, 128, 2))


def test_vectors_are_loaded_as_a_whole() -> None:
    x, out, short = numbers(128), zeros(128), zeros(64, np.int16)
    text = """
      float4 v = reinterpret_cast<const float4 *>(x)[threadIdx.x];
      v.x += 1;
      *(float4 *)(out + 4 * threadIdx.x) = make_float4(v.x, v.y, v.z, v.w);
      ((ushort2 *)out1)[threadIdx.x] = ushort2{1, 2};"""
    assert run(text, [x], [out, short]) == ""
    assert out.tolist() == (numbers(128) + (numbers(128) % 4 == 0)).tolist()
    assert short.tolist() == [1, 2] * 32


def test_dynamic_shared_memory_has_the_size_of_the_launch() -> None:
    out = zeros(64)
    text = """
      extern __shared__ __align__(16) float tile[];
      tile[threadIdx.x] = threadIdx.x;
      __syncthreads();
      out[threadIdx.x] = tile[63 - threadIdx.x];"""
    assert run(text, [], [out], block=64, shared_bytes=256) == ""
    assert out.tolist() == list(range(63, -1, -1))
    assert "outside of all arrays" in run(text, [], [out], block=64, shared_bytes=252)


def test_the_last_block_may_collect_what_the_others_wrote() -> None:
    parts, count, out = zeros(5), zeros(1, np.uint32), zeros(1)
    text = """
      __shared__ bool last;
      if (threadIdx.x == 0) {
        out[blockIdx.x] = blockIdx.x + 1;
        __threadfence();
        last = atomicAdd(&out1[0], 1u) == gridDim.x - 1;
      }
      __syncthreads();
      if (last && threadIdx.x == 0) for (int b = 0; b < gridDim.x; b++) out2[0] += out[b];"""
    assert run(text, [], [parts, count, out], grid=5) == ""
    assert out[0] == 15


# ---- errors


def test_accesses_outside_of_the_arguments_are_errors() -> None:
    assert "reads 4 bytes outside of all arrays: byte 128 of argument 0" in run(
        "out[threadIdx.x] = x[threadIdx.x + 1];", [numbers(32)], [zeros(32)]
    )
    assert "writes 4 bytes outside of all arrays" in run("out[threadIdx.x] = 1;", [], [zeros(30)])


def test_accesses_that_are_not_aligned_are_errors() -> None:
    text = "*(float4 *)(out + 1) = *(const float4 *)x;"
    assert "not aligned" in run(text, [numbers(8)], [zeros(8)])


@pytest.mark.parametrize("count", [32, 64])
def test_races_on_shared_memory_are_errors(count: int) -> None:
    text = """
      __shared__ float tile[64];
      tile[threadIdx.x] = threadIdx.x;
      FIRST
      const float other = tile[blockDim.x - 1 - threadIdx.x];
      SECOND
      tile[threadIdx.x] = other;
      out[threadIdx.x] = other;"""
    barrier = "__syncthreads();"

    def error(first: str, second: str) -> str:
        return run(text.replace("FIRST", first).replace("SECOND", second), [], [zeros(64)], block=count)

    assert error(barrier, barrier) == ""
    assert "race on shared memory" in error(barrier, "")
    assert "no thread of the block has written before" in error("", barrier)


def test_lanes_of_a_warp_may_exchange_values_after_they_have_waited_for_each_other() -> None:
    text = """
      __shared__ float tile[64];
      tile[threadIdx.x] = threadIdx.x;
      __syncwarp();
      out[threadIdx.x] = tile[threadIdx.x ^ LANES];"""
    assert run(text.replace("LANES", "3"), [], [zeros(64)], block=64) == ""
    assert "written before" in run(text.replace("LANES", "32"), [], [zeros(64)], block=64)


def test_threads_may_write_the_same_value() -> None:
    text = "__shared__ int n; n = VALUE; __syncthreads(); out[threadIdx.x] = n;"
    assert run(text.replace("VALUE", "7"), [], [zeros(32)]) == ""
    assert "race on shared memory" in run(text.replace("VALUE", "threadIdx.x"), [], [zeros(32)])


def test_shared_memory_must_be_written_before_it_is_read() -> None:
    text = "__shared__ float tile[32]; if (threadIdx.x) tile[threadIdx.x] = 1; __syncthreads(); out[0] = tile[0];"
    assert "no thread of the block has written before" in run(text, [], [zeros(32)])


def test_threads_that_wait_for_each_other_are_errors() -> None:
    text = "if (threadIdx.x == 0) __syncthreads(); else __syncwarp(); out[threadIdx.x] = 1;"
    assert "wait for each other" in run(text, [], [zeros(32)])


def test_a_launch_after_an_error_starts_anew() -> None:
    out = zeros(32)
    assert run("__shared__ int n; n = threadIdx.x; out[n] = x[1 << 20];", [numbers(32)], [out]) != ""
    assert run("__syncthreads(); out[threadIdx.x] = 2;", [], [out]) == ""
    assert out.tolist() == [2] * 32


def test_launches_that_do_not_suit_the_kernel_are_refused() -> None:
    x, out = numbers(64), zeros(64)
    spec = spec_of("out[threadIdx.x] = x[threadIdx.x];", [x], [out])
    kernels = emulation.build([spec])
    addresses = [x.ctypes.data, out.ctypes.data]
    with pytest.raises(UnknownNameError, match="unknown kernel"):
        kernels.launch("other", addresses)
    with pytest.raises(ArgumentError, match="has 2 arrays"):
        kernels.launch(spec.symbol, addresses[:1])
    with pytest.raises(ArgumentError, match="not aligned"):
        kernels.launch(spec.symbol, [addresses[0] + 4, addresses[1]])
    with pytest.raises(ArgumentError, match="threads"):
        kernels.launch(spec.symbol, addresses, block=2048)


def test_the_message_of_the_compiler_is_reported() -> None:
    with pytest.raises(CodegenError, match="g\\+\\+ rejected"):
        run("out[0] = no_such_name;", [], [zeros(1)])
