"""The outputs a program should have, with what is needed to judge those of a compiled one."""

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
"""How many other inputs show whether outputs are zero by chance."""
ADVICE = "give input specs (`inputs` in the suite's manifest.json) that give other numbers"


class Reference:
    """Outputs of a program on given inputs, by the interpreter.

    How far rounding may move them is estimated when outputs are judged that do not match closely, and then kept.

    Args:
        run: evaluates the program on inputs in a context.
        inputs: what to evaluate it on.
        iterations: how many iterations its loops may do; with more, this raises InterpreterError.

    Attributes:
        inputs: as given.
        others: other inputs, where they are known.
        outputs: the interpreter's.
        unchecked: why they do not tell right outputs from wrong ones, where that is known.
    """

    def __init__(self, run: Run, inputs: Sequence[Any], iterations: int = ANY_ITERATIONS) -> None:
        context = Context(iterations=iterations)
        self.inputs = list(inputs)
        self.outputs = [np.asarray(o) for o in run(self.inputs, context)]
        self.others: list[Any] = []
        self.unchecked: str | None = None
        self._run = run
        # A loop that goes on until nothing changes may never end when rounding is random.
        self._iterations = 2 * (iterations - (context.iterations or 0)) + SPARE_ITERATIONS
        self._runs = 0
        self._deviations: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]] = []
        self._spread: list[Spread] = []

    @staticmethod
    def of(module: HloModule, inputs: Sequence[Any], iterations: int = ANY_ITERATIONS) -> Reference:
        """The reference of a module's entry; the module may be changed afterwards."""
        kept = module.clone()
        return Reference(lambda arguments, context: evaluate(kept, arguments, context), inputs, iterations)

    @property
    def nbytes(self) -> int:
        """Memory of its arrays, those of the spread included."""
        given = sum(np.asarray(a).nbytes for a in [*self.inputs, *self.others])
        # Two numbers and a truth value for each element, and what `Spread` makes of them.
        return given + sum(o.nbytes + 32 * parts(o).size for o in self.outputs)

    def difference(self, got: Sequence[Array], tolerance: Tolerance | None = None) -> str | None:
        """What is wrong with `got` beyond what rounding explains, or None; see `env.comparison`."""
        return difference(got, self.outputs, tolerance, self.spread)

    def spread(self, runs: int) -> Sequence[Spread]:
        """How far rounding moves each output, in at least so many evaluations."""
        if not self._deviations:
            shapes = [parts(o).shape for o in self.outputs]
            self._deviations = [(np.zeros(s), np.zeros(s, np.bool_)) for s in shapes]
        if self._runs < runs:
            while self._runs < runs:
                self._evaluate_rounded()
            self._spread = [Spread.of(*d, o) for d, o in zip(self._deviations, self.outputs, strict=True)]
        return self._spread

    def _evaluate_rounded(self) -> None:
        """Take one more evaluation into account."""
        rounding = RandomRounding(self._runs)
        self._runs += 1
        try:
            found = self._run(self.inputs, Context(iterations=self._iterations, decorate=rounding.decorate))
        except HlogymError:  # rounded so, the program has no results
            return
        for (deviation, unsettled), moved, output in zip(self._deviations, found, self.outputs, strict=True):
            m, o = parts(np.asarray(moved)), parts(output)
            finite = np.isfinite(m) & np.isfinite(o)
            with np.errstate(invalid="ignore"):
                np.maximum(deviation, np.where(finite, np.abs(m - o), 0.0), out=deviation)
            np.logical_or(unsettled, ~finite & ~((m == o) | (np.isnan(m) & np.isnan(o))), out=unsettled)


def on_host(array: Any) -> Array:
    """An output as a numpy array; CuPy's are copied from the GPU."""
    return np.asarray(array.get() if hasattr(array, "get") else array)


def fresh_outputs(executable: Callable[..., Sequence[Any]], reference: Reference) -> list[Array]:
    """What a compiled program computes on a reference's inputs, and not what an earlier run left in memory.

    A kernel that does not write all of its outputs shows what stood there before: right outputs, when the memory is
    that of an earlier run. So the program runs on other inputs first, and what it returns is overwritten: twice, since
    an executable may hold on to its last results until it has allocated the next.
    """
    for _ in range(2):
        _overwrite(executable(*(reference.others or reference.inputs)))
    return [on_host(o) for o in executable(*reference.inputs)]


def _overwrite(arrays: Sequence[Any]) -> None:
    # In a function of its own, so that nothing holds on to the memory, which is then the first to be used again.
    for array in arrays:
        array.reshape(-1).view("u1")[...] = 0xA5


# ---- references that say nothing


def drawn_reference(module: HloModule, draw: Callable[[int], Sequence[Array]]) -> Reference:
    """The reference of a module on drawn inputs; its `unchecked` says whether any outputs would do.

    Args:
        module: the program.
        draw: inputs by number; the first are the reference's, the second its `others`.
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
    """Which outputs that are computed from the arguments have no finite element: a comparison says nothing of them."""
    found = []
    for i, (output, depends) in enumerate(zip(outputs, _depends_on_arguments(module), strict=True)):
        if depends and output.size and is_float(output.dtype) and not np.isfinite(parts(output)).any():
            what = "NaN" if np.isnan(parts(output)).any() else "infinite"
            found.append(f"output {i} is {what} everywhere")
    return found


def _always_zero(module: HloModule, draw: Callable[[int], Sequence[Array]], outputs: Sequence[Array]) -> bool:
    """Whether no output has another element than zero, on other inputs neither: a kernel need not write anything."""
    live = [i for i, depends in enumerate(_depends_on_arguments(module)) if depends and outputs[i].size]
    if not live or any(parts(outputs[i]).any() for i in live):
        return False
    others = (evaluate(module, draw(number)) for number in range(1, OTHER_INPUTS + 1))
    return not any(parts(found[i]).any() for found in others for i in live)


def _depends_on_arguments(module: HloModule) -> list[bool]:
    """For each array among the outputs, whether it is computed from arguments that have elements."""
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
