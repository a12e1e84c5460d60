"""Many measured episodes in four environments side by side, with crashes, hangs, kills and full disks all the while.

    python -m tests.sweeps.long_run [--episodes 100000] [--minutes 60] [--out results/robustness/long_run]

The environments share one store and one cache of compiled code, on a disk of their own that is filled now and then.
Plans crash or hang by their text (`tests.sweeps.long_run_player`). Workers are killed and stopped, and so is one of the
environments. At the end, every record that the store has accepted must be there, every measurement must have had the
outcome of its plan, and memory, open files and mapped libraries of the processes must not have grown.

Without permission to mount, no disk is filled, and the report says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from env.isolated import ROOT
from experiments.plots import save_figure
from experiments.provenance import provenance
from tests.env.small_programs import write_suite
from tests.sweeps.abuse_machine import can_mount, small_disk

ENVIRONMENTS = ("Fusion", "Unroll", "Kernels", "Fusion")
KILLED = 3
"""The environment that is killed; the memory of the others is followed."""
DISK_MEGABYTES = 300
EVENTS = (
    ("worker killed", 5), ("worker terminated", 2), ("worker stopped", 2), ("environment killed", 1), ("disk full", 2),
)  # fmt: skip
"""Accidents and how often each happens."""
PAUSE = 8.0
"""Mean seconds between two accidents, at least 3: a worker lost four times in one request looks like a plan's fault."""
FULL_SECONDS = 3.0
SAMPLE_SECONDS = 5.0
ROWS = 20


@dataclass(frozen=True)
class Sample:
    """What a process holds.

    Attributes:
        seconds: since the start.
        number: of the environment.
        episodes: so far.
        megabytes: resident memory of the environment and of its worker.
        files: open files of both.
        libraries: mapped libraries of both.
    """

    seconds: float
    number: int
    episodes: int
    megabytes: tuple[float, float]
    files: tuple[int, int]
    libraries: tuple[int, int]


