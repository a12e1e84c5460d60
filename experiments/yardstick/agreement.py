"""Agreement of the reward with end-to-end times: random plans of many programs, measured both ways."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from agents.plan_space import PlanSpace
from agents.search import Starts, find_plan, random_plans
from compiler.fusion.policies import DEFAULT_POLICY
from compiler.plan import CompilationPlan
from env.measurement import Measurer
from env.rewards import SLOWEST_REWARD
from env.suites import Program
from env.summaries import rank_correlation
from experiments.yardstick.rows import Row

__all__ = ["agreement_lines", "agreement_row", "agreement_table"]

SHORT = 20e-6
"""Seconds below which a program is left out: its gains stay below the microsecond that the gate demands."""


def agreement_row(measurer: Measurer, program: Program, plans: int, seed: int, rounds: int) -> Row:
    """Measure the reward of some plans, then all of them end to end in turns, in another process.

    Raises:
        HlogymError: the program cannot be measured.
    """
    starts = Starts(measurer.options.backend)
    least = measurer.measure_reference(program).time.value
    if least < SHORT:
        return {"skipped": f"takes {least * 1e6:.1f} us", "seconds": least}
    default = find_plan(DEFAULT_POLICY, starts, program, measurer, 0).plan
    drawn: dict[str, CompilationPlan] = {}
    unfused = find_plan("none", starts, program, measurer, 0).plan
    space = PlanSpace(starts.builder(program), ("loops", "fusion"), seed)
    near = (b.plan for b in space.draw(2 * plans, lambda: space.walked(space.start, space.rng.randint(1, 8))))
    far = itertools.islice(random_plans(starts, program, seed), 2 * plans)
    for plan in itertools.chain([unfused], near, far):
        drawn.setdefault(plan.to_json(), plan)
    # Some near the default plan, and some far from it.
    chosen = list(drawn.values())[:: max(1, len(drawn) // plans)][:plans]
    rewards = []
    for plan in chosen:
        found = measurer.measure(program, plan, remeasure=True)
        rewards.append(None if found.seconds is None else max(SLOWEST_REWARD, math.log(found.speedup)))
    measurer.restart()
    compared = measurer.compare(program, {"default": default, **{str(n): p for n, p in enumerate(chosen)}}, rounds)
    pairs = []
    for number, reward in enumerate(rewards):
        if reward is not None and str(number) in compared.samples:
            pairs.append([reward, math.log(compared.speedup(str(number), "default").value)])
    return {"pairs": pairs, "seconds": compared.seconds("default").value}


def agreement_lines(rows: Sequence[Row]) -> list[str]:
    """Return the rank correlations."""
    pairs = np.array([p for row in rows for p in row.get("pairs", ())])
    each = [rank_correlation(*zip(*row["pairs"], strict=True)) for row in rows if len(row.get("pairs", ())) > 2]
    known = sorted(r for r in each if not math.isnan(r))
    overall = rank_correlation(pairs[:, 0].tolist(), pairs[:, 1].tolist())
    error = float(np.median(np.abs(pairs[:, 0] - pairs[:, 1])))
    skipped = sum("skipped" in row for row in rows)
    return [
        f"The reward of {len(pairs)} plans of {len(each)} programs, against the log of the speedup over the default "
        "plan when all plans of a program run in turns, end to end, in another process.",
        "",
        f"- rank correlation over all plans: {overall:.3f} (goal: above 0.95)",
        f"- median over the programs: {known[len(known) // 2] if known else math.nan:.3f}",
        f"- median difference of the logs: {error:.4f}",
        f"- not measured: {sum('failure' in row for row in rows)}; shorter than {SHORT * 1e6:.0f} us: {skipped}",
    ]


def agreement_table(rows: Sequence[Row]) -> list[list[str]]:
    """Return a table with one row per program; the first row is the header."""
    body = []
    for row in sorted(rows, key=lambda row: str(row["program"])):
        pairs = row.get("pairs", [])
        shown = (
            f"{rank_correlation(*zip(*pairs, strict=True)):.2f}"
            if len(pairs) > 2
            else str(row.get("failure", row.get("skipped", "-")))[:80]
        )
        span = f"{math.exp(min(p[1] for p in pairs)):.2f} to {math.exp(max(p[1] for p in pairs)):.2f}" if pairs else ""
        body.append([row["program"], f"{row.get('seconds', 0) * 1e6:.1f}", str(len(pairs)), span, shown])
    return [["program", "default, us", "plans", "speedups", "rank correlation"], *body]
