"""Steps per second of the environments with the cost model's reward; writes results/env/steps.md.

    python -m experiments.benchmarks.env_steps [--environments Fusion-v0 ...] [--programs layer_norm_backward ...]
                                               [--seconds 5] [--processes 1 2 4] [--out FILE.md]

Legal actions are drawn at random, loops are kept as they are, and an episode in fusion ends with probability 0.02 per
step. "New" are steps until the given seconds have passed, mostly to states that were not met before; "remembered" are
the same episodes again. Seconds are processor time of one process. "reset" is the mean of a reset after the first one,
and memory is what the environment adds to the process, with the program, its baseline and its states.

With `--processes` the environments also run in several processes at once, one each, for the same seconds of wall time;
a plot beside the table shows the sum of their new steps per second.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import multiprocessing.sharedctypes
import multiprocessing.synchronize
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import gymnasium as gym
import numpy as np

import hlogym  # noqa: F401 - registers the environments
from env.base import CompilerEnv
from experiments.module_command import plain_errors
from experiments.plots import save_figure, scaling_lines
from experiments.provenance import provenance
from experiments.results import write_text

ENVIRONMENTS = ("Fusion-v0", "Compile-v0", "PassOrder-v0", "Unroll-v0")
PROGRAMS = ("cartpole_naive", "layer_norm_backward")
STOP = 0.02
LEAD_SECONDS = 0.1
"""From the time when all processes are ready until they begin together."""
_LONGEST = 100_000


Barrier: TypeAlias = "multiprocessing.synchronize.Barrier"
Begin: TypeAlias = "multiprocessing.sharedctypes.Synchronized[float]"
Counts: TypeAlias = "multiprocessing.Queue[int]"


@dataclass
class _Run:
    """Episodes that were played: their choices, and the processor seconds of steps and of resets."""

    choices: list[int]
    step_seconds: float = 0.0
    reset_seconds: float = 0.0
    resets: int = 0

    @property
    def rate(self) -> float:
        return len(self.choices) / max(self.step_seconds, 1e-9)


def resident_bytes() -> int:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def play(env: CompilerEnv[object], program: str, seconds: float, again: list[int] | None = None) -> _Run:
    """Play random episodes for some processor seconds, or the choices of an earlier run again."""
    rng, run = np.random.default_rng(0), _Run([])
    _reset(env, program, run)
    for n in range(_LONGEST if again is None else len(again)):
        action = again[n] if again is not None else _draw(env, rng)
        start = time.process_time()
        *_, terminated, truncated, _ = env.step(action)
        run.step_seconds += time.process_time() - start
        run.choices.append(action)
        if terminated or truncated:
            _reset(env, program, run)
        if again is None and run.step_seconds >= seconds:
            break
    return run


def _reset(env: CompilerEnv[object], program: str, run: _Run) -> None:
    start = time.process_time()
    env.reset(options={"program": program})
    run.reset_seconds += time.process_time() - start
    run.resets += 1


def _draw(env: CompilerEnv[object], rng: np.random.Generator) -> int:
    legal = np.flatnonzero(env.get_wrapper_attr("action_masks")())
    phase = env.compilation.phase
    if phase == "loops" and len(env.phases) > 1:
        return int(legal[0])
    if phase == "fusion" and len(legal) > 1:
        return int(legal[-1] if rng.random() < STOP else rng.choice(legal[:-1]))
    return int(rng.choice(legal))


def _make(environment: str) -> CompilerEnv[object]:
    env = gym.make(f"hlogym/{environment}", suite="quickstart", backend="cpu", disable_env_checker=True).unwrapped
    assert isinstance(env, CompilerEnv)  # noqa: S101 - the registered environments are
    return env


def measure(environment: str, program: str, seconds: float) -> str:
    """Return a row of the table."""
    gc.collect()
    before = resident_bytes()
    env = _make(environment)
    start = time.process_time()
    env.reset(seed=0, options={"program": program})
    first = time.process_time() - start
    new = play(env, program, seconds)
    again = play(env, program, seconds, new.choices)
    gc.collect()
    grown = (resident_bytes() - before) / 2**20
    reset = 1e3 * again.reset_seconds / again.resets
    return (
        f"| {environment} | {program} | {len(new.choices):,} | {new.rate:,.0f} | {again.rate:,.0f} | {first:.2f} s "
        f"| {reset:.2f} ms | {grown:.0f} MiB |"
    )


def _work(
    environment: str, program: str, seconds: float, seed: int, ready: Barrier, begin: Begin, counts: Counts
) -> None:
    """Play in a process of its own and report the number of new steps in the seconds that all processes share."""
    env = _make(environment)
    rng, run = np.random.default_rng(seed), _Run([])
    _reset(env, program, run)
    ready.wait()
    with begin.get_lock():
        begin.value = start = begin.value or time.monotonic() + LEAD_SECONDS
    time.sleep(max(0.0, start - time.monotonic()))
    while time.monotonic() < start + seconds:
        action = _draw(env, rng)
        *_, terminated, truncated, _ = env.step(action)
        run.choices.append(action)
        if terminated or truncated:
            _reset(env, program, run)
    counts.put(len(run.choices))


def rate_of_processes(environment: str, program: str, seconds: float, count: int) -> float:
    """Return the new steps per second of several processes together.

    All count the steps of the same seconds, so that processes which wait for a core do not count as if they had one.
    """
    context = multiprocessing.get_context("spawn")
    counts, shared = context.Queue(), (context.Barrier(count), context.Value("d", 0.0))
    workers = [
        context.Process(target=_work, args=(environment, program, seconds, seed, *shared, counts))
        for seed in range(count)
    ]
    for w in workers:
        w.start()
    total = sum(int(counts.get()) for _ in workers)
    for w in workers:
        w.join()
    return total / seconds


def _scaling(environments: Sequence[str], program: str, seconds: float, counts: Sequence[int], to: Path) -> list[str]:
    """Measure each number of processes, plot the rates, and return the lines of a table."""
    lines = ["", f"New steps per second of wall time of several processes on {program}; see {to.name}.", ""]
    lines += [f"| environment | {' | '.join(map(str, counts))} |", "|---|" + "---:|" * len(counts)]
    series: dict[str, list[tuple[float, float]]] = {}
    for environment in environments:
        rates = [rate_of_processes(environment, program, seconds, n) for n in counts]
        series[environment] = [(float(n), r) for n, r in zip(counts, rates, strict=True)]
        lines.append(f"| {environment} | {' | '.join(f'{r:,.0f}' for r in rates)} |")
        print(lines[-1], flush=True)
    save_figure(scaling_lines(series, "processes", "new steps per second"), to)
    return lines


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", nargs="+", default=ENVIRONMENTS, help="ids without hlogym/ (default: four)")
    parser.add_argument("--programs", nargs="+", default=PROGRAMS, help="programs of quickstart (default: two)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of new steps per row (default: %(default)s)")
    parser.add_argument(
        "--processes", nargs="+", type=int, default=[], metavar="N", help="numbers of processes to plot"
    )
    parser.add_argument("--out", type=Path, default=Path("results/env/steps.md"), help="(default: %(default)s)")
    options = parser.parse_args()
    facts = provenance()
    lines = [
        "# Steps of the environments",
        "",
        f"- command: `{' '.join(['python -m experiments.benchmarks.env_steps', *sys.argv[1:]])}`",
        f"- commit: {facts['commit']}",
        f"- machine: {facts['machine']}; processor time of one process",
        f"- date: {facts['date']}",
        "",
        "Random legal actions, loops kept, the cost model's reward. New and remembered are in steps per second.",
        "",
        "| environment | program | steps | new | remembered | first reset | reset | memory |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for environment in options.environments:
        for program in options.programs:
            lines.append(measure(environment, program, options.seconds))
            print(lines[-1], flush=True)
    if options.processes:
        plot = options.out.with_suffix(".svg")
        lines += _scaling(options.environments, options.programs[-1], options.seconds, options.processes, plot)
    write_text(options.out, "\n".join(lines) + "\n")


if __name__ == "__main__":
    with plain_errors():
        main()
