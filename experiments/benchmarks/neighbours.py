"""Slowdown on a busy machine, compared with XLA: programs timed alone and beside a busy loop on each core.

python -m experiments.benchmarks.neighbours [--suites quickstart jax] [--rounds 11] [--out FILE without suffix]

Calls from Python to both compilers' programs are timed, interleaved, after comparing the outputs. The busy loops are
stopped and continued by signals, so that both states are measured at nearly the same time.
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
from experiments.module_command import plain_errors
from experiments.peers import Contestant, make_peer
from experiments.provenance import provenance
from experiments.results import markdown_table, write_text
from experiments.sampling import warm_sample

SAMPLE_SECONDS = 0.02
STATES = ("alone", "busy")
BUSY_LOOP = "while True: pass"


@dataclass(frozen=True)
class Row:
    """Seconds per call of one program, by state and contestant: the median when alone, the mean when busy."""

    program: str
    seconds: dict[str, dict[str, float]]

    def ratio(self, state: str) -> float:
        """Return hlogym's time divided by XLA's."""
        return self.seconds[state]["hlogym"] / self.seconds[state]["xla"]


class Neighbours:
    """A context manager with one busy loop per core; the loops are stopped except within `running`."""

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
        """Let the busy loops run inside the context."""
        for process in self._processes:
            process.send_signal(signal.SIGCONT)
        time.sleep(0.05)  # gives the scheduler time to distribute them
        try:
            yield
        finally:
            for process in self._processes:
                process.send_signal(signal.SIGSTOP)


def measure(program: Program, neighbours: Neighbours, rounds: int) -> Row:
    """Time one program in both states.

    Raises:
        HlogymError: a compiler rejects the program or computes a wrong result.
    """
    module = read_module(program)
    arrays = entry_inputs(program, module, 0)
    executable = compile(read_module(program))
    ours = Contestant(
        "hlogym", lambda: list(executable(*arrays)), lambda n: warm_sample(lambda: executable(*arrays), n)
    )
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
    # On a busy machine, the scheduler decides which samples are disturbed. The mean weights all of them equally.
    summary = {"alone": median, "busy": mean}
    return Row(program.name, {s: {n: summary[s](t) for n, t in by_name.items()} for s, by_name in samples.items()})


def report(rows: Sequence[Row], left_out: Sequence[str]) -> str:
    """Return the results page in Markdown."""
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
            f"- {state}: time of hlogym / time of XLA: geometric mean {geometric_mean(ratios).value:.2f}, maximum "
            f"{max(ratios):.2f}; above 1.5 on {slow} of {len(ratios)} programs"
        )
    skipped = "".join(f"- not measured: {reason}\n" for reason in left_out)
    return (
        f"# Programs on a busy machine\n\n{facts}\nTime per call from Python, from interleaved timings. alone: the "
        "median; busy: the mean beside a busy loop on each core; ratio: time of hlogym / time of XLA.\n\n"
        + "\n".join(lines)
        + f"\n{skipped}\n{markdown_table(table)}"
    )


def _command() -> str:
    return " ".join(["python -m experiments.benchmarks.neighbours", *sys.argv[1:]])


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--suites", nargs="+", default=["quickstart", "jax"], help="suites to time (default: quickstart jax)"
    )
    parser.add_argument(
        "--rounds", type=int, default=11, help="interleaved timings per program and state (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results/robustness/neighbours"),
        help="results file without suffix; .md and .json are written (default: %(default)s)",
    )  # fmt: skip
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
    with plain_errors():
        main()
