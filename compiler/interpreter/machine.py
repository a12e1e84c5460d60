"""Runs computations; each becomes a Python function when it is first called."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from compiler.errors import HlogymError, InterpreterError, MemoryLimitError
from compiler.interpreter.function_builder import GeneratedFunction, build_function
from compiler.interpreter.function_builder import describe as describe
from compiler.interpreter.function_builder import find_evaluator as find_evaluator
from compiler.interpreter.function_builder import literal_value as literal_value
from compiler.interpreter.registry import Array, Evaluator, Value
from compiler.ir.callgraph import CallGraph
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.support.recursion import ENOUGH, deep_recursion

_MISTAKES = (ArithmeticError, TypeError, ValueError, IndexError, KeyError, AttributeError)
"""Exceptions of numpy and Python for values that an op does not accept."""
_SHALLOW = 20
"""Levels of calls that fit into Python's default recursion limit."""


@dataclass
class Context:
    """State that a program can access besides its arguments.

    Attributes:
        infeed: values that `infeed` consumes, in order.
        outfeed: values that `outfeed` produced, in order.
        channels: values that were sent and not yet received, by channel.
        seed: seeds `rng` and `rng-get-and-update-state`, whose numbers differ from XLA's.
        iterations: how many iterations all while loops together may still run; None for no limit.
        decorate: `(instruction, evaluator) -> evaluator`, applied to all instructions that have an evaluator, in all
            computations, to observe or change results.
    """

    infeed: deque[Value] = field(default_factory=deque)
    outfeed: list[Value] = field(default_factory=list)
    channels: dict[int, deque[Value]] = field(default_factory=dict)
    seed: int = 0
    iterations: int | None = None
    decorate: Callable[[HloInstruction, Evaluator], Evaluator] | None = None

    def iterate(self) -> None:
        """Count one iteration of a loop; raise InterpreterError if none is left."""
        if self.iterations is None:
            return
        if self.iterations <= 0:
            raise InterpreterError("the loops of the program did more iterations than they were allowed")
        self.iterations -= 1


class Machine:
    """One evaluation: the generated functions so far, and the context.

    Attributes:
        context: queues, seed, limits.
        state: the counter of `rng-get-and-update-state`.
        liftable: caches which scalar computations can run on whole arrays.
        deterministic: caches which computations use no random numbers and no custom calls.
    """

    def __init__(self, context: Context | None = None) -> None:
        self.context = context or Context()
        self.state = self.context.seed
        self.liftable: dict[HloComputation, bool] = {}
        self.deterministic: dict[HloComputation, bool] = {}
        self._functions: dict[HloComputation, GeneratedFunction] = {}
        self._depths: dict[HloComputation, int] = {}

    def renew(self) -> None:
        """Set the state to that of a new machine; the generated functions and what is known of computations stay."""
        self.context = Context(seed=self.context.seed, decorate=self.context.decorate)
        self.state = self.context.seed
        self.__dict__.pop("rng", None)

    @cached_property
    def rng(self) -> np.random.Generator:
        """The random generator of `rng`, seeded by the context."""
        return np.random.default_rng(self.context.seed)

    def run(self, computation: HloComputation, args: Sequence[Value], consumed: list[Value] | None = None) -> Value:
        """Run a computation on arguments, which are not checked.

        `consumed` is a list that holds the arguments. It is cleared at the start, so that dead arguments may be
        overwritten.
        """
        generated = self._functions.get(computation)
        if generated is None:
            generated = self._functions[computation] = build_function(self, computation)
        try:
            return generated.function(self, args, consumed)
        except HlogymError:
            raise
        except _MISTAKES as e:
            failed = generated.failed_instruction(e)
            raise InterpreterError(f"{describe(failed)}: {e}" if failed is not None else str(e)) from e
        except MemoryError as e:
            failed = generated.failed_instruction(e)
            where = describe(failed) if failed is not None else f"%{computation.name}"
            raise MemoryLimitError(f"there is not enough memory for {where}: {e}") from e

    def evaluator_of(self, instruction: HloInstruction) -> Evaluator:
        """Return the evaluator of an instruction, decorated by the context; raise UnsupportedError if there is none."""
        found = find_evaluator(instruction)
        return found if self.context.decorate is None else self.context.decorate(instruction, found)

    def evaluate(self, instruction: HloInstruction, values: list[Value]) -> Value:
        """Evaluate an instruction on values of its operands."""
        called = instruction.called_computations()
        if called and (calls := max(map(self._calls_below, called))) > _SHALLOW:
            with deep_recursion(ENOUGH + 10 * calls):
                return self._evaluate(instruction, values)
        return self._evaluate(instruction, values)

    def _calls_below(self, computation: HloComputation) -> int:
        """Return the depth of the call graph below a computation."""
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
    """Return row-major copies."""
    return [np.array(v, order="C") for v in values]
