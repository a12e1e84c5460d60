"""The executable of the interpreter backend."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from compiler.analysis.cost_model import device_model
from compiler.codegen.kernel_spec import KernelSpec
from compiler.errors import BackendError
from compiler.interpreter import evaluate
from compiler.ir.module import HloModule
from compiler.plan import CompilationPlan
from compiler.runtime.executable import Profile, ThunkSamples, ThunkTime, check_arguments, parameter_leaves
from compiler.runtime.executable_text import executable_html, executable_text
from compiler.runtime.explanation import Explanation
from compiler.runtime.memory import ProgramMemory
from compiler.runtime.thunks import Thunk

Array = NDArray[Any]


class InterpreterExecutable:
    """A program that the interpreter evaluates; it has no kernels and no thunks."""

    backend = "interpreter"

    def __init__(self, module: HloModule, plan: CompilationPlan | None = None) -> None:
        self.module = module
        self.plan = plan
        self.kernels: list[KernelSpec] = []
        self.thunks: list[Thunk] = []
        self.memory: ProgramMemory | None = None

    def __call__(self, *arrays: Any) -> list[Array]:
        """Run the program and return the leaves of its result in order."""
        return evaluate(self.module, check_arguments(arrays, parameter_leaves(self.module)))

    def benchmark(self, arrays: Sequence[Any], repeats: int = 10) -> list[float]:
        """Return the seconds of each of `repeats` calls."""
        out = []
        for _ in range(repeats):
            start = time.perf_counter()
            self(*arrays)
            out.append(time.perf_counter() - start)
        return out

    def time_thunks(self, arrays: Sequence[Any], repeats: int = 5) -> list[ThunkSamples]:
        """Return an empty list, because the interpreter has no thunks."""
        del arrays, repeats
        return []

    def profile(self, *arrays: Any, repeats: int = 20) -> list[ThunkTime]:
        """Return an empty list, because the interpreter has no thunks."""
        del arrays, repeats
        return Profile()

    def __repr__(self) -> str:
        return executable_text(self)

    def _repr_html_(self) -> str:
        return executable_html(self)

    def explain(self) -> Explanation:
        """Return which decisions made each kernel, and why kernels that follow each other are separate."""
        return Explanation(self.module, self.plan, self.thunks, device_model("cpu"))

    def save(self, path: str | Path) -> None:
        """Raise BackendError, because the interpreter has no compiled code to save."""
        raise BackendError(
            f"cannot save to {path}: backend 'interpreter' has no compiled code; compile for 'cpu' or 'cuda'"
        )
