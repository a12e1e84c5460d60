"""The cpu backend's implementation of the `Backend` protocol."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from compiler.analysis.cost_model import DeviceModel
from compiler.backends.cpu import toolchain
from compiler.backends.cpu.device import cpu_device
from compiler.backends.cpu.driver import make_driver
from compiler.backends.cpu.executable import BuiltProgram, CpuExecutable
from compiler.backends.cpu.loop_functions import loop_functions
from compiler.backends.cpu.onednn.matcher import preference_refusal
from compiler.codegen.languages import C
from compiler.codegen.schedules.kernel_choice import KernelBindings
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.plan import CompilationPlan
from compiler.runtime.executable import CallOptions
from compiler.runtime.program_files import ProgramFolder, SavedProgramError
from compiler.runtime.thunk_emitter import ThunkEmitter
from compiler.support.processor import processor
from compiler.support.threads import program_threads


@dataclass(frozen=True)
class CpuBackend:
    """A backend that compiles C by gcc and runs it on the threads of this process."""

    name: str = "cpu"
    language: str = C.name
    priority: int = 1
    optional: bool = False

    @property
    def default_schedule(self) -> Schedule:
        return C.default_schedule

    def device_model(self) -> DeviceModel:
        """Return the model of a CPU with as many cores as programs have threads, and with oneDNN if it is available."""
        return cpu_device()

    def why_unavailable(self) -> str | None:
        """Return why no C compiler works on this machine, or None if one does."""
        return toolchain.why_unavailable()

    def machine_key(self) -> str:
        """Return the number of threads and the identity of compiler and processor."""
        return f"{program_threads()}\n{toolchain.toolchain().identity}"

    def library_refusal(self, instruction: HloInstruction) -> str | None:
        """Return why oneDNN does not compute an instruction, or None if it does."""
        return preference_refusal(instruction)

    def build(
        self, module: HloModule, plan: CompilationPlan | None = None, kernels: KernelBindings | None = None
    ) -> CpuExecutable:
        """Implement `Backend.build`."""
        return CpuExecutable.build(module, self._emitter(kernels, plan).emit(module), plan)

    def _emitter(self, kernels: KernelBindings | None, plan: CompilationPlan | None) -> ThunkEmitter:
        made = frozenset[tuple[str, str]]() if plan is None else plan.made
        return ThunkEmitter(self.language, kernels or {}, self.default_schedule, self.name, made, donate=True)

    def load(self, folder: ProgramFolder) -> CpuExecutable:
        """Implement `Backend.load`; the program must have been built for this kind of processor."""
        here, built_for = processor(), folder.details["processor"]
        if built_for != here:
            raise SavedProgramError(
                f"{folder.path} was built for the processor {built_for!r}, but this one is {here!r}; "
                "compile the program on this machine"
            )
        saved = folder.read()
        objects = {symbol: _cached_object(folder, name) for symbol, name in folder.details["objects"].items()}
        # A program that another version has saved may lack the functions of this one.
        functions = {t: f for t, f in loop_functions(saved.program).items() if f.spec.symbol in objects}
        driver = make_driver(saved.program.thunks, functions)
        runtime = _cached_object(folder, "runtime.so")
        built = BuiltProgram(saved.program, saved.arena_bytes, driver, runtime, objects)
        executable = CpuExecutable(saved.module, built, saved.plan)
        executable.call_options = CallOptions(**folder.details.get("call_options", {}))
        return executable


def _cached_object(folder: ProgramFolder, name: str) -> Path:
    """Return the path in the object cache from which a saved shared object can be loaded."""
    cache = toolchain.object_cache()
    return cache.object(folder.contents.digests[name]) or cache.store(folder.contents.data(name))
