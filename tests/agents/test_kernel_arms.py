"""What is expected of the choices of a kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from agents.deviations import Deviation, PlanBuilder
from agents.kernel_arms import Belief, KernelArms, KnobEffects, expected_gain
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.runtime.kernel_sites import KernelSite
from compiler.text import parse
from tests.env.test_kernels import COLUMNS


def _equal(site: KernelSite, choices: Sequence[KernelChoice]) -> list[Belief]:
    del site
    return [Belief(-0.05, 0.1) for _ in choices[1:]]


def _arms(effects: KnobEffects | None = None) -> KernelArms:
    site, _ = PlanBuilder(parse(COLUMNS), "cpu").build(Deviation()).kernels[0]
    return KernelArms(site, 0.5, _equal, effects or KnobEffects())


def test_the_expected_gain_is_the_mean_of_what_exceeds_the_bar() -> None:
    assert expected_gain(Belief(0.0, 1.0)) == pytest.approx(1 / math.sqrt(2 * math.pi))
    assert expected_gain(Belief(3.0, 0.1), 1.0) == pytest.approx(2.0)
    assert 0 <= expected_gain(Belief(-3.0, 0.1)) < 1e-9
    draws = [max(0.0, 0.2 + 0.3 * z - 0.1) for z in _normal_quantiles(20_000)]
    assert expected_gain(Belief(0.2, 0.3), 0.1) == pytest.approx(sum(draws) / len(draws), rel=1e-3)


def _normal_quantiles(count: int) -> list[float]:
    from statistics import NormalDist

    return [NormalDist().inv_cdf((n + 0.5) / count) for n in range(count)]


def test_readings_move_a_belief_and_narrow_it() -> None:
    prior = Belief(0.0, 0.1)
    after = prior.after([0.2, 0.2], 0.1)
    assert after.mean == pytest.approx(0.2 * 2 / 3)
    assert after.spread == pytest.approx(0.1 / math.sqrt(3))


def test_a_choice_becomes_the_best_by_its_time_and_its_neighbours_come_next() -> None:
    arms = _arms()
    _, number = arms.next(0.0)
    arms.read(number, 0.5 * math.exp(-0.3))
    best = arms.choice
    assert best == arms.chosen(number)
    assert arms.expected_share < 0.45
    later = []
    for _ in range(60):
        _, n = arms.next(0.0)
        if not n:
            break
        later.append(arms.chosen(n))
        arms.read(n, 0.5)
    assert best is not None
    assert any(set(best.schedule.items()) < set(c.schedule.items()) for c in later)
    assert arms.choice == best


def test_a_value_that_lost_in_one_kernel_is_expected_to_lose_in_others() -> None:
    effects = KnobEffects()
    first = _arms(effects)
    _, number = first.next(0.0)
    item = first.chosen(number)
    first.read(number, 0.5 * math.exp(0.4))
    second = _arms(effects)
    seen: list[KernelChoice] = []
    while (n := second.next(0.0)[1]) and len(seen) < 200:
        seen.append(second.chosen(n))
        second.close(n)
    assert seen.index(item) > len(seen) / 2


def test_what_is_behind_the_best_plan_must_gain_more() -> None:
    arms = _arms()
    worths = [arms.next(behind)[0] for behind in (0.0, 0.02, 0.1)]
    assert worths[0] > worths[1] > worths[2]


def test_a_knob_that_changes_no_code_is_not_tried_again() -> None:
    arms = _arms()
    _, number = arms.next(0.0)
    knob = next(iter(arms.chosen(number).schedule))
    arms.same_code(number)
    while n := arms.next(0.0)[1]:
        assert knob not in arms.chosen(n).schedule
        arms.close(n)
