"""The best plan that a run has found for each program, kept over kills: the plans, and a journal of their speedups."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

from experiments.results import ResultError, write_text
from experiments.run_folder import RunFolder

__all__ = ["BestPlans"]


class BestPlans:
    """A file for each program under `run.plans`, replaced by better plans alone.

    The journal says how fast each plan is that was ever written, by the hash of its text. It is written before the
    plan, so whichever of the two a kill prevents, the plan that is there is known.

    Args:
        run: where they are kept.
        known: speedups by program that a checkpoint knows of.

    Attributes:
        speedups: by program.
    """

    def __init__(self, run: RunFolder, known: Mapping[str, float]) -> None:
        self._run = run
        self._journal = run.path / "plans.jsonl"
        self.speedups: dict[str, float] = {p: float(s) for p, s in known.items()}
        journal = {(program, plan): speedup for program, plan, speedup in self._entries()}
        for program in {program for program, _ in journal}:
            found = journal.get((program, self._hash_of(run.plan_file(program))))
            if found is not None:
                self.speedups[program] = found

    def offer(self, program: str, speedup: float, plan: str) -> None:
        """Keep a plan if it is the best so far.

        Raises:
            ResultError: it cannot be written.
        """
        if speedup <= self.speedups.get(program, 0.0):
            return
        entry = {"program": program, "speedup": speedup, "plan": hashlib.sha256(plan.encode()).hexdigest()}
        try:
            self._journal.parent.mkdir(parents=True, exist_ok=True)
            with self._journal.open("a", encoding="utf-8") as file:
                # A line that was cut short must not take this one with it.
                file.write(f"\n{json.dumps(entry)}\n")
        except OSError as error:
            raise ResultError(f"cannot write {self._journal}: {error.strerror}") from error
        write_text(self._run.plan_file(program), plan)
        self.speedups[program] = speedup

    def _entries(self) -> list[tuple[str, str, float]]:
        """Of the journal; a line that a kill or a full disk has cut short is left out."""
        try:
            lines = self._journal.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                entry = json.loads(line)
                program, plan, speedup = str(entry["program"]), str(entry["plan"]), float(entry["speedup"])
                if math.isfinite(speedup):
                    found.append((program, plan, speedup))
        return found

    @staticmethod
    def _hash_of(file: Path) -> str:
        try:
            return hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError:
            return ""
