"""Changes of one sequence that can be taken back, so that undoing a fusion takes no longer than making it.

Every change of a module under fusion goes through `Edits`. A fused computation that grows is changed by `Edits` of its
own, which are part of those of its sequence; a new one takes the place of the former. So an action of any
kind is undone by the same few inverse operations, and takes no longer than what it adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, Shape
from compiler.ir.computation import is_removable

_Inverse: TypeAlias = tuple[Callable[..., object], tuple[Any, ...]]


class Edits:
    """Changes of a sequence and of the fused computations that it calls, or of one fused computation, in order.

    Attributes:
        sequence: the computation that is changed.
    """

    def __init__(self, sequence: HloComputation) -> None:
        self.sequence = sequence
        self._inverses: list[_Inverse] = []

    def undo(self) -> None:
        """Take back every change, the last one first; names come out as before when the changes are made again."""
        while self._inverses:
            function, arguments = self._inverses.pop()
            function(*arguments)

    def include(self, edits: Edits) -> None:
        """Take back the changes of a fused computation too, which were made since the last change here."""
        self._inverses.append((edits.undo, ()))

    def on_undo(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function when what was done until now is taken back."""
        self._inverses.append((function, arguments))

    # ---- instructions

    def add(
        self,
        opcode: Opcode,
        operands: Sequence[HloInstruction],
        name: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> HloInstruction:
        """Add an instruction with inferred shape."""
        base = name or opcode.text
        naming = self._naming(base)
        return self._added(self.sequence.add(opcode, operands, name=name, attributes=attributes), naming)

    def add_clone(self, original: HloInstruction, operands: Sequence[HloInstruction], name: str) -> HloInstruction:
        """Add a copy of an instruction, which may be one of a fused computation."""
        naming = self._naming(name)
        return self._added(self.sequence.clone_instruction(original, operands, name=name), naming)

    def add_parameter(self, number: int, shape: Shape, name: str) -> HloInstruction:
        """Add a parameter."""
        naming = self._naming(name)
        return self._added(self.sequence.add_parameter(number, shape, name), naming)

    def set_parameter_number(self, parameter: HloInstruction, number: int) -> None:
        """Give a parameter another number."""
        if parameter.parameter_number != number:
            self._inverses.append((parameter.set_parameter_number, (parameter.parameter_number,)))
            parameter.set_parameter_number(number)

    def _naming(self, base: str) -> tuple[str, int | None] | None:
        """Return what an instruction named like this changes for later names; None if the name is free."""
        return None if self.sequence.find(base) is None else (base, self.sequence.next_suffix(base))

    def _added(self, made: HloInstruction, naming: tuple[str, int | None] | None) -> HloInstruction:
        if naming is not None:
            self._inverses.append((self.sequence.set_next_suffix, naming))
        self._inverses.append((self.sequence.remove, (made,)))
        return made

    def remove(self, instruction: HloInstruction) -> None:
        """Remove an instruction without users."""
        place = self.sequence.place_of(instruction)
        self.sequence.remove(instruction)
        self._inverses.append((self.sequence.restore, (instruction, place)))

    def remove_dead(self, start: Iterable[HloInstruction]) -> int:
        """Remove those of some instructions that nothing needs, then what only they needed; return how many."""
        work, gone = list(start), 0
        while work:
            i = work.pop()
            if i.parent is self.sequence and is_removable(i):
                self.remove(i)
                gone += 1
                work.extend(i.operands)
        return gone

    def set_operands(self, instruction: HloInstruction, operands: Sequence[HloInstruction]) -> None:
        """Replace all operands."""
        self._inverses.append((instruction.set_operands, (instruction.operands,)))
        instruction.set_operands(operands)

    def replace_operands(self, user: HloInstruction, old: HloInstruction, new: HloInstruction) -> None:
        """Replace every use of `old` among the operands of `user` by `new`."""
        if user in new.users:
            self._inverses.append((user.set_operands, (user.operands,)))
        else:
            self._inverses.append((user.replace_operands, (new, old)))
        user.replace_operands(old, new)

    def replace_uses(self, old: HloInstruction, new: HloInstruction) -> None:
        """Replace every use of `old` by `new`, also as the root."""
        for user in list(old.users):
            if user is not new:
                self.replace_operands(user, old, new)
        if old.is_root:
            self.set_root(new)

    def set_root(self, new: HloInstruction) -> None:
        """Make an instruction the root."""
        self._inverses.append((setattr, (self.sequence, "root", self.sequence.root)))
        self.sequence.root = new

    def set_attributes(self, instruction: HloInstruction, **changed: Any) -> None:
        """Set attributes; the others stay."""
        self._inverses.append((instruction.set_attributes, (instruction.attributes,)))
        instruction.set_attributes({**instruction.attributes, **changed})

    def set_shape(self, instruction: HloInstruction, shape: Shape) -> None:
        """Set the shape of an instruction."""
        self._inverses.append((instruction.set_shape, (instruction.shape,)))
        instruction.set_shape(shape)

    # ---- fused computations

    def add_computation(self, body: HloComputation) -> HloComputation:
        """Add a computation to the module; its name is made unique."""
        module, base = self._module(), body.name
        number = module.next_number(base)
        module.add(body)
        self._inverses.append((module.take_back, (body, base, number)))
        return body

    def remove_computation(self, body: HloComputation) -> None:
        """Remove a computation that nothing calls."""
        module = self._module()
        module.remove(body)
        self._inverses.append((module.add, (body,)))

    def exchange_computation(self, old: HloComputation, new: HloComputation) -> None:
        """Put `new` in the place of `old`, whose name it takes."""
        module = self._module()
        module.exchange(old, new)
        self._inverses.append((module.exchange, (new, old)))

    def _module(self) -> HloModule:
        module = self.sequence.parent
        if module is None:
            raise ValueError(f"computation %{self.sequence.name} is in no module")
        return module
