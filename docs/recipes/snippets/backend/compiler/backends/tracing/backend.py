"""The tracing backend."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis.cost_model import DeviceModel, device_model
from compiler.backends.tracing.executable import TracingExecutable
from compiler.codegen.schedules.kernel_choice import KernelBindings
from compiler.codegen.schedules.schedule import Schedule
from compiler.errors import BackendError
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.plan import CompilationPlan
from compiler.runtime.libraries import no_library
from compiler.runtime.program_files import ProgramFolder


@dataclass(frozen=True)
class TracingBackend:
    """NumPy, op by op, with a clock around each op."""

    name: str = "tracing"
    language: None = None  # it compiles no kernels; C or CUDA otherwise, see `codegen.languages`
    priority: int = 0  # never chosen by "auto"
    optional: bool = True

    @property
    def default_schedule(self) -> Schedule:
        return Schedule()

    def device_model(self) -> DeviceModel:
        """Return the device by which the cost model estimates the time of decisions."""
        return device_model("cpu")

    def why_unavailable(self) -> str | None:
        """Return None: NumPy is always installed. A device that may be absent says here what to do about it."""
        return None

    def machine_key(self) -> str:
        """Return what a measured time depends on besides the program."""
        return "tracing"

    def library_refusal(self, instruction: HloInstruction) -> str | None:
        """Return why no library computes an instruction: lowering then expands what has no kernel."""
        return no_library(instruction)

    def build(
        self, module: HloModule, plan: CompilationPlan | None = None, kernels: KernelBindings | None = None
    ) -> TracingExecutable:
        """Return the executable of a module after all decisions."""
        del kernels
        return TracingExecutable(module, plan)

    def load(self, folder: ProgramFolder) -> TracingExecutable:
        """Refuse, because nothing is saved."""
        raise BackendError(f"{folder.path}: the tracing backend saves nothing")
