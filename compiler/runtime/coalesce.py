"""Taking copies out again, and how long each buffer is needed.

A copy is left out by letting one buffer hold both values, when nobody can tell: the source is not needed after the
copy, or the target's old value is not needed from where the new one is made.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from compiler.runtime.buffers import Buffer, BufferKind, Interval
from compiler.runtime.thunks import CopyThunk, KernelThunk, Thunk, WhileThunk


@dataclass
class Timeline:
    """Every thunk's step, every buffer's accesses, and the spans of the loops.

    Attributes:
        step: number of each thunk, in program order.
        reads, writes: steps at which each (resolved) buffer is accessed, ascending.
        loops: spans (first step, last step) of loops, ascending, outer before inner.
        around: for each of these, the number of the loop right around it, or -1.
    """

    step: dict[Thunk, int] = field(default_factory=dict)
    reads: dict[Buffer, list[int]] = field(default_factory=dict)
    writes: dict[Buffer, list[int]] = field(default_factory=dict)
    loops: list[tuple[int, int]] = field(default_factory=list)
    around: list[int] = field(default_factory=list)
    end: int = 0

    def interval(self, b: Buffer) -> Interval:
        """Steps between which `b` holds something needed.

        What is live into a loop and used there must outlast the whole loop: the next iteration needs it too.
        """
        ends = [x for x in (self.reads.get(b), self.writes.get(b)) if x]
        start, end = min(x[0] for x in ends), max(x[-1] for x in ends)
        at = bisect.bisect_right(self.loops, end, key=lambda span: span[0]) - 1
        while at >= 0:
            low, high = self.loops[at]
            if start < low <= end < high:
                end = high
            at = self.around[at]
        return Interval(start, end)

    def intervals(self) -> dict[Buffer, Interval]:
        """Of every temporary."""
        used = dict.fromkeys([*self.writes, *self.reads])
        return {b: self.interval(b) for b in used if b.kind is BufferKind.TEMPORARY}


def timeline(thunks: list[Thunk], results: Sequence[Buffer]) -> Timeline:
    """Number the program's steps."""
    t = Timeline()
    _number(thunks, t, -1)
    t.end += 1
    for b in results:
        t.reads.setdefault(b.resolve(), []).append(t.end)
    return t


def _number(thunks: list[Thunk], t: Timeline, loop: int) -> None:
    for thunk in thunks:
        t.end += 1
        t.step[thunk] = t.end
        for b in thunk.reads():
            t.reads.setdefault(b.resolve(), []).append(t.end)
        for b in thunk.writes():
            t.writes.setdefault(b.resolve(), []).append(t.end)
        if isinstance(thunk, WhileThunk):
            _number_loop(thunk, t, loop)
        else:
            for block in thunk.blocks():
                _number(block, t, loop)


def _number_loop(thunk: WhileThunk, t: Timeline, outer: int) -> None:
    at, first = len(t.loops), t.end + 1
    t.loops.append((first, first))
    t.around.append(outer)
    _number(thunk.condition, t, at)
    t.end += 1
    t.reads.setdefault(thunk.predicate.resolve(), []).append(t.end)
    _number(thunk.body, t, at)
    t.end += 1
    t.loops[at] = (first, t.end)


def _any_between(steps: Sequence[int], low: int, high: int) -> bool:
    """Whether one of the ascending steps lies in low .. high - 1."""
    at = bisect.bisect_left(steps, low)
    return at < len(steps) and steps[at] < high


def coalesce(thunks: list[Thunk], results: Sequence[Buffer]) -> None:
    """Take out copies until none can go, in place."""
    while _one_round(thunks, timeline(thunks, results)):
        pass


def _one_round(thunks: list[Thunk], t: Timeline) -> bool:
    """Take out copies whose buffers no other copy of this round has touched; whether any went."""
    touched: set[Buffer] = set()
    gone: set[Thunk] = set()
    sequences = list(_sequences(thunks))
    for sequence in sequences:
        steps = [t.step[s] for s in sequence]
        for thunk in sequence:
            if not isinstance(thunk, CopyThunk):
                continue
            source, target = thunk.source.resolve(), thunk.target.resolve()
            if source is target:
                gone.add(thunk)
                continue
            same_size = source.kind is BufferKind.TEMPORARY and source.size == target.size
            if source in touched or target in touched or not same_size:
                continue
            here = t.step[thunk]
            if _forward(here, source, target, t) or _backward(here, source, target, t, sequence, steps):
                touched |= {source, target}
                source.merge(target)
                gone.add(thunk)
    for sequence in sequences:
        sequence[:] = [x for x in sequence if x not in gone]
    return bool(gone)


def _forward(here: int, source: Buffer, target: Buffer, t: Timeline) -> bool:
    """The source's life ends with the copy, and the target's begins there."""
    return t.interval(source).end <= here and t.interval(target).start >= here


def _backward(here: int, source: Buffer, target: Buffer, t: Timeline, sequence: list[Thunk], steps: list[int]) -> bool:
    """The source can be made in the target: from its birth on nobody needs the target's old value.

    Birth and copy stand in one sequence, so that every run of the copy follows a run of the birth.
    """
    writes, reads = t.writes.get(source, []), t.reads.get(source, [])
    if not writes or writes[-1] >= here:
        return False
    born, last_read = writes[0], reads[-1]
    at = bisect.bisect_right(steps, born) - 1
    if at < 0 or steps[at] != born:
        return False
    changes, old_reads = t.writes.get(target, []), t.reads.get(target, [])
    if reads[0] < born or _any_between(changes, born, here) or _any_between(changes, here + 1, last_read + 1):
        return False
    # A read behind the copy but outside this sequence's loop would see later iterations.
    if t.interval(source).end > last_read:
        return False
    if _any_between(old_reads, born + 1, here):
        return False
    return not _any_between(old_reads, born, born + 1) or _in_place(sequence[at], source, target)


def _in_place(producer: Thunk, source: Buffer, target: Buffer) -> bool:
    """Whether the step that makes `source` while reading `target` may do both in one buffer."""
    if isinstance(producer, CopyThunk):
        return producer.source.resolve() is target
    if not isinstance(producer, KernelThunk):
        return False
    inputs = [k for k, b in enumerate(producer.inputs) if b.resolve() is target]
    outputs = [k + len(producer.inputs) for k, b in enumerate(producer.outputs) if b.resolve() is source]
    allowed = set(producer.spec.in_place)
    return all((i, o) in allowed for i in inputs for o in outputs)


def _sequences(thunks: list[Thunk]) -> Iterator[list[Thunk]]:
    """Yield all sequences, nested ones first: copies inside a loop cost most, so they are removed first."""
    for t in thunks:
        for block in t.blocks():
            yield from _sequences(block)
    yield thunks
