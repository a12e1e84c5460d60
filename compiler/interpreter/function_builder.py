"""Builds a Python function for each computation, which is then called as often as loops require.

Each line of the generated source is one instruction, so the line number of a traceback identifies the instruction that
failed. What depends on constants only is evaluated while the function is built, except in the entry, which runs once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import UnsupportedError
from compiler.interpreter.registry import ARRAY_FUNCTIONS, EVALUATORS, SPECIALISERS, Evaluator, Value
from compiler.ir.callgraph import callees_first
from compiler.ir.computation import HloComputation, has_side_effect, is_removable
from compiler.ir.instruction import HloInstruction
from compiler.ir.literal import Literal
from compiler.ir.opcodes import Opcode

if TYPE_CHECKING:
    from compiler.interpreter.machine import Machine

_SAME_VALUE = frozenset({Opcode.COPY, Opcode.ADD_DEPENDENCY, Opcode.OPTIMIZATION_BARRIER, Opcode.DOMAIN})
_NONDETERMINISTIC = frozenset({Opcode.RNG, Opcode.RNG_GET_AND_UPDATE_STATE, Opcode.CUSTOM_CALL})


@dataclass(frozen=True, slots=True)
class GeneratedFunction:
    """The Python function generated for a computation.

    Attributes:
        function: `(machine, arguments, consumed) -> value`; it clears `consumed` once it has read the arguments.
        lines: the instruction on each line of the generated source, or None.
    """

    function: Callable[[Machine, Sequence[Value], list[Value] | None], Value]
    lines: tuple[HloInstruction | None, ...]

    def failed_instruction(self, error: BaseException) -> HloInstruction | None:
        """Return the instruction that raised `error`, which the caller of `function` caught."""
        inner = error.__traceback__.tb_next if error.__traceback__ is not None else None
        return self.lines[inner.tb_lineno - 1] if inner is not None and inner.tb_lineno <= len(self.lines) else None


def describe(instruction: HloInstruction) -> str:
    """Describe an instruction in an error message: name, opcode, shape, computation, and line number if parsed."""
    where = f" in computation %{instruction.parent.name}" if instruction.parent is not None else ""
    where += f", line {instruction.line}" if instruction.line else ""
    return f"%{instruction.name} ({instruction.opcode.text} of shape {instruction.shape}){where}"


def find_evaluator(instruction: HloInstruction) -> Evaluator:
    """Return the evaluator of an instruction's opcode; raise UnsupportedError if there is none."""
    found = EVALUATORS.get(instruction.opcode)
    if found is None:
        raise UnsupportedError(f"the interpreter does not evaluate {describe(instruction)}")
    return found


def literal_value(literal: Literal) -> Value:
    """Return the value of a literal."""
    if literal.array is not None:
        return literal.array
    return tuple(literal_value(e) for e in literal.elements)


def build_function(machine: Machine, computation: HloComputation) -> GeneratedFunction:
    """Generate the function of a computation: what the root needs, and what has side effects."""
    order = _early_elements_first(_needed(computation))
    # Fold constants: an instruction whose operands are all known is evaluated now instead of becoming a line.
    constants: dict[HloInstruction, Value] = {}
    steps: list[HloInstruction] = []
    module = computation.parent
    fold = module is None or module.entry is not computation
    for i in order:
        if i.opcode is Opcode.CONSTANT:
            constants[i] = literal_value(i.value)
        elif fold and _is_constant(machine, i, constants):
            constants[i] = machine.evaluate(i, [constants[o] for o in i.operands])
        else:
            steps.append(i)
    return _FunctionWriter(machine, constants, steps, computation.root).build()


def _needed(computation: HloComputation) -> list[HloInstruction]:
    """Return the live instructions in post order: those the root needs, side effects, and all parameters."""
    order = computation.post_order()
    if not any(is_removable(i) for i in order):
        return order
    needed = {i for i in order if i.is_root or i.opcode is Opcode.PARAMETER or has_side_effect(i)}
    for i in reversed(order):
        if i in needed:
            needed.update(i.operands)
    return [i for i in order if i in needed]


def _early_elements_first(order: Iterable[HloInstruction]) -> list[HloInstruction]:
    """Move elements of the parameters to the front, so that their tuples are released at once."""
    early: dict[HloInstruction, None] = {}
    late: list[HloInstruction] = []
    for i in order:
        of_parameter = i.opcode is Opcode.GET_TUPLE_ELEMENT and i.operands[0] in early
        if i.opcode is Opcode.PARAMETER or of_parameter:
            early[i] = None
        else:
            late.append(i)
    return [*early, *late]


