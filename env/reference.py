"""The outputs that a program should have, and how far rounding may move them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import HlogymError
from compiler.interpreter import Context, evaluate
from compiler.ir import HloInstruction, HloModule, Opcode
from env.comparison import Spread, difference, parts
from env.rounding import RandomRounding, is_float
from env.suites import Tolerance

__all__ = ["Reference", "drawn_reference", "fresh_outputs", "on_host", "unchecked_outputs"]

Array = npt.NDArray[Any]
Run = Callable[[Sequence[Any], Context], Sequence[Array]]

ANY_ITERATIONS = 1 << 62
SPARE_ITERATIONS = 1000
OTHER_INPUTS = 3
"""Number of other inputs on which outputs that are zero are checked again."""
ADVICE = "give input specs (`inputs` in the suite's manifest.json) that give other numbers"


class Reference:
    """Outputs of a program on given inputs, computed by the interpreter.

    How far rounding may move them is estimated when outputs that do not match closely are checked, and then kept.

    Args:
        run: evaluates the program on inputs in a context.
        inputs: the inputs.
        iterations: limit of loop iterations; a program that exceeds it raises InterpreterError.

    Attributes:
        inputs: as given.
        others: other inputs, if known.
        outputs: the interpreter's outputs.
        unchecked: why these outputs do not distinguish right from wrong; None if they do, or if it is not known.
    """

    def __init__(self, run: Run, inputs: Sequence[Any], iterations: int = ANY_ITERATIONS) -> None:
        context = Context(iterations=iterations)
        self.inputs = list(inputs)
        self.outputs = [np.asarray(o) for o in run(self.inputs, context)]
        self.others: list[Any] = []
        self.unchecked: str | None = None
        self._run = run
        # A loop that runs until nothing changes may never end when rounding is random.
        self._iterations = 2 * (iterations - (context.iterations or 0)) + SPARE_ITERATIONS
        self._runs = 0
        self._deviations: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]] = []
        self._spread: list[Spread] = []

    @staticmethod
    def of(module: HloModule, inputs: Sequence[Any], iterations: int = ANY_ITERATIONS) -> Reference:
        """Return the reference of a module's entry; the module may be changed afterwards."""
        kept = module.clone()
        return Reference(lambda arguments, context: evaluate(kept, arguments, context), inputs, iterations)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays, including those of the spread."""
        given = sum(np.asarray(a).nbytes for a in [*self.inputs, *self.others])
        # Two numbers and a boolean per element, and the arrays of `Spread`.
        return given + sum(o.nbytes + 32 * parts(o).size for o in self.outputs)

    def difference(self, got: Sequence[Array], tolerance: Tolerance | None = None) -> str | None:
        """Return a description of how `got` differs beyond rounding, or None; see `env.comparison`."""
        return difference(got, self.outputs, tolerance, self.spread)

    def spread(self, runs: int) -> Sequence[Spread]:
        """Return how far rounding moves each output, estimated from at least `runs` evaluations."""
        if not self._deviations:
            shapes = [parts(o).shape for o in self.outputs]
            self._deviations = [(np.zeros(s), np.zeros(s, np.bool_)) for s in shapes]
        if self._runs < runs:
            while self._runs < runs:
                self._evaluate_rounded()
            self._spread = [Spread.of(*d, o) for d, o in zip(self._deviations, self.outputs, strict=True)]
        return self._spread

    def _evaluate_rounded(self) -> None:
        """Evaluate once more with random rounding, and update the deviations."""
        rounding = RandomRounding(self._runs)
        self._runs += 1
        try:
            found = self._run(self.inputs, Context(iterations=self._iterations, decorate=rounding.decorate))
        except HlogymError:  # with this rounding, the program has no results
            return
        for (deviation, unsettled), moved, output in zip(self._deviations, found, self.outputs, strict=True):
            m, o = parts(np.asarray(moved)), parts(output)
            finite = np.isfinite(m) & np.isfinite(o)
            with np.errstate(invalid="ignore"):
                np.maximum(deviation, np.where(finite, np.abs(m - o), 0.0), out=deviation)
            np.logical_or(unsettled, ~finite & ~((m == o) | (np.isnan(m) & np.isnan(o))), out=unsettled)


def on_host(array: Any) -> Array:
    """Return an output as a numpy array; CuPy arrays are copied from the GPU."""
    return np.asarray(array.get() if hasattr(array, "get") else array)


def fresh_outputs(executable: Callable[..., Sequence[Any]], reference: Reference) -> list[Array]:
    """Run a compiled program on a reference's inputs, and return outputs that cannot be left from an earlier run.

    A kernel that does not write all of its outputs returns what was in memory before, which is right if an earlier run
    wrote it. So the program first runs on other inputs, and its outputs are overwritten: twice, because an executable
    may keep its last results until it has allocated the next.
    """
    for _ in range(2):
        _overwrite(executable(*_views(reference.others or reference.inputs)))
    return [on_host(o) for o in executable(*_views(reference.inputs))]


def _views(arrays: Sequence[Array]) -> list[Array]:
    """Return views of arrays: a program that takes over donated arguments copies those that do not own their memory."""
    return [np.asarray(a)[...] for a in arrays]


def _overwrite(arrays: Sequence[Any]) -> None:
    # A separate function, so that no variable keeps the memory, which is then the first to be reused.
    for array in arrays:
        if not (isinstance(array, np.ndarray) and not array.flags.writeable):  # XLA keeps its memory
            array.reshape(-1).view("u1")[...] = 0xA5


# ---- references that do not distinguish right from wrong


def drawn_reference(module: HloModule, draw: Callable[[int], Sequence[Array]]) -> Reference:
    """Return the reference of a module on random inputs, with `unchecked` set.

    Args:
        module: the program.
        draw: returns inputs by number; the first are the reference's inputs, the second its `others`.
    """
    reference = Reference.of(module, draw(0))
    reference.others = list(draw(1))
    nothing = unchecked_outputs(module, reference.outputs)
    if nothing:
        reference.unchecked = f"{nothing[0]}, so that nothing can be checked; {ADVICE}"
    elif _always_zero(module, draw, reference.outputs):
        reference.unchecked = f"the outputs are zero whatever is drawn, so that nothing can be checked; {ADVICE}"
    return reference


def unchecked_outputs(module: HloModule, outputs: Sequence[Array]) -> list[str]:
    """Return which outputs depend on the arguments and have no finite element, so that comparing them shows nothing."""
    found = []
    for i, (output, depends) in enumerate(zip(outputs, _depends_on_arguments(module), strict=True)):
        if depends and output.size and is_float(output.dtype) and not np.isfinite(parts(output)).any():
            what = "NaN" if np.isnan(parts(output)).any() else "infinite"
            found.append(f"output {i} is {what} everywhere")
    return found


def _always_zero(module: HloModule, draw: Callable[[int], Sequence[Array]], outputs: Sequence[Array]) -> bool:
    """Check whether all outputs are zero on all inputs, so that a kernel that writes nothing would pass."""
    live = [i for i, depends in enumerate(_depends_on_arguments(module)) if depends and outputs[i].size]
    if not live or any(parts(outputs[i]).any() for i in live):
        return False
    others = (evaluate(module, draw(number)) for number in range(1, OTHER_INPUTS + 1))
    return not any(parts(found[i]).any() for found in others for i in live)


def _depends_on_arguments(module: HloModule) -> list[bool]:
    """Return for each output array whether it is computed from arguments that have elements."""
    reached: set[HloInstruction] = set()
    for i in module.entry.post_order():
        is_argument = i.opcode is Opcode.PARAMETER and any(s.num_elements for s in i.shape.leaves() if s.is_array)
        if is_argument or not reached.isdisjoint(i.operands):
            reached.add(i)
    return list(_by_leaf(module.entry.root, reached))


def _by_leaf(instruction: HloInstruction, reached: set[HloInstruction]) -> Iterator[bool]:
    if instruction.opcode is Opcode.TUPLE:
        for operand in instruction.operands:
            yield from _by_leaf(operand, reached)
        return
    yield from (instruction in reached for s in instruction.shape.leaves() if s.is_array)
