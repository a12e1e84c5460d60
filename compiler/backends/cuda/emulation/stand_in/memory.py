"""The memory of a simulated GPU: allocations in memory of the host, with who accessed them last."""

from __future__ import annotations

import bisect
import ctypes
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.backends.cuda.emulation.stand_in.ordering import Clock, Stamp

__all__ = ["FREED", "FRESH", "Access", "Allocation", "FaultError", "Heap", "host_bytes"]

FRESH, FREED = 0xA5, 0x5A
"""What is in memory that was not written yet, and in memory that was freed."""
ALIGNMENT = 256
QUARANTINE = 256 << 20
"""Bytes of freed memory that are kept, so that their addresses are not used again."""


class FaultError(AssertionError):
    """The program did what is undefined or an error on a GPU: the message says what, where, and in which order."""


def host_bytes(address: int, size: int) -> NDArray[Any]:
    """Return memory of this process as an array of bytes."""
    memory: Any = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(memory, np.uint8)


@dataclass(eq=False)
class Allocation:
    """A piece of memory.

    Attributes:
        address: of its first byte.
        size: bytes.
        what: "device" or "pinned".
        stream: the stream that was current when it was allocated; None for memory outside of the pool.
        alive: whether it has not been freed.
        written: the last work that wrote to it, with its description.
        read: the last work of each stream that read it.
    """

    address: int
    size: int
    what: str
    stream: int | None
    backing: NDArray[Any] = field(repr=False)
    alive: bool = True
    written: tuple[Stamp, str] | None = None
    read: dict[int, tuple[Stamp, str]] = field(default_factory=dict)

    def bytes(self, address: int, size: int) -> NDArray[Any]:
        """Return a part of it as an array of bytes."""
        start = address - self.backing.ctypes.data
        return self.backing[start : start + size]

    def fill(self, value: int) -> None:
        """Set all bytes."""
        self.bytes(self.address, self.size)[...] = value

    def conflict(self, clock: Clock, writes: bool) -> str | None:
        """Return the description of work on it that need not be complete for one that knows `clock`, or None."""
        if self.written is not None and not self.written[0].is_before(clock):
            return f"{self.written[1]} may still be writing it"
        if writes:
            for stamp, description in self.read.values():
                if not stamp.is_before(clock):
                    return f"{description} may still be reading it"
        return None


@dataclass(frozen=True)
class Access:
    """A range of memory that work reads or writes."""

    address: int
    size: int
    writes: bool


class Heap:
    """All allocations, by address.

    Args:
        limit: bytes of device memory.
        reuse: whether freed memory of the pool is handed out again for the same size and stream, as CuPy does.
    """

    def __init__(self, limit: int, reuse: bool) -> None:
        self.limit, self.used = limit, 0
        self._reuse = reuse
        self._starts: list[int] = []
        self._known: dict[int, Allocation] = {}
        self._pool: dict[tuple[int, int | None], list[Allocation]] = {}
        self._quarantine: deque[Allocation] = deque()

    def allocate(self, size: int, what: str, stream: int | None) -> Allocation | None:
        """Return new memory, or None if there is not enough; its bytes are FRESH."""
        found = self._pool.get((size, stream))
        if found:
            kept = found.pop()
            made = Allocation(kept.address, kept.size, what, stream, kept.backing)
            made.written, made.read = kept.written, kept.read
            self._known[made.address] = made
        else:
            if what == "device" and self.used + size > self.limit:
                return None
            backing = np.empty(size + ALIGNMENT, np.uint8)
            address = -(-backing.ctypes.data // ALIGNMENT) * ALIGNMENT
            made = Allocation(address, size, what, stream, backing)
            if address in self._known:
                self._forget(self._known[address])
            bisect.insort(self._starts, address)
            self._known[address] = made
            self.used += size if what == "device" else 0
        made.fill(FRESH)
        return made

    def free(self, allocation: Allocation) -> None:
        """Free memory; its bytes become FREED."""
        allocation.alive = False
        allocation.fill(FREED)
        if allocation.stream is not None and self._reuse:
            self._pool.setdefault((allocation.size, allocation.stream), []).append(allocation)
        else:
            self._retire(allocation)

    def free_all_blocks(self) -> None:
        """Give back the memory that the pool keeps."""
        for blocks in self._pool.values():
            for allocation in blocks:
                self._retire(allocation)
        self._pool.clear()

    def _retire(self, allocation: Allocation) -> None:
        self.used -= allocation.size if allocation.what == "device" else 0
        self._quarantine.append(allocation)
        while sum(a.size for a in self._quarantine) > QUARANTINE:
            self._forget(self._quarantine.popleft())

    def _forget(self, allocation: Allocation) -> None:
        if self._known.get(allocation.address) is allocation:
            del self._known[allocation.address]
            self._starts.remove(allocation.address)

    def find(self, address: int) -> Allocation | None:
        """Return the allocation that an address is in, alive or freed, or None."""
        at = bisect.bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        found = self._known[self._starts[at]]
        return found if address < found.address + max(1, found.size) else None

    def resolve(self, access: Access, description: str) -> Allocation | None:
        """Return the allocation of an access, or None for an access of no bytes.

        Raises:
            FaultError: the memory is not allocated, was freed, or is too small.
        """
        if not access.size:
            return None
        verb = "writes" if access.writes else "reads"
        found = self.find(access.address)
        if found is None:
            raise FaultError(f"{description} {verb} memory at {access.address:#x} that was never allocated")
        if not found.alive:
            raise FaultError(f"{description} {verb} memory at {access.address:#x} that was freed")
        if access.address + access.size > found.address + found.size:
            raise FaultError(
                f"{description} {verb} {access.size} bytes at {access.address:#x}, past the end of its memory"
            )
        return found
