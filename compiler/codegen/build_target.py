"""Build targets: what fused computations and loops are checked for before they are accepted."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.codegen.languages import CUDA, C, Language, find_language
from compiler.codegen.schedules.schedule import Schedule


@dataclass(frozen=True, slots=True)
class BuildTarget:
    """What kernels are built for.

    Attributes:
        language: language of the kernels, a name in `codegen.languages.LANGUAGES`.
        schedule: the schedule of kernels for which none is chosen.
        backend: name of the backend, for messages.
    """

    language: str
    schedule: Schedule
    backend: str

    @property
    def printer(self) -> Language:
        """The language itself."""
        return find_language(self.language)

    @property
    def has_preset(self) -> bool:
        """Whether the schedule is the default of the language, from which kernels of loops derive their own."""
        return self.schedule == self.printer.default_schedule


C_TARGET = BuildTarget(C.name, C.default_schedule, "cpu")
"""Generated C with its defaults: also what is asked for a backend that compiles no kernels."""
CUDA_TARGET = BuildTarget(CUDA.name, CUDA.default_schedule, "cuda")
"""CUDA C++ with its defaults."""
