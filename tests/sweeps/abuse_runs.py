"""Scenarios of `tests.sweeps.abuse` about training runs, and the checks of what they leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agents.checkpoint import latest_checkpoint
from compiler.learned.fusion_policy import load_policy
from compiler.learned.pass_order import load_pass_order
from compiler.plan import CompilationPlan
from env.isolated import ROOT
from env.store import PlanStore
from experiments.run_folder import RunFolder
from tests.env.small_programs import write_suite

CHECKPOINT_EVERY, ROLLOUT = 32, 16
ENDING = 600.0  # seconds within which a process must end by itself


@dataclass
class Findings:
    """The result of a scenario.

    Attributes:
        name: name of the scenario.
        counts: numbers of actions and observations, by name.
        faults: descriptions of the checks that failed.
    """

    name: str
    counts: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, what: str, count: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + count

    def expect(self, passed: bool, fault: str) -> None:
        self.add("checks")
        if not passed:
            self.faults.append(fault)


@dataclass(frozen=True)
class Training:
    """A training run with measured rewards on two small programs, in its own home folder.

    Attributes:
        home: the home folder, with the suite and the store of kernel times.
        environment: "Fusion" or "PassOrder".
        timesteps: total steps of the run.
        runs: folder of training runs.
        cache: folder of compiled kernels.
    """

    home: Path
    environment: str
    timesteps: int
    runs: Path
    cache: Path

    @staticmethod
    def make(home: Path, environment: str, timesteps: int, runs: Path | None = None) -> Training:
        """Write the suite and return the run."""
        write_suite(home / "suite")
        return Training(home, environment, timesteps, runs or home / "runs", home / "cache")

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.runs / "run")

    @property
    def store(self) -> Path:
        return self.home / ".cache" / "hlogym" / "plan_times.sqlite"

    def command(self, resume: bool) -> list[str]:
        settings = {"n_steps": ROLLOUT, "batch_size": ROLLOUT, "hidden": 8, "n_epochs": 1, "budget": 12}
        return [
            sys.executable, "-m", "experiments.cli", "train", "--suite", str(self.home / "suite"), "--backend", "cpu",
            "--env", f"hlogym/{self.environment}Measured-v0", "--timesteps", str(self.timesteps), "--name", "run",
            "--checkpoint-every", str(CHECKPOINT_EVERY), "--runs", str(self.runs),
            *(part for name, value in settings.items() for part in ("--set", f"{name}={value}")),
            *(["--resume"] if resume else []),
        ]  # fmt: skip

    def start(self, resume: bool) -> subprocess.Popen[str]:
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "HOME": str(self.home), "HLOGYM_CACHE": str(self.cache),
            "MLFLOW_TRACKING_URI": "", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        return subprocess.Popen(
            self.command(resume), env=environment, cwd=self.home, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    # ---- state on disk

    def step(self) -> int:
        """Return the step of the last checkpoint, or 0 if there is none."""
        checkpoint = latest_checkpoint(self.run.checkpoints)
        return 0 if checkpoint is None else int(checkpoint.name.split("-")[1])

    def points(self) -> list[dict[str, Any]]:
        """Return the points of the learning curve, without an incomplete last line; any other bad line raises."""
        lines = self.run.progress.read_text().splitlines(keepends=True) if self.run.progress.is_file() else []
        if lines and not lines[-1].endswith("\n"):
            lines.pop()
        return [json.loads(line) for line in lines]

    def records(self) -> int:
        """Read all times in the store and return their number; raise ValueError if one is implausible."""
        if not self.store.is_file():
            return 0
        with contextlib.closing(sqlite3.connect(f"file:{self.store}?mode=ro", uri=True, timeout=30)) as database:
            if database.execute("PRAGMA integrity_check").fetchone()[0] != "ok":
                raise ValueError("the store is damaged")
            keys = [row[0] for row in database.execute("SELECT key FROM plan_times")]
        with PlanStore(self.store) as store:
            times = [t for t in map(store.get, keys) if t is not None]
        if len(times) != len(keys) or any(not 0 < t.verdict.seconds.value < 60 for t in times):
            raise ValueError("the store has records that cannot be read")
        return len(times)

    def best(self) -> dict[str, float]:
        """Read all plans and return their speedups."""
        from experiments.best_plans import BestPlans

        for file in self.run.plans.glob("*.json") if self.run.plans.is_dir() else ():
            CompilationPlan.from_json(file.read_text())
        return BestPlans(self.run, {}).speedups

    def workers(self) -> list[int]:
        """Return the ids of the run's worker processes."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if b"env.worker" in (folder / "cmdline").read_bytes():
                    variables = (folder / "environ").read_bytes().split(b"\0")
                    if f"HOME={self.home}".encode() in variables:
                        found.append(int(folder.name))
        return found

    # ---- checks

    def check(self, findings: Findings, before: State) -> State:
        """Check that nothing of an earlier state was lost by a kill and a resumption; return the new state."""
        now = State.of(self)
        findings.expect(now.step >= before.step, f"checkpoints went back from {before.step} to {now.step}")
        findings.expect(now.records >= before.records, f"records were lost: {before.records}, then {now.records}")
        steps = [p["timesteps"] for p in now.points]
        findings.expect(steps == sorted(set(steps)), f"the steps of the learning curve do not increase: {steps}")
        for program, speedup in before.best.items():
            findings.expect(now.best.get(program, 0) >= speedup, f"the best plan of {program} was lost")
        last = before.points[-1]["timesteps"] if before.points else 0
        # A checkpoint is written at the first update after the interval.
        findings.expect(
            last - before.step <= CHECKPOINT_EVERY + 2 * ROLLOUT, f"{last - before.step} steps had to be repeated"
        )
        return now

    def check_end(self, findings: Findings) -> None:
        """Check the files and the MLflow run of a finished run."""
        from mlflow.tracking import MlflowClient

        findings.expect(self.run.state().get("finished") is True, "the run is not marked as finished")
        points = self.points()
        findings.expect(bool(points) and points[-1]["timesteps"] >= self.timesteps, "the learning curve is short")
        (load_policy if self.environment == "Fusion" else load_pass_order)(self.run.policy)
        findings.expect({p.stem for p in self.run.plans.glob("*.json")} == {"chain", "loop"}, "plans are missing")
        client = MlflowClient(f"sqlite:///{self.runs / 'mlflow.db'}")
        experiment = client.get_experiment_by_name("hlogym")
        tracked = [] if experiment is None else client.search_runs([experiment.experiment_id])
        findings.counts["MLflow runs"] = len(tracked)
        findings.expect(len(tracked) == 1, f"there are {len(tracked)} MLflow runs")
        for found in tracked:
            findings.expect(found.info.status == "FINISHED", f"an MLflow run is {found.info.status}")
        findings.expect(self.workers() == [], "workers outlive the run")
        last = points[-1] if points else {}
        findings.counts |= {"steps": last.get("timesteps"), "episodes": last.get("episodes")}
        findings.counts |= {"records in the store": self.records()}
        failures = sum(p["failures"] for p in points)
        findings.counts["measurements charged to plans as failed"] = failures


