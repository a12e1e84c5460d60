"""The order of the steps of a program, chosen so that fewer temporaries are alive at the same time.

Fusion keeps the steps in the order of the program. In a training step, for example, the gradient of
a weight may come long after the last other use of the activations that it reads. So the steps are listed again: of
those whose inputs are there, the one that frees most memory comes first, as in the list scheduler for memory of XLA
(xla/hlo/transforms/simplifiers/hlo_memory_scheduler.cc). That order is taken if it needs clearly less memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

from compiler.runtime.buffers import Buffer, BufferKind, Interval
from compiler.runtime.coalesce import timeline
from compiler.runtime.thunks import HostThunk, Thunk, WhileThunk, walk

__all__ = ["live_bytes", "live_peak", "order_for_memory"]

SAVED = 0.02
"""Share of the live temporaries that another order must save: neighbors in the program also share caches."""
FEWEST, MOST = 3, 20_000
"""Numbers of steps between which orders are compared."""
MOST_USERS = 8
"""Users of a buffer that are ranked again when it becomes alive; of more, each is when its turn comes."""
_Accesses: TypeAlias = tuple[list[Buffer], list[Buffer]]


def order_for_memory(thunks: list[Thunk], results: Sequence[Buffer]) -> None:
    """Reorder the outermost steps of a program, in place, if fewer bytes of temporaries are alive at its peak then.

    Each step stays after those whose arrays it reads or overwrites, and ops of the interpreter keep their order.

    Args:
        thunks: the steps, after copies were removed.
        results: the buffers that are read after the last step.
    """
    if not FEWEST <= len(thunks) <= MOST:
        return
    before = live_bytes(timeline(thunks, results).intervals())
    if not before:
        return
    listed = _listed(thunks, results)
    if live_bytes(timeline(listed, results).intervals()) <= (1 - SAVED) * before:
        thunks[:] = listed


def live_bytes(intervals: dict[Buffer, Interval]) -> int:
    """Return the most bytes of buffers that are alive at the same step: what any assignment of offsets needs."""
    return live_peak(intervals)[1]


def live_peak(intervals: dict[Buffer, Interval]) -> tuple[int, int]:
    """Return the first step at which most bytes of buffers are alive, and how many; (0, 0) without buffers."""
    change: dict[int, int] = {}
    for b, interval in intervals.items():
        change[interval.start] = change.get(interval.start, 0) + b.size
        change[interval.end + 1] = change.get(interval.end + 1, 0) - b.size
    steps = sorted(change)
    most = max(zip(accumulate(change[s] for s in steps), (-s for s in steps), strict=True), default=(0, 0))
    return -most[1], most[0]


def _listed(thunks: Sequence[Thunk], results: Sequence[Buffer]) -> list[Thunk]:
    """Return the steps with that one first, at each point, that frees most bytes beyond those that it needs."""
    accesses = [_accesses(t) for t in thunks]
    touched = [list(dict.fromkeys([*reads, *writes])) for reads, writes in accesses]
    after, waiting = _dependences(thunks, accesses)
    users: dict[Buffer, set[int]] = {}
    for n, buffers in enumerate(touched):
        for b in buffers:
            if b.kind is BufferKind.TEMPORARY:
                users.setdefault(b, set()).add(n)
    kept = {b.resolve() for b in results}
    alive: set[Buffer] = set()

    def cost(n: int) -> int:
        """Return by how many bytes the live temporaries grow when a step has run."""
        own = [b for b in touched[n] if b.kind is BufferKind.TEMPORARY]
        needed = sum(b.size for b in own if b not in alive)
        return needed - sum(b.size for b in own if len(users[b]) == 1 and b not in kept)

    ready = [(cost(n), n) for n, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    listed: list[int] = []
    done = [False] * len(thunks)
    while ready:
        known, n = heapq.heappop(ready)
        if done[n]:
            continue
        now = cost(n)
        if now > known:  # another step has freed a buffer that both use
            heapq.heappush(ready, (now, n))
            continue
        done[n] = True
        listed.append(n)
        changed = set()
        for b in touched[n]:
            if b.kind is not BufferKind.TEMPORARY:
                continue
            others = users[b]
            others.discard(n)
            if b not in alive or len(others) == 1:
                changed |= others if len(others) <= MOST_USERS else set()
            alive.add(b)
        for m in after[n]:
            waiting[m] -= 1
            if not waiting[m]:
                heapq.heappush(ready, (cost(m), m))
        for m in changed:
            if not done[m] and not waiting[m]:
                heapq.heappush(ready, (cost(m), m))
    return [thunks[n] for n in listed]


def _accesses(thunk: Thunk) -> _Accesses:
    """Return the buffers that a step and those nested in it read, and those that they write."""
    reads: list[Buffer] = []
    writes: list[Buffer] = []
    for t in walk([thunk]):
        reads += (b.resolve() for b in t.reads())
        writes += (b.resolve() for b in t.writes())
        if isinstance(t, WhileThunk):
            reads.append(t.predicate.resolve())
    return reads, writes


def _dependences(thunks: Sequence[Thunk], accesses: Sequence[_Accesses]) -> tuple[list[list[int]], list[int]]:
    """Return for each step the ones that must come after it, and how many must come before it."""
    after: list[list[int]] = [[] for _ in thunks]
    before: list[set[int]] = [set() for _ in thunks]
    written: dict[Buffer, int] = {}
    read: dict[Buffer, list[int]] = {}
    host = -1
    for n, (thunk, (reads, writes)) in enumerate(zip(thunks, accesses, strict=True)):
        before[n].update(written[b] for b in (*reads, *writes) if b in written)
        for b in writes:
            before[n].update(read.pop(b, ()))
            written[b] = n
        for b in reads:
            read.setdefault(b, []).append(n)
        if any(isinstance(t, HostThunk) for t in walk([thunk])):
            before[n] |= {host} if host >= 0 else set()
            host = n
        before[n].discard(n)
        for m in before[n]:
            after[m].append(n)
    return after, [len(b) for b in before]
