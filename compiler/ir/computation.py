"""HloComputation: a function of HLO, a graph of instructions with parameters and a root."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from compiler.ir.instruction import CALLEE_NAMES, HloInstruction, infer_shape
from compiler.ir.literal import Literal
from compiler.ir.opcodes import SIDE_EFFECT_OPCODES, Opcode
from compiler.ir.shape import Shape

if TYPE_CHECKING:
    from compiler.ir.module import HloModule

_Found = TypeVar("_Found")
_STAMPS = itertools.count(1)
_SUFFIX = re.compile(r"\.\d+$")
NOTABLE = frozenset(
    op
    for op in Opcode
    if op in SIDE_EFFECT_OPCODES
    or op is Opcode.CUSTOM_CALL
    or CALLEE_NAMES.intersection((*op.row.required, *op.row.optional))
)
"""Opcodes that may call computations or have side effects: few instructions have them, and many queries need them."""


class HloComputation:
    """A function of HLO: a dataflow graph of instructions with parameters and a root.

    Instructions are kept in insertion order, which need not be topological; `post_order` always is.

    Attributes:
        name: unique within the module.
        parent: the module, or None if the computation belongs to none.
        attributes: attributes after the body in HLO text (execution_thread="...").
        may_have_control_edges: False if no instruction has ever had control predecessors.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.parent: HloModule | None = None
        self.attributes: dict[str, str] = {}
        self._order_is_known = True
        self._post_order: list[HloInstruction] | None = None  # while nothing changes, if it is another order
        self.may_have_control_edges = False
        self._instructions: dict[HloInstruction, int] = {}  # with their places, which increase in insertion order
        self._next_place = 0
        self._in_places = True  # False after `restore`, until the order is asked for
        self._notable: dict[HloInstruction, None] = {}
        self._opcodes: dict[Opcode, int] = {}  # with the number of instructions of each
        self._parameters: dict[HloInstruction, None] = {}
        self._by_name: dict[str, HloInstruction] = {}
        self._next_suffix: dict[str, int] = {}
        self._successors: dict[HloInstruction, list[HloInstruction]] | None = None
        self._root: HloInstruction | None = None
        self._stamp: int | None = None  # None after a change, until it is asked for
        self._facts: dict[Hashable, Any] = {}
        self._called: tuple[int, list[HloComputation]] | None = None  # with the stamp for which it was found

    def __repr__(self) -> str:
        return f"<HloComputation %{self.name}, {len(self)} instructions>"

    def __len__(self) -> int:
        return len(self._instructions)

    def __contains__(self, instruction: object) -> bool:
        return instruction in self._instructions

    # ---- queries

    @property
    def order_is_known(self) -> bool:
        """Whether insertion order is known to be topological; it must be set to False when operands change."""
        return self._order_is_known

    @order_is_known.setter
    def order_is_known(self, known: bool) -> None:
        self._order_is_known, self._post_order = known, None

    @property
    def stamp(self) -> int:
        """A number that only clones share; after a change it is another one, greater than all there were."""
        return self._renew() if self._stamp is None else self._stamp

    def _renew(self) -> int:
        self._stamp, self._facts = next(_STAMPS), {}
        return self._stamp

    def stamp_with_callees(self, known: Mapping[HloComputation, int]) -> int:
        """Return the greatest stamp of the computation and all that it calls: another one after any of them changes.

        Args:
            known: what this returns for some of the computations that it calls.
        """
        found = self.stamp
        for callee in self.called_computations():
            stamp = known.get(callee)
            found = max(found, callee.stamp_with_callees(known) if stamp is None else stamp)
        return found

    @property
    def facts(self) -> dict[Hashable, Any]:
        """What users have found out about the computation and noted here, until it changes; clones share it.

        Facts must not refer to instructions or computations. One that depends on called computations, too, is valid as
        long as `stamp_with_callees` is the same.
        """
        if self._stamp is None:
            self._renew()
        return self._facts

    def noted(self, key: Hashable, stamps: dict[HloComputation, int], find: Callable[[], _Found]) -> _Found:
        """Return what `find` returns, which is kept until the computation or one that it calls changes.

        Args:
            key: names the fact.
            stamps: stamps with callees that are known; that of this computation is added.
            find: reads nothing but the computation and those that it calls.
        """
        stamp = stamps[self] = self.stamp_with_callees(stamps)
        known: tuple[int, _Found] | None = self.facts.get(key)
        if known is None or known[0] != stamp:
            known = self.facts[key] = stamp, find()
        return known[1]

    def share_facts(self, original: HloComputation) -> None:
        """Take over the stamp and the facts of a computation of which this is a copy."""
        self._facts = original.facts
        self._stamp = original.stamp

    def note_change(self) -> None:
        """Make the stamp and the facts new ones; methods that change something call it themselves."""
        self._stamp = None

    def note_direct_changes(self) -> None:
        """Do the same after attributes and shapes of any instructions may have been written directly."""
        self.note_change()
        for i in self._instructions:
            i.described = None

    @property
    def instructions(self) -> list[HloInstruction]:
        """Return a snapshot in insertion order, so that the computation may be changed while iterating over it."""
        return list(self._listed())

    @property
    def root(self) -> HloInstruction:
        """The instruction whose value the computation returns; ValueError if none is set."""
        if self._root is None:
            raise ValueError(f"computation %{self.name} has no root yet")
        return self._root

    @root.setter
    def root(self, instruction: HloInstruction) -> None:
        if instruction.parent is not self:
            raise ValueError(f"%{instruction.name} is not in computation %{self.name}")
        self._root = instruction
        self._stamp = None

    @property
    def last(self) -> HloInstruction:
        """The instruction inserted last; IndexError if the computation is empty."""
        for i in reversed(self._listed()):
            return i
        raise IndexError(f"computation %{self.name} is empty")

    @property
    def has_root(self) -> bool:
        """Whether a root is set."""
        return self._root is not None

    @property
    def parameters(self) -> list[HloInstruction]:
        """The parameters, ordered by number."""
        return sorted(self._parameters, key=_number)

    @property
    def parameter_shapes(self) -> tuple[Shape, ...]:
        """The shapes of the parameters, ordered by number."""
        return tuple(p.shape for p in self.parameters)

    @property
    def result_shape(self) -> Shape:
        """The shape of the root."""
        return self.root.shape

    def find(self, name: str) -> HloInstruction | None:
        """Return the instruction of this name (without the percent sign), or None."""
        return self._by_name.get(name)

    def post_order(self) -> list[HloInstruction]:
        """Return all instructions in post order: each after its operands and control predecessors.

        If insertion order is already topological, it is kept.

        Raises:
            ValueError: the graph has a cycle.
        """
        listed = self._listed()
        if self._order_is_known:
            return list(listed)
        if self._post_order is not None:
            return list(self._post_order)
        done: set[HloInstruction] = set()
        order: list[HloInstruction] = []
        for start in listed:
            if start in done:
                continue
            if done.issuperset(start.operands) and done.issuperset(start.control_predecessors):
                done.add(start)
                order.append(start)
            else:
                self._visit(start, done, order)
        self._order_is_known = order == list(listed)
        if not self._order_is_known:
            self._post_order = order
            return list(order)
        return order

    def _visit(self, start: HloInstruction, done: set[HloInstruction], order: list[HloInstruction]) -> None:
        """Append `start` to `order`, after its transitive dependencies that are not in `done` yet."""
        # Iterative depth-first search: graphs exceed Python's recursion limit. `path` holds the instructions on
        # the stack, so meeting one of them again means a cycle.
        path = {start}
        stack = [(start, _before(start))]
        while stack:
            node, pending = stack[-1]
            for o in pending:
                if o in done:
                    continue
                if o in path:
                    raise ValueError(f"cycle through %{o.name} in computation %{self.name}")
                path.add(o)
                stack.append((o, _before(o)))
                break
            else:
                stack.pop()
                done.add(node)
                order.append(node)

    @property
    def opcodes(self) -> Mapping[Opcode, int]:
        """The opcodes of the instructions, with the number of each: passes need not look for instructions of others."""
        return self._opcodes

    def of_opcode(self, *opcodes: Opcode) -> list[HloInstruction]:
        """Return the instructions with one of these opcodes in post order; it costs little if there is none."""
        if self._opcodes.keys().isdisjoint(opcodes):
            return []
        return [i for i in self.post_order() if i.opcode in opcodes]

    def called_computations(self) -> list[HloComputation]:
        """Return the computations called directly from this one, without duplicates, in order of the calls."""
        if not self._notable:
            return []
        if self._called is None or self._called[0] != self._stamp:
            found = list(dict.fromkeys([c for i in self.notable for c in i.called_computations()]))
            self._called = self.stamp, found
        return list(self._called[1])

    @property
    def notable(self) -> list[HloInstruction]:
        """Instructions whose opcodes may call computations or have side effects, in insertion order."""
        self._listed()
        return list(self._notable)

    @property
    def has_side_effect(self) -> bool:
        """Whether running the computation has an effect other than its result."""
        return any(has_side_effect(i) for i in self._notable)

    # ---- building

    def unique_name(self, base: str) -> str:
        """Return `base` if it is free, else `base` with its numeric suffix replaced by the next free one."""
        if base not in self._by_name:
            return base
        stem = _SUFFIX.sub("", base)
        n = self._next_suffix.get(stem, 1)
        while (name := f"{stem}.{n}") in self._by_name:
            n += 1
        self._next_suffix[stem] = n + 1
        return name

    def insert(self, instruction: HloInstruction) -> HloInstruction:
        """Add an existing instruction (the parser makes its own); its name is made unique."""
        instruction.name = self.unique_name(instruction.name)
        instruction.parent = self
        self._post_order = self._stamp = None
        self._list(instruction, self._next_place)
        self._next_place += 1
        for o in instruction.operands:
            if o.parent is not self:
                self.order_is_known = False
        if "control-predecessors" in instruction.attributes:
            self.control_edges_changed()
        return instruction

    def add(
        self,
        opcode: Opcode,
        operands: Sequence[HloInstruction] = (),
        shape: Shape | None = None,
        *,
        name: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> HloInstruction:
        """Add an instruction with inferred shape; `shape` is only needed if it does not follow from the operands.

        Attributes are given by their names in HLO text, as a mapping or as keywords (`dimensions=(1,)`).

        Raises:
            ShapeError: operands and attributes do not fit the opcode.
        """
        attrs = {**(attributes or {}), **more}
        inferred = infer_shape(opcode, [o.shape for o in operands], attrs, shape)
        return self.insert(HloInstruction(name or opcode.text, opcode, inferred, operands, attrs))

    def add_parameter(self, number: int, shape: Shape, name: str | None = None) -> HloInstruction:
        """Add a parameter with the given number."""
        base = name or f"param_{number}"
        return self.insert(HloInstruction(base, Opcode.PARAMETER, shape, parameter_number=number))

    def add_constant(self, value: Any, name: str = "constant") -> HloInstruction:
        """Add a constant from a Literal, an array or a numpy scalar (whose dtype determines the element type)."""
        literal = value if isinstance(value, Literal) else Literal.from_array(value)
        return self.insert(HloInstruction(name, Opcode.CONSTANT, literal.shape, literal=literal))

    def clone_instruction(
        self,
        original: HloInstruction,
        operands: Sequence[HloInstruction],
        shape: Shape | None = None,
        name: str | None = None,
    ) -> HloInstruction:
        """Add a copy of `original` with other operands; control predecessors are dropped."""
        attrs = dict(original.attributes)
        attrs.pop("control-predecessors", None)
        copy = HloInstruction(
            name or original.name,
            original.opcode,
            shape or original.shape,
            operands,
            attrs,
            original.literal,
            original.parameter_number,
        )
        copy.line, copy.verified_facts = original.line, original.verified_facts
        if shape is None:
            copy.described = original.described
        return self.insert(copy)

    # ---- rewriting

    def replace_uses(self, old: HloInstruction, new: HloInstruction) -> None:
        """Replace every use of `old` by `new`, also as the root; `old` stays, without users."""
        if old is new:
            return
        for user in list(old.users):
            if user is not new:
                user.replace_operands(old, new)
        if self._root is old:
            self.root = new

    def replace(self, old: HloInstruction, new: HloInstruction) -> None:
        """Replace every use of `old` by `new`, then remove `old` unless it is a parameter or has side effects."""
        self.replace_uses(old, new)
        if is_removable(old):
            self.remove(old)

    def remove(self, instruction: HloInstruction) -> None:
        """Remove an instruction that has no users.

        Its control predecessors become control predecessors of its control successors.

        Raises:
            ValueError: the instruction has users or is the root.
        """
        if instruction.users or self._root is instruction:
            raise ValueError(f"%{instruction.name} is still used")
        if self.may_have_control_edges:
            self._forward_control_edges(instruction)
        for o in instruction.operands:
            o.users.pop(instruction, None)
        self._post_order = self._stamp = None
        del self._instructions[instruction]
        self._parameters.pop(instruction, None)
        self._notable.pop(instruction, None)
        left = self._opcodes[instruction.opcode] - 1
        if left:
            self._opcodes[instruction.opcode] = left
        else:
            del self._opcodes[instruction.opcode]
        del self._by_name[instruction.name]
        instruction.parent = None

    def place_of(self, instruction: HloInstruction) -> int:
        """Return a number that increases in insertion order, by which `restore` puts an instruction back."""
        return self._instructions[instruction]

    def restore(self, instruction: HloInstruction, place: int) -> None:
        """Put back an instruction that was removed from this computation, with its name and at its former place.

        Its operands must be in the computation, and its name must be free. It takes constant time: the instructions
        are sorted by their places when the order is asked for.
        """
        instruction.parent = self
        self._list(instruction, place)
        for o in instruction.operands:
            o.users[instruction] = None
        self._in_places, self.order_is_known, self._stamp = False, False, None

    def _list(self, instruction: HloInstruction, place: int) -> None:
        self._instructions[instruction] = place
        self._opcodes[instruction.opcode] = self._opcodes.get(instruction.opcode, 0) + 1
        if instruction.opcode is Opcode.PARAMETER:
            self._parameters[instruction] = None
        elif instruction.opcode in NOTABLE:
            self._notable[instruction] = None
        self._by_name[instruction.name] = instruction

    def next_suffix(self, base: str) -> int | None:
        """Return the suffix that `unique_name` tries first if a name is taken; None if there was no such name."""
        return self._next_suffix.get(_SUFFIX.sub("", base))

    def set_next_suffix(self, base: str, suffix: int | None) -> None:
        """Set what `next_suffix` returns, so that names come out as they did before."""
        stem = _SUFFIX.sub("", base)
        if suffix is None:
            self._next_suffix.pop(stem, None)
        else:
            self._next_suffix[stem] = suffix

    def _listed(self) -> dict[HloInstruction, int]:
        """Return the instructions in insertion order."""
        if not self._in_places:
            places = self._instructions
            self._instructions = dict(sorted(places.items(), key=_place))
            self._notable = dict.fromkeys(sorted(self._notable, key=places.__getitem__))
            self._in_places = True
        return self._instructions

    def control_edges_changed(self) -> None:
        """Reset what is cached about order and control edges; called when control predecessors change."""
        self.order_is_known, self.may_have_control_edges, self._successors = False, True, None
        self._stamp = None

    def _forward_control_edges(self, gone: HloInstruction) -> None:
        """Connect the control predecessors of an instruction that is removed to its control successors."""
        if self._successors is None:
            self._successors = {}
            for i in self._instructions:
                for p in i.control_predecessors:
                    self._successors.setdefault(p, []).append(i)
        before = gone.control_predecessors
        for i in self._successors.pop(gone, ()):
            if i.parent is not self:
                continue
            kept = dict.fromkeys(q for p in i.control_predecessors for q in (before if p is gone else (p,)))
            if kept:
                i.attributes["control-predecessors"] = tuple(kept)
            else:
                i.attributes.pop("control-predecessors", None)
            for p in before:
                self._successors.setdefault(p, []).append(i)

    def remove_dead(self, start: Iterable[HloInstruction] | None = None) -> int:
        """Remove dead instructions, from `start` upwards (default: everywhere), and return how many were removed."""
        work = list(self._listed() if start is None else start)
        gone = 0
        while work:
            i = work.pop()
            if i.parent is self and i.is_dead and is_removable(i):
                self.remove(i)
                gone += 1
                work.extend(i.operands)
        return gone

    def dissolve(self) -> None:
        """Take the computation apart, which nothing may use any more, so that its memory is free at once.

        Operands and users refer to each other, and only the garbage collector would find that nothing else does.
        """
        for i in self._instructions:
            i.users, i.operands, i.parent = {}, (), None
        self._instructions, self._notable, self._parameters, self._by_name, self._opcodes = {}, {}, {}, {}, {}
        self._root = self._successors = self._post_order = self._stamp = self._called = None

    def reorder(self) -> None:
        """Sort the stored instructions into post order."""
        if self.order_is_known:
            return
        self._stamp = None
        self._instructions = {i: n for n, i in enumerate(self.post_order())}
        self._next_place = len(self._instructions)
        self._notable = dict.fromkeys(i for i in self._instructions if i in self._notable)
        self.order_is_known = True

    def inline(self, callee: HloComputation, arguments: Sequence[HloInstruction]) -> HloInstruction:
        """Copy the body of `callee` into this computation, with `arguments` for its parameters; return the new root."""
        return self.inline_with_mapping(callee, arguments)[callee.root]

    def inline_with_mapping(
        self, callee: HloComputation, arguments: Sequence[HloInstruction]
    ) -> dict[HloInstruction, HloInstruction]:
        """Inline `callee` as `inline` does; return the mapping from its instructions to those in this computation."""
        mapping: dict[HloInstruction, HloInstruction] = {}
        for i in callee.post_order():
            if i.opcode is Opcode.PARAMETER:
                mapping[i] = arguments[i.parameter_number or 0]
            else:
                mapping[i] = self.clone_instruction(i, [mapping[o] for o in i.operands])
                if i.control_predecessors:
                    mapping[i].set_control_predecessors([mapping[p] for p in i.control_predecessors])
        return mapping

    def dismantle(self) -> None:
        """Dismantle the computation; see `HloModule.dismantle`."""
        for i in self._instructions:
            i.users, i.operands, i.attributes, i.parent = {}, (), {}, None
        self.__init__(self.name)  # type: ignore[misc]

    def clone(self, name: str | None = None) -> HloComputation:
        """Return a copy that belongs to no module and calls the same computations; names and order are kept."""
        copy, _ = self.clone_with_mapping(name)
        return copy

    def clone_with_mapping(
        self, name: str | None = None
    ) -> tuple[HloComputation, dict[HloInstruction, HloInstruction]]:
        """Return a copy as `clone` does, and the mapping from instructions to their copies."""
        copy = HloComputation(name or self.name)
        copy.attributes = dict(self.attributes)
        mapping: dict[HloInstruction, HloInstruction] = {}
        image = mapping.__getitem__
        for i in self.post_order():
            attrs = i.attributes.copy()
            if "control-predecessors" in attrs:
                attrs["control-predecessors"] = tuple(map(image, i.control_predecessors))
            operands = tuple(map(image, i.operands))
            new = HloInstruction(i.name, i.opcode, i.shape, operands, attrs, i.literal, i.parameter_number)
            new.line, new.verified_facts, new.described = i.line, i.verified_facts, i.described
            new.parent = copy
            mapping[i] = new
        copy._instructions = {image(i): place for i, place in self._instructions.items()}
        copy._next_place = self._next_place
        copy._parameters = dict.fromkeys(map(image, self._parameters))
        copy._notable = dict.fromkeys(map(image, self._notable))
        copy._opcodes = dict(self._opcodes)
        copy._order_is_known = self._order_is_known
        copy.may_have_control_edges = self.may_have_control_edges
        copy._by_name = {i.name: i for i in copy._instructions}
        copy._next_suffix = dict(self._next_suffix)
        if self._root is not None:
            copy._root = mapping[self._root]
        copy.share_facts(self)
        return copy, mapping


def _place(item: tuple[HloInstruction, int]) -> int:
    return item[1]


def _number(parameter: HloInstruction) -> int:
    return parameter.parameter_number or 0


def is_removable(instruction: HloInstruction) -> bool:
    """Check whether an instruction can be removed: it has no users or side effects and is no root or parameter."""
    if instruction.opcode is Opcode.PARAMETER or instruction.users or instruction.is_root:
        return False
    return not has_side_effect(instruction)


def has_side_effect(instruction: HloInstruction) -> bool:
    """Check whether running an instruction has an effect other than its result."""
    if instruction.opcode not in NOTABLE:
        return False
    if instruction.opcode in SIDE_EFFECT_OPCODES:
        return True
    if not instruction.attributes:
        return False
    if instruction.attr("custom_call_has_side_effect", False):
        return True
    called = instruction.called_computations()
    return bool(called) and _has_effects(called)


def _has_effects(called: tuple[HloComputation, ...]) -> bool:
    """Check whether any of these computations, or of their callees, has a side effect."""
    seen = set(called)
    work = list(called)
    while work:
        for i in work.pop()._notable:
            if i.opcode in SIDE_EFFECT_OPCODES or i.attributes.get("custom_call_has_side_effect", False):
                return True
            more = [c for c in i.called_computations() if c not in seen]
            seen.update(more)
            work.extend(more)
    return False


def _before(i: HloInstruction) -> Iterator[HloInstruction]:
    if i.attributes:
        predecessors = i.control_predecessors
        if predecessors:
            return iter((*i.operands, *predecessors))
    return iter(i.operands)
