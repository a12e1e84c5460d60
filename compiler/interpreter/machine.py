"""Runs computations: each becomes a plan once, which loops then run again and again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from compiler.errors import HlogymError, InterpreterError, MemoryLimitError
from compiler.interpreter.function_builder import Plan, make_plan
from compiler.interpreter.function_builder import describe as describe
from compiler.interpreter.function_builder import find_evaluator as find_evaluator
from compiler.interpreter.function_builder import literal_value as literal_value
from compiler.interpreter.registry import Array, Evaluator, Value
from compiler.ir.callgraph import CallGraph
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.support.recursion import ENOUGH, deep_recursion

_MISTAKES = (ArithmeticError, TypeError, ValueError, IndexError, KeyError, AttributeError)
"""What numpy and Python raise on values that an op cannot take."""
_SHALLOW = 20
"""Levels of calls that Python's usual limit on recursion leaves room for."""


@dataclass
class Context:
    """What a program may reach besides its arguments.

    Attributes:
        infeed: values that `infeed` takes, first come first served.
        outfeed: values that `outfeed` gave, in order.
        channels: values sent and not yet received, by channel.
        seed: of the generator behind `rng` and `rng-get-and-update-state`, whose numbers are our own, not XLA's.
        iterations: how many iterations all while loops may still do together; None for as many as they like.
        decorate: `(instruction, evaluator) -> evaluator`, applied to every instruction that computes something, in all
            computations: a way to observe or change results.
    """

    infeed: deque[Value] = field(default_factory=deque)
    outfeed: list[Value] = field(default_factory=list)
    channels: dict[int, deque[Value]] = field(default_factory=dict)
    seed: int = 0
    iterations: int | None = None
    decorate: Callable[[HloInstruction, Evaluator], Evaluator] | None = None

    def iterate(self) -> None:
        """Count one iteration of a loop; InterpreterError when none is left."""
        if self.iterations is None:
            return
        if self.iterations <= 0:
            raise InterpreterError("the loops of the program did more iterations than they were allowed")
        self.iterations -= 1


class Machine:
    """One evaluation: the plans made so far, and the context.

    Attributes:
        context: queues and seed.
        state: the counter of `rng-get-and-update-state`.
        liftable: which scalar computations run on whole arrays at once, as far as asked.
        repeatable: which computations draw no random numbers and call nothing foreign, as far as asked.
    """

    def __init__(self, context: Context | None = None) -> None:
        self.context = context or Context()
        self.state = self.context.seed
        self.liftable: dict[HloComputation, bool] = {}
        self.repeatable: dict[HloComputation, bool] = {}
        self._plans: dict[HloComputation, Plan] = {}
        self._depths: dict[HloComputation, int] = {}

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
            plan = self._plans[computation] = make_plan(self, computation)
        try:
            return plan.function(self, args, consumed)
        except HlogymError:
            raise
        except _MISTAKES as e:
            failed = plan.failed(e)
            raise InterpreterError(f"{describe(failed)}: {e}" if failed is not None else str(e)) from e
        except MemoryError as e:
            failed = plan.failed(e)
            where = describe(failed) if failed is not None else f"%{computation.name}"
            raise MemoryLimitError(f"there is not enough memory for {where}: {e}") from e

    def evaluator_of(self, instruction: HloInstruction) -> Evaluator:
        """The evaluator of an instruction, decorated as the context asks; UnsupportedError when there is none."""
        found = find_evaluator(instruction)
        return found if self.context.decorate is None else self.context.decorate(instruction, found)

    def evaluate(self, instruction: HloInstruction, values: list[Value]) -> Value:
        """Result of one instruction on values of its operands."""
        called = instruction.called_computations()
        if called and (calls := max(map(self._calls_below, called))) > _SHALLOW:
            with deep_recursion(ENOUGH + 10 * calls):
                return self._evaluate(instruction, values)
        return self._evaluate(instruction, values)

    def _calls_below(self, computation: HloComputation) -> int:
        """Levels of calls from a computation down."""
        found = self._depths.get(computation)
        if found is None:
            found = self._depths[computation] = CallGraph.of(computation).calls
        return found

    def _evaluate(self, instruction: HloInstruction, values: list[Value]) -> Value:
        try:
            return self.evaluator_of(instruction)(self, instruction, values)
        except HlogymError:
            raise
        except _MISTAKES as e:
            raise InterpreterError(f"{describe(instruction)}: {e}") from e
        except MemoryError as e:
            raise MemoryLimitError(f"there is not enough memory for {describe(instruction)}: {e}") from e


def contiguous(values: Iterable[Array]) -> list[Array]:
    """Fresh row-major copies, which share no memory with what they came from."""
    return [np.array(v, order="C") for v in values]