@dataclass(frozen=True)
class State:
    """The state of a run on disk at one time."""

    step: int = 0
    points: tuple[dict[str, Any], ...] = ()
    records: int = 0
    best: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def of(training: Training) -> State:
        return State(training.step(), tuple(training.points()), training.records(), training.best())


def ended(process: subprocess.Popen[str], findings: Findings, status: int = 0) -> str:
    """Wait for a process that must end by itself and return what it wrote to stderr."""
    try:
        _, said = process.communicate(timeout=ENDING)
    except subprocess.TimeoutExpired:
        process.kill()
        _, said = process.communicate()
        findings.faults.append("a process did not end")
        return said
    findings.expect(process.returncode == status, f"exit status {process.returncode}: {said[-300:]}")
    findings.expect("Traceback" not in said, f"a traceback: {said[-600:]}")
    return said


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = ENDING) -> bool:
    """Return whether a condition became true before the process ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def kills(home: Path, environment: str, count: int, rng: np.random.Generator) -> Findings:
    """Kill a run with SIGKILL at random times and continue it with `--resume`, until it is finished."""
    findings = Findings(f"kills of {environment}Measured")
    # Applying passes is faster than measuring fusions, so PassOrder needs more steps.
    training = Training.make(home, environment, count * CHECKPOINT_EVERY * (5 if environment == "Fusion" else 30))
    state = State()
    for n in range(count):
        process = training.start(resume=n > 0)
        if n % 4:  # otherwise kill at any time, including during imports
            seen, points = len(training.points()), int(rng.integers(0, 4))
            wait_for(lambda seen=seen, points=points: len(training.points()) >= seen + points, process)  # type: ignore[misc]
            wait_for(lambda: bool(training.workers()), process)
        time.sleep(float(rng.uniform(0, 3)))
        if process.poll() is not None:
            findings.add("runs that ended before their kill")
            ended(process, findings)
            break
        process.kill()
        process.communicate()
        findings.add("kills")
        end = time.monotonic() + 20
        while training.workers() and time.monotonic() < end:
            time.sleep(0.05)
        findings.expect(training.workers() == [], "a worker outlives its trainer")
        state = training.check(findings, state)
        findings.counts["last checkpoint at a kill"] = state.step
    else:
        said = ended(training.start(resume=True), findings)
        findings.expect("resuming run run" in said, "the last start did not resume")
    training.check(findings, state)
    training.check_end(findings)
    return findings


def harassed_workers(home: Path, environment: str, count: int, rng: np.random.Generator) -> Findings:
    """Send SIGSTOP, SIGKILL, SIGTERM and SIGHUP to the workers of a run, and short stops followed by SIGCONT."""
    findings = Findings(f"signals to workers of {environment}Measured")
    training = Training.make(home, environment, timesteps=count * ROLLOUT * 8)
    process = training.start(resume=False)
    names = ("SIGSTOP", "SIGKILL", "SIGTERM", "SIGHUP", "SIGSTOP and SIGCONT")
    for n in range(count):
        if not wait_for(lambda: bool(training.workers()), process):
            break
        name = names[n % len(names)]
        with contextlib.suppress(ProcessLookupError, IndexError):
            worker = training.workers()[0]
            os.kill(worker, signal.Signals[name.split()[0]])
            findings.add(name)
            if name.endswith("SIGCONT"):
                time.sleep(0.3)
                os.kill(worker, signal.SIGCONT)
        time.sleep(float(rng.uniform(0.5, 4)))
    ended(process, findings)
    training.check_end(findings)
    failed = findings.counts["measurements charged to plans as failed"]
    findings.expect(failed == 0, f"{failed} measurements were charged to plans")
    return findings


def signalled(home: Path, environment: str, count: int, rng: np.random.Generator) -> Findings:
    """Send SIGINT, SIGTERM and SIGHUP to the trainer at random times, and continue each time with `--resume`."""
    findings = Findings(f"signals to the trainer of {environment}")
    training = Training.make(home, environment, timesteps=count * CHECKPOINT_EVERY * 8)
    state = State()
    for n in range(count):
        process = training.start(resume=n > 0)
        seen = len(training.points())
        wait_for(lambda seen=seen: len(training.points()) > seen, process)  # type: ignore[misc]
        time.sleep(float(rng.uniform(0, 2)))
        number = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)[n % 3]
        if process.poll() is not None:
            findings.add("runs that ended before their signal")
            ended(process, findings)
            break
        process.send_signal(number)
        begun = time.monotonic()
        said = ended(process, findings, status=128 + number)
        findings.counts["slowest end, s"] = max(
            findings.counts.get("slowest end, s", 0.0), round(time.monotonic() - begun, 1)
        )
        findings.add(number.name)
        findings.expect("train --resume --name run" in said, f"no advice on how to resume: {said[-300:]}")
        state = training.check(findings, state)
        done = max((p["timesteps"] for p in state.points), default=0)
        findings.expect(state.step >= done, f"step {done} was reached, and the checkpoint is of step {state.step}")
    else:
        ended(training.start(resume=True), findings)
    training.check_end(findings)
    return findings


@contextlib.contextmanager
def stopped(process: subprocess.Popen[str], seconds: float) -> Iterator[None]:
    """Stop a process for the duration of the context, and at least for the given seconds."""
    process.send_signal(signal.SIGSTOP)
    end = time.monotonic() + seconds
    yield
    time.sleep(max(0.0, end - time.monotonic()))
    process.send_signal(signal.SIGCONT)
