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
from env.gate import Block, Gate, Verdict, judge
from env.measurement import Measurer
from env.rewards import SLOWEST_REWARD
from env.suites import Program
from env.summaries import rank_correlation
from experiments.yardstick.rows import Row

__all__ = ["agreement_lines", "agreement_row", "agreement_table", "end_to_end"]

SLOW = 50e-3
"""Seconds from which a plan is left out, because it cannot be repeated often enough."""
SAMPLE_SECONDS, COMPARE_SECONDS = 2e-3, 8.0
LEAST_ROUNDS = 26
"""Rounds of the end-to-end comparison at least; with fewer than 13 blocks only huge differences pass the gate."""
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
        # Plans with the same code are one plan, and those with the code of the default plan cannot be ranked.
        build = measurer.build(program, plan)
        if build is not None:
            drawn.setdefault(build, plan)
    drawn.pop(measurer.build(program, default) or "", None)
    # Some near the default plan, and some far from it.
    chosen = list(drawn.values())[:: max(1, len(drawn) // plans)][:plans]
    found = [measurer.measure(program, plan, remeasure=True) for plan in chosen]
    whole = {
        str(n): (plan, m)
        for n, (plan, m) in enumerate(zip(chosen, found, strict=True))
        if m.seconds is not None and m.time.value < SLOW
    }
    if not whole:
        return {"skipped": "has no other plan", "seconds": least}
    measurer.restart()
    each = sum(max(SAMPLE_SECONDS, 3 * s) for s in (least, *(m.time.value for _, m in whole.values())))
    rounds = max(LEAST_ROUNDS, min(2 * rounds, int(COMPARE_SECONDS / each)))
    compared = measurer.compare(program, {"default": default, **{n: plan for n, (plan, _) in whole.items()}}, rounds)
    pairs = []
    for name, (_, measured) in whole.items():
        if name in compared.samples:
            verdict = end_to_end(compared.samples["default"], compared.samples[name], measurer.options.gate)
            logs = (math.log(x) for x in (measured.speedup, verdict.counted, verdict.speedup.value))
            pairs.append([max(SLOWEST_REWARD, x) for x in logs])
    return {"pairs": pairs, "seconds": compared.seconds("default").value}


def end_to_end(default: Sequence[float], plan: Sequence[float], gate: Gate) -> Verdict:
    """Return what the samples of programs that ran in turns say of one of them.

    The default is the first of the programs, and every other round runs them in the reverse order, so two rounds are an
    ABBA block.
    """
    firsts = range(0, len(default) - len(default) % 2, 2)
    return judge([Block((default[n], plan[n], plan[n + 1], default[n + 1])) for n in firsts], gate)


def agreement_lines(rows: Sequence[Row]) -> list[str]:
    """Return the rank correlations."""
    pairs = np.array([p for row in rows for p in row.get("pairs", ())]).reshape(-1, 3)
    each = [_correlation(row["pairs"]) for row in rows if len(row.get("pairs", ())) > 2]
    known = sorted(r for r in each if not math.isnan(r))
    reward, counted, raw = pairs.T.tolist()
    error = float(np.median(np.abs(pairs[:, 0] - pairs[:, 2])))
    short = sum(row.get("skipped", "").startswith("takes") for row in rows)
    alone = sum("skipped" in row for row in rows) - short
    return [
        f"The reward of {len(pairs)} plans of {sum('pairs' in row for row in rows)} programs, against the log of the "
        "speedup over the default plan when all plans of a program run in turns, end to end, in another process. No "
        "two plans of a program have the same code, and none has the code of the default plan. Both measurements judge "
        "by the same gate what counts; what does not is 0 in both.",
        "",
        f"- rank correlation over all plans: {rank_correlation(reward, counted):.3f} (goal: above 0.95)",
        f"- with end-to-end times that need not pass the gate: {rank_correlation(reward, raw):.3f}; among the "
        f"{reward.count(0.0)} rewards of 0 their ranks are noise, so more than {_highest(reward):.3f} is not possible",
        f"- agreement on what is a gain, a loss or neither: {_same(reward, counted):.1%} of the plans",
        f"- median over the programs: {known[len(known) // 2] if known else math.nan:.3f}",
        f"- median difference of the logs: {error:.4f}",
        f"- not measured: {sum('failure' in row for row in rows)}; shorter than {SHORT * 1e6:.0f} us: {short}; "
        f"with one plan only: {alone}",
    ]


def _correlation(pairs: Sequence[Sequence[float]]) -> float:
    return rank_correlation([p[0] for p in pairs], [p[1] for p in pairs])


def _highest(values: Sequence[float]) -> float:
    """Return the rank correlation of values with the same values after their ties were broken."""
    order = np.argsort(values, kind="stable")
    broken = np.empty(len(values))
    broken[order] = np.arange(len(values))
    return rank_correlation(list(values), broken.tolist())


def _same(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the share of values with the same sign."""
    return float(np.mean(np.sign(one) == np.sign(other)))


def agreement_table(rows: Sequence[Row]) -> list[list[str]]:
    """Return a table with one row per program; the first row is the header."""
    body = []
    for row in sorted(rows, key=lambda row: str(row["program"])):
        pairs = row.get("pairs", [])
        shown = (
            f"{_correlation(pairs):.2f}" if len(pairs) > 2 else str(row.get("failure", row.get("skipped", "-")))[:80]
        )
        span = f"{math.exp(min(p[2] for p in pairs)):.2f} to {math.exp(max(p[2] for p in pairs)):.2f}" if pairs else ""
        body.append([row["program"], f"{row.get('seconds', 0) * 1e6:.1f}", str(len(pairs)), span, shown])
    return [["program", "default, us", "plans", "speedups", "rank correlation"], *body]
