"""Predicted times of kernels on a GPU, from what the emulator counts and what the assembler reports.

A kernel is limited by one of: memory, the level 2 cache, the instructions and the accesses of its busiest
multiprocessor, the latency of a thread's accesses and of its longest chain of dependent operations, or atomic updates
of one address. Times of limits that are close add to each other, so the prediction is their norm,
`(sum of t ** SHARPNESS) ** (1 / SHARPNESS)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from compiler.backends.cuda.emulation.counting import KernelCounts
from compiler.backends.cuda.gpu_models import GpuModel, resident_blocks
from compiler.codegen.kernel_spec import KernelSpec

__all__ = ["KernelWork", "kernel_limits", "kernel_seconds", "product_seconds", "work_of"]

SHARPNESS = 4.0
USUAL_REGISTERS = 40
"""Registers per thread of a kernel that was not compiled for a GPU."""
TENSOR_FLOPS = 4096.0
"""Operations of a warp's product of 16 x 16 by 16 x 8 matrices."""
_OF_PRODUCTS = frozenset({"product", "attention"})
"""Kinds of kernels whose multiplications and additions are one instruction each."""


@dataclass(frozen=True)
class KernelWork:
    """What one launch of a kernel does, in numbers that do not depend on the GPU; it can be stored as JSON.

    Attributes:
        name: for display.
        grid, block: blocks, and threads per block.
        registers: per thread.
        shared_bytes: per block.
        flops: scalar operations, with transcendental functions weighted, without those of tensor cores; a fused
            multiplication and addition of a product is one.
        tensor_flops: operations of tensor cores.
        is_double: whether it computes in f64.
        footprint: bytes of memory that it touches.
        loaded, stored: bytes between the level 2 cache and memory, each once.
        reloaded: bytes that are loaded if the cache holds data for neighboring blocks only.
        l2_bytes: bytes between the level 1 caches and the level 2 cache.
        requests: instructions of warps that access global memory.
        turns: turns in which level 1 caches and shared memory serve the requests.
        shared_requests: instructions of warps that access shared memory.
        lanes: mean number of lanes that take part, of 32.
        barriers: barriers, per warp.
        exchanges: shuffles, votes and other operations of warps.
        updates: atomic updates.
        most_updates: of one address.
        chain: operations of a thread of which each needs the result of the one before.
    """

    name: str
    grid: int
    block: int
    registers: int = USUAL_REGISTERS
    shared_bytes: int = 0
    flops: float = 0.0
    tensor_flops: float = 0.0
    is_double: bool = False
    footprint: float = 0.0
    loaded: float = 0.0
    stored: float = 0.0
    reloaded: float = 0.0
    l2_bytes: float = 0.0
    requests: float = 0.0
    turns: float = 0.0
    shared_requests: float = 0.0
    lanes: float = 32.0
    barriers: float = 0.0
    exchanges: float = 0.0
    updates: float = 0.0
    most_updates: float = 0.0
    chain: float = 0.0

    def memory_bytes(self, gpu: GpuModel) -> float:
        """Return the bytes between memory and the level 2 cache, which is empty at first."""
        missing = max(0.0, 1 - gpu.l2_bytes / self.footprint) if self.footprint else 0.0
        return self.loaded + self.stored + missing * max(0.0, self.reloaded - self.loaded)


def work_of(
    spec: KernelSpec, counts: KernelCounts, registers: int = USUAL_REGISTERS, shared_bytes: int = 0
) -> KernelWork:
    """Return the work of a kernel from its counts; registers and shared memory are those that the assembler reports."""
    arrays = counts.arrays
    requests = sum(a.load_requests + a.store_requests + a.atomic_requests for a in arrays)
    sectors = sum(a.load_sectors + a.store_sectors for a in arrays)
    tensor = counts.exchanges.get("tensor", 0.0)
    tensor_flops = tensor * TENSOR_FLOPS
    flops = float(spec.flops)
    if tensor and spec.tile_flops:  # tiles that a mask excludes are skipped, with the work around their products
        flops = (flops - spec.tile_flops) * min(1.0, tensor_flops / spec.tile_flops)
    else:
        flops = max(0.0, flops - tensor_flops)
    if spec.kind in _OF_PRODUCTS and not tensor:
        flops /= 2
    return KernelWork(
        name=spec.name, grid=counts.grid, block=counts.block, registers=registers, shared_bytes=shared_bytes,
        flops=flops, tensor_flops=tensor_flops,
        is_double=any(s.element_type.text in ("f64", "c128") for s in spec.outputs), footprint=counts.footprint,
        loaded=sum(a.loaded_bytes for a in arrays), stored=sum(a.stored_bytes for a in arrays),
        reloaded=sum(a.reloaded_bytes for a in arrays), l2_bytes=counts.l2_bytes, requests=requests,
        turns=max(requests, sectors / 4) + counts.shared_turns, shared_requests=counts.shared_requests,
        lanes=max(1.0, counts.active_lanes), barriers=counts.barriers,
        exchanges=sum(counts.exchanges.values()) - tensor, updates=sum(a.updates for a in arrays),
        most_updates=counts.most_updates, chain=spec.chain,
    )  # fmt: skip


