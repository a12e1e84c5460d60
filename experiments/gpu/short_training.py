"""A short training on measured time, in a process of its own: `training` starts it where its packages are there.

The agent decides loops and fusions of a few programs. Beside it, random plans are measured for as long. The best plans
of both, and what the agent decides without exploring, are then timed in turns with the default plan.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from agents.ppo import make_ppo
from agents.search import Starts, random_plans
from agents.settings import PointerSettings
from compiler.plan import CompilationPlan
from compiler.support.files import write_file
from env.environments import FusionEnv
from env.measurement import Measurer, MeasurerOptions
from env.suites import Program, Suite, find_program

__all__ = ["Task", "main", "train"]

ROLLOUT, BATCH = 64, 32
BLOCKS, BLOCK_SECONDS, TIMEOUT = 9, 0.15, 60.0
COMPARED_ROUNDS = 15
MOST_STEPS = 1 << 20


@dataclass(frozen=True)
class Task:
    """What to train on.

    Attributes:
        programs: names of programs.
        backend: "cuda", or "cpu" to try the code without a GPU.
        seconds: of the training, and again of the random plans.
        seed: of the agent and of the random plans.
    """

    programs: tuple[str, ...]
    backend: str
    seconds: float
    seed: int = 0


class Episodes(BaseCallback):
    """Keeps the measured episodes of a training, and ends it when its time is over.

    Attributes:
        found: seconds since the start, program, speedup and plan of each episode that was measured.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._start = time.monotonic()
        self._seconds = seconds
        self.found: list[tuple[float, str, float, CompilationPlan]] = []

    def _on_step(self) -> bool:
        now = time.monotonic() - self._start
        for info in self.locals["infos"]:
            if "plan_json" in info and not info.get("measurement", {}).get("failure"):
                plan = CompilationPlan.from_json(info["plan_json"])
                self.found.append((now, info["program"], float(info["speedup"]), plan))
        return now < self._seconds


def train(task: Task) -> dict[str, Any]:
    """Train, search at random for as long, and compare; return facts and rows for the part `training`."""
    programs = tuple(find_program(name) for name in task.programs)
    options = MeasurerOptions(
        task.backend, rounds=BLOCKS, timeout=TIMEOUT, seed=task.seed, seconds=BLOCK_SECONDS, patience=1
    )
    with Measurer(options=options) as measurer:
        environment = FusionEnv(
            Suite("gpu", programs), reward="measured-time", backend=task.backend, measurer=measurer
        )  # fmt: skip
        settings = PointerSettings(n_steps=ROLLOUT, batch_size=BATCH, seed=task.seed)
        agent, episodes = make_ppo(environment, settings), Episodes(task.seconds)
        agent.learn(MOST_STEPS, callback=episodes)
        plans = {p.name: {"default": None, "agent, greedy": greedy(agent, environment, p)} for p in programs}
        for name, best in fastest([(p, s, plan) for _, p, s, plan in episodes.found]).items():
            plans[name]["agent, best episode"] = best
        tried = searched(programs, task, measurer)
        for name, best in fastest(tried).items():
            plans[name]["random, best"] = best
        rows = [row for p in programs for row in compared(p, plans[p.name], measurer)]
    speedups = [speedup for _, _, speedup, _ in episodes.found]
    quarter = max(1, len(speedups) // 4)
    facts = {
        "seconds of training": task.seconds,
        "measured episodes": len(speedups),
        "measured random plans": len(tried),
        "mean speedup of the first and of the last quarter of episodes": [
            float(np.mean(part)) for part in (speedups[:quarter], speedups[-quarter:]) if part
        ],
    }
    return {"facts": facts, "rows": rows}


def greedy(agent: Any, environment: FusionEnv, program: Program) -> CompilationPlan:
    """Return the plan that an agent makes without exploring."""
    observation, info = environment.reset(options={"program": program.name})
    while True:
        action, _ = agent.predict(observation, deterministic=True, action_masks=environment.action_masks())
        observation, _, terminated, truncated, info = environment.step(int(action))
        if terminated or truncated:
            return CompilationPlan.from_json(info["plan_json"])


def searched(programs: Sequence[Program], task: Task, measurer: Measurer) -> list[tuple[str, float, CompilationPlan]]:
    """Return random plans with their measured speedups, program by program in turns until the time is over."""
    starts = Starts(task.backend)
    drawn = {p: random_plans(starts, p, task.seed) for p in programs}
    found: list[tuple[str, float, CompilationPlan]] = []
    end = time.monotonic() + task.seconds
    while time.monotonic() < end:
        for program in programs:
            plan = next(drawn[program])
            measured = measurer.measure(program, plan)
            if measured.seconds is not None:
                found.append((program.name, measured.speedup, plan))
    return found


def fastest(found: Sequence[tuple[str, float, CompilationPlan]]) -> dict[str, CompilationPlan]:
    """Return the plan with the largest speedup of each program."""
    best: dict[str, tuple[float, CompilationPlan]] = {}
    for name, speedup, plan in found:
        if name not in best or speedup > best[name][0]:
            best[name] = speedup, plan
    return {name: plan for name, (_, plan) in best.items()}


def compared(program: Program, plans: dict[str, CompilationPlan | None], measurer: Measurer) -> list[dict[str, Any]]:
    """Return the speedups over the default plan, round by round, of plans that are timed in turns."""
    result = measurer.compare(program, plans, COMPARED_ROUNDS)
    default = result.samples.get("default", ())
    return [
        {"name": f"{program.name}, {strategy}", "program": program.name, "strategy": strategy,
         "speedups": [d / s for d, s in zip(default, samples, strict=True)]}
        for strategy, samples in result.samples.items() if strategy != "default"
    ]  # fmt: skip


def main() -> None:
    """Train as the JSON object in the second argument says, and write the result to the file in the first."""
    values = json.loads(sys.argv[2])
    task = Task(tuple(values["programs"]), values["backend"], values["seconds"], values["seed"])
    make: Callable[[Task], dict[str, Any]] = train
    write_file(Path(sys.argv[1]), json.dumps(make(task)))
