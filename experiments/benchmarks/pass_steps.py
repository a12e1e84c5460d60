"""Steps a second of PassOrder on the suites, with a profile of where they go; writes results/passes/steps.md.

    python -m experiments.benchmarks.pass_steps [SUITE...] [--steps 3000] [--rewards op-count] [--out FILE.md]

Actions are drawn from those not masked. "New" episodes run over states nobody has explored, "again" repeats the same
episodes, as training does more and more; "verified" are new ones whose modules are checked after each pass that changed
them. Seconds are processor time, so that other work beside it counts little.
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
from experiments.provenance import provenance
from experiments.results import write_text

REWARDS = ("op-count", "estimated-time")


def play(env: PassOrderEnv, steps: int, seed: int) -> float:
    """Processor seconds of so many random steps."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    start = time.process_time()
    for _ in range(steps):
        *_, done, _, _ = env.step(int(rng.choice(np.flatnonzero(env.action_masks()))))
        if done:
            env.reset()
    return time.process_time() - start


def warm(env: PassOrderEnv) -> None:
    """Make what is made once a program: its references and the start of its states."""
    for program in env.suite.programs:
        env.graph(program)
        if env.reward.completes:
            _ = env.baseline(program).seconds


def profile_lines(suite: str, steps: int, count: int = 14) -> list[str]:
    """Markdown: the functions that take most time of their own, with their share."""
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
    lines = ["| function | calls | own time | with what it calls |", "|---|---:|---:|---:|"]
    for (file, _, name), (_, calls, own, whole, _) in rows:
        where = "" if file == "~" else f"{Path(file).parent.name}/{Path(file).name}: "
        lines.append(f"| {where}{name} | {calls:,} | {own / total:.1%} | {whole / total:.1%} |")
    return lines


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", default=("quickstart", "linear_algebra", "jax/train"))
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rewards", nargs="+", choices=REWARDS, default=REWARDS)
    parser.add_argument("--out", type=Path, default=Path("results/passes/steps.md"))
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
        f"{options.steps:,} steps of random actions that are not masked, of 150 at most an episode.",
        "",
        "| suite | programs | reward | new: steps a second | new, verified | again | passes run | remembered |",
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
    lines += ["", f"## Where new steps go ({last}, op-count, under cProfile)", "", *profile_lines(last, options.steps)]
    write_text(options.out, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