class Run:
    """The processes, the accidents, and what was seen."""

    def __init__(self, folder: Path, episodes: int, disk: bool, seed: int) -> None:
        self.folder, self.disk, self.rng = folder, disk, random.Random(seed)
        self.each = -(-episodes // len(ENVIRONMENTS))
        self.suite = write_suite(folder / "suite")
        self.events: dict[str, int] = {}
        self.samples: list[Sample] = []
        self.faults: list[str] = []
        self.begun = time.monotonic()
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.processes = [self._start(n) for n in range(len(ENVIRONMENTS))]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "HLOGYM_CACHE": str(self.folder / "disk" / "cache"),
            "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1", "HLOGYM_NUM_THREADS": "1",
        }  # fmt: skip
        command = [
            sys.executable, "-m", "tests.sweeps.long_run_player", str(number), ENVIRONMENTS[number], str(self.suite),
            str(self.folder),
        ]  # fmt: skip
        with (self.folder / f"{number}.log").open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log, stdout=log)

    def state(self, number: int) -> dict[str, Any]:
        """Return the state that an environment has written last."""
        with contextlib.suppress(OSError):
            state: dict[str, Any] = json.loads((self.folder / f"{number}.json").read_text())
            return state
        return {}

    def until_end(self, seconds: float) -> None:
        """Let accidents happen until each environment has played its share, or so many seconds have passed."""
        next_event = next_sample = time.monotonic() + SAMPLE_SECONDS
        while any(p.poll() is None for p in self.processes):
            time.sleep(0.1)
            self._mend()
            if all(self.state(n).get("episodes", 0) >= self.each for n in range(len(ENVIRONMENTS))):
                (self.folder / "stop").touch()
                continue
            if time.monotonic() > next_sample:
                self.samples += filter(None, map(self._sample, range(len(ENVIRONMENTS))))
                next_sample += SAMPLE_SECONDS
            if time.monotonic() > next_event:
                self._accident()
                next_event = time.monotonic() + 3 + self.rng.expovariate(1 / (PAUSE - 3))
            if time.monotonic() - self.begun > seconds:
                break
        for process in self.processes:
            process.kill()
            process.wait()

    def _mend(self) -> None:
        """Start the environment again that was killed; an end of any other is a fault."""
        for number, process in enumerate(self.processes):
            if process.poll() in (None, 0):
                continue
            if number != KILLED or process.returncode != -signal.SIGKILL:
                said = (self.folder / f"{number}.log").read_text(errors="replace")[-800:]
                self.faults.append(f"{ENVIRONMENTS[number]} ended with status {process.returncode}: {said}")
            if len(self.faults) < 10:
                self.processes[number] = self._start(number)

    def _accident(self) -> None:
        name = self.rng.choices([n for n, _ in EVENTS], [w for _, w in EVENTS])[0]
        number = self.rng.randrange(len(ENVIRONMENTS))
        if name == "environment killed":
            self.processes[KILLED].kill()
        elif name == "disk full":
            if not self.disk:
                return
            filler = self.folder / "disk" / "filler"
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 65536)
            time.sleep(FULL_SECONDS)
            filler.unlink()
        else:
            sent = {"worker killed": signal.SIGKILL, "worker terminated": signal.SIGTERM}.get(name, signal.SIGSTOP)
            worker = self.state(number).get("worker")
            if worker is None or not _is_worker(worker):
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, sent)
        self.events[name] = self.events.get(name, 0) + 1

    def _sample(self, number: int) -> Sample | None:
        state = self.state(number)
        pids = state.get("pid"), state.get("worker")
        found = [_held(p) for p in pids]
        if found[0] is None or found[1] is None or not _is_worker(pids[1]):
            return None
        return Sample(
            time.monotonic() - self.begun,
            number,
            state["episodes"],
            *zip(*found, strict=True),
        )

    def check(self) -> dict[str, Any]:
        """Check what is left behind; return the counts for the report."""
        states = [self.state(n) for n in range(len(ENVIRONMENTS))]
        lost, accepted = self._lost_records()
        if lost:
            self.faults.append(f"{lost} of {accepted} records are lost")
        for number, state in enumerate(states):
            self.faults += [f"{ENVIRONMENTS[number]}: {f}" for f in state.get("faults", ())]
        outcomes = _sums(s.get("outcomes", {}) for s in states)
        self.faults += [f"no plan ended as {kind}" for kind in ("measured", "crash", "timeout") if kind not in outcomes]
        left = list(self.temporary.glob("*"))
        turns = [p for p in left if p.name.startswith("hlogym-turns")]
        if len(left) > len(turns):
            self.faults.append(f"{len(left) - len(turns)} temporary files are left: {[p.name for p in left[:5]]}")
        for number in range(len(ENVIRONMENTS)):
            if number != KILLED:
                self.faults += growth([s for s in self.samples if s.number == number], ENVIRONMENTS[number])
        return {
            "episodes": f"{sum(s.get('episodes', 0) for s in states):,} (wanted: {self.each:,} in each environment)",
            "episodes of each": ", ".join(
                f"{n} {s.get('episodes', 0):,}" for n, s in zip(ENVIRONMENTS, states, strict=True)
            ),
            "accidents": self.events,
            "outcomes of measurements": outcomes,
            "episodes that the machine interrupted": _sums(s.get("interrupted", {}) for s in states),
            "workers replaced": sum(s.get("restarts", 0) for s in states),
            "lives of the environment that was killed": states[KILLED].get("lives", 0),
            "records accepted, of them lost": f"{accepted}, {lost}",
            "minutes": round((time.monotonic() - self.begun) / 60, 1),
        }

    def _lost_records(self) -> tuple[int, int]:
        """Return how many accepted records are not in the store, or older there, and how many were accepted."""
        accepted: dict[str, float] = {}
        count = 0
        for journal in self.folder.glob("*.keys"):
            for line in journal.read_text().splitlines():
                key, at = line.split()
                accepted[key] = max(accepted.get(key, 0.0), float(at))
                count += 1
        with contextlib.closing(sqlite3.connect(self.folder / "disk" / "times.sqlite")) as database:
            if database.execute("PRAGMA integrity_check").fetchone()[0] != "ok":
                self.faults.append("the store is damaged")
            kept = dict(database.execute("SELECT key, measured_at FROM plan_times"))
        return sum(kept.get(key, 0.0) < at for key, at in accepted.items()), count


def growth(samples: Sequence[Sample], name: str) -> list[str]:
    """Return what grew from the second third of the samples to the last one, by medians, in words."""
    third = len(samples) // 3
    if third < 5:
        return []
    faults = []
    for what, least, column in (("MB", 8.0, "megabytes"), ("open files", 3, "files"), ("libraries", 10, "libraries")):
        for which, where in enumerate(("environment", "worker")):
            early, late = (
                float(np.median([getattr(s, column)[which] for s in part]))
                for part in (samples[third : 2 * third], samples[2 * third :])
            )
            if late > early * 1.1 + least:
                faults.append(f"{name}: the {where} holds {late:.0f} {what}, and {early:.0f} before")
    return faults


def _held(pid: int | None) -> tuple[float, int, int] | None:
    """Return resident megabytes, open files and mapped libraries of a process; None if it has ended."""
    try:
        folder = Path(f"/proc/{pid}")
        pages = int((folder / "statm").read_text().split()[1])
        maps = (folder / "maps").read_text().splitlines()
        libraries = {line.split()[-1] for line in maps if ".so" in line}
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(list((folder / "fd").iterdir())), len(libraries)
    except OSError:
        return None


