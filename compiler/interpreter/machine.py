"""Runs computations: each becomes a list of steps once, which loops then run again and again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from compiler.errors import HlogymError, InterpreterError, UnsupportedError
from compiler.interpreter.registry import EVALUATORS, TOKEN, Array, Evaluator, Value
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.literal import Literal
from compiler.ir.opcodes import Opcode


@dataclass
class Context:
    """What a program may reach besides its arguments.

    Attributes:
        infeed: values that `infeed` takes, first come first served.
        outfeed: values that `outfeed` gave, in order.
        channels: values sent and not yet received, by channel.
        seed: of the generator behind `rng` and `rng-get-and-update-state`, whose numbers are our own, not XLA's.
    """

    infeed: deque[Value] = field(default_factory=deque)
    outfeed: list[Value] = field(default_factory=list)
    channels: dict[int, deque[Value]] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction: where its operands lie, where its result goes, and which values nobody needs afterwards."""

    evaluate: Evaluator
    instruction: HloInstruction
    operands: tuple[int, ...]
    slot: int
    dead: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A computation in post order. `initial` holds the constants at their slots."""

    initial: list[Value]
    parameters: tuple[tuple[int, int], ...]
    steps: tuple[Step, ...]
    root: int


class Machine:
    """One evaluation: the plans made so far, and the context.

    Attributes:
        context: queues and seed.
        state: the counter of `rng-get-and-update-state`.
        liftable: which scalar computations run on whole arrays at once, as far as asked.
    """

    def __init__(self, context: Context | None = None) -> None:
        self.context = context or Context()
        self.state = self.context.seed
        self.liftable: dict[HloComputation, bool] = {}
        self._plans: dict[HloComputation, Plan] = {}

    @cached_property
    def rng(self) -> np.random.Generator:
        """The generator of `rng`, seeded by the context."""
        return np.random.default_rng(self.context.seed)

    def run(self, computation: HloComputation, args: Sequence[Value], consumed: list[Value] | None = None) -> Value:
        """Result of a computation; the arguments are taken as they are.

        `consumed`, a list that holds the arguments, is emptied at the start: values nobody holds may be written over.
        """
        plan = self._plans.get(computation)
        if plan is None:
            plan = self._plans[computation] = make_plan(computation)
        values: list[Value] = plan.initial.copy()
        for slot, number in plan.parameters:
            values[slot] = args[number]
        if consumed is not None:
            consumed.clear()
        for step in plan.steps:
            try:
                operands = [values[k] for k in step.operands]
                for k in step.dead:
                    values[k] = TOKEN
                values[step.slot] = step.evaluate(self, step.instruction, operands)
            except HlogymError:
                raise
            except (ArithmeticError, TypeError, ValueError, IndexError, KeyError, AttributeError) as e:
                raise InterpreterError(f"{describe(step.instruction)}: {e}") from e
        return values[plan.root]


def describe(instruction: HloInstruction) -> str:
    """An instruction for an error: name, opcode, shape, and where it stands (the line, if it was read from a text)."""
    where = f" in computation %{instruction.parent.name}" if instruction.parent is not None else ""
    where += f", line {instruction.line}" if instruction.line else ""
    return f"%{instruction.name} ({instruction.opcode.text} of shape {instruction.shape}){where}"


def find_evaluator(instruction: HloInstruction) -> Evaluator:
    """The evaluator of an instruction's opcode; UnsupportedError when there is none."""
    found = EVALUATORS.get(instruction.opcode)
    if found is None:
        raise UnsupportedError(f"the interpreter does not evaluate {describe(instruction)}")
    return found


def literal_value(literal: Literal) -> Value:
    """The value of a constant."""
    if literal.array is not None:
        return literal.array
    return tuple(literal_value(e) for e in literal.elements)


def make_plan(computation: HloComputation) -> Plan:
    """Steps of what the root needs, and of what has side effects."""
    order = computation.post_order()
    slots = {instruction: k for k, instruction in enumerate(order)}
    last_use: dict[HloInstruction, HloInstruction] = {}
    for instruction in order:
        last_use.update(dict.fromkeys(instruction.operands, instruction))
    ends: dict[HloInstruction, list[int]] = {}
    for operand, user in last_use.items():
        if operand.opcode is not Opcode.CONSTANT and operand is not computation.root:
            ends.setdefault(user, []).append(slots[operand])
    initial: list[Value] = [TOKEN] * len(order)
    parameters: list[tuple[int, int]] = []
    steps: list[Step] = []
    for slot, i in enumerate(order):
        if i.opcode is Opcode.CONSTANT:
            initial[slot] = literal_value(i.value)
        elif i.opcode is Opcode.PARAMETER:
            parameters.append((slot, i.parameter_number or 0))
        else:
            operands = tuple(slots[o] for o in i.operands)
            steps.append(Step(find_evaluator(i), i, operands, slot, tuple(ends.get(i, ()))))
    return Plan(initial, tuple(parameters), tuple(steps), slots[computation.root])


def contiguous(values: Iterable[Array]) -> list[Array]:
    """Fresh row-major copies, which share no memory with what they came from."""
    return [np.array(v, order="C") for v in values]
