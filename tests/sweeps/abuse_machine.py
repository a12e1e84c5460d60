"""Scenarios of `tests.sweeps.abuse` about the machine: full disks, read-only folders, stops and concurrency."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from env.isolated import NEUTRAL_FOLDER, ROOT, child_environment, python_command
from tests.sweeps.abuse_runs import Findings, State, Training, ended, stopped, wait_for

PLACES = ("runs", "cache", "store")

_MEASURING = """
import json, sys
from pathlib import Path
from compiler.fusion.policies import RandomFusion
from compiler.session import CompilationSession
from compiler.text import parse
from env.measurement import Measurer, MeasurerOptions
from env.suites import load_suite

program = load_suite(sys.argv[1]).find("chain")
start = CompilationSession(parse(program.text()))
start.run_passes()
outcomes = {}
with Measurer(options=MeasurerOptions(rounds=3, timeout=6)) as measurer:
    for seed in range(int(sys.argv[2])):
        session = start.fork()
        session.run_fusion_policy(RandomFusion(seed=seed, stop_probability=0.3))
        result = measurer.measure(program, session.plan, remeasure=True)
        outcomes[result.failure or "measured"] = outcomes.get(result.failure or "measured", 0) + 1
        print("measured one", flush=True)
print(json.dumps(outcomes))
"""

_COMPILING = """
import sys, threading
import numpy as np
from compiler import compile
from compiler.text import parse
from env.reference import Reference

programs, threads = sys.argv[3:], int(sys.argv[1])
rng = np.random.default_rng(0)
modules = [parse(t) for t in programs]
inputs = [[rng.uniform(0.5, 1.5, s.dimensions).astype(s.dtype) for s in m.parameter_shapes] for m in modules]
results, faults = [], []

def work(number):
    for n in range(len(programs)):
        at = (number * int(sys.argv[2]) + n) % len(programs)
        try:
            executable = compile(programs[at], backend="cpu")
            for _ in range(3):
                results.append((at, executable(*inputs[at])))
        except BaseException as error:
            faults.append(f"{type(error).__name__}: {error}")

started = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
for thread in started: thread.start()
for thread in started: thread.join()
references = [Reference.of(m, i) for m, i in zip(modules, inputs)]
differences = [references[at].difference(found) for at, found in results]
faults += [d for d in differences if d is not None]
print(differences.count(None), len(faults), *faults[:3], sep="\\n")
"""


def stopped_trainer(home: Path, rng: np.random.Generator) -> Findings:
    """Repeatedly stop a measuring process for longer than the time limit of a measurement, and continue it."""
    findings = Findings("stops of a process that measures")
    training = Training.make(home, "Fusion", 0)
    environment = {**child_environment(), "HOME": str(home), "HLOGYM_CACHE": str(training.cache)}
    process = subprocess.Popen(
        python_command(_MEASURING, str(home / "suite"), "40"), cwd=NEUTRAL_FOLDER, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for(lambda: bool(training.workers()), process)
    for _ in range(3):
        time.sleep(float(rng.uniform(0.2, 2)))
        if process.poll() is None:
            with stopped(process, 9):
                findings.add("stops of 9 s, with 6 s for a measurement")
    out, said = process.communicate(timeout=300)
    findings.expect(process.returncode == 0, f"exit status {process.returncode}: {said[-300:]}")
    outcomes = json.loads(out.splitlines()[-1]) if process.returncode == 0 else {}
    findings.counts["outcomes"] = outcomes
    findings.expect(outcomes == {"measured": 40}, f"not all plans were measured: {outcomes}")
    return findings


# ---- disks


def can_mount(folder: Path) -> bool:
    """Return whether this process may mount a small disk."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError), small_disk(folder, 1):
        return True
    return False


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: float) -> Iterator[Path]:
    """Mount a disk of the given size at the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={round(megabytes * 1024)}k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def write_protected(folder: Path) -> Iterator[None]:
    """Mount the folder read-only; files that are already open can still be written."""
    for options in (("--bind",), ("-o", "remount,bind,ro")):
        subprocess.run(["mount", *options, str(folder), str(folder)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def full_disk(home: Path, place: str) -> Findings:
    """Fill a disk in the middle of a run, free it again, and resume the run to its end."""
    findings = Findings(f"full disk under {place}")
    training = Training.make(home, "Fusion", timesteps=400)
    with small_disk(_folder(training, place), 200):
        process = training.start(resume=False)
        wait_for(lambda: training.step() > 0, process)
        filler = _folder(training, place) / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"x" * 65536)
        findings.add("disks filled")
        said = _one_message(process, findings, training)
        before = State.of(training)
        filler.unlink()
        _resumed(training, findings, before)
        findings.counts["message"] = said
    return findings


def read_only(home: Path, place: str) -> Findings:
    """Make a folder read-only in the middle of a run and at its start, then resume the run to its end."""
    findings = Findings(f"read-only {place}")
    training = Training.make(home, "Fusion", timesteps=800)
    _folder(training, place).mkdir(parents=True, exist_ok=True)
    process = training.start(resume=False)
    wait_for(lambda: training.step() > 0, process)
    with write_protected(_folder(training, place)):
        findings.add("folders made read-only")
        findings.counts["message"] = _one_message(process, findings, training)
        before = State.of(training)
        if not training.run.state().get("finished"):
            findings.counts["message at the start"] = _one_message(training.start(resume=True), findings, training)
    _resumed(training, findings, before)
    return findings


def _folder(training: Training, place: str) -> Path:
    return {"runs": training.runs, "cache": training.cache, "store": training.store.parent}[place]


def _one_message(process: subprocess.Popen[str], findings: Findings, training: Training) -> str:
    """Wait for a run that must end with one message, or successfully if it no longer needs the folder."""
    try:
        _, said = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        findings.faults.append("the run hangs")
        return ""
    errors = [line for line in said.splitlines() if line.startswith("error:")]
    findings.expect("Traceback" not in said, f"a traceback: {said[-600:]}")
    findings.expect("bug in hlogym" not in said, f"an unexpected error: {said[-400:]}")
    if process.returncode == 0:
        findings.add("runs that ended successfully")
        return "none"
    findings.add("runs that ended with a message")
    findings.expect(process.returncode == 1, f"exit status {process.returncode}")
    findings.expect(len(errors) == 1, f"{len(errors)} messages: {said[-400:]}")
    return errors[0].replace(str(training.home), "~") if errors else ""


def _resumed(training: Training, findings: Findings, before: State) -> None:
    if training.run.state().get("finished"):
        training.check_end(findings)
        return
    ended(training.start(resume=True), findings)
    training.check(findings, before)
    training.check_end(findings)


# ---- concurrency


def crowd(home: Path, processes: int, threads: int) -> Findings:
    """Compile and run equal and different programs in several processes and threads with a cold cache."""
    findings = Findings(f"{processes} processes with {threads} threads on a cold cache")
    from tests.env.small_programs import CHAIN, LOOP

    programs = [CHAIN, LOOP, CHAIN.replace("tanh", "negate"), LOOP.replace("cosine", "tanh"), CHAIN.replace("64", "65")]
    environment: dict[str, Any] = {**child_environment(), "HOME": str(home), "HLOGYM_CACHE": str(home / "cache")}
    started = [
        subprocess.Popen(
            python_command(_COMPILING, str(threads), str(1 + n % 2), *programs), cwd=NEUTRAL_FOLDER, env=environment,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for n in range(processes)
    ]  # fmt: skip
    for process in started:
        out, said = process.communicate(timeout=600)
        findings.expect(process.returncode == 0, f"exit status {process.returncode}: {said[-300:]}")
        right, wrong, *faults = [*out.splitlines(), "0", "0"][:8] if out else ["0", "1", "no output"]
        findings.add("right results", int(right))
        findings.expect(int(wrong) == 0, f"{wrong} faults: {faults}")
    expected = processes * threads * len(programs) * 3
    findings.expect(findings.counts.get("right results") == expected, f"expected {expected} right results")
    return findings


def restarts(home: Path, count: int) -> Findings:
    """Replace a worker many times; its owner must not accumulate descriptors, processes or temporary files."""
    from env.worker_process import WorkerProcess

    findings = Findings(f"{count} restarts of a worker")
    folder = home / "temporary"
    folder.mkdir()
    before_folder, os.environ["TMPDIR"] = os.environ.get("TMPDIR"), str(folder)
    worker = WorkerProcess()
    try:
        worker.ask({"op": "ping"}, 60)
        worker.kill()
        before = sorted(p.name for p in Path("/proc/self/fd").iterdir())
        for n in range(count):
            worker.ask({"op": "ping"}, 60)
            if n % 2 and worker.pid is not None:
                os.kill(worker.pid, 9)
                while worker.running:
                    time.sleep(0.01)
            else:
                worker.kill()
            findings.add("restarts")
    finally:
        worker.kill()
        os.environ.pop("TMPDIR")
        if before_folder is not None:
            os.environ["TMPDIR"] = before_folder
    after = sorted(p.name for p in Path("/proc/self/fd").iterdir())
    findings.counts |= {"descriptors before": len(before), "descriptors after": len(after)}
    findings.expect(before == after, f"descriptors: {before}, then {after}")
    findings.expect(list(folder.iterdir()) == [], "temporary files are left")
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    findings.expect(children == [], f"{len(children)} processes are left")
    return findings


if __name__ == "__main__":
    sys.exit(f"see tests/sweeps/abuse.py in {ROOT}")
