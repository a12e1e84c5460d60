"""The interpreter backend's implementation of the `Backend` protocol."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from compiler.analysis.cost_model import DeviceModel, device_model
from compiler.backends.interpreter.executable import InterpreterExecutable
from compiler.codegen.schedules.kernel_choice import KernelBindings
from compiler.codegen.schedules.schedule import Schedule
from compiler.errors import BackendError
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.plan import CompilationPlan
from compiler.runtime.libraries import no_library
from compiler.runtime.program_files import ProgramFolder


@dataclass(frozen=True)
class InterpreterBackend:
    """A backend that evaluates programs op by op in numpy."""

    name: str = "interpreter"
    language: None = None
    priority: int = 0
    optional: bool = False

    @property
    def default_schedule(self) -> Schedule:
        return Schedule()

    def device_model(self) -> DeviceModel:
        """Return the model of a CPU, so that the cost of decisions can be estimated."""
        return device_model("cpu")

    def why_unavailable(self) -> str | None:
        """Return None, because numpy is always installed."""
        return None

    def machine_key(self) -> str:
        """Return the version of numpy and the number of cores."""
        return f"{np.__version__}\n{os.cpu_count()}"

    def library_refusal(self, instruction: HloInstruction) -> str | None:
        """Implement `Backend.library_refusal`: lowering expands what no kernel computes."""
        return no_library(instruction)

    def build(
        self, module: HloModule, plan: CompilationPlan | None = None, kernels: KernelBindings | None = None
    ) -> InterpreterExecutable:
        """Implement `Backend.build`."""
        del kernels
        return InterpreterExecutable(module, plan)

    def load(self, folder: ProgramFolder) -> InterpreterExecutable:
        """Raise BackendError, because the interpreter cannot save programs."""
        raise BackendError(f"{folder.path} names the interpreter backend, which cannot save programs")
