"""Steps per second of the environments with the cost model's reward; writes results/env/steps.md.

    python -m experiments.benchmarks.env_steps [--environments Fusion-v0 ...] [--programs layer_norm_backward ...]
                                               [--seconds 5] [--processes 1 2 4] [--out FILE.md]

Legal actions are drawn at random, loops are kept as they are, and an episode in fusion ends with probability 0.02 per
step. "New" are steps until the given seconds have passed, mostly to states that were not met before; "met" is how many
of them computed something, because they led to a new state or ended in one. A program with few states is known after
some steps, and the rest are look-ups. "Remembered" are the same episodes again. Seconds are processor time of one
process, without that of the compilers that it starts. "reset" is the mean of a reset after the first one. "Added" is
the memory that the environment adds to the process, with the program, its baseline and its states, and "process" is
that of a whole process with this environment alone after 1,000 steps.

With `--processes` the environments also run in several processes at once, one each, for the same seconds of wall time;
a plot beside the table shows the sum of their new steps per second.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import multiprocessing.sharedctypes
import multiprocessing.synchronize
import subprocess
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
from env.decision import DecisionEnv
from env.pass_order import PassOrderEnv
from experiments.module_command import plain_errors
from experiments.plots import save_figure, scaling_lines
from experiments.provenance import provenance
from experiments.results import write_text

PROGRAMS = ("cartpole_naive", "layer_norm_backward")
OPS = ("mlp_train_step", "models/resnet_forward")
"""Programs with ops that may be computed in several ways."""
LOOPS = ("cartpole_naive", "models/lstm_train")
"""Programs with one loop and with two, whose choices combine."""
ENVIRONMENTS = {
    "Fusion-v0": PROGRAMS,
    "Compile-v0": PROGRAMS,
    "PassOrder-v0": PROGRAMS,
    "Unroll-v0": LOOPS,
    "Expansions-v0": OPS,
    "Kernels-v0": PROGRAMS,
    "FusionEmulated-v0": PROGRAMS[1:],
    "CompileEmulated-v0": PROGRAMS[1:],
    "PassOrderEmulated-v0": PROGRAMS[1:],
    "UnrollEmulated-v0": LOOPS[:1],
    "ExpansionsEmulated-v0": OPS[:1],
    "KernelsEmulated-v0": PROGRAMS[1:],
}
"""The environments that estimate or predict times, and programs on which each has something to decide."""
SCALED = ("Fusion-v0", "Compile-v0", "PassOrder-v0", "Unroll-v0")
"""Those that run in several processes at once."""
SUITE = "quickstart"
PROCESS_STEPS, PROCESS_SECONDS = 1000, 20.0
"""Steps of a process whose memory is measured, and the processor time after which it stops earlier."""
BARE = "import numpy, gymnasium"
"""What a process imports whose memory is what others start from."""
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
    met: int = 0

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
    computed = _computed(env)
    for n in range(_LONGEST if again is None else len(again)):
        action = again[n] if again is not None else _draw(env, rng)
        start = time.process_time()
        *_, terminated, truncated, _ = env.step(action)
        run.step_seconds += time.process_time() - start
        run.choices.append(action)
        before, computed = computed, _computed(env)
        run.met += computed > before
        if terminated or truncated:
            _reset(env, program, run)
        if again is None and run.step_seconds >= seconds:
            break
    return run


def _computed(env: CompilerEnv[object]) -> int:
    """Return how many passes have run or decisions were made in this environment, on the program of the episode."""
    if isinstance(env, PassOrderEnv):
        return env.graph(env.compilation.program).runs
    assert isinstance(env, DecisionEnv)  # noqa: S101 - all others are
    return env.states(env.compilation.program).met


def _reset(env: CompilerEnv[object], program: str, run: _Run) -> None:
    start = time.process_time()
    env.reset(options={"program": _in_suite(program)[1]})
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


def _in_suite(program: str) -> tuple[str, str]:
    """Return the suite and the name of a program, which is given as its name, after its suite if that is another."""
    suite, _, name = program.rpartition("/")
    return suite or SUITE, name


def _make(environment: str, program: str) -> CompilerEnv[object]:
    env = gym.make(f"hlogym/{environment}", suite=_in_suite(program)[0], disable_env_checker=True).unwrapped
    assert isinstance(env, CompilerEnv)  # noqa: S101 - the registered environments are
    return env


def measure(environment: str, program: str, seconds: float) -> str:
    """Return a row of the table."""
    gc.collect()
    before = resident_bytes()
    env = _make(environment, program)
    start = time.process_time()
    env.reset(seed=0, options={"program": _in_suite(program)[1]})
    first = time.process_time() - start
    new = play(env, program, seconds)
    again = play(env, program, seconds, new.choices)
    gc.collect()
    grown = (resident_bytes() - before) / 2**20
    reset = 1e3 * again.reset_seconds / again.resets
    whole = _output_of(f"from {__spec__.name} import print_memory; print_memory({environment!r}, {program!r})")
    return (
        f"| {environment} | {program} | {len(new.choices):,} | {new.met:,} | {new.rate:,.0f} | {again.rate:,.0f} "
        f"| {first:.2f} s | {reset:.2f} ms | {grown:.0f} MiB | {whole} MiB |"
    )


def print_memory(environment: str = "", program: str = "") -> None:
    """Print the memory of this process in MiB, after steps of an environment if one is given."""
    if environment:
        env, run = _make(environment, program), _Run([])
        rng, start = np.random.default_rng(0), time.process_time()
        _reset(env, program, run)
        for _ in range(PROCESS_STEPS):
            *_, terminated, truncated, _ = env.step(_draw(env, rng))
            if terminated or truncated:
                _reset(env, program, run)
            if time.process_time() > start + PROCESS_SECONDS:
                break
    print(f"{resident_bytes() / 2**20:.0f}")


def _output_of(code: str) -> str:
    """Return what a new Python process prints."""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def bare_memory() -> str:
    """Return the memory of a process in MiB that has imported NumPy and Gymnasium alone."""
    read = "print(round(int(open('/proc/self/statm').read().split()[1]) * 4096 / 2**20))"
    return _output_of(f"{BARE}; {read}")


def _work(
    environment: str, program: str, seconds: float, seed: int, ready: Barrier, begin: Begin, counts: Counts
) -> None:
    """Play in a process of its own and report the number of new steps in the seconds that all processes share."""
    env = _make(environment, program)
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
    parser.add_argument("--environments", nargs="+", default=list(ENVIRONMENTS), help="ids without hlogym/")
    parser.add_argument(
        "--programs", nargs="+", help="programs of quickstart, or SUITE/PROGRAM (default: by environment)"
    )
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
        f"- machine: {facts['machine']}; processor time of one process, without compilers that it starts",
        f"- date: {facts['date']}",
        "",
        "Random legal actions, loops kept, times by the cost model or the emulator. New and remembered are in steps",
        'per second, "met" is how many new steps computed something, "added" is the memory of the environment, and',
        f'"process" that of a process with this environment alone after {PROCESS_STEPS:,} steps. A process with NumPy',
        f"and Gymnasium alone has {bare_memory()} MiB.",
        "",
        "| environment | program | steps | met | new | remembered | first reset | reset | added | process |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for environment in options.environments:
        for program in options.programs or ENVIRONMENTS.get(environment, PROGRAMS):
            lines.append(measure(environment, program, options.seconds))
            print(lines[-1], flush=True)
    if options.processes:
        plot = options.out.with_suffix(".svg")
        scaled = [e for e in options.environments if e in SCALED]
        lines += _scaling(scaled, (options.programs or PROGRAMS)[-1], options.seconds, options.processes, plot)
    write_text(options.out, "\n".join(lines) + "\n")


if __name__ == "__main__":
    with plain_errors():
        main()