def _is_constant(machine: Machine, i: HloInstruction, constants: dict[HloInstruction, Value]) -> bool:
    """Check whether an instruction depends on constants only."""
    return (
        i.opcode is not Opcode.PARAMETER and all(o in constants for o in i.operands) and _is_deterministic(machine, i)
    )


def _is_deterministic(machine: Machine, instruction: HloInstruction) -> bool:
    """Check whether an instruction, and all that it calls, returns the same result each time."""
    if instruction.opcode in _NONDETERMINISTIC or has_side_effect(instruction):
        return False
    known = machine.deterministic
    new = [c for c in callees_first(instruction.called_computations()) if c not in known]
    for c in new:
        known[c] = all(i.opcode not in _NONDETERMINISTIC for i in c.instructions) and all(
            known[f] for f in c.called_computations()
        )
    return all(known[c] for c in instruction.called_computations())


class _FunctionWriter:
    """Writes the source of one function: local variable `vK` for step K, `cK` for constants, one line per step."""

    def __init__(
        self,
        machine: Machine,
        constants: dict[HloInstruction, Value],
        steps: list[HloInstruction],
        root: HloInstruction,
    ) -> None:
        self.machine, self.steps, self.root = machine, steps, root
        self.scope: dict[str, Any] = {"asarray": np.asarray}
        self.names = {i: f"v{k}" for k, i in enumerate(steps)}
        last_use: dict[HloInstruction, HloInstruction] = {}
        for i in steps:
            for o in i.operands:
                if o in self.names:
                    last_use[o] = i
        # A variable is set to None at its last use, so that its memory can be reused, also for results in place.
        self.dead: dict[HloInstruction, list[str]] = {}
        for o, user in last_use.items():
            if o is not root:
                self.dead.setdefault(user, []).append(self.names[o])
        used = [root, *(o for i in steps for o in i.operands)]
        for k, i in enumerate(dict.fromkeys(i for i in used if i in constants)):
            self.names[i] = f"c{k}"
            self.scope[f"c{k}"] = constants[i]

    def build(self) -> GeneratedFunction:
        parameters = [i for i in self.steps if i.opcode is Opcode.PARAMETER]
        others = [i for i in self.steps if i.opcode is not Opcode.PARAMETER]
        lines: list[tuple[str, HloInstruction | None]] = [("def run(machine, args, consumed):", None)]
        lines += [(f"{self.names[i]} = args[{i.parameter_number or 0}]", i) for i in parameters]
        lines += [("if consumed is not None: consumed.clear()", None)]
        lines += [(self._line(i), i) for i in others]
        lines += [(f"return {self.names[self.root]}", None)]
        source = "\n ".join(text for text, _ in lines)
        exec(compile(source, "<interpreter>", "exec"), self.scope)  # noqa: S102  # made of generated names and numbers only
        return GeneratedFunction(self.scope["run"], tuple(i for _, i in lines))

    def _line(self, i: HloInstruction) -> str:
        name, operands = self.names[i], ", ".join(self.names[o] for o in i.operands)
        dead = "".join(f"{v} = " for v in self.dead.get(i, ()))
        release = f"; {dead}None" if dead else ""
        if i.opcode is Opcode.GET_TUPLE_ELEMENT:
            return f"{name} = {operands}[{int(i.attr('index'))}]{release}"
        if i.opcode is Opcode.TUPLE:
            return f"{name} = ({operands}{',' if operands else ''}){release}"
        if i.opcode in _SAME_VALUE and i.shape.element_type is i.operands[0].shape.element_type:
            return f"{name} = {self.names[i.operands[0]]}{release}"
        # A decorated evaluator must be called; the shortcuts below would bypass it.
        function = _array_function(i) if self.machine.context.decorate is None else None
        if function is not None:
            self.scope[f"f{name}"] = function
            return f"{name} = asarray(f{name}({operands})){release}"
        self.scope[f"f{name}"], self.scope[f"i{name}"] = self.machine.evaluator_of(i), i
        # The evaluator owns the list of operands: it may take values out of it and overwrite their memory.
        return f"o = [{operands}]{release}; {name} = f{name}(machine, i{name}, o); o = None"


def _array_function(instruction: HloInstruction) -> Callable[..., Any] | None:
    """Return a function of the operand arrays only, specialized to the instruction's types if possible."""
    specialise = SPECIALISERS.get(instruction.opcode)
    narrow = specialise(instruction) if specialise is not None else None
    if narrow is not None:
        return narrow
    general = ARRAY_FUNCTIONS.get(instruction.opcode)
    return partial(general, instruction) if general is not None else None
