"""Loop widening: computes what iterations compute independently of each other for all of them at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from compiler.analysis.while_loop import Induction, LoopView, affine_in, induction, invariant_elements
from compiler.ir import HloInstruction, HloModule, Opcode, PrimitiveType, Shape
from compiler.ir.attributes import SliceDim
from compiler.ir.computation import has_side_effect
from compiler.passes.infrastructure.base import Options, number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned
from compiler.passes.loops.batching import Batched, batch, has_rule, stacked
from compiler.passes.loops.loop_editing import LoopEdit, Loops, refreshed_view


@register
@dataclass(frozen=True)
class WhileLoopWidening(Options):
    """Hoist work that depends only on the counter and invariants, and do it for all iterations at once.

    - Dots of a slice selected by the counter become one dot for all iterations, of which each iteration takes its slice
    (the
      input projections of a recurrent network).
    - An array of which each iteration writes one entry, computed from such values, is built outside the loop
    (`lax.map`).

    Attributes:
        max_bytes: maximum memory of the stacked values of one loop.
    """

    name: ClassVar[str] = "while-loop-widening"
    max_bytes: int = number_option(1 << 28, 0, 1 << 32)

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        loops = Loops(module)
        changed = False
        for view in loops.views():
            counter = induction(view)
            if counter is None or counter.step != 1 or counter.trip_count < 2:
                continue
            changed |= self._widen(view, counter, loops)
        if changed:
            module.remove_unreachable()
        return changed

    def _widen(self, view: LoopView, counter: Induction, loops: Loops) -> bool:
        independent = _Independent(view, counter)
        written, products = independent.written(), independent.products()
        cost = counter.trip_count * sum(i.shape.byte_size for i in independent.varies)
        if cost > self.max_bytes or not (written or products):
            return False
        outside = _Outside(view, counter, independent.picks, loops)
        stacks = {i: outside.stacked(i) for i in (*written.values(), *products)}
        if any(s is None for s in stacks.values()):
            outside.discard()
            return False
        for n, update in written.items():
            _write(view, n, stacks[update], counter, outside.b)
        places = [n for n, i in enumerate(view.body.instructions) if i in products]
        if products:
            carried = [stacks[view.body.instructions[n]] for n in places]
            view = loops.owned(refreshed_view(view))
            body = view.body.instructions
            _read_parts(view, counter, [body[n] for n in places], [c for c in carried if c is not None])
        return True


class _Independent:
    """The instructions of a body that depend only on the counter, invariants and constants, and can be batched.

    Attributes:
        same: instructions with the same value in all iterations.
        varies: instructions that differ between iterations, but do not depend on earlier iterations.
        picks: dynamic-slices that select the entry of an invariant given by the counter, with their entries.
    """

    def __init__(self, view: LoopView, counter: Induction) -> None:
        self.view, self.counter = view, counter
        fixed = invariant_elements(view)
        held = pinned(view.body)
        self.order = view.body.post_order()
        self.same: set[HloInstruction] = {g for n in fixed for g in view.body_reads[n] if g.shape.is_array}
        self.varies: set[HloInstruction] = set(view.body_reads[counter.index])
        self.picks: dict[HloInstruction, Entries] = {}
        for i in self.order:
            known = all(o in self.same or o in self.varies for o in i.operands)
            if i in self.varies or i in self.same or i in held or not known or not _pure(i):
                continue
            if not any(o in self.varies for o in i.operands):
                self.same.add(i)
                continue
            entries = self._picked(i)
            if entries is not None:
                self.picks[i] = entries
            if entries is not None or has_rule(i):
                self.varies.add(i)

    def _picked(self, i: HloInstruction) -> Entries | None:
        if i.opcode is not Opcode.DYNAMIC_SLICE or self.view.index_of(i.operand(0)) is None:
            return None
        return counted_entries(i, 1, i.shape, self.view, self.counter) if i.operand(0) in self.same else None

    def products(self) -> list[HloInstruction]:
        """Return the varying values that cost a dot and are used by instructions that depend on earlier iterations."""
        heavy: set[HloInstruction] = set()
        for i in self.order:
            if i in self.varies and (i.opcode is Opcode.DOT or any(o in heavy for o in i.operands)):
                heavy.add(i)
        writes = {self.view.outputs[n] for n in self.written()}
        return [i for i in self.order if i in heavy and any(u not in self.varies and u not in writes for u in i.users)]

    def written(self) -> dict[int, HloInstruction]:
        """Return the elements of which each iteration only writes one entry, with the value that it writes."""
        uses = Counter(self.view.outputs)
        found = {}
        for n, out in enumerate(self.view.outputs):
            update = self._update(n, out)
            if update is not None and uses[out] == 1:
                found[n] = update
        return found

    def _update(self, n: int, out: HloInstruction) -> HloInstruction | None:
        if out.opcode is not Opcode.DYNAMIC_UPDATE_SLICE or self.view.condition_reads[n] or not self.view.results[n]:
            return None
        whole, update = out.operand(0), out.operand(1)
        alone = len(self.view.body_reads[n]) == 1 and len(whole.users) == 1 and len(out.users) == 1
        if self.view.index_of(whole) != n or not alone or update not in self.varies:
            return None
        return None if counted_entries(out, 2, update.shape, self.view, self.counter) is None else update


def _pure(i: HloInstruction) -> bool:
    if i.opcode is Opcode.PARAMETER or not i.shape.is_array or i.shape.is_dynamic:
        return False
    if i.called_computations() and i.opcode is not Opcode.REDUCE:
        return False
    return not has_side_effect(i) and i.opcode not in (Opcode.CUSTOM_CALL, Opcode.RNG_BIT_GENERATOR)


@dataclass(frozen=True)
class Entries:
    """The entries along one axis that iterations access in turn: upwards from `low`, or downwards to it."""

    axis: int
    low: int
    downwards: bool

    def in_order(self, x: HloInstruction, axis: int, b: Builder) -> HloInstruction:
        """Convert between the order of the array and that of the iterations, in either direction."""
        return b.add(Opcode.REVERSE, x, dimensions=(axis,)) if self.downwards else x


def counted_entries(i: HloInstruction, first: int, part: Shape, view: LoopView, counter: Induction) -> Entries | None:
    """Return the entries that iterations access if one start index counts, and all other dimensions are complete.

    Args:
        i: a dynamic-slice or dynamic-update-slice of its first operand.
        first: position of the first start index among its operands.
        part: the shape read or written.
        view: the loop.
        counter: its induction variable.

    Returns:
        None if the accesses are different, or an index may be out of bounds.
    """
    sizes, starts = i.operand(0).shape.dimensions, i.operands[first:]
    if len(starts) != len(sizes):
        return None
    axes = [d for d, (n, m) in enumerate(zip(part.dimensions, sizes, strict=True)) if n != m]
    if not axes:
        axes = [d for d, s in enumerate(starts) if affine_in(view, s, counter.index) is not None]
    if len(axes) != 1 or part.dimensions[axes[0]] != 1:
        return None
    line = affine_in(view, starts[axes[0]], counter.index)
    if line is None:
        return None
    slope, offset = line
    ends = sorted(slope * n + offset for n in (counter.start, counter.last))
    inside = ends[0] >= 0 and ends[1] < sizes[axes[0]]
    return Entries(axes[0], ends[0], slope < 0) if inside else None


class _Outside:
    """Builds stacked values in the computation around the loop."""

    def __init__(
        self, view: LoopView, counter: Induction, picks: Mapping[HloInstruction, Entries], loops: Loops
    ) -> None:
        computation = view.instruction.parent
        assert computation is not None  # noqa: S101 - the loop was found in it
        self.view, self.counter, self.picks, self.loops = view, counter, picks, loops
        self.b = Builder(computation)
        self.known: dict[HloInstruction, Batched | None] = {}

    def stacked(self, root: HloInstruction) -> HloInstruction | None:
        """Return the values of `root` in all iterations, stacked; None if a rule is missing."""
        stack = [root]
        while stack:
            i = stack.pop()
            if i in self.known:
                continue
            # Neither the array that an iteration slices nor the slice's index has to be stacked.
            needs = () if i in self.picks else i.operands
            missing = [] if self.view.index_of(i) is not None else [o for o in needs if o not in self.known]
            if missing:
                stack += [i, *missing]
                continue
            self.known[i] = self._outside(i)
        found = self.known[root]
        return None if found is None else stacked(found, self.counter.trip_count, self.b)

    def discard(self) -> None:
        """Remove all new instructions."""
        self.b.computation.remove_dead(self.b.made)

    def _outside(self, i: HloInstruction) -> Batched | None:
        index = self.view.index_of(i)
        if index == self.counter.index:
            return Batched(self._counts(i), True)
        if index is not None:
            return Batched(self.view.init[index], False)
        if i in self.picks:
            return Batched(self._picked(i, self.picks[i]), True)
        operands = [o for o in (self.known[x] for x in i.operands) if o is not None]
        if len(operands) < len(i.operands):
            return None
        if not any(o.varies for o in operands):
            copy = self.b.with_operands(i, [o.value for o in operands], i.shape) if operands else self._leaf(i)
            self.loops.note_copies([copy])
            return Batched(copy, False)
        value = batch(i, operands, self.counter.trip_count, self.b)
        self.loops.note_copies([] if value is None else [value])
        return None if value is None else Batched(value, True)

    def _leaf(self, i: HloInstruction) -> HloInstruction:
        copy = self.b.computation.clone_instruction(i, [])
        self.b.made.append(copy)
        return copy

    def _counts(self, i: HloInstruction) -> HloInstruction:
        shape = Shape(i.shape.element_type, (self.counter.trip_count,))
        counts = self.b.add(Opcode.IOTA, shape=shape, iota_dimension=0)
        if not self.counter.start:
            return counts
        return self.b.add(Opcode.ADD, counts, self.b.splat(self.counter.start, shape))

    def _picked(self, i: HloInstruction, entries: Entries) -> HloInstruction:
        source = self.view.init[self.view.index_of(i.operand(0)) or 0]
        dims, axis = source.shape.dimensions, entries.axis
        spec = [SliceDim(0, n) for n in dims]
        spec[axis] = SliceDim(entries.low, entries.low + self.counter.trip_count)
        taken = entries.in_order(self.b.slice(source, spec), axis, self.b)
        first = self.b.transpose(taken, (axis, *(d for d in range(len(dims)) if d != axis)))
        return self.b.reshape(first, (self.counter.trip_count, *i.shape.dimensions))


def _write(view: LoopView, n: int, stack: HloInstruction | None, counter: Induction, b: Builder) -> None:
    """Replace the results of element `n` by its initial value with all entries written."""
    assert stack is not None  # noqa: S101 - the caller has checked it
    out, start = view.outputs[n], view.init[n]
    entries = counted_entries(out, 2, out.operand(1).shape, view, counter)
    assert entries is not None  # noqa: S101 - `written` has checked it
    dims, axis = start.shape.dimensions, entries.axis
    rest = [m for d, m in enumerate(dims) if d != axis]
    flat = b.reshape(stack, (counter.trip_count, *rest))
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(dims))]
    block = entries.in_order(b.transpose(flat, order), axis, b)
    if counter.trip_count != dims[axis]:
        kind = PrimitiveType.S32
        starts = [b.scalar(entries.low if d == axis else 0, kind) for d in range(len(dims))]
        block = b.add(Opcode.DYNAMIC_UPDATE_SLICE, start, block, *starts)
    for gte in view.results[n]:
        b.computation.replace_uses(gte, block)
        b.computation.remove(gte)


def _read_parts(
    view: LoopView, counter: Induction, products: Sequence[HloInstruction], stacks: Sequence[HloInstruction]
) -> None:
    """Carry the stacks, and let each iteration read its slice of them."""
    edit = LoopEdit.begin(view, [*view.init, *stacks], {n: n for n in range(view.size)})
    b = Builder(view.body)
    place = b.add(Opcode.GET_TUPLE_ELEMENT, view.body.parameters[0], index=counter.index)
    if counter.start:
        place = b.add(Opcode.SUBTRACT, place, b.splat(counter.start, place.shape))
    zero = b.scalar(0, place.shape.element_type)
    outputs, reads = list(view.outputs), []
    for n, i in enumerate(products):
        reads.append(edit.body_read(view.size + n))
        sizes = (1, *i.shape.dimensions)
        starts = [place, *[zero] * i.shape.rank]
        part = b.reshape(b.add(Opcode.DYNAMIC_SLICE, reads[-1], *starts, dynamic_slice_sizes=sizes), i.shape.dimensions)
        view.body.replace_uses(i, part)
        outputs = [part if o is i else o for o in outputs]
    edit.finish([*outputs, *reads])
    edit.discard()
    view.body.remove_dead(products)
