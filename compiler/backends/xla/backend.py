"""The `Backend` protocol for stock XLA through jaxlib."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from compiler.analysis.cost_model import DeviceModel, device_model
from compiler.backends.xla.dispatch import is_cheap
from compiler.backends.xla.executable import XlaExecutable
from compiler.backends.xla.library import machine_key
from compiler.codegen.schedules.kernel_choice import KernelBindings
from compiler.codegen.schedules.schedule import Schedule
from compiler.errors import BackendError
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.loops import KeepLoops
from compiler.passes.infrastructure.base import HloPass
from compiler.passes.pipelines.for_xla import xla_pipeline
from compiler.plan import CompilationPlan
from compiler.runtime.program_files import ProgramFolder


@dataclass(frozen=True)
class XlaBackend:
    """A backend that hands programs to XLA, on the first device of JAX's default platform.

    XLA fuses and generates the code. By default it gets the module after a pipeline that leaves alone what XLA
    recognises; with a fusion policy it also gets our fusions, as far as it has code for them.
    """

    name: str = "xla"
    language: None = None
    priority: int = 0
    optional: bool = True
    default_fusion: str = "none"

    @property
    def default_schedule(self) -> Schedule:
        return Schedule()

    def default_pipeline(self) -> HloPass:
        """Return the passes that help XLA; see `compiler.passes.pipelines.for_xla`."""
        return xla_pipeline(is_cheap)

    def default_loops(self) -> KeepLoops:
        """Return the policy that keeps loops, for which XLA has no kernels."""
        return KeepLoops()

    def device_model(self) -> DeviceModel:
        """Return the model of a CPU, so that the cost of decisions can be estimated."""
        return device_model("cpu")

    def why_unavailable(self) -> str | None:
        """Return that JAX is missing and how to install it, or None if it is installed."""
        if importlib.util.find_spec("jax") is None or importlib.util.find_spec("jaxlib") is None:
            return "JAX is not installed; install it with: pip install 'hlogym[jax]'"
        return None

    def machine_key(self) -> str:
        """Return the version of jaxlib, the kind of device and the number of cores."""
        return machine_key()

    def library_refusal(self, instruction: HloInstruction) -> str | None:
        """Return None: XLA computes every op, so no op is lowered."""
        del instruction
        return None

    def build(
        self, module: HloModule, plan: CompilationPlan | None = None, kernels: KernelBindings | None = None
    ) -> XlaExecutable:
        """Implement `Backend.build`."""
        del kernels
        return XlaExecutable(module, plan)

    def load(self, folder: ProgramFolder) -> XlaExecutable:
        """Raise BackendError, because programs of XLA are not saved."""
        raise BackendError(f"{folder.path} names the xla backend, which cannot save programs")
