"""The protocol of backends, which covers everything that differs between devices."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from compiler.analysis.cost_model import DeviceModel
from compiler.codegen.schedules.kernel_choice import KernelBindings
from compiler.codegen.schedules.schedule import Schedule
from compiler.fusion.policies import DEFAULT_POLICY
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.loops import LoopPolicy
from compiler.passes.infrastructure.base import HloPass
from compiler.plan import CompilationPlan
from compiler.runtime.executable import Executable
from compiler.runtime.program_files import ProgramFolder


class Backend(Protocol):
    """A device that can run modules.

    A backend is a package in `compiler/backends` whose `BACKEND` is an object of this protocol; the registry finds it.

    Attributes:
        name: name of the backend in the API, in plans and in saved programs.
        language: language of its kernels, a name in `codegen.languages.LANGUAGES`, or None if it compiles no kernels.
        priority: "auto" selects the available backend of highest priority, but never one of priority 0.
        optional: whether the backend may be missing from a correct installation, for example because it needs a GPU.
    """

    @property
    def name(self) -> str: ...
    @property
    def language(self) -> str | None: ...
    @property
    def priority(self) -> int: ...
    @property
    def optional(self) -> bool: ...

    @property
    def default_schedule(self) -> Schedule:
        """Return the schedule of kernels for which none is chosen; it may differ from that of the language."""
        ...

    def device_model(self) -> DeviceModel:
        """Return the device that the cost model describes."""
        ...

    def why_unavailable(self) -> str | None:
        """Return why the backend does not work on this machine and how to fix it, or None if it works."""
        ...

    def machine_key(self) -> str:
        """Return a string that identifies what kernel times depend on: the device, its cores and the compiler.

        Raises:
            BackendError: the backend does not work on this machine.
        """
        ...

    def library_refusal(self, instruction: HloInstruction) -> str | None:
        """Return why no library of the backend should compute an instruction, or None if one should.

        Lowering keeps the instructions for which this returns None, and the backend turns them into library calls.
        """
        ...

    def build(
        self, module: HloModule, plan: CompilationPlan | None = None, kernels: KernelBindings | None = None
    ) -> Executable:
        """Compile an optimized module and return the executable; the module is not changed.

        Args:
            module: the module after all passes and fusion.
            plan: the compilation decisions, kept with the executable.
            kernels: implementations and schedules that were chosen; other kernels have the default schedule.

        Raises:
            BackendError: the backend does not work on this machine.
            CodegenError: a kernel cannot be built.
            UnsupportedError: nothing can run an op.
        """
        ...

    def load(self, folder: ProgramFolder) -> Executable:
        """Return the executable saved in a folder; raise SavedProgramError if it cannot run on this machine."""
        ...


@runtime_checkable
class OwnDefaults(Protocol):
    """A backend whose default decisions differ from those of the others.

    Attributes:
        default_fusion: name of the fusion policy of `compile` if none is given.
    """

    @property
    def default_fusion(self) -> str: ...

    def default_pipeline(self) -> HloPass:
        """Return the passes of `compile` if none are given."""
        ...

    def default_loops(self) -> LoopPolicy:
        """Return the loop policy of `compile` if none is given."""
        ...


def default_fusion(backend: Backend) -> str:
    """Return the name of the fusion policy of `compile` for a backend if none is given."""
    return backend.default_fusion if isinstance(backend, OwnDefaults) else DEFAULT_POLICY
