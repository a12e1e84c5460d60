"""The best plan that a training run has found for each program, stored so that it survives a kill of the process."""

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
    """One plan file per program under `run.plans`, replaced only by a better plan.

    A journal records the speedup of each plan that was ever written, keyed by the plan's hash. An entry is written
    before its plan, so that the speedup of the plan on disk is known even if the process is killed between the two.

    Args:
        run: the folder of the training run.
        known: speedups by program, as stored in a checkpoint.

    Attributes:
        speedups: the speedup of the best plan, by program.
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
        """Write a plan if it is the best so far for its program.

        Raises:
            ResultError: the plan or the journal cannot be written.
        """
        if speedup <= self.speedups.get(program, 0.0):
            return
        entry = {"program": program, "speedup": speedup, "plan": hashlib.sha256(plan.encode()).hexdigest()}
        try:
            self._journal.parent.mkdir(parents=True, exist_ok=True)
            with self._journal.open("a", encoding="utf-8") as file:
                # The leading newline separates this entry from a previous one that was truncated.
                file.write(f"\n{json.dumps(entry)}\n")
        except OSError as error:
            raise ResultError(f"cannot write {self._journal}: {error.strerror}") from error
        write_text(self._run.plan_file(program), plan)
        self.speedups[program] = speedup

    def _entries(self) -> list[tuple[str, str, float]]:
        """Return (program, plan hash, speedup) of each journal entry; truncated lines are skipped."""
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
