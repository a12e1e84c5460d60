"""Copy elision and live ranges.

The thunk emitter inserts copies wherever a value must be in a particular buffer. A copy is removed by merging its
source and target into one buffer, which is correct in two cases. Forward: the live range of the source ends at the copy
and that of the target starts there. Backward: the source can be computed in the target's buffer directly, because
nothing reads the old value of the target from the definition of the source on.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from compiler.runtime.buffers import Buffer, BufferKind, Interval
from compiler.runtime.thunks import ConditionalThunk, CopyThunk, KernelThunk, Thunk, WhileThunk


@dataclass
class Timeline:
    """The thunks of a program numbered as steps, with the steps that access each buffer and the extent of each loop.

    Attributes:
        step: number of each thunk, in program order.
        reads, writes: steps that access each resolved buffer, ascending.
        loops: (first step, last step) of each loop, ascending, outer loops before inner ones.
        parents: for each loop the position in `loops` of the innermost loop around it, or -1.
        end: number of the last step.
    """

    step: dict[Thunk, int] = field(default_factory=dict)
    reads: dict[Buffer, list[int]] = field(default_factory=dict)
    writes: dict[Buffer, list[int]] = field(default_factory=dict)
    loops: list[tuple[int, int]] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    end: int = 0

    def interval(self, b: Buffer) -> Interval:
        """Return the live range of a buffer.

        A buffer that is live at the start of a loop and used inside it stays live until the loop ends, because the next
        iteration needs it too. So is one that a loop reads before anything has written it: an array whose parts the
        iterations write, which has no value before the loop.
        """
        reads, writes = self.reads.get(b), self.writes.get(b)
        ends = [x for x in (reads, writes) if x]
        start, end = min(x[0] for x in ends), max(x[-1] for x in ends)
        if reads and (not writes or reads[0] <= writes[0]):
            start = self._outermost(start)
        at = bisect.bisect_right(self.loops, end, key=lambda span: span[0]) - 1
        while at >= 0:
            low, high = self.loops[at]
            if start < low <= end < high:
                end = high
            at = self.parents[at]
        return Interval(start, end)

    def _outermost(self, step: int) -> int:
        """Return the step before the outermost loop that contains a step, or the step itself outside of loops."""
        at = bisect.bisect_right(self.loops, step, key=lambda span: span[0]) - 1
        while at >= 0:
            low, high = self.loops[at]
            if low <= step <= high:
                step = low - 1
            at = self.parents[at]
        return step

    def intervals(self) -> dict[Buffer, Interval]:
        """Return the live ranges of all temporaries."""
        used = dict.fromkeys([*self.writes, *self.reads])
        return {b: self.interval(b) for b in used if b.kind is BufferKind.TEMPORARY}


def timeline(thunks: list[Thunk], results: Sequence[Buffer]) -> Timeline:
    """Return the timeline of a program, in which the results are read after the last thunk."""
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
    """Assign steps to a loop: its condition, the read of the predicate, its body, and a last one for the jump back."""
    at, first = len(t.loops), t.end + 1
    t.loops.append((first, first))
    t.parents.append(outer)
    _number(thunk.condition, t, at)
    t.end += 1
    t.reads.setdefault(thunk.predicate.resolve(), []).append(t.end)
    _number(thunk.body, t, at)
    t.end += 1
    t.loops[at] = (first, t.end)


def _any_between(steps: Sequence[int], low: int, high: int) -> bool:
    """Check whether one of the ascending steps is in low .. high - 1."""
    at = bisect.bisect_left(steps, low)
    return at < len(steps) and steps[at] < high


def coalesce(thunks: list[Thunk], results: Sequence[Buffer]) -> None:
    """Remove copies from a program, in place, until no more can be removed."""
    while _run_round(thunks, timeline(thunks, results)):
        pass


def _run_round(thunks: list[Thunk], t: Timeline) -> bool:
    """Remove copies in one pass over the program; return whether any was removed.

    A merge invalidates the timeline for its two buffers, so each buffer takes part in at most one merge per round.
    """
    merged: set[Buffer] = set()
    removed: set[Thunk] = set()
    sequences = list(_sequences(thunks))
    around = {id(c.branches[0]): (s, c) for s in sequences for c in s if isinstance(c, ConditionalThunk) and c.branches}
    for sequence in sequences:
        for thunk in sequence:
            if not isinstance(thunk, CopyThunk):
                continue
            source, target = thunk.source.resolve(), thunk.target.resolve()
            if source is target:
                removed.add(thunk)
                continue
            same_size = source.kind is BufferKind.TEMPORARY and source.size == target.size
            if source in merged or target in merged or not same_size:
                continue
            here = t.step[thunk]
            forward = _can_merge_forward(here, source, target, t)
            if forward or _can_merge_backward(here, source, target, t, _producer(source, t, sequence, around, target)):
                merged |= {source, target}
                source.merge(target)
                removed.add(thunk)
    for sequence in sequences:
        sequence[:] = [x for x in sequence if x not in removed]
    return bool(removed)


def _can_merge_forward(here: int, source: Buffer, target: Buffer, t: Timeline) -> bool:
    """Check whether the live range of the source ends at the copy and that of the target starts there."""
    return t.interval(source).end <= here and t.interval(target).start >= here


def _producer(
    source: Buffer,
    t: Timeline,
    sequence: list[Thunk],
    around: Mapping[int, tuple[list[Thunk], ConditionalThunk]],
    target: Buffer,
) -> Thunk | None:
    """Return the thunk that computes the source of a copy to a target before each execution of the copy.

    It is in the sequence of the copy; or in that of a conditional whose first branch the copy is in, if every other
    branch, which then finds the source in the target's buffer, overwrites it.
    """
    writes = t.writes.get(source)
    found = _at(writes[0], t, sequence) if writes else None
    if found is None and writes and id(sequence) in around:
        outer, conditional = around[id(sequence)]
        if all(_replaces(branch, target, t) for branch in conditional.branches[1:]):
            found = _at(writes[0], t, outer)
    return found


def _at(step: int, t: Timeline, sequence: list[Thunk]) -> Thunk | None:
    """Return the thunk of a sequence with a step of its own; None: another sequence has it."""
    at = bisect.bisect_right(sequence, step, key=t.step.__getitem__) - 1
    return sequence[at] if at >= 0 and t.step[sequence[at]] == step else None


def _replaces(branch: Sequence[Thunk], target: Buffer, t: Timeline) -> bool:
    """Check whether a branch copies to a target before it reads it."""
    copies = [t.step[c] for c in branch if isinstance(c, CopyThunk) and c.target.resolve() is target]
    return bool(copies) and not _any_between(t.reads.get(target, []), t.step[branch[0]], copies[0])


def _can_merge_backward(here: int, source: Buffer, target: Buffer, t: Timeline, producer: Thunk | None) -> bool:
    """Check whether the source can be computed in the target's buffer: nothing reads the old value from there on.

    Its producer must run before each execution of the copy.
    """
    writes, reads = t.writes.get(source, []), t.reads.get(source, [])
    if producer is None or writes[-1] >= here:
        return False
    defined, last_read = writes[0], reads[-1]
    changes, old_reads = t.writes.get(target, []), t.reads.get(target, [])
    # While the source is live, no other value may be written to the target.
    if reads[0] < defined or _any_between(changes, defined, here) or _any_between(changes, here + 1, last_read + 1):
        return False
    # A live range that extends to the end of an enclosing loop would read the target's values of later iterations.
    if t.interval(source).end > last_read:
        return False
    if _any_between(old_reads, defined + 1, here):
        return False
    return not _any_between(old_reads, defined, defined + 1) or _can_run_in_place(producer, source, target)


def _can_run_in_place(producer: Thunk, source: Buffer, target: Buffer) -> bool:
    """Check whether the thunk that computes `source` from `target` supports one buffer for both."""
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
