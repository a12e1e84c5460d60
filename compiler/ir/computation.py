"""HloComputation: a function of HLO, a graph of instructions with parameters and a root."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compiler.ir.instruction import CALLEE_NAMES, HloInstruction, infer_shape
from compiler.ir.literal import Literal
from compiler.ir.opcodes import SIDE_EFFECT_OPCODES, Opcode
from compiler.ir.shape import Shape

if TYPE_CHECKING:
    from compiler.ir.module import HloModule

_SUFFIX = re.compile(r"\.\d+$")
_NOTABLE = frozenset(
    op
    for op in Opcode
    if op in SIDE_EFFECT_OPCODES
    or op is Opcode.CUSTOM_CALL
    or CALLEE_NAMES.intersection((*op.row.required, *op.row.optional))
)
"""Opcodes that may call computations or have side effects: few instructions, which many ask for."""


class HloComputation:
    """Instructions in a topological order of insertion or not; `post_order` always gives one.

    Attributes:
        name: unique within the module.
        parent: the module, None while it stands alone.
        attributes: what the text said behind the body (execution_thread="...").
        order_is_known: each instruction is known to stand after what it needs; whatever changes operands clears it.
        may_have_control_edges: False where no instruction has had control predecessors.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.parent: HloModule | None = None
        self.attributes: dict[str, str] = {}
        self.order_is_known = True
        self.may_have_control_edges = False
        self._instructions: dict[HloInstruction, None] = {}
        self._notable: dict[HloInstruction, None] = {}
        self._parameters: dict[HloInstruction, None] = {}
        self._by_name: dict[str, HloInstruction] = {}
        self._next_suffix: dict[str, int] = {}
        self._successors: dict[HloInstruction, list[HloInstruction]] | None = None
        self._root: HloInstruction | None = None

    def __repr__(self) -> str:
        return f"<HloComputation %{self.name}, {len(self)} instructions>"

    def __len__(self) -> int:
        return len(self._instructions)

    def __contains__(self, instruction: object) -> bool:
        return instruction in self._instructions

    # ---- looking

    @property
    def instructions(self) -> list[HloInstruction]:
        """A snapshot in insertion order; the computation may be changed while walking it."""
        return list(self._instructions)

    @property
    def root(self) -> HloInstruction:
        """The instruction whose value the computation returns; ValueError when none is set."""
        if self._root is None:
            raise ValueError(f"computation %{self.name} has no root yet")
        return self._root

    @root.setter
    def root(self, instruction: HloInstruction) -> None:
        if instruction.parent is not self:
            raise ValueError(f"%{instruction.name} does not stand in computation %{self.name}")
        self._root = instruction

    @property
    def last(self) -> HloInstruction:
        """The instruction that came last; IndexError when there is none."""
        for i in reversed(self._instructions):
            return i
        raise IndexError(f"computation %{self.name} is empty")

    @property
    def has_root(self) -> bool:
        """Whether a root is set."""
        return self._root is not None

    @property
    def parameters(self) -> list[HloInstruction]:
        """Parameters by number."""
        return sorted(self._parameters, key=_number)

    @property
    def parameter_shapes(self) -> tuple[Shape, ...]:
        """By parameter number."""
        return tuple(p.shape for p in self.parameters)

    @property
    def result_shape(self) -> Shape:
        """The root's shape."""
        return self.root.shape

    def find(self, name: str) -> HloInstruction | None:
        """Instruction by name, without the percent sign."""
        return self._by_name.get(name)

    def post_order(self) -> list[HloInstruction]:
        """Every instruction after its operands and control predecessors; stable for a list already in order.

        ValueError when the graph has a cycle.
        """
        if self.order_is_known:
            return list(self._instructions)
        done: set[HloInstruction] = set()
        order: list[HloInstruction] = []
        for start in self._instructions:
            if start in done:
                continue
            if done.issuperset(start.operands) and done.issuperset(start.control_predecessors):
                done.add(start)
                order.append(start)
            else:
                self._visit(start, done, order)
        self.order_is_known = order == list(self._instructions)
        return order

    def _visit(self, start: HloInstruction, done: set[HloInstruction], order: list[HloInstruction]) -> None:
        """Append to `order` what `start` needs and is not done yet, then `start`."""
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

    def called_computations(self) -> list[HloComputation]:
        """Computations called directly from here, each once, in order of the calls."""
        if not self._notable:
            return []
        return list(dict.fromkeys(c for i in self._notable for c in i.called_computations()))

    @property
    def notable(self) -> list[HloInstruction]:
        """Instructions, in order of insertion, whose opcodes may call computations or have side effects."""
        return list(self._notable)

    @property
    def has_side_effect(self) -> bool:
        """Whether running it can be seen other than through its result."""
        return any(has_side_effect(i) for i in self._notable)

    # ---- building

    def unique_name(self, base: str) -> str:
        """`base` when free, else `base` with its number replaced by the next free one."""
        if base not in self._by_name:
            return base
        stem = _SUFFIX.sub("", base)
        n = self._next_suffix.get(stem, 1)
        while (name := f"{stem}.{n}") in self._by_name:
            n += 1
        self._next_suffix[stem] = n + 1
        return name

    def insert(self, instruction: HloInstruction) -> HloInstruction:
        """Take in an instruction made elsewhere (the parser); the name is made unique."""
        instruction.name = self.unique_name(instruction.name)
        instruction.parent = self
        self._instructions[instruction] = None
        if instruction.opcode is Opcode.PARAMETER:
            self._parameters[instruction] = None
        elif instruction.opcode in _NOTABLE:
            self._notable[instruction] = None
        self._by_name[instruction.name] = instruction
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
        """Add an instruction; the shape is inferred, `shape` is needed only where it does not follow.

        Attributes go by their text names, as a mapping or as keywords (`dimensions=(1,)`).
        ShapeError when operands and attributes do not fit.
        """
        attrs = {**(attributes or {}), **more}
        inferred = infer_shape(opcode, [o.shape for o in operands], attrs, shape)
        return self.insert(HloInstruction(name or opcode.text, opcode, inferred, operands, attrs))

    def add_parameter(self, number: int, shape: Shape, name: str | None = None) -> HloInstruction:
        """Add a parameter of that number."""
        base = name or f"param_{number}"
        return self.insert(HloInstruction(base, Opcode.PARAMETER, shape, parameter_number=number))

    def add_constant(self, value: Any, name: str = "constant") -> HloInstruction:
        """A constant from a Literal, an array or a numpy scalar (whose dtype decides the type)."""
        literal = value if isinstance(value, Literal) else Literal.from_array(value)
        return self.insert(HloInstruction(name, Opcode.CONSTANT, literal.shape, literal=literal))

    def clone_instruction(
        self,
        original: HloInstruction,
        operands: Sequence[HloInstruction],
        shape: Shape | None = None,
        name: str | None = None,
    ) -> HloInstruction:
        """A copy of `original` in this computation on other operands; control predecessors are dropped."""
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
        copy.line, copy.sound_with = original.line, original.sound_with
        return self.insert(copy)

    # ---- changing

    def replace_uses(self, old: HloInstruction, new: HloInstruction) -> None:
        """Make every user of `old` (and the root) use `new`; `old` stays, without users."""
        if old is new:
            return
        for user in list(old.users):
            if user is not new:
                user.replace_operands(old, new)
        if self._root is old:
            self.root = new

    def replace(self, old: HloInstruction, new: HloInstruction) -> None:
        """`replace_uses`, then remove `old` if nothing needs it (side effects, parameters stay)."""
        self.replace_uses(old, new)
        if is_removable(old):
            self.remove(old)

    def remove(self, instruction: HloInstruction) -> None:
        """Take out an instruction without users; ValueError when it is still used or is the root.

        What had to run after it now has to run after what it had to run after.
        """
        if instruction.users or self._root is instruction:
            raise ValueError(f"%{instruction.name} is still used")
        if self.may_have_control_edges:
            self._hand_on_control_edges(instruction)
        for o in instruction.operands:
            o.users.pop(instruction, None)
        del self._instructions[instruction]
        self._parameters.pop(instruction, None)
        self._notable.pop(instruction, None)
        del self._by_name[instruction.name]
        instruction.parent = None

    def control_edges_changed(self) -> None:
        """Called when an instruction of this computation got other control predecessors."""
        self.order_is_known, self.may_have_control_edges, self._successors = False, True, None

    def _hand_on_control_edges(self, gone: HloInstruction) -> None:
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
        """Remove what nothing needs, from `start` upwards (default: everywhere); returns how many went."""
        work = list(self._instructions if start is None else start)
        gone = 0
        while work:
            i = work.pop()
            if i.parent is self and i.is_dead and is_removable(i):
                self.remove(i)
                gone += 1
                work.extend(i.operands)
        return gone

    def reorder(self) -> None:
        """Put the instructions themselves into post order."""
        if self.order_is_known:
            return
        self._instructions = dict.fromkeys(self.post_order())
        self._notable = dict.fromkeys(i for i in self._instructions if i in self._notable)
        self.order_is_known = True

    def inline(self, callee: HloComputation, arguments: Sequence[HloInstruction]) -> HloInstruction:
        """Copy the callee's body here with `arguments` for its parameters; returns the copy of its root."""
        return self.inline_with_mapping(callee, arguments)[callee.root]

    def inline_with_mapping(
        self, callee: HloComputation, arguments: Sequence[HloInstruction]
    ) -> dict[HloInstruction, HloInstruction]:
        """`inline`; returns what stands here for each instruction of the callee."""
        mapping: dict[HloInstruction, HloInstruction] = {}
        for i in callee.post_order():
            if i.opcode is Opcode.PARAMETER:
                mapping[i] = arguments[i.parameter_number or 0]
            else:
                mapping[i] = self.clone_instruction(i, [mapping[o] for o in i.operands])
                if i.control_predecessors:
                    mapping[i].set_control_predecessors([mapping[p] for p in i.control_predecessors])
        return mapping

    def clone(self, name: str | None = None) -> HloComputation:
        """A copy that stands alone and calls the same computations; names and order are kept."""
        copy, _ = self.clone_with_mapping(name)
        return copy

    def clone_with_mapping(
        self, name: str | None = None
    ) -> tuple[HloComputation, dict[HloInstruction, HloInstruction]]:
        """`clone`, and which copy stands for which instruction."""
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
            new.line, new.sound_with = i.line, i.sound_with
            new.parent = copy
            mapping[i] = new
        copy._instructions = dict.fromkeys(map(image, self._instructions))
        copy._parameters = dict.fromkeys(map(image, self._parameters))
        copy._notable = dict.fromkeys(map(image, self._notable))
        copy.order_is_known = self.order_is_known
        copy.may_have_control_edges = self.may_have_control_edges
        copy._by_name = {i.name: i for i in copy._instructions}
        copy._next_suffix = dict(self._next_suffix)
        if self._root is not None:
            copy._root = mapping[self._root]
        return copy, mapping


def _number(parameter: HloInstruction) -> int:
    return parameter.parameter_number or 0


def is_removable(instruction: HloInstruction) -> bool:
    """Whether an instruction without users may go: no side effect, here or in what it calls, and no parameter."""
    if instruction.opcode is Opcode.PARAMETER or instruction.users or instruction.is_root:
        return False
    return not has_side_effect(instruction)


def has_side_effect(instruction: HloInstruction) -> bool:
    """Whether running it can be seen other than through its result."""
    if instruction.opcode in SIDE_EFFECT_OPCODES:
        return True
    if not instruction.attributes:
        return False
    if instruction.attr("custom_call_has_side_effect", False):
        return True
    called = instruction.called_computations()
    return bool(called) and _has_effects(called)


def _has_effects(called: tuple[HloComputation, ...]) -> bool:
    """Whether running any of these computations, or what they call, can be seen other than through the result."""
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
