"""Changes of one sequence that can be taken back, so that undoing a fusion takes no longer than making it.

Every change of a module under fusion goes through `Edits`. Fused computations are never changed in place: a fusion that
grows gets a new one. So an action of any kind is undone by the same few inverse operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, Shape

_Inverse: TypeAlias = tuple[Callable[..., object], tuple[Any, ...]]


class Edits:
    """Changes of a sequence and of the fused computations that it calls, in order.

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
        suffix = self.sequence.next_suffix(base)
        made = self.sequence.add(opcode, operands, name=name, attributes=attributes)
        self._inverses.append((self._take_back, (made, base, suffix)))
        return made

    def add_clone(self, original: HloInstruction, operands: Sequence[HloInstruction], name: str) -> HloInstruction:
        """Add a copy of an instruction, which may be one of a fused computation."""
        suffix = self.sequence.next_suffix(name)
        made = self.sequence.clone_instruction(original, operands, name=name)
        self._inverses.append((self._take_back, (made, name, suffix)))
        return made

    def _take_back(self, made: HloInstruction, base: str, suffix: int | None) -> None:
        self.sequence.remove(made)
        self.sequence.set_next_suffix(base, suffix)

    def remove(self, instruction: HloInstruction) -> None:
        """Remove an instruction without users."""
        place = self.sequence.place_of(instruction)
        self.sequence.remove(instruction)
        self._inverses.append((self.sequence.restore, (instruction, place)))

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
        self._inverses.append((setattr, (instruction, "attributes", instruction.attributes)))
        instruction.attributes = {**instruction.attributes, **changed}

    def set_shape(self, instruction: HloInstruction, shape: Shape) -> None:
        """Set the shape of an instruction."""
        self._inverses.append((setattr, (instruction, "shape", instruction.shape)))
        instruction.shape = shape

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
