"""The cuda backend's implementation of the `Backend` protocol."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis.cost_model import DeviceModel, device_model
from compiler.backends.cuda import bindings
from compiler.backends.cuda.executable import CudaExecutable
from compiler.backends.cuda.library_products import product_refusal
from compiler.codegen.languages import CUDA
from compiler.codegen.schedules.kernel_choice import KernelBindings
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.loops import KernelOrUnrolledLoops
from compiler.passes import HloPass
from compiler.passes.pipelines.default import gpu_pipeline
from compiler.plan import CompilationPlan
from compiler.runtime.program_files import ProgramFolder
from compiler.runtime.thunk_emitter import ThunkEmitter


@dataclass(frozen=True)
class CudaBackend:
    """A backend that runs CUDA C++ on one NVIDIA GPU.

    By default it fuses reshapes first and unrolls loops that have no kernel: launches cost more than on a CPU
    (`results/headroom/rules.md`).
    """

    name: str = "cuda"
    language: str = CUDA.name
    priority: int = 2
    optional: bool = True
    default_fusion: str = "reshapes,default,readers"

    def default_pipeline(self) -> HloPass:
        """Implement `OwnDefaults.default_pipeline`."""
        return gpu_pipeline()

    def default_loops(self) -> KernelOrUnrolledLoops:
        """Implement `OwnDefaults.default_loops`."""
        return KernelOrUnrolledLoops()

    @property
    def default_schedule(self) -> Schedule:
        return CUDA.default_schedule

    def device_model(self) -> DeviceModel:
        """Return the model of a data center GPU."""
        return device_model("gpu")

    def why_unavailable(self) -> str | None:
        """Return why CuPy or the GPU cannot be used, or None if they can."""
        return bindings.why_unavailable()

    def machine_key(self) -> str:
        """Return the compute capability, the number of multiprocessors and the version of CuPy."""
        cupy = bindings.cupy()
        device = cupy.cuda.Device()
        units = device.attributes.get("MultiProcessorCount")
        return f"{device.compute_capability}\n{units}\n{cupy.__version__}"

    def library_refusal(self, instruction: HloInstruction) -> str | None:
        """Implement `Backend.library_refusal`: cuBLAS computes products of halves and complex numbers."""
        return product_refusal(instruction)

    def build(
        self, module: HloModule, plan: CompilationPlan | None = None, kernels: KernelBindings | None = None
    ) -> CudaExecutable:
        """Implement `Backend.build`; without a GPU the kernels and the plan can still be inspected."""
        return CudaExecutable.build(module, self._emitter(kernels, plan).emit(module), plan)

    def _emitter(self, kernels: KernelBindings | None, plan: CompilationPlan | None) -> ThunkEmitter:
        made = frozenset[tuple[str, str]]() if plan is None else plan.made
        return ThunkEmitter(self.language, kernels or {}, self.default_schedule, self.name, made, donate=True)

    def load(self, folder: ProgramFolder) -> CudaExecutable:
        """Implement `Backend.load`."""
        return CudaExecutable.load(folder)
