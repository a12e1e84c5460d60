"""Steps per second of the environments with the cost model's reward; writes results/env/steps.md.

    python -m experiments.benchmarks.env_steps [--environments Fusion-v0 ...] [--programs layer_norm_backward ...]
                                               [--seconds 5] [--out FILE.md]

Legal actions are drawn at random, loops are kept as they are, and an episode in fusion ends with probability 0.02 per
step. "New" are steps until the given seconds have passed, mostly to states that were not met before; "remembered" are
the same episodes again. Seconds are processor time of one process. "reset" is the mean of a reset after the first one,
and memory is what the environment adds to the process, with the program, its baseline and its states.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np

import hlogym  # noqa: F401 - registers the environments
from env.base import CompilerEnv
from experiments.provenance import provenance
from experiments.results import write_text

ENVIRONMENTS = ("Fusion-v0", "Compile-v0", "PassOrder-v0", "Unroll-v0")
PROGRAMS = ("cartpole_naive", "layer_norm_backward")
STOP = 0.02
_LONGEST = 100_000


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


def measure(environment: str, program: str, seconds: float) -> str:
    """Return a row of the table."""
    gc.collect()
    before = resident_bytes()
    env = gym.make(f"hlogym/{environment}", suite="quickstart", backend="cpu", disable_env_checker=True).unwrapped
    assert isinstance(env, CompilerEnv)  # noqa: S101 - the registered environments are
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


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", nargs="+", default=ENVIRONMENTS, help="ids without hlogym/ (default: four)")
    parser.add_argument("--programs", nargs="+", default=PROGRAMS, help="programs of quickstart (default: two)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of new steps per row (default: %(default)s)")
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
    write_text(options.out, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
