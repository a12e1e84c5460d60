"""Loop widening: what iterations compute independently of each other is computed for all of them at once."""

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
from compiler.passes.loops.loop_editing import LoopEdit, Loops, viewed_again


@register
@dataclass(frozen=True)
class WhileLoopWidening(Options):
    """Move work out of a counted loop that depends on the counter and invariants alone, and do it in one go.

    - Matrix products of a slice that the counter picks become one product for all iterations, of which each iteration
      picks its part (the input projections of a recurrent network).
    - An array that each iteration writes one entry of, from such values, is made outside the loop (`lax.map`).

    Attributes:
        max_bytes: the stacked values of one loop may take so much memory.
    """

    name: ClassVar[str] = "while-loop-widening"
    max_bytes: int = number_option(1 << 28, 0, 1 << 32)

    def run(self, module: HloModule) -> bool:
        """See the class."""
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
            outside.give_up()
            return False
        for n, update in written.items():
            _write(view, n, stacks[update], counter, outside.b)
        places = [n for n, i in enumerate(view.body.instructions) if i in products]
        if products:
            carried = [stacks[view.body.instructions[n]] for n in places]
            view = loops.owned(viewed_again(view))
            body = view.body.instructions
            _read_parts(view, counter, [body[n] for n in places], [c for c in carried if c is not None])
        return True


class _Independent:
    """Which instructions of a body depend on the counter, invariants and constants alone, and can be batched.

    Attributes:
        same: what is the same in all iterations.
        varies: what differs, but does not depend on what earlier iterations made.
        picks: dynamic-slices that pick the entry of an invariant that the counter names, with the axis.
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
        """Values that differ between iterations, cost a matrix product, and are needed by what depends on more."""
        heavy: set[HloInstruction] = set()
        for i in self.order:
            if i in self.varies and (i.opcode is Opcode.DOT or any(o in heavy for o in i.operands)):
                heavy.add(i)
        writes = {self.view.outputs[n] for n in self.written()}
        return [i for i in self.order if i in heavy and any(u not in self.varies and u not in writes for u in i.users)]

    def written(self) -> dict[int, HloInstruction]:
        """Elements of which each iteration writes one entry and does nothing else, with what it writes."""
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
    """The entries along one axis that iterations read or write in turn: upwards from `low`, or downwards to it."""

    axis: int
    low: int
    downwards: bool

    def in_order(self, x: HloInstruction, axis: int, b: Builder) -> HloInstruction:
        """From the order of the array to the order of iterations, or back."""
        return b.add(Opcode.REVERSE, x, dimensions=(axis,)) if self.downwards else x


def counted_entries(i: HloInstruction, first: int, part: Shape, view: LoopView, counter: Induction) -> Entries | None:
    """Which entries iterations take when one start index counts, all other dimensions being taken whole.

    Args:
        i: a dynamic slice or update of its first operand.
        first: position of the first start index among its operands.
        part: the shape read or written.
        view: the loop.
        counter: its counter.

    Returns:
        None when it is not so, or when an index may be out of bounds.
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
        """The values of `root` in all iterations, iterations first; None where a rule is missing."""
        stack = [root]
        while stack:
            i = stack.pop()
            if i in self.known:
                continue
            # The array an iteration picks from is not stacked itself, nor is the counter that picks.
            needs = () if i in self.picks else i.operands
            missing = [] if self.view.index_of(i) is not None else [o for o in needs if o not in self.known]
            if missing:
                stack += [i, *missing]
                continue
            self.known[i] = self._outside(i)
        found = self.known[root]
        return None if found is None else stacked(found, self.counter.trip_count, self.b)

    def give_up(self) -> None:
        """Remove everything made."""
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
    """Make the results of element `n` its initial value with all entries written."""
    assert stack is not None  # noqa: S101 - seen to by the caller
    out, start = view.outputs[n], view.init[n]
    entries = counted_entries(out, 2, out.operand(1).shape, view, counter)
    assert entries is not None  # noqa: S101 - `written` has seen to it
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
    """Carry the stacks, and let each iteration pick its part of them."""
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
