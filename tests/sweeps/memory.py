"""Memory use of environments over thousands of episodes, and of a worker over many distinct plans.

python -m tests.sweeps.memory [--episodes 3000] [--seconds 300] [--plans 1500] [--env NAME ...]
                              [--out results/robustness/memory]
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import env as environments
from agents.search import Starts, random_plans
from env.measurement import Measurer
from env.suites import find_program
from experiments.provenance import provenance

IDS = tuple(f"hlogym/{name}-v0" for name in (*environments.ENVIRONMENTS, "FusionMeasured"))
SAMPLES = 20
INTERVAL = 5  # episodes between two samples of the memory


@dataclass(frozen=True)
class Growth:
    """Resident memory over a series of episodes.

    Attributes:
        environment: id of the environment.
        suite: suite of the programs.
        episodes: number of episodes.
        series: samples (episodes so far, MB of this process, MB of the worker, memory mappings of the worker).
        restarts: number of workers that were replaced.
    """

    environment: str
    suite: str
    episodes: int
    series: tuple[tuple[int, float, float, int], ...]
    restarts: int

    def kilobytes_per_episode(self, column: int) -> float:
        """Return the slope of a least-squares fit to the second half; in the first half, caches fill up."""
        half = self.series[len(self.series) // 2 :]
        at, found = (np.array([s[n] for s in half], float) for n in (0, column))
        return float(np.polyfit(at, found, 1)[0]) * 1024 if len(half) > 1 else 0.0


def resident(pid: int | None = None) -> float:
    """Return the resident memory of a process in MB, or 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * 4096 / 2**20


def mappings(pid: int | None) -> int:
    """Return the number of memory mappings of a process, or 0 if it has ended."""
    try:
        return len(Path(f"/proc/{pid}/maps").read_bytes().splitlines())
    except OSError:
        return 0


def play(env_id: str, suite: str, episodes: int, seconds: float, seed: int) -> Growth:
    """Play episodes with random legal actions until a number of episodes or seconds is reached."""
    more: dict[str, Any] = {"store": ":memory:"} if "PassOrder" not in env_id else {}
    env: Any = gym.make(env_id, suite=suite, backend="cpu", **more).unwrapped
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    begin, marks = time.monotonic(), []
    done = 0
    while done < episodes and time.monotonic() - begin < seconds:
        env.reset()
        over = False
        while not over and time.monotonic() - begin < seconds:  # some pass orders make an episode take minutes
            action = int(rng.choice(np.flatnonzero(env.action_masks())))
            _, _, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
        done += 1
        if done % INTERVAL and done > INTERVAL:
            continue
        gc.collect()  # unreachable objects do not count
        pid = env.measurer._worker.pid if env.measured else None
        marks.append((done, resident(), resident(pid) if pid else 0.0, mappings(pid) if pid else 0))
    restarts = env.measurer.restarts if env.measured else 0
    env.close()
    gc.collect()
    picked = sorted({round(i) for i in np.linspace(0, len(marks) - 1, SAMPLES)})
    return Growth(env_id, suite, done, tuple(marks[i] for i in picked), restarts)


def distinct_plans(program: str, plans: int, seconds: float, seed: int) -> Growth:
    """Compile and check distinct plans with one measurer until a number of plans or seconds is reached."""
    begin, marks = time.monotonic(), []
    chosen = find_program(program)
    seen: set[str] = set()
    with Measurer() as measurer:
        for plan in random_plans(Starts("cpu"), chosen, seed):
            if len(seen) >= plans or time.monotonic() - begin >= seconds:
                break
            if plan.to_json() in seen:
                continue
            seen.add(plan.to_json())
            measurer.check(chosen, plan)
            pid = measurer._worker.pid
            marks.append((len(seen), resident(), resident(pid) if pid else 0.0, mappings(pid)))
        restarts = measurer.restarts
    picked = sorted({round(i) for i in np.linspace(0, len(marks) - 1, SAMPLES)})
    return Growth("distinct plans, one worker", program, len(marks), tuple(marks[i] for i in picked), restarts)


def table(found: list[Growth]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [
        "| environment | suite | episodes or plans | MB at start | MB halfway | MB at end "
        "| KB per episode, second half | worker: MB, KB per episode | worker: mappings | workers replaced |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for g in found:
        first, half, last = g.series[0], g.series[len(g.series) // 2], g.series[-1]
        worker = f"{last[2]:.0f}, {g.kilobytes_per_episode(2):.1f}" if last[2] else "-"
        lines.append(
            f"| {g.environment} | {g.suite} | {g.episodes:,} | {first[1]:.0f} | {half[1]:.0f} | {last[1]:.0f} "
            f"| {g.kilobytes_per_episode(1):.1f} | {worker} | {last[3] or '-'} | {g.restarts} |"
        )
    return lines


def main() -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--episodes", type=int, default=3000, help="maximum episodes per environment (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=300.0, help="maximum seconds per environment (default: %(default)g)"
    )
    parser.add_argument(
        "--plans", type=int, default=1500, help="maximum distinct plans; 0: skip that part (default: %(default)s)"
    )
    parser.add_argument("--env", nargs="*", default=list(IDS), help="environment ids (default: all)")
    parser.add_argument("--suite", default="train", help="suite of the programs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the actions and plans (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("results/robustness/memory"),
        help="results file without suffix; .md and .json are written (default: %(default)s)",
    )  # fmt: skip
    options = parser.parse_args()
    facts = {k: v for k, v in provenance().items() if k in ("commit", "date", "machine")}
    limits = f"--episodes {options.episodes} --seconds {options.seconds:g} --plans {options.plans}"
    command = f"python -m tests.sweeps.memory {limits}"
    found = []
    for env_id in options.env:
        found.append(play(env_id, options.suite, options.episodes, options.seconds, options.seed))
        print(table(found)[-1], flush=True)
    if options.plans:
        found.append(distinct_plans("elementwise_chain", options.plans, 4 * options.seconds, options.seed))
        print(table(found)[-1], flush=True)
    header = {"command": command, **facts}
    text = ["# Memory over episodes", "", *(f"- {k}: {v}" for k, v in header.items()), "", *table(found)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    payload = {**header, "environments": [asdict(g) for g in found]}
    options.out.with_suffix(".json").write_text(json.dumps(payload, indent=1) + "\n", encoding="utf-8")
    options.out.with_suffix(".md").write_text("\n".join(text) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
