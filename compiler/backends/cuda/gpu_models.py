"""The constants of GPUs that the model of kernel times uses, and how many blocks a multiprocessor holds."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.errors import UnknownNameError

__all__ = ["GPUS", "GpuModel", "gpu_model", "resident_blocks"]

_REGISTER_UNIT = 256
"""Granularity in which registers are allocated to a warp."""
_WARP_UNIT = 4
"""A multiprocessor has four parts with registers of their own, which hold equally many warps."""
_RESERVED_SHARED = 1024
"""Bytes of shared memory that the system takes per block."""


@dataclass(frozen=True)
class GpuModel:
    """A GPU in numbers; those that data sheets do not state can be fitted to measurements (`device_fit`).

    Attributes:
        name: for display.
        architecture: what kernels are compiled for, such as "sm_90".
        multiprocessors: their number.
        clock: cycles per second under load.
        memory_bandwidth: bytes per second that kernels reach from and to memory.
        l2_bandwidth: bytes per second between the level 2 cache and all multiprocessors.
        l2_bytes: size of the level 2 cache.
        l2_bytes_per_cycle: bytes per cycle that one multiprocessor receives from it.
        l1_bytes: level 1 cache and shared memory of a multiprocessor together.
        shared_bytes: shared memory of a multiprocessor.
        registers: 32-bit registers of a multiprocessor.
        most_threads, most_blocks: what a multiprocessor holds.
        float_rate, double_rate: operations on f32 and f64 per cycle of a multiprocessor.
        half_tensor_rate: operations per cycle of a multiprocessor in products of f16 and bf16; a multiplication and
            an addition are two.
        double_tensor_rate: the same of f64.
        issue_rate: instructions of warps per cycle of a multiprocessor.
        instructions_per_request: instructions of a warp around each access to memory, for indices and loops.
        memory_latency, l2_latency: seconds until a load that goes to memory, or that the level 2 cache has, is there.
        loads_in_flight: loads of one warp that are on their way at once.
        dependent_cycles: cycles from one operation of a thread to the next one that needs its result.
        barrier: seconds that a block waits at a barrier.
        exchange: seconds until the result of a shuffle is there.
        update: seconds from one atomic update of an address to the next.
        launch: seconds from the end of a kernel to the start of the next one of a graph, and to start its blocks.
    """

    name: str
    architecture: str
    multiprocessors: int
    clock: float
    memory_bandwidth: float
    l2_bandwidth: float
    l2_bytes: float
    shared_bytes: int
    half_tensor_rate: float
    double_rate: float
    double_tensor_rate: float
    l1_bytes: int = 256 << 10
    l2_bytes_per_cycle: float = 64.0
    registers: int = 1 << 16
    most_threads: int = 2048
    most_blocks: int = 32
    float_rate: float = 128.0
    issue_rate: float = 4.0
    instructions_per_request: float = 6.0
    memory_latency: float = 4.5e-7
    l2_latency: float = 1.6e-7
    loads_in_flight: float = 4.0
    dependent_cycles: float = 4.0
    barrier: float = 2e-8
    exchange: float = 1.3e-8
    update: float = 1e-9
    launch: float = 1.5e-6

    @property
    def block_shared_bytes(self) -> int:
        """Bytes of shared memory that a block may have, if it asks for more than 48 KiB."""
        return self.shared_bytes - _RESERVED_SHARED


# Counts, sizes and rates as NVIDIA's white papers of the architectures state them, clocks as boost clocks; bandwidths
# of memory are 92% of the nominal ones, which copies reach. Latencies and the bandwidth of the level 2 cache are round
# figures, as microbenchmarks in the literature find them.
_H100 = GpuModel(
    name="h100", architecture="sm_90", multiprocessors=132, clock=1.83e9, memory_bandwidth=0.92 * 3.35e12,
    l2_bandwidth=5.5e12, l2_bytes=50e6, shared_bytes=228 << 10, half_tensor_rate=4096, double_rate=64,
    double_tensor_rate=256,
)  # fmt: skip
_H200 = GpuModel(
    name="h200", architecture="sm_90", multiprocessors=132, clock=1.83e9, memory_bandwidth=0.92 * 4.8e12,
    l2_bandwidth=5.5e12, l2_bytes=50e6, shared_bytes=228 << 10, half_tensor_rate=4096, double_rate=64,
    double_tensor_rate=256,
)  # fmt: skip
_A100 = GpuModel(
    name="a100", architecture="sm_80", multiprocessors=108, clock=1.41e9, memory_bandwidth=0.92 * 2.04e12,
    l2_bandwidth=4e12, l2_bytes=40e6, shared_bytes=164 << 10, half_tensor_rate=2048, double_rate=32,
    double_tensor_rate=128, l1_bytes=192 << 10,
)  # fmt: skip
GPUS = {g.name: g for g in (_H100, _H200, _A100)}
"""The models by name: H100 with SXM5, H200, and A100 with SXM4 and 80 GB."""


def gpu_model(name: str) -> GpuModel:
    """Return the model of a GPU by its name; raise UnknownNameError if there is none."""
    if name not in GPUS:
        raise UnknownNameError("GPU", name, GPUS)
    return GPUS[name]


def resident_blocks(gpu: GpuModel, threads: int, registers: int, shared_bytes: int) -> int:
    """Return how many blocks a multiprocessor holds at once; at least 1.

    Args:
        gpu: the GPU.
        threads: per block.
        registers: per thread.
        shared_bytes: of a block.
    """
    warps = -(-threads // 32)
    per_warp = -(-registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
    limits = (
        gpu.most_blocks,
        gpu.most_threads // (32 * warps),
        gpu.registers // max(1, per_warp) // _WARP_UNIT * _WARP_UNIT // warps,
        gpu.shared_bytes // (shared_bytes + _RESERVED_SHARED),
    )
    return max(1, min(limits))
