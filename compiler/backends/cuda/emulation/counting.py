"""Counts of what a GPU would do for a launch of a kernel, from a sample of its blocks in the emulator."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ArrayCounts", "KernelCounts", "sample_windows"]

WARP_OPERATIONS = ("sync", "shuffle", "vote", "match", "tensor", "matrix load", "active mask")
"""Operations in which the lanes of a warp take part together, in the order of `WarpOperation` in runtime.h."""
SECTOR = 32
"""Bytes of the unit in which caches and memory transfer data."""
MOST_ACCESSES = 6_000_000
"""Accesses of all threads of the sampled blocks that are counted; what follows is extrapolated."""
MOST_PLACES = 12
"""About how many places of a grid are sampled whose parts do different work."""


class CWindow(ctypes.Structure):
    """`struct Window` of runtime.h."""

    _fields_ = [("first", ctypes.c_ulong), ("count", ctypes.c_ulong)]


class _CKind(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulong) for name in ("requests", "sectors", "ideal", "lines")]


class _CUnique(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulong) for name in ("by_block", "by_window", "all")]


class CBufferCounts(ctypes.Structure):
    """`struct BufferCounts` of runtime.h."""

    _fields_ = [
        ("kinds", _CKind * 3), ("loaded", _CUnique), ("stored", _CUnique),
        *((name, ctypes.c_ulong) for name in ("l2_loads", "l2_stores", "updates")),
    ]  # fmt: skip


class CCounts(ctypes.Structure):
    """`struct Counts` of runtime.h."""

    _fields_ = [
        *((name, ctypes.c_ulong) for name in ("blocks", "accesses", "requests", "active_lanes", "barriers")),
        ("exchanges", ctypes.c_ulong * len(WARP_OPERATIONS)),
        *((name, ctypes.c_ulong) for name in ("shared_requests", "shared_turns", "shared_ideal")),
        *((name, ctypes.c_ulong) for name in ("most_updates", "most_updates_windows", "counted_accesses")),
    ]  # fmt: skip


@dataclass(frozen=True)
class ArrayCounts:
    """What a launch does with one of its arrays; all counts are for the whole grid.

    Attributes:
        size: bytes of the array.
        load_requests, store_requests: instructions of warps that load from it or store to it.
        load_sectors, store_sectors: sectors of 32 bytes that they touch, per instruction.
        load_ideal, store_ideal: sectors that the distinct elements of each instruction would fill side by side.
        l2_load_bytes, l2_store_bytes: bytes between the level 1 caches and the level 2 cache.
        loaded_bytes, stored_bytes: bytes that pass between the level 2 cache and memory if each sector passes once.
        reloaded_bytes: bytes loaded from memory if the level 2 cache holds a sector only for neighboring blocks.
        atomic_requests: instructions of warps that update it atomically.
        updates: atomic updates of threads.
    """

    size: int
    load_requests: float = 0.0
    store_requests: float = 0.0
    load_sectors: float = 0.0
    store_sectors: float = 0.0
    load_ideal: float = 0.0
    store_ideal: float = 0.0
    l2_load_bytes: float = 0.0
    l2_store_bytes: float = 0.0
    loaded_bytes: float = 0.0
    stored_bytes: float = 0.0
    reloaded_bytes: float = 0.0
    atomic_requests: float = 0.0
    updates: float = 0.0

    @property
    def coalescing(self) -> float:
        """The ideal number of sectors over the number that is touched, from 0 to 1; 1 if there are none."""
        sectors = self.load_sectors + self.store_sectors
        return (self.load_ideal + self.store_ideal) / sectors if sectors else 1.0


@dataclass(frozen=True)
class KernelCounts:
    """What a launch does, estimated from some of its blocks; all counts are for the whole grid.

    Attributes:
        grid: number of blocks.
        block: threads per block.
        sampled_blocks: number of blocks that were run.
        arrays: counts of each argument in order; arguments that share memory are counted each for its own accesses.
        requests: instructions of warps that access global or shared memory.
        active_lanes: mean number of lanes that take part in such an instruction; fewer than 32 where branches diverge
            or a block has idle threads.
        barriers: barriers, counted per warp.
        exchanges: operations in which lanes of a warp take part together, by the names of WARP_OPERATIONS.
        shared_requests: instructions of warps that access shared memory.
        shared_turns: turns in which the banks serve them.
        shared_ideal: turns without conflicts.
        most_updates: atomic updates of the address that has most.
        truncated: whether threads had more accesses than are counted, so that counts are extrapolated from the first.
    """

    grid: int
    block: int
    sampled_blocks: int
    arrays: tuple[ArrayCounts, ...]
    requests: float = 0.0
    active_lanes: float = 32.0
    barriers: float = 0.0
    exchanges: dict[str, float] = field(default_factory=dict)
    shared_requests: float = 0.0
    shared_turns: float = 0.0
    shared_ideal: float = 0.0
    most_updates: float = 0.0
    truncated: bool = False

    @property
    def coalescing(self) -> float:
        """The ideal number of sectors of all requests over the number that they touch, from 0 to 1."""
        sectors = sum(a.load_sectors + a.store_sectors for a in self.arrays)
        return sum(a.load_ideal + a.store_ideal for a in self.arrays) / sectors if sectors else 1.0

    @property
    def l2_bytes(self) -> float:
        """Bytes between the level 1 caches and the level 2 cache."""
        return sum(a.l2_load_bytes + a.l2_store_bytes for a in self.arrays)

    @property
    def bank_conflicts(self) -> float:
        """Turns of the banks of shared memory beyond those without conflicts, per turn without."""
        return self.shared_turns / self.shared_ideal - 1 if self.shared_ideal else 0.0

    @property
    def footprint(self) -> float:
        """Bytes of memory that the kernel touches."""
        return sum(max(a.loaded_bytes, a.stored_bytes) for a in self.arrays)

    def memory_bytes(self, l2_bytes: float) -> float:
        """Return the bytes between memory and a level 2 cache of a size that is empty at first.

        What is stored and what is loaded moves once. Of what blocks far from each other load, the part that the cache
        cannot hold is loaded again.
        """
        missing = max(0.0, 1 - l2_bytes / self.footprint) if self.footprint else 0.0
        again = sum(missing * max(0.0, a.reloaded_bytes - a.loaded_bytes) for a in self.arrays)
        return again + sum(a.loaded_bytes + a.stored_bytes for a in self.arrays)


def sample_windows(grid: int, neighbors: int = 3, parts: Sequence[int] = ()) -> list[tuple[int, int]]:
    """Return the blocks to run as (first, number): all of a small grid, else `neighbors` at several places.

    These are the first, the middle and the last blocks. Where parts of the grid do different work, each has as many
    places as it has blocks, in proportion, and at least one.

    Args:
        grid: number of blocks.
        neighbors: number of blocks at a place.
        parts: the blocks at which a part of the grid ends and another begins, in order.
    """
    if grid <= 3 * neighbors:
        return [(0, grid)]
    if not parts:
        return [(0, neighbors), ((grid - neighbors) // 2, neighbors), (grid - neighbors, neighbors)]
    chosen = []
    for first, end in itertools.pairwise((0, *parts, grid)):
        size = end - first
        count = min(neighbors, size)
        places = max(1, min(size // count, round(MOST_PLACES * size / grid)))
        chosen += [(first + (size - count) * n // max(1, places - 1), count) for n in range(places)]
    return chosen


def counts_of(
    counts: CCounts, buffers: Any, sizes: list[int], grid: int, block: int, windows: list[tuple[int, int]]
) -> KernelCounts:
    """Return the counts of a whole launch from those of its sampled blocks.

    Barriers and exchanges of the sampled blocks are all counted, their accesses only up to a number.
    """
    repeats = grid / max(1, counts.blocks)
    length = counts.accesses / counts.counted_accesses if counts.counted_accesses else 1.0
    scale = repeats * length
    arrays = tuple(_array(b, size, grid, (scale, length), windows) for b, size in zip(buffers, sizes, strict=True))
    # An address that blocks far from each other update is updated by all of them.
    shared_by_all = counts.most_updates_windows == len(windows)
    return KernelCounts(
        grid=grid, block=block, sampled_blocks=counts.blocks, arrays=arrays, requests=counts.requests * scale,
        active_lanes=counts.active_lanes / counts.requests if counts.requests else 32.0,
        barriers=counts.barriers * repeats,
        exchanges={n: c * repeats for n, c in zip(WARP_OPERATIONS, counts.exchanges, strict=True) if c},
        shared_requests=counts.shared_requests * scale, shared_turns=counts.shared_turns * scale,
        shared_ideal=counts.shared_ideal * scale,
        most_updates=counts.most_updates * (scale if shared_by_all else 1.0),
        truncated=counts.accesses > counts.counted_accesses,
    )  # fmt: skip


def _array(b: Any, size: int, grid: int, scales: tuple[float, float], windows: list[tuple[int, int]]) -> ArrayCounts:
    load, store, update = b.kinds
    scale, length = scales
    loaded, reloaded = _unique(b.loaded, size, grid, length, windows)
    stored, _ = _unique(b.stored, size, grid, length, windows)
    return ArrayCounts(
        size=size,
        load_requests=load.requests * scale, load_sectors=load.sectors * scale, load_ideal=load.ideal * scale,
        store_requests=store.requests * scale, store_sectors=store.sectors * scale, store_ideal=store.ideal * scale,
        l2_load_bytes=b.l2_loads * scale * SECTOR, l2_store_bytes=b.l2_stores * scale * SECTOR,
        loaded_bytes=loaded, reloaded_bytes=reloaded, stored_bytes=stored + (loaded if update.requests else 0.0),
        atomic_requests=update.requests * scale, updates=b.updates * scale,
    )  # fmt: skip


def _unique(u: Any, size: int, grid: int, length: float, windows: list[tuple[int, int]]) -> tuple[float, float]:
    """Return the bytes of distinct sectors of the whole grid, and those if only neighboring blocks share sectors.

    Each further block of a window touches so many new sectors; so do all blocks of the grid, until the array is
    used up. `length` is by how much a block touches more than was counted.
    """
    blocks = sum(count for _, count in windows)
    sector = SECTOR * length
    if blocks == grid:
        return min(float(size), u.all * sector), min(float(size), u.all * sector)
    first = u.by_block / blocks
    further = max(0.0, (u.by_window - len(windows) * first) / (blocks - len(windows)))
    far = (first + further * (grid - 1)) * sector
    if u.all < u.by_window:  # blocks far from each other touch the same sectors
        return min(float(size), max(u.all * sector, far * u.all / u.by_window)), far
    return min(float(size), far), max(min(float(size), far), far)
