"""Environment steps per second of PassOrder, with a profile of their time; writes results/passes/steps.md.

    python -m experiments.benchmarks.pass_steps [SUITE...] [--steps 3000] [--rewards op-count] [--out FILE.md]

Actions are sampled from those that are not masked. "New" episodes visit unexplored states; "repeated" ones are the
same episodes again, as happens increasingly in training; "verified" ones are new episodes whose modules are checked
after each pass that changed them. Seconds are processor time, which other processes affect little.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import time
from pathlib import Path

import numpy as np

from env.pass_order import PassOrderEnv
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import write_text

REWARDS = ("op-count", "estimated-time")


def play(env: PassOrderEnv, steps: int, seed: int) -> float:
    """Take random steps and return their processor seconds."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    start = time.process_time()
    for _ in range(steps):
        *_, done, _, _ = env.step(int(rng.choice(np.flatnonzero(env.action_masks()))))
        if done:
            env.reset()
    return time.process_time() - start


def warm(env: PassOrderEnv) -> None:
    """Compute what is needed once per program: its initial state and, if the reward uses it, its baseline."""
    for program in env.suite.programs:
        env.graph(program)
        if env.reward.completes:
            _ = env.baseline(program).seconds


def profile_lines(suite: str, steps: int, count: int = 14) -> list[str]:
    """Return a Markdown table of the functions with the largest share of own time."""
    env = PassOrderEnv(suite, reward="op-count")
    warm(env)
    profile = cProfile.Profile()
    profile.enable()
    play(env, steps, 0)
    profile.disable()
    stats = pstats.Stats(profile)
    found = stats.stats  # type: ignore[attr-defined]  # no other way to the numbers
    total = sum(own for _, _, own, _, _ in found.values())
    rows = sorted(found.items(), key=lambda item: -item[1][2])[:count]
    lines = ["| function | calls | own time | cumulative time |", "|---|---:|---:|---:|"]
    for (file, _, name), (_, calls, own, whole, _) in rows:
        where = "" if file == "~" else f"{Path(file).parent.name}/{Path(file).name}: "
        lines.append(f"| {where}{name} | {calls:,} | {own / total:.1%} | {whole / total:.1%} |")
    return lines


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "suites", nargs="*", default=("quickstart", "linear_algebra", "jax/train"),
        help="suites (default: quickstart linear_algebra jax/train)",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, default=3000, help="steps per measurement (default: %(default)s)")
    parser.add_argument("--rewards", nargs="+", choices=REWARDS, default=REWARDS, help="rewards (default: all)")
    parser.add_argument(
        "--out", type=Path, default=Path("results/passes/steps.md"), help="results file (default: %(default)s)"
    )
    options = parser.parse_args()
    facts = provenance()
    lines = [
        "# Steps of PassOrder",
        "",
        f"- command: `{' '.join(['python -m experiments.benchmarks.pass_steps', *sys.argv[1:]])}`",
        f"- commit: {facts['commit']}",
        f"- machine: {facts['machine']}; processor time of one process",
        f"- date: {facts['date']}",
        "",
        f"{options.steps:,} steps of random unmasked actions, in episodes of at most 150 steps. New, verified and "
        "repeated are in steps per second.",
        "",
        "| suite | programs | reward | new | new, verified | repeated | passes run | passes cached |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for suite in options.suites:
        for reward in options.rewards:
            env, checked = (PassOrderEnv(suite, reward=reward, verified=v) for v in (False, True))
            warm(env)
            checked._baselines = env._baselines
            warm(checked)
            new, verified, again = (play(e, options.steps, 0) for e in (env, checked, env))
            graphs = env._graphs.values()
            lines.append(
                f"| {suite} | {len(env.suite.programs)} | {reward} | {options.steps / new:,.0f} "
                f"| {options.steps / verified:,.0f} | {options.steps / again:,.0f} | {sum(g.runs for g in graphs):,} "
                f"| {sum(g.remembered for g in graphs):,} |"
            )
            print(lines[-1], flush=True)
    last = options.suites[-1]
    lines += ["", f"## Profile of new steps ({last}, op-count, cProfile)", "", *profile_lines(last, options.steps)]
    write_text(options.out, "\n".join(lines) + "\n")


if __name__ == "__main__":
    with plain_errors():
        main()
