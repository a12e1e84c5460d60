"""Robustness scenarios in which no data may be lost: kills, signals, full disks, read-only folders, concurrency.

python -m tests.sweeps.abuse [--count 20] [--only WORD ...] [--out results/robustness/abuse]

Full disks and read-only folders require permission to mount; without it they are skipped, and the report says so.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from experiments.provenance import provenance
from tests.sweeps import abuse_machine as machine
from tests.sweeps import abuse_runs as runs
from tests.sweeps.abuse_runs import Findings

Scenario = Callable[[Path], Findings]


def scenarios(count: int, seed: int) -> dict[str, Scenario]:
    """Return the scenarios by name."""
    rng = np.random.default_rng(seed)
    found: dict[str, Scenario] = {
        "kills Fusion": lambda home: runs.kills(home, "Fusion", count, rng),
        "kills PassOrder": lambda home: runs.kills(home, "PassOrder", count, rng),
        "workers Fusion": lambda home: runs.harassed_workers(home, "Fusion", count, rng),
        "workers PassOrder": lambda home: runs.harassed_workers(home, "PassOrder", count, rng),
        "signals Fusion": lambda home: runs.signalled(home, "Fusion", max(3, count // 2), rng),
        "stops": lambda home: machine.stopped_trainer(home, rng),
        "restarts": lambda home: machine.restarts(home, 10 * count),
        "crowd threads": lambda home: machine.crowd(home, 1, 8),
        "crowd processes": lambda home: machine.crowd(home, 6, 1),
        "crowd both": lambda home: machine.crowd(home, 6, 8),
    }
    for place in machine.PLACES:
        found[f"full {place}"] = lambda home, place=place: machine.full_disk(home, place)  # type: ignore[misc]
        found[f"read-only {place}"] = lambda home, place=place: machine.read_only(home, place)  # type: ignore[misc]
    return found


def run(name: str, scenario: Scenario) -> tuple[Findings, float]:
    """Run a scenario in a temporary folder; return its findings and its duration in seconds."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        if name.startswith(("full", "read-only")) and not machine.can_mount(Path(home) / "probe"):
            findings = Findings(name, {"skipped": "mounting is not permitted"})
        else:
            try:
                findings = scenario(Path(home))
            except Exception:  # continue with the other scenarios
                findings = Findings(name, faults=[traceback.format_exc()])
    return findings, time.monotonic() - begin


def report(found: list[tuple[Findings, float]], header: dict[str, str]) -> str:
    """Return the report in Markdown."""
    lines = ["# Robustness scenarios", "", *(f"- {k}: {v}" for k, v in header.items()), ""]
    lines += ["| scenario | counts | seconds | failed checks |", "|---|---|---:|---:|"]
    for f, seconds in found:
        counts = "; ".join(f"{k}: {v}" for k, v in f.counts.items()).replace("|", "\\|")
        lines.append(f"| {f.name} | {counts} | {seconds:.0f} | {len(f.faults)} |")
    faults = [f"- {f.name}: {fault}" for f, _ in found for fault in f.faults]
    return "\n".join([*lines, "", *(["## Failed checks", "", *faults] if faults else ["All checks passed."])]) + "\n"


def main() -> int:
    """Run from the command line; return exit status 1 if a check failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--count", type=int, default=20, help="number of kills and of signals to workers (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random times (default: %(default)s)")
    parser.add_argument("--only", nargs="*", default=[], help="run only scenarios whose names contain one of these")
    parser.add_argument(
        "--out", type=Path, default=Path("results/robustness/abuse"),
        help="results file without suffix; .md and .json are written (default: %(default)s)",
    )  # fmt: skip
    options = parser.parse_args()
    facts = {k: v for k, v in provenance().items() if k in ("commit", "date", "machine")}
    header = {"command": f"python -m tests.sweeps.abuse --count {options.count} --seed {options.seed}", **facts}
    for number in (signal.SIGINT, signal.SIGHUP):  # ignored in background jobs of a shell, and then in child processes
        signal.signal(number, signal.SIG_DFL)
    found = []
    for name, scenario in scenarios(options.count, options.seed).items():
        if options.only and not any(word in name for word in options.only):
            continue
        found.append(run(name, scenario))
        findings, seconds = found[-1]
        print(
            f"{findings.name}: {findings.counts} in {seconds:.0f} s; {findings.faults or 'all checks passed'}",
            flush=True,
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    payload = {**header, "scenarios": [{**asdict(f), "seconds": round(s, 1)} for f, s in found]}
    options.out.with_suffix(".json").write_text(json.dumps(payload, indent=1) + "\n", encoding="utf-8")
    options.out.with_suffix(".md").write_text(report(found, header), encoding="utf-8")
    return 1 if any(f.faults for f, _ in found) else 0


if __name__ == "__main__":
    sys.exit(main())
