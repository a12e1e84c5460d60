"""One process of `tests.sweeps.long_run`: plays measured episodes, and survives what happens to its worker and disk.

    python -m tests.sweeps.long_run_player NUMBER ENVIRONMENT SUITE FOLDER

It writes FOLDER/NUMBER.keys, one line per record that the store has accepted, and FOLDER/NUMBER.json, its state every
second. Started again after a kill, it continues with the episode of that state. It ends when FOLDER/stop exists.

Some plans crash the worker, and some hang; which ones depends on the text of the plan, so every measurement has one
right outcome.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import env  # noqa: F401 - registers the environments
from compiler.errors import HlogymError
from compiler.plan import CompilationPlan
from env.isolated import python_command
from env.measurement import Measurement, Measurer, MeasurerOptions
from env.store import PlanStore, PlanTime
from env.suites import Program
from env.worker import die_with_parent
from env.worker_process import WorkerProcess

__all__ = ["STATE_SECONDS", "expected"]

STATE_SECONDS = 1.0
VARIETY = 12
"""Number of different sequences of actions; more would only mean more compilations."""
CRASHING, HANGING = 10, 4
"""How many of 256 plans crash and hang."""
TIMEOUT = 3.0
KEEP_SECONDS = 120.0
OPTIONS = MeasurerOptions(rounds=3, seconds=0.01, patience=1, timeout=TIMEOUT, keep_seconds=KEEP_SECONDS, input_seeds=1)

_WORKER = """
import os, signal, time
import env.worker as w
from tests.sweeps.long_run_player import expected

real = w.Worker._prepare
def prepare(self, request):
    fate = expected(request["plan"])
    if fate == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fate == "timeout":
        time.sleep(1000)
    return real(self, request)
w.Worker._prepare = prepare
w.main()
"""


def expected(plan: str | None) -> str | None:
    """Return the failure that a plan must have; None: it must be measured."""
    if plan is None:
        return None
    drawn = hashlib.sha256(plan.encode()).digest()[0]
    return "crash" if drawn < CRASHING else "timeout" if drawn < CRASHING + HANGING else None


class JournalStore(PlanStore):
    """A store that writes the key of each record that was stored to a journal."""

    def __init__(self, path: Path, journal: Path) -> None:
        super().__init__(path, KEEP_SECONDS)
        self._journal = journal

    def put(self, *found: PlanTime) -> None:
        super().put(*found)
        with self._journal.open("a") as file:
            file.writelines(f"{f.key} {f.measured_at!r}\n" for f in found)


class CheckedMeasurer(Measurer):
    """A measurer that counts outcomes, and notes those that are not what the plan demands."""

    def __init__(self, store: PlanStore, note: Callable[[str], None]) -> None:
        super().__init__(store, OPTIONS, WorkerProcess(python_command(_WORKER)))
        self.note = note
        self.outcomes: dict[str, int] = {}

    def measure(self, program: Program, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
        found = super().measure(program, plan, remeasure)
        wanted = expected(None if plan is None else plan.to_json(None))
        outcome = found.failure or "measured"
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if found.failure != wanted:
            self.note(f"{program.name}: {found.failure}: {found.message} instead of {wanted}")
        return found

    @property
    def worker(self) -> int | None:
        """Process id of the worker."""
        return self._worker.pid


class Player:
    """Plays episodes and keeps the state that is written to the file."""

    def __init__(self, number: int, environment: str, suite: str, folder: Path) -> None:
        self.file, self.number = folder / f"{number}.json", number
        known: dict[str, Any] = json.loads(self.file.read_text()) if self.file.is_file() else {}
        self.episodes = int(known.get("episodes", 0))
        self.interrupted: dict[str, int] = known.get("interrupted", {})
        self.faults: list[str] = known.get("faults", [])
        self.before: dict[str, int] = known.get("outcomes", {})
        self.restarted, self.lives = int(known.get("restarts", 0)), int(known.get("lives", 0)) + 1
        store = JournalStore(folder / "disk" / "times.sqlite", folder / f"{number}.keys")
        self.measurer = CheckedMeasurer(store, self.faults.append)
        self.env: Any = gym.make(f"hlogym/{environment}Measured-v0", suite=suite, measurer=self.measurer).unwrapped
        self.written = 0.0

    def play(self) -> None:
        """Play until the file `stop` exists; episodes that the machine interrupts do not count."""
        stop = self.file.with_name("stop")
        while not stop.exists():
            try:
                self._episode(np.random.default_rng(self.episodes % VARIETY))
            except HlogymError as error:  # the disk is full, or the worker cannot start: never a plan's fault
                kind = type(error).__name__
                self.interrupted[kind] = self.interrupted.get(kind, 0) + 1
                time.sleep(0.2)
                self._write()
                continue
            self.episodes += 1
            if time.monotonic() - self.written > STATE_SECONDS:
                self._write()
        self._write()
        self.measurer.close()

    def _episode(self, rng: np.random.Generator) -> None:
        programs = self.env.suite.programs
        chosen = programs[self.episodes // VARIETY % len(programs)]
        self.env.reset(seed=self.number, options={"program": chosen.name})
        over = False
        while not over:
            action = int(rng.choice(np.flatnonzero(self.env.action_masks())))
            _, _, terminated, truncated, _ = self.env.step(action)
            over = terminated or truncated

    def _write(self) -> None:
        self.written = time.monotonic()
        gc.collect()  # unreachable objects do not count as memory
        outcomes = {k: self.before.get(k, 0) + self.measurer.outcomes.get(k, 0) for k in _KINDS}
        state = {
            "episodes": self.episodes, "interrupted": self.interrupted, "faults": self.faults[:20],
            "outcomes": outcomes, "restarts": self.restarted + self.measurer.restarts, "lives": self.lives,
            "pid": os.getpid(), "worker": self.measurer.worker,
        }  # fmt: skip
        partial = self.file.with_suffix(".part")
        partial.write_text(json.dumps(state))
        partial.replace(self.file)


_KINDS = ("measured", "crash", "timeout", "program", "compile", "wrong", "run")


def main() -> None:
    """Run from the command line."""
    die_with_parent()
    number, environment, suite, folder = sys.argv[1:]
    while True:
        try:
            player = Player(int(number), environment, suite, Path(folder))
        except HlogymError:  # the disk is full at the start
            time.sleep(0.2)
        else:
            break
    player.play()


if __name__ == "__main__":
    main()