def _is_worker(pid: int | None) -> bool:
    try:
        return b"long_run_player import expected" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _sums(counts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            total[name] = total.get(name, 0) + count
    return {n: c for n, c in total.items() if c}


def table(samples: Sequence[Sample]) -> list[str]:
    """Return rows of some times, with what all environments and workers hold together at each."""
    lines = [
        "| minutes | episodes | environments: MB | open files | libraries | workers: MB | open files | libraries |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    groups: dict[int, dict[int, Sample]] = {}
    for s in samples:
        groups.setdefault(round(s.seconds / SAMPLE_SECONDS), {})[s.number] = s
    whole = [list(g.values()) for g in groups.values() if len(g) == len(ENVIRONMENTS)]
    for at in sorted({round(i) for i in np.linspace(0, len(whole) - 1, ROWS)}) if whole else ():
        g = whole[at]
        cells = [f"{g[0].seconds / 60:.1f}", f"{sum(s.episodes for s in g):,}"]
        for which in (0, 1):
            cells += [f"{sum(s.megabytes[which] for s in g):.0f}", str(sum(s.files[which] for s in g))]
            cells.append(str(sum(s.libraries[which] for s in g)))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def plot(samples: Sequence[Sample], path: Path) -> None:
    """Draw memory, open files and libraries of each environment and worker over the minutes."""
    from matplotlib.figure import Figure

    figure = Figure((9, 6), layout="constrained")
    axes = figure.subplots(3, 2, sharex=True)
    for row, (column, label) in enumerate((("megabytes", "MB"), ("files", "open files"), ("libraries", "libraries"))):
        for which, title in enumerate(("environments", "workers")):
            for number, name in enumerate(ENVIRONMENTS):
                mine = [s for s in samples if s.number == number]
                values = [getattr(s, column)[which] for s in mine]
                axes[row, which].plot([s.seconds / 60 for s in mine], values, lw=0.8, label=f"{number} {name}")
            axes[row, which].set_ylim(bottom=0)
            axes[row, which].set_ylabel(label)
            axes[0, which].set_title(title)
            axes[2, which].set_xlabel("minutes")
    axes[0, 0].legend(fontsize="small")
    save_figure(figure, path)


def main() -> int:
    """Run from the command line; return exit status 1 if a check failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--episodes", type=int, default=100_000, help="episodes of all environments (default: %(default)s)")
    add("--minutes", type=float, default=60.0, help="time limit (default: %(default)g)")
    add("--seed", type=int, default=0, help="seed of the accidents (default: %(default)s)")
    add("--out", type=Path, default=Path("results/robustness/long_run"), help="results file without suffix")
    o = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the disk is unmounted
    facts = {k: v for k, v in provenance().items() if k in ("commit", "date", "machine")}
    command = f"python -m tests.sweeps.long_run --episodes {o.episodes} --minutes {o.minutes:g} --seed {o.seed}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home, contextlib.ExitStack() as stack:
        folder = Path(home)
        disk = can_mount(folder / "probe")
        if disk:
            stack.enter_context(small_disk(folder / "disk", DISK_MEGABYTES))
        else:
            (folder / "disk").mkdir()
        run = Run(folder, o.episodes, disk, o.seed)
        try:
            run.until_end(60 * o.minutes)
        finally:
            for process in run.processes:
                process.kill()
        counts = run.check()
    header = {"command": f"`{command}`", **facts}
    text = ["# Episodes with accidents", "", *(f"- {k}: {v}" for k, v in header.items()), ""]
    text += [
        f"Four measured environments side by side ({', '.join(ENVIRONMENTS)}), on two small programs with one store. "
        "Outcomes other than `measured` are those of plans made to crash or hang.", "",
    ]  # fmt: skip
    said = {k: ", ".join(f"{n}: {c}" for n, c in v.items()) if isinstance(v, dict) else v for k, v in counts.items()}
    text += [
        *(f"- {k}: {v}" for k, v in said.items()),
        *([] if disk else ["- mounting is not permitted: no full disk"]),
    ]
    text += ["", "![Memory, files and libraries](long_run.svg)", "", *table(run.samples), ""]
    text += ["## Failed checks", "", *(f"- {f}" for f in run.faults)] if run.faults else ["All checks passed."]
    o.out.parent.mkdir(parents=True, exist_ok=True)
    plot(run.samples, o.out.with_suffix(".svg"))
    payload = {**header, **counts, "faults": run.faults, "samples": [asdict(s) for s in run.samples]}
    o.out.with_suffix(".json").write_text(json.dumps(payload) + "\n", encoding="utf-8")
    o.out.with_suffix(".md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))
    return 1 if run.faults else 0


if __name__ == "__main__":
    sys.exit(main())
