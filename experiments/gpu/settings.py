"""Settings of `python -m experiments.gpu`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SUITES", "Settings"]

SUITES = ("quickstart", "linear_algebra", "kernels", "models", "jax")
"""The suites whose programs are checked, in this order."""


@dataclass(frozen=True)
class Settings:
    """What one run of the command does.

    Attributes:
        out: folder of the JSON files.
        seconds: limit of the whole run.
        stand_in: run small sizes without a GPU, with kernels in the emulator.
        programs: names of programs, to which every part is limited; empty for all.
        wheels: folder of wheels that the training needs, if this Python lacks them.
        workers: number of processes that check programs at once.
        seed: of inputs and of random schedules.
        commit: of the code, where it is no checkout; empty: that of the checkout.
    """

    out: Path
    seconds: float = 520.0
    stand_in: bool = False
    programs: tuple[str, ...] = ()
    wheels: Path | None = None
    workers: int = 0
    seed: int = 0
    commit: str = ""

    @property
    def processes(self) -> int:
        """Return the number of worker processes: as given, or one per core, at most 16."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.workers or min(16, cores)

    def wants(self, program: str) -> bool:
        """Return whether a program takes part."""
        return not self.programs or program in self.programs
