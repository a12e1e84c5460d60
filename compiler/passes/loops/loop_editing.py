"""Rewriting of while loops: unshared computations, explicit form, other carried elements, copies of the body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compiler.analysis.while_loop import LoopView, view_loop
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.ir.shape import Shape, tuple_shape
from compiler.passes.infrastructure.rewrite_limits import caller_counts, pinned, treatable


@dataclass
class Loops:
    """The loops of a module during one run of a pass.

    `owned` counts callers, so that a computation shared by several callers is cloned before it is changed. Callers that
    copy instructions with called computations must report them by `note_copies`.
    """

    module: HloModule
    _counts: Counter[HloComputation] | None = field(default=None, init=False)

    def views(self) -> Iterator[LoopView]:
        """Yield each loop in explicit form, inner loops first, except those with control edges and those without users.

        The caller may change or remove this loop and others; removed loops are not yielded.
        """
        treated = set(treatable(self.module))
        for computation in self.module.control_flow_computations():
            if computation not in treated:
                continue
            loops = computation.of_opcode(Opcode.WHILE)
            fixed = pinned(computation) if loops else set()
            for loop in loops:
                if loop.parent is not computation or loop in fixed or not _is_read(loop):
                    continue
                view = view_loop(loop)
                if view is not None:
                    yield view

    def owned(self, view: LoopView) -> LoopView:
        """Return the loop with a body and a condition that nothing else calls, cloning them if necessary."""
        loop, counts = view.instruction, self._caller_counts()
        copied = False
        for name in ("body", "condition"):
            callee: HloComputation = loop.attributes[name]
            if counts[callee] <= 1:
                continue
            counts[callee] -= 1
            copy = self.module.add(callee.clone())
            counts[copy] = 1
            self.note_copies(copy.instructions)
            loop.set_attribute(name, copy)
            copied = True
        again = view_loop(loop) if copied else view
        assert again is not None  # noqa: S101 - a clone has the same form
        return again

    def note_copies(self, instructions: Sequence[HloInstruction]) -> None:
        """Count the callees of new instructions, and give new fusions their own fused computations."""
        counts = self._caller_counts()
        for i in instructions:
            if not i.attributes:
                continue
            if i.opcode is Opcode.FUSION and counts[i.attributes["calls"]]:
                body = self.module.add(i.attributes["calls"].clone())
                i.set_attribute("calls", body)
                self.note_copies(body.instructions)
            counts.update(i.called_computations())

    def _caller_counts(self) -> Counter[HloComputation]:
        if self._counts is None:
            self._counts = caller_counts(self.module)
        return self._counts


def _is_read(loop: HloInstruction) -> bool:
    return any(u.users or u.is_root or u.opcode is not Opcode.GET_TUPLE_ELEMENT for u in loop.users)


def make_explicit(loop: HloInstruction) -> bool:
    """Bring a loop over a tuple into explicit form (see `LoopView`); return whether that required changes.

    Only uses that prevent the form are rewritten, to use a tuple of all elements.
    """
    if view_loop(loop) is not None or not loop.shape.is_tuple or loop.parent is None:
        return False
    body: HloComputation = loop.attributes["body"]
    condition: HloComputation = loop.attributes["condition"]
    start = loop.operand(0)
    if start.opcode is not Opcode.TUPLE:
        loop.replace_operand(0, _rebuilt_tuple(loop.parent, start))
    if body.root.opcode is not Opcode.TUPLE:
        body.root = _rebuilt_tuple(body, body.root)
    _read_by_element(body, body.parameters[0])
    _read_by_element(condition, condition.parameters[0])
    _read_by_element(loop.parent, loop)
    return True


def carry_as_tuple(loop: HloInstruction) -> None:
    """Make a loop that carries one array carry a tuple of it; nothing else may call its body and its condition."""
    body: HloComputation = loop.attributes["body"]
    condition: HloComputation = loop.attributes["condition"]
    computation = loop.parent
    if computation is None:
        raise ValueError(f"%{loop.name} has been removed already")
    carried = tuple_shape(loop.shape)
    for callee in (body, condition):
        _read_only_element(callee, callee.parameters[0], carried)
    body.root = body.add(Opcode.TUPLE, [body.root])
    loop.replace_operand(0, computation.add(Opcode.TUPLE, [loop.operand(0)]))
    _read_only_element(computation, loop, carried)


def _read_only_element(computation: HloComputation, value: HloInstruction, carried: Shape) -> None:
    """Make a value the tuple `carried`, and its users use its only element."""
    users, was_root = list(value.users), value.is_root
    value.set_shape(carried)
    element = computation.add(Opcode.GET_TUPLE_ELEMENT, [value], index=0)
    for user in users:
        user.replace_operands(value, element)
    if was_root:
        computation.root = element


def _rebuilt_tuple(computation: HloComputation, value: HloInstruction) -> HloInstruction:
    size = len(value.shape.tuple_shapes)
    elements = [computation.add(Opcode.GET_TUPLE_ELEMENT, [value], index=n) for n in range(size)]
    return computation.add(Opcode.TUPLE, elements)


def _read_by_element(computation: HloComputation, value: HloInstruction) -> None:
    others = [u for u in value.users if u.opcode is not Opcode.GET_TUPLE_ELEMENT]
    if not others and not value.is_root:
        return
    whole = _rebuilt_tuple(computation, value)
    for user in others:
        user.replace_operands(value, whole)
    if value.is_root:
        computation.root = whole


def attributes_for_other_elements(loop: HloInstruction) -> dict[str, Any]:
    """Return the attributes of a loop except those that refer to its carried elements."""
    return {k: v for k, v in loop.attributes.items() if k not in ("backend_config", "sharding", "origin")}


@dataclass
class LoopEdit:
    """A loop whose carried elements are being changed.

    `begin` changes the parameters of body and condition, the caller rewrites the body using `body_read`, and `finish`
    builds the new loop. Before `finish`, the caller must replace reads of dropped elements in body and condition;
    before `discard`, it must replace the old loop's results of dropped elements.
    """

    view: LoopView
    init: tuple[HloInstruction, ...]
    new_index: Mapping[int, int]

    @staticmethod
    def begin(view: LoopView, init: Sequence[HloInstruction], new_index: Mapping[int, int]) -> LoopEdit:
        """Start carrying `init`; `new_index` maps the old index of each kept element to the new one."""
        carried = tuple_shape(*(i.shape for i in init))
        for computation, reads in ((view.body, view.body_reads), (view.condition, view.condition_reads)):
            computation.parameters[0].set_shape(carried)
            for old, gtes in enumerate(reads):
                for gte in gtes:
                    # Reads of dropped elements get an index out of range, so that the verifier finds any that are left.
                    gte.set_attribute("index", new_index.get(old, len(init) + old))
        return LoopEdit(view, tuple(init), new_index)

    def body_read(self, index: int) -> HloInstruction:
        """Add a read of a new element to the body."""
        return self.view.body.add(Opcode.GET_TUPLE_ELEMENT, [self.view.body.parameters[0]], index=index)

    def condition_read(self, index: int) -> HloInstruction:
        """Add a read of a new element to the condition."""
        return self.view.condition.add(Opcode.GET_TUPLE_ELEMENT, [self.view.condition.parameters[0]], index=index)

    def finish(self, outputs: Sequence[HloInstruction]) -> HloInstruction:
        """Build the new loop with `outputs` of the body; users of kept results are redirected to it."""
        view, old = self.view, self.view.instruction
        computation, body = old.parent, view.body
        assert computation is not None  # noqa: S101 - a loop is in a computation until `discard`
        before = body.root
        body.root = body.add(Opcode.TUPLE, outputs, name=before.name)
        dropped = [g for n, gtes in enumerate(view.body_reads) if n not in self.new_index for g in gtes]
        body.remove_dead([before, *dropped])
        view.condition.remove_dead(
            [g for n, gtes in enumerate(view.condition_reads) if n not in self.new_index for g in gtes]
        )
        start = computation.add(Opcode.TUPLE, self.init, name=old.operand(0).name)
        attributes = attributes_for_other_elements(old)
        loop = computation.add(Opcode.WHILE, [start], name=old.name, attributes=attributes)
        for n, gtes in enumerate(view.results):
            for gte in gtes:
                if n in self.new_index:
                    gte.replace_operand(0, loop)
                    gte.set_attribute("index", self.new_index[n])
        return loop

    def discard(self) -> None:
        """Remove the old loop; raise ValueError if it still has users."""
        old = self.view.instruction
        computation = old.parent
        assert computation is not None  # noqa: S101 - see `finish`
        for gte in old.users:
            if gte.users or gte.is_root:
                raise ValueError(f"%{gte.name} still needs element {gte.attributes['index']} of %{old.name}")
        work = list(old.users)
        for gte in work:
            computation.remove(gte)
        start = old.operand(0)
        computation.remove(old)
        computation.remove_dead([start])


def refreshed_view(view: LoopView) -> LoopView:
    """Return a new view of the loop after changes that kept its explicit form."""
    again = view_loop(view.instruction)
    assert again is not None  # noqa: S101 - see above
    return again


def keep_elements(view: LoopView, kept: Sequence[int]) -> HloInstruction:
    """Carry only the `kept` elements, in this order; the others must be unused, except by dead code."""
    # Dead code may still read the dropped elements.
    view.body.remove_dead()
    view.condition.remove_dead()
    view = refreshed_view(view)
    new_index = {old: new for new, old in enumerate(kept)}
    edit = LoopEdit.begin(view, [view.init[n] for n in kept], new_index)
    loop = edit.finish([view.outputs[n] for n in kept])
    edit.discard()
    return loop


def copy_iteration(
    view: LoopView,
    computation: HloComputation,
    values: Sequence[HloInstruction],
    leaves: dict[HloInstruction, HloInstruction],
    loops: Loops,
) -> list[HloInstruction]:
    """Copy the body into `computation` with `values` as carried elements; return their next values.

    `leaves` maps constants and iotas to their copies, which all iterations share.
    """
    mapping = _copy_with_values(view.body, view.body_reads, computation, values, leaves, loops)
    return [mapping[o] for o in view.outputs]


def copy_condition(
    view: LoopView,
    computation: HloComputation,
    values: Sequence[HloInstruction],
    leaves: dict[HloInstruction, HloInstruction],
    loops: Loops,
) -> HloInstruction:
    """Copy the condition likewise; return whether another iteration runs."""
    root = view.condition.root
    return _copy_with_values(view.condition, view.condition_reads, computation, values, leaves, loops)[root]


def _copy_with_values(
    callee: HloComputation,
    reads: Sequence[Sequence[HloInstruction]],
    computation: HloComputation,
    values: Sequence[HloInstruction],
    leaves: dict[HloInstruction, HloInstruction],
    loops: Loops,
) -> dict[HloInstruction, HloInstruction]:
    """Copy a computation of a loop into another one; return the copies of its instructions."""
    mapping: dict[HloInstruction, HloInstruction] = {}
    for n, gtes in enumerate(reads):
        mapping.update(dict.fromkeys(gtes, values[n]))
    made: list[HloInstruction] = []
    parameter = callee.parameters[0]
    for i in callee.post_order():
        if i in mapping or i is parameter or (i is callee.root and i.opcode is Opcode.TUPLE and not i.users):
            continue
        if i in leaves:
            mapping[i] = leaves[i]
            continue
        copy = mapping[i] = computation.clone_instruction(i, [mapping[o] for o in i.operands])
        if i.control_predecessors:
            copy.set_control_predecessors(
                [mapping[p] for p in i.control_predecessors if p in mapping and mapping[p].parent]
            )
        if i.opcode in (Opcode.CONSTANT, Opcode.IOTA):
            leaves[i] = copy
        made.append(copy)
    loops.note_copies(made)
    return mapping


def replace_computations(
    view: LoopView,
    init: Sequence[HloInstruction],
    body: HloComputation,
    condition: HloComputation | None,
    loops: Loops,
) -> HloInstruction:
    """Add a loop with another body and other carried elements; the caller must remove the old loop.

    Results keep their indices; those of elements whose initial value changed still refer to the old loop. Without a new
    `condition` the old one is kept, and must not read these elements.
    """
    old = view.instruction
    computation = old.parent
    assert computation is not None  # noqa: S101 - the loop was found in it
    loops.module.add(body)
    loops.note_copies(body.instructions)
    if condition is None:
        condition = loops.owned(view).condition
        condition.parameters[0].set_shape(body.parameters[0].shape)
    else:
        loops.module.add(condition)
        loops.note_copies(condition.instructions)
    start = computation.add(Opcode.TUPLE, init, name=old.operand(0).name)
    attributes = attributes_for_other_elements(old)
    attributes |= {"body": body, "condition": condition}
    loop = computation.add(Opcode.WHILE, [start], name=old.name, attributes=attributes)
    loops.note_copies([loop])
    for n, gtes in enumerate(view.results):
        for gte in gtes:
            if init[n] is view.init[n]:
                gte.replace_operand(0, loop)
    return loop


def copy_with_operands(
    root: HloInstruction, to: HloComputation, mapping: dict[HloInstruction, HloInstruction]
) -> HloInstruction:
    """Copy an instruction and everything it depends on into a computation.

    Args:
        root: the instruction to copy; control edges are not copied.
        to: the computation to add copies to.
        mapping: maps instructions to existing equivalents in `to`; copies are added to it.
    """
    stack = [root]
    while stack:
        i = stack.pop()
        if i in mapping:
            continue
        missing = [o for o in i.operands if o not in mapping]
        if missing:
            stack += [i, *missing]
        else:
            mapping[i] = to.clone_instruction(i, [mapping[o] for o in i.operands])
    return mapping[root]