def kernel_limits(work: KernelWork, gpu: GpuModel) -> dict[str, float]:
    """Return the seconds that each limit alone would take, by name, without the launch."""
    grid, cores = max(1, work.grid), gpu.multiprocessors
    # Blocks are spread evenly; the busiest multiprocessor has this share of the work.
    share = -(-grid // cores) / grid
    resident = resident_blocks(gpu, work.block, work.registers, work.shared_bytes)
    rounds = -(-grid // (cores * resident))
    warps = grid * max(1, -(-work.block // 32))
    memory = work.memory_bytes(gpu)
    idle = 32 / work.lanes
    accesses = work.requests + work.shared_requests
    instructions = work.flops / 32 * idle + accesses * gpu.instructions_per_request + work.exchanges + work.barriers
    rate = gpu.double_rate if work.is_double else gpu.float_rate
    return {
        "memory": memory / gpu.memory_bandwidth,
        "l2": work.l2_bytes * max(1 / gpu.l2_bandwidth, share / (gpu.l2_bytes_per_cycle * gpu.clock)),
        "arithmetic": share / gpu.clock * (work.flops * idle / rate + work.tensor_flops / gpu.half_tensor_rate),
        "issue": share * instructions / (gpu.issue_rate * gpu.clock),
        "accesses": share * (work.turns + work.exchanges) / gpu.clock,
        "latency": rounds * (_chain(work, gpu, memory) / warps + work.chain * gpu.dependent_cycles / gpu.clock),
        "updates": max(work.most_updates * gpu.update, share * work.updates / gpu.clock),
    }


def _chain(work: KernelWork, gpu: GpuModel, memory: float) -> float:
    """Return the seconds that all warps would wait for their accesses one after another, in sum."""
    far = min(1.0, memory / work.l2_bytes) if work.l2_bytes else 0.0
    latency = gpu.l2_latency + far * (gpu.memory_latency - gpu.l2_latency)
    waiting = work.requests * latency / gpu.loads_in_flight
    return waiting + work.barriers * gpu.barrier + (work.exchanges + work.shared_requests) * gpu.exchange


def kernel_seconds(work: KernelWork, gpu: GpuModel) -> float:
    """Return the predicted seconds of one launch in a graph of kernels."""
    limits = kernel_limits(work, gpu).values()
    if max(limits) <= 0:
        return gpu.launch
    return gpu.launch + _norm(limits)


def _norm(seconds: Iterable[float]) -> float:
    """Return the norm of positive numbers with the exponent SHARPNESS."""
    values = list(seconds)
    largest = max(values)
    total = math.fsum((v / largest) ** SHARPNESS for v in values)
    return float(largest * total ** (1 / SHARPNESS))


# ---- products by a library

_TILES = (
    (256, 128, 0.85),
    (128, 256, 0.85),
    (128, 128, 0.8),
    (128, 64, 0.7),
    (64, 128, 0.7),
    (64, 64, 0.6),
    (32, 32, 0.35),
)
"""Tiles of the result that one block computes, and the share of the peak rate that each reaches."""
_SPLITS = (1, 2, 4, 8, 16)
"""Into how many parts the contracted dimension may be divided."""
_DEPTH = 64
"""Elements along the contracted dimension that a block loads at once."""


def product_seconds(batch: int, m: int, n: int, k: int, element_bytes: int, gpu: GpuModel, half: bool = False) -> float:
    """Return the predicted seconds of a batch of matrix products [m, k] x [k, n] by a library.

    The library chooses the fastest tile. Tiles run in waves, one on each multiprocessor, and operands come from memory
    once.

    Args:
        batch: number of products.
        m: rows of the result.
        n: columns of the result.
        k: length of the contracted dimension.
        element_bytes: size of an element.
        gpu: the GPU.
        half: whether the elements are f16 or bf16, for tensor cores.
    """
    if min(batch, m, n, k) < 1:
        return gpu.launch
    scalar = 2 * gpu.float_rate if element_bytes <= 4 else gpu.double_tensor_rate
    rate = gpu.half_tensor_rate if half else scalar
    size = element_bytes * batch * (m * k + k * n + m * n)
    memory = size / gpu.memory_bandwidth
    best = math.inf
    for rows, columns, efficiency in _TILES:
        for parts in _SPLITS:
            if parts > 1 and k < 2 * _DEPTH * parts:
                continue
            depth = -(-k // (parts * _DEPTH)) * _DEPTH if k > _DEPTH else k
            tiles = batch * -(-m // rows) * -(-n // columns) * parts
            per_tile = 2.0 * rows * columns * depth / (rate * efficiency * gpu.clock)
            waves = -(-tiles // gpu.multiprocessors)
            sums = (parts > 1) * (4.0 * batch * m * n * (parts + 1) / gpu.l2_bandwidth + gpu.launch)
            best = min(best, waves * per_tile + gpu.memory_latency * 2 + sums)
    return gpu.launch + _norm((memory, best))
