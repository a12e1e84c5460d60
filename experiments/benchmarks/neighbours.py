"""How much a busy machine slows us down beside XLA: programs timed alone and beside a busy loop on each core.

python -m experiments.benchmarks.neighbours [--suites quickstart jax] [--rounds 11] [--out FILE without its ending]

Both compilers' programs are timed around their Python call, in turns, outputs compared first. The busy loops are
stopped and continued by signals, so that both states are measured within the same seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from compiler import compile
from compiler.errors import HlogymError
from env.reference import Reference
from env.statistics import geometric_mean
from env.suites import Program, load_suite
from experiments.console import duration
from experiments.inputs import entry_inputs, read_module
from experiments.peers import Contestant, make_peer, timed
from experiments.provenance import provenance
from experiments.results import markdown_table, write_text

SAMPLE_SECONDS = 0.02
STATES = ("alone", "busy")
BUSY_LOOP = "while True: pass"


@dataclass(frozen=True)
class Row:
    """Seconds per call of one program, by state and then by contestant: the median alone, the mean where it is busy."""

    program: str
    seconds: dict[str, dict[str, float]]

    def ratio(self, state: str) -> float:
        """Our time over XLA's."""
        return self.seconds[state]["hlogym"] / self.seconds[state]["xla"]


class Neighbours:
    """A busy loop on each core, stopped until it is asked to run."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Neighbours:
        for core in sorted(os.sched_getaffinity(0)):
            process = subprocess.Popen([sys.executable, "-c", BUSY_LOOP])
            os.sched_setaffinity(process.pid, {core})
            process.send_signal(signal.SIGSTOP)
            self._processes.append(process)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let them run."""
        for process in self._processes:
            process.send_signal(signal.SIGCONT)
        time.sleep(0.05)  # until the scheduler has placed them
        try:
            yield
        finally:
            for process in self._processes:
                process.send_signal(signal.SIGSTOP)


def measure(program: Program, neighbours: Neighbours, rounds: int) -> Row:
    """Times of one program.

    Raises:
        HlogymError: a compiler does not take it, or computes something else.
    """
    module = read_module(program)
    arrays = entry_inputs(program, module, 0)
    executable = compile(read_module(program))
    ours = Contestant("hlogym", lambda: list(executable(*arrays)), lambda n: timed(lambda: executable(*arrays), n))
    contestants = [ours, make_peer("xla", read_module(program), arrays)]
    reference = Reference.of(module, arrays)
    for c in contestants:
        if (finding := reference.difference(c.outputs(), program.tolerance)) is not None:
            raise HlogymError(f"{c.name}: {finding}")
    repeats = {c.name: max(1, min(500, round(SAMPLE_SECONDS / max(c.sample(2), 1e-9)))) for c in contestants}
    samples: dict[str, dict[str, list[float]]] = {s: {c.name: [] for c in contestants} for s in STATES}
    for _ in range(rounds):
        for c in contestants:
            samples["alone"][c.name].append(c.sample(repeats[c.name]))
        with neighbours.running():
            for c in contestants:
                samples["busy"][c.name].append(c.sample(repeats[c.name]))
        contestants.reverse()
    # Beside neighbours the scheduler decides which samples are undisturbed; over all of them everybody gets his share.
    summary = {"alone": median, "busy": mean}
    return Row(program.name, {s: {n: summary[s](t) for n, t in by_name.items()} for s, by_name in samples.items()})


def report(rows: Sequence[Row], left_out: Sequence[str]) -> str:
    """The table in Markdown."""
    table = [["program", *(f"{state}: {name}" for state in STATES for name in ("hlogym", "xla", "ratio"))]]
    for r in sorted(rows, key=lambda r: -r.ratio("busy")):
        cells = [[*(duration(r.seconds[s][n]) for n in ("hlogym", "xla")), f"{r.ratio(s):.2f}"] for s in STATES]
        table.append([r.program, *(cell for row in cells for cell in row)])
    facts = "".join(f"- {k}: {v}\n" for k, v in {**provenance(), "command": _command()}.items())
    lines = []
    for state in STATES:
        ratios = [r.ratio(state) for r in rows]
        slow = sum(ratio > 1.5 for ratio in ratios)
        lines.append(
            f"- {state}: our time over XLA's {geometric_mean(ratios).value:.2f} as a geometric mean, at most "
            f"{max(ratios):.2f}; above 1.5 on {slow} of {len(ratios)} programs"
        )
    skipped = "".join(f"- left out: {reason}\n" for reason in left_out)
    return (
        f"# Beside busy neighbours\n\n{facts}\nSeconds per call, around the Python call, of programs timed in "
        "turns; alone: the median, busy: the mean beside a busy loop on each core.\n\n"
        + "\n".join(lines)
        + f"\n{skipped}\n{markdown_table(table)}"
    )


def _command() -> str:
    return " ".join(["python -m experiments.benchmarks.neighbours", *sys.argv[1:]])


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", default=["quickstart", "jax"])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path, default=Path("results/robustness/neighbours"))
    options = parser.parse_args()
    rows: list[Row] = []
    left_out: list[str] = []
    with Neighbours() as neighbours:
        for program in (p for suite in options.suites for p in load_suite(suite).programs):
            try:
                rows.append(measure(program, neighbours, options.rounds))
            except HlogymError as error:
                left_out.append(f"{program.name}: {(str(error).splitlines() or ['?'])[0]}")
                continue
            print(f"{program.name}: alone {rows[-1].ratio('alone'):.2f}, busy {rows[-1].ratio('busy'):.2f}", flush=True)
    write_text(options.out.with_suffix(".md"), report(rows, left_out))
    facts = {"kind": "neighbours", "provenance": {**provenance(), "command": _command()}}
    write_text(
        options.out.with_suffix(".json"), json.dumps({**facts, "rows": [vars(r) for r in rows]}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
