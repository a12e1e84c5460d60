"""The CUDA kernel of Cartpole that was written by hand, run by threads of the host and compared with JAX."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from compiler.interpreter import evaluate
from compiler.ir.verifier import verify
from compiler.text import parse
from env.suites import find_program
from experiments.cartpole.arguments import ENVS, disagreement, draw
from experiments.gpu.cartpole import KEY_THREADS, STEPS, envs_per_block, naive_program, source
from tests.codegen.nvrtc_errors import has_nvrtc, nvrtc_errors

SHIM = """
#include <barrier>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>
#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline
using std::min;
struct uint2 { unsigned x, y; };
struct float4 { float x, y, z, w; };
struct dim { int x; };
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static unsigned __funnelshift_l(unsigned low, unsigned high, int by) { return (high << by) | (low >> (32 - by)); }
static float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static thread_local dim threadIdx, blockIdx;
static dim blockDim;
static std::unique_ptr<std::barrier<>> whole;
static std::vector<std::unique_ptr<std::barrier<>>> warps;
static void __syncthreads() { whole->arrive_and_wait(); }
static void __syncwarp() { warps[threadIdx.x / 32]->arrive_and_wait(); }
"""
LAUNCH = """
extern "C" void launch(int grid, int block, const unsigned *key, const float4 *state, const int *actions, float4 *out,
                       float *reward, int *dones, int envs, int steps) {
  blockDim.x = block;
  whole = std::make_unique<std::barrier<>>(block);
  warps.clear();
  for (int w = 0; w < block / 32; w++) warps.push_back(std::make_unique<std::barrier<>>(32));
  for (int b = 0; b < grid; b++) {
    std::vector<std::thread> threads;
    for (int t = 0; t < block; t++)
      threads.emplace_back([=] {
        threadIdx.x = t, blockIdx.x = b;
        cartpole(key, state, actions, out, reward, dones, envs, steps);
      });
    for (auto &thread : threads) thread.join();
  }
}
"""


@pytest.mark.skipif(not has_nvrtc(), reason="NVRTC is not installed")
def test_nvrtc_compiles_the_kernel() -> None:
    assert nvrtc_errors(source(), "sm_90") == ""


@pytest.mark.parametrize(
    ("envs", "multiprocessors", "wanted"), [(2048, 132, 32), (65536, 132, 256), (16896, 132, 128), (1, 132, 32)]
)
def test_blocks_are_whole_warps_and_use_all_multiprocessors(envs: int, multiprocessors: int, wanted: int) -> None:
    assert envs_per_block(envs, multiprocessors) == wanted


def test_the_program_of_the_suite_is_resized() -> None:
    text = naive_program(ENVS, STEPS)
    assert text == find_program("cartpole_naive").text()
    module = parse(naive_program(48, 9))
    verify(module)
    assert [s.dimensions for s in module.entry.parameter_shapes] == [(2,), (48, 4), (9, 48)]
    arguments = draw(9, seed=1, envs=48)
    state, reward, _ = evaluate(module, arguments)
    assert state.shape == (48, 4)
    assert (np.asarray(reward) == 9).all()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ runs the kernel on the host")
def test_the_kernel_computes_what_jax_computes(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    from env.suites.quickstart_programs import cartpole_naive

    envs, steps = 40, 150  # a block with idle threads, and the keys of three chunks
    key, state, actions = draw(steps, seed=3, envs=envs)
    file, library = tmp_path / "cartpole.cpp", tmp_path / "cartpole.so"
    file.write_text(SHIM + source() + LAUNCH, encoding="utf-8")
    flags = ["-O1", "-std=c++20", "-shared", "-fPIC", "-pthread", "-w"]
    subprocess.run(["g++", *flags, str(file), "-o", str(library)], check=True)
    found = [np.empty((envs, 4), np.float32), np.empty(envs, np.float32), np.empty(envs, np.int32)]
    pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (key, state, actions, *found)]
    blocks = -(-envs // 32)
    ctypes.CDLL(str(library)).launch(blocks, 32 + KEY_THREADS, *pointers, ctypes.c_int(envs), ctypes.c_int(steps))
    want = [np.asarray(o) for o in jax.jit(cartpole_naive)(key, state, actions)]
    assert want[2].min() >= 2  # every environment was reset, with random numbers of different steps
    assert disagreement(found, want) <= 0.05
