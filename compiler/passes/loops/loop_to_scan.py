"""Loop to scan: replaces counted loops that process arrays entry by entry by the `scan` op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from compiler.analysis.while_loop import Induction, LoopView, induction, invariant_elements
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, PrimitiveType
from compiler.ir.attributes import SliceDim
from compiler.ir.computation import has_side_effect
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned
from compiler.passes.loops.loop_editing import Loops, copy_with_operands
from compiler.passes.loops.scans import add_scan
from compiler.passes.loops.while_loop_simplifier import replace_loop
from compiler.passes.loops.while_loop_widening import Entries, counted_entries


@register
@dataclass(frozen=True)
class LoopToScan:
    """Rewrite a while of known trip count that reads `x[i]` and writes `y[i]` as a scan.

    Invariant arrays of which each iteration reads the entry given by the counter become inputs; arrays of which each
    iteration only writes one entry become outputs; everything else is carried. All inputs and outputs must be along the
    same dimension; those traversed in the opposite direction are reversed. There must be at least one of them. Loops
    whose body has side effects or control edges are kept.

    Not in the default pipeline: kernels are generated from loops, and `scan-expander` turns scans back into loops.
    """

    name: ClassVar[str] = "loop-to-scan"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        loops = Loops(module)
        changed = False
        for view in loops.views():
            counter = induction(view)
            if counter is None or counter.step != 1 or counter.trip_count < 1 or not is_plain(view):
                continue
            walk = Walk.of(view, counter)
            if walk is not None:
                replace_by_scan(view, counter, walk, loops)
                changed = True
        if changed:
            module.remove_unreachable()
        return changed


def is_plain(view: LoopView) -> bool:
    """Check that the loop has only arrays, no side effects and no control edges."""
    if any(not i.shape.is_array or i.shape.is_dynamic for i in view.init) or pinned(view.body):
        return False
    return not any(has_side_effect(i) for c in (view.body, view.condition) for i in c.instructions)


@dataclass(frozen=True)
class Walk:
    """The arrays that a loop reads and writes entry by entry.

    Attributes:
        axis: the dimension of the entries.
        reverse: whether iterations traverse it downwards.
        reads: dynamic slices of invariant elements, by element index and entries.
        writes: the entries written, by index of the element.
    """

    axis: int
    reverse: bool
    reads: dict[tuple[int, Entries], tuple[HloInstruction, ...]]
    writes: dict[int, Entries]

    @staticmethod
    def of(view: LoopView, counter: Induction) -> Walk | None:
        """Return the arrays traversed along the most frequent axis, or None if there are none."""
        reads, writes = _reads(view, counter), _writes(view, counter)
        entries = [e for _, e in reads] + list(writes.values())
        if not entries:
            return None
        axis = Counter(e.axis for e in entries).most_common(1)[0][0]
        along = [e for e in entries if e.axis == axis]
        downwards = sum(e.downwards for e in along) * 2 > len(along)
        return Walk(
            axis,
            downwards,
            {key: found for key, found in reads.items() if key[1].axis == axis},
            {n: e for n, e in writes.items() if e.axis == axis},
        )


def _reads(view: LoopView, counter: Induction) -> dict[tuple[int, Entries], tuple[HloInstruction, ...]]:
    found: dict[tuple[int, Entries], tuple[HloInstruction, ...]] = {}
    for n in sorted(invariant_elements(view)):
        for user in (u for gte in view.body_reads[n] for u in gte.users):
            if user.opcode is not Opcode.DYNAMIC_SLICE or view.index_of(user.operand(0)) != n:
                continue
            entries = counted_entries(user, 1, user.shape, view, counter)
            if entries is not None:
                found[n, entries] = (*found.get((n, entries), ()), user)
    return found


def _writes(view: LoopView, counter: Induction) -> dict[int, Entries]:
    uses = Counter(view.outputs)
    found = {}
    for n, out in enumerate(view.outputs):
        if out.opcode is not Opcode.DYNAMIC_UPDATE_SLICE or uses[out] > 1 or view.condition_reads[n]:
            continue
        whole = out.operand(0)
        alone = len(view.body_reads[n]) == 1 and len(whole.users) == 1 and len(out.users) == 1
        if view.index_of(whole) != n or not alone:
            continue
        entries = counted_entries(out, 2, out.operand(1).shape, view, counter)
        if entries is not None:
            found[n] = entries
    return found


AddScan: TypeAlias = Callable[
    [Builder, HloComputation, Sequence[HloInstruction], Sequence[HloInstruction], int, bool], list[HloInstruction]
]
"""Adds a scan: its arguments and results are those of `scans.add_scan`."""


def replace_by_scan(
    view: LoopView,
    counter: Induction,
    walk: Walk,
    loops: Loops,
    function: HloComputation | None = None,
    add: AddScan = add_scan,
) -> None:
    """Replace a loop by what `add` makes of the scan that it is.

    Args:
        view: the loop.
        counter: its counter.
        walk: the arrays that it traverses.
        loops: the loops of the module.
        function: that of `step_function`, if it exists already; it belongs to no module.
        add: adds the scan.
    """
    computation = view.instruction.parent
    assert computation is not None  # noqa: S101 - the loop was found in it
    b = Builder(computation)
    carried = carried_elements(view, counter, walk)
    made = loops.module.add(function or step_function(view, counter, walk, carried, loops))
    inputs = [_walked(view.init[n], e, walk, counter.trip_count, b) for n, e in walk.reads]
    init = [view.init[n] for n in carried]
    if not inputs:
        # A scan infers its length from its inputs.
        steps = view.init[counter.index].shape.with_dimensions((1,) * walk.axis + (counter.trip_count,))
        inputs = [b.add(Opcode.IOTA, shape=steps, iota_dimension=walk.axis)]
    found = add(b, made, inputs, init, walk.axis, walk.reverse)
    values = list(view.init)
    values[counter.index] = b.scalar(counter.last + 1, view.init[counter.index].shape.element_type)
    for (n, e), stack in zip(walk.writes.items(), found, strict=False):
        values[n] = _written(view.init[n], stack, e, walk, counter.trip_count, b)
    for n, value in zip(carried, found[len(walk.writes) :], strict=True):
        values[n] = value
    replace_loop(view, values)
    computation.remove_dead(b.made)


def carried_elements(view: LoopView, counter: Induction, walk: Walk) -> list[int]:
    """Return the elements that become carries: all except written ones and those that only the traversal reads."""
    picks = {i for found in walk.reads.values() for i in found}
    updates = {view.outputs[n] for n in walk.writes}
    found = []
    for n in range(view.size):
        users = {u for gte in view.body_reads[n] for u in gte.users} - picks - {view.body.root}
        if n == counter.index:
            if _needs_counter(view, counter, picks | updates):
                found.append(n)
        elif n not in walk.writes and (users or view.index_of(view.outputs[n]) != n):
            found.append(n)
    return found


def _needs_counter(view: LoopView, counter: Induction, walks: set[HloInstruction]) -> bool:
    """Check whether anything but its own next value and the indices of the traversal depends on the counter."""
    reached: set[HloInstruction] = set()
    work = [out for n, out in enumerate(view.outputs) if n != counter.index]
    while work:
        i = work.pop()
        if i in reached:
            continue
        reached.add(i)
        if i in walks:
            first = 1 if i.opcode is Opcode.DYNAMIC_UPDATE_SLICE else len(i.operands)
            work.extend(i.operands[first : first + 1])
        else:
            work.extend(i.operands)
    return any(gte in reached for gte in view.body_reads[counter.index])


def step_function(view: LoopView, counter: Induction, walk: Walk, carried: list[int], loops: Loops) -> HloComputation:
    """Build the function of one step, whose parameters are one step of each input, then the carries."""
    function = HloComputation(view.body.name)
    b = Builder(function)
    mapping: dict[HloInstruction, HloInstruction] = {}
    for number, picks in enumerate(walk.reads.values()):
        dims = picks[0].shape.dimensions
        shape = picks[0].shape.with_dimensions((*dims[: walk.axis], *dims[walk.axis + 1 :]))
        entry = function.add_parameter(number, shape)
        mapping.update(dict.fromkeys(picks, b.reshape(entry, dims)))
    if not walk.reads:
        kind = view.init[counter.index].shape
        function.add_parameter(0, kind.with_dimensions((1,) * walk.axis))
    for number, n in enumerate(carried, max(1, len(walk.reads))):
        value = function.add_parameter(number, view.init[n].shape)
        mapping.update(dict.fromkeys(view.body_reads[n], value))
    updates = [view.outputs[n].operand(1) for n in walk.writes]
    nexts = [view.outputs[n] for n in carried]
    made = [copy_with_operands(i, function, mapping) for i in (*updates, *nexts)]
    loops.note_copies(function.instructions)
    steps = [b.reshape(x, _without(x, walk.axis)) for x in made[: len(updates)]]
    function.root = b.add(Opcode.TUPLE, *steps, *made[len(updates) :])
    function.remove_dead(b.made)
    return function


def _without(x: HloInstruction, axis: int) -> tuple[int, ...]:
    dims = x.shape.dimensions
    return (*dims[:axis], *dims[axis + 1 :])


def _walked(x: HloInstruction, entries: Entries, walk: Walk, count: int, b: Builder) -> HloInstruction:
    """Return the entries that the loop reads, in the order of the scan's steps."""
    spec = [SliceDim(0, n) for n in x.shape.dimensions]
    spec[walk.axis] = SliceDim(entries.low, entries.low + count)
    return _turned(b.slice(x, spec), entries, walk, b)


def _written(
    start: HloInstruction, stack: HloInstruction, entries: Entries, walk: Walk, count: int, b: Builder
) -> HloInstruction:
    """Return the initial array with the entries that the loop writes."""
    block = _turned(stack, entries, walk, b)
    if count == start.shape.dimensions[walk.axis]:
        return block
    starts = [b.scalar(entries.low if d == walk.axis else 0, PrimitiveType.S32) for d in range(start.shape.rank)]
    return b.add(Opcode.DYNAMIC_UPDATE_SLICE, start, block, *starts)


def _turned(x: HloInstruction, entries: Entries, walk: Walk, b: Builder) -> HloInstruction:
    return x if entries.downwards == walk.reverse else b.add(Opcode.REVERSE, x, dimensions=(walk.axis,))
