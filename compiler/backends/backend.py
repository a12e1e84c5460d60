"""What a backend is: everything in which one device differs from another, behind one protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from compiler.analysis.cost_model import DeviceModel
from compiler.codegen.schedule import Schedule
from compiler.ir.module import HloModule
from compiler.plan import CompilationPlan
from compiler.runtime.executable import Executable
from compiler.runtime.program_files import ProgramFolder


class Backend(Protocol):
    """A way to run modules.

    A backend is a package in `compiler/backends` whose `BACKEND` is an object of this protocol; the registry finds it.

    Attributes:
        name: as users, plans and saved programs name it.
        language: of its kernels, a name in `codegen.languages.LANGUAGES`; None when it compiles no kernels.
        priority: "auto" takes the backend of highest priority that is available; 0 is never taken.
        optional: whether a machine may well lack it, so that its absence is no fault of the installation.
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
        """The schedule of kernels for which none is chosen."""
        ...

    def device_model(self) -> DeviceModel:
        """Return the device that the cost model assumes."""
        ...

    def why_unavailable(self) -> str | None:
        """Return why the backend does not work on this machine and what to do about it, or None when it works."""
        ...

    def machine_key(self) -> str:
        """Return a text that is equal where kernels take equal time: device, cores, compiler; BackendError if none."""
        ...

    def build(
        self, module: HloModule, plan: CompilationPlan | None = None, schedules: Mapping[str, Schedule] | None = None
    ) -> Executable:
        """Compile an optimised module, which is not changed.

        Args:
            module: after all passes, fusions in place.
            plan: the decisions that led to it; kept with the result.
            schedules: kernel choices by instruction name.

        Raises:
            BackendError: the backend does not work here. CodegenError: a kernel could not be built.
            UnsupportedError: an op that nothing can run.
        """
        ...

    def load(self, folder: ProgramFolder) -> Executable:
        """Return the executable that was saved in a folder; SavedProgramError when it cannot run here."""
        ...
