"""Executables of the tracing backend."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from typing import Any

from compiler.backends.interpreter.executable import InterpreterExecutable
from compiler.interpreter import Context, Evaluator, evaluate
from compiler.ir.instruction import HloInstruction
from compiler.runtime.executable import ThunkTime, check_arguments, parameter_leaves


class TracingExecutable(InterpreterExecutable):
    """An interpreted program whose profile has a row for each opcode."""

    backend = "tracing"

    def __call__(self, *arrays: Any) -> list[Any]:
        """Run the program, and note how long each opcode took."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.runs: Counter[str] = Counter()
        arguments = check_arguments(arrays, parameter_leaves(self.module))
        return evaluate(self.module, arguments, Context(decorate=self._timed))

    def _timed(self, instruction: HloInstruction, evaluator: Evaluator) -> Evaluator:
        """Return an evaluator that does the same and notes its time."""
        opcode = instruction.opcode.text

        def run(*values: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return evaluator(*values, **options)
            finally:
                self.seconds[opcode] += time.perf_counter() - start
                self.runs[opcode] += 1

        return run

    def profile(self, *arrays: Any, repeats: int = 20) -> list[ThunkTime]:
        """Return the time of each opcode in one call, the slowest first."""
        del repeats
        self(*arrays)
        return [
            ThunkTime(opcode, "op", seconds / self.runs[opcode], self.runs[opcode], 0, 0)
            for opcode, seconds in sorted(self.seconds.items(), key=lambda item: -item[1])
        ]
