"""Memory of environments over thousands of episodes, and of a worker over a long series of distinct plans.

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
INTERVAL = 5  # episodes between two looks at the memory


@dataclass(frozen=True)
class Growth:
    """Resident memory along a series of episodes.

    Attributes:
        environment: its id.
        suite: what its episodes are on.
        episodes: how many there were.
        series: (episodes so far, MB of this process, MB of the worker, the worker's memory mappings), evenly spread.
        restarts: how many workers were replaced.
    """

    environment: str
    suite: str
    episodes: int
    series: tuple[tuple[int, float, float, int], ...]
    restarts: int

    def kilobytes_per_episode(self, column: int) -> float:
        """Slope of a least-squares line through the second half: what comes before is caches that fill up."""
        half = self.series[len(self.series) // 2 :]
        at, found = (np.array([s[n] for s in half], float) for n in (0, column))
        return float(np.polyfit(at, found, 1)[0]) * 1024 if len(half) > 1 else 0.0


def resident(pid: int | None = None) -> float:
    """Resident memory of a process in MB; 0 when it is gone."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * 4096 / 2**20


def mappings(pid: int | None) -> int:
    """How many memory mappings a process has; 0 when it is gone."""
    try:
        return len(Path(f"/proc/{pid}/maps").read_bytes().splitlines())
    except OSError:
        return 0


def play(env_id: str, suite: str, episodes: int, seconds: float, seed: int) -> Growth:
    """Episodes of random legal actions, until there are enough of them or time is up."""
    more: dict[str, Any] = {"store": ":memory:"} if "PassOrder" not in env_id else {}
    env: Any = gym.make(env_id, suite=suite, backend="cpu", **more).unwrapped
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    begin, marks = time.monotonic(), []
    done = 0
    while done < episodes and time.monotonic() - begin < seconds:
        env.reset()
        over = False
        while not over and time.monotonic() - begin < seconds:  # some orders of passes make an episode of minutes
            action = int(rng.choice(np.flatnonzero(env.action_masks())))
            _, _, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
        done += 1
        if done % INTERVAL and done > INTERVAL:
            continue
        gc.collect()  # what is garbage already does not count
        pid = env.measurer._worker.pid if env.measured else None
        marks.append((done, resident(), resident(pid) if pid else 0.0, mappings(pid) if pid else 0))
    restarts = env.measurer.restarts if env.measured else 0
    env.close()
    gc.collect()
    picked = sorted({round(i) for i in np.linspace(0, len(marks) - 1, SAMPLES)})
    return Growth(env_id, suite, done, tuple(marks[i] for i in picked), restarts)


def distinct_plans(program: str, plans: int, seconds: float, seed: int) -> Growth:
    """Plans compiled and checked by one measurer, none of them twice, until there are enough or time is up."""
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
    """Markdown."""
    lines = [
        "| environment | suite | episodes, plans | MB at the start | MB halfway | MB at the end | KB each, second half "
        "| worker: MB, KB each | worker: mappings | workers replaced |",
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
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=300.0, help="for each environment")
    parser.add_argument("--plans", type=int, default=1500, help="for the worker; 0: leave that out")
    parser.add_argument("--env", nargs="*", default=list(IDS))
    parser.add_argument("--suite", default="train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/robustness/memory"))
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
