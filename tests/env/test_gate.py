"""The gate: which differences between two programs count."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from env.gate import GATE, PATIENCE, Block, Gate, is_undecided, judge, quiet_blocks, trimmed_mean
from env.racing import Budget, race

RNG = np.random.default_rng(3)


def blocks(
    speedup: float, noise: float = 0.0, count: int = 25, seconds: float = 1e-3, drift: float = 0.0
) -> list[Block]:
    """Return blocks of a default that takes `seconds` and of a candidate that is `speedup` times faster.

    Args:
        speedup: of the candidate.
        noise: standard deviation of the log of each time.
        count: number of blocks.
        seconds: time of the default.
        drift: change of the log of the machine's speed from one sample to the next.
    """
    clean = seconds * np.array([1, 1 / speedup, 1 / speedup, 1])
    found = []
    for n in range(count):
        slow = np.exp(drift * (4 * n + np.arange(4)) + noise * RNG.standard_normal(4))
        a, b, c, d = (clean * slow).tolist()
        found.append(Block((a, b, c, d), 1e-4))
    return found


def test_the_speedup_of_exact_times_is_exact() -> None:
    verdict = judge(blocks(1.25))
    assert verdict.speedup.value == pytest.approx(1.25)
    assert verdict.default.value == pytest.approx(1e-3)
    assert verdict.seconds.value == pytest.approx(0.8e-3)
    assert verdict.counts
    assert verdict.gain
    assert verdict.counted == pytest.approx(1.25)


def test_a_loss_counts_as_a_gain_does() -> None:
    verdict = judge(blocks(0.9))
    assert verdict.counts
    assert not verdict.gain
    assert verdict.counted == pytest.approx(0.9)


def test_a_steady_drift_cancels_out() -> None:
    verdict = judge(blocks(1.0, drift=0.01))
    assert verdict.speedup.value == pytest.approx(1.0)
    assert not verdict.counts


@pytest.mark.parametrize(
    ("speedup", "seconds"),
    [
        (1.009, 1e-3),  # below one percent
        (0.9915, 1e-3),
        (1.3, 3e-6),  # saves 0.7 us
    ],
)
def test_small_differences_do_not_count(speedup: float, seconds: float) -> None:
    verdict = judge(blocks(speedup, seconds=seconds))
    assert not verdict.counts
    assert verdict.counted == 1.0


def test_a_loss_of_a_short_program_counts() -> None:
    assert judge(blocks(0.5, seconds=2e-7)).counted == pytest.approx(0.5)


def test_a_difference_must_stand_out_from_the_noise() -> None:
    alternating = [*blocks(1.5, count=12), *blocks(0.72, count=12)]
    assert judge(alternating).speedup.value > 1.01
    assert not judge(alternating).counts


def test_a_difference_that_depends_on_the_order_does_not_count() -> None:
    after_the_candidate = [Block((1e-3, 1e-3, 1e-3, 1.08e-3), 0.0)] * 25  # the default is slow where it runs second
    assert judge(after_the_candidate).speedup.value == pytest.approx(math.sqrt(1.08))
    assert not judge(after_the_candidate).counts
    assert judge(after_the_candidate, Gate(both_orders=False)).counts


def test_blocks_that_other_work_disturbed_are_left_out() -> None:
    calm = [Block(b.times, 1.0) for b in blocks(1.0, count=10)]
    busy = [Block(b.times, 2.0) for b in blocks(3.0, count=6)]
    assert quiet_blocks([*busy, *calm]) == calm
    assert judge([*busy, *calm]).speedup.value == pytest.approx(1.0)
    assert len(quiet_blocks([Block(b.times, float(n + 1)) for n, b in enumerate(calm)])) == 5  # at least half are kept


def test_a_few_wild_blocks_do_not_move_the_estimate() -> None:
    assert judge([*blocks(1.1, count=20), *blocks(9.0, count=5)]).speedup.value == pytest.approx(1.1)


def test_the_trimmed_mean_has_yuens_standard_error() -> None:
    # By hand: 1 and 100 are cut, the winsorised values are 2, 2, 3, 4, 4 with variance 1; 1 * sqrt(5) / 3.
    mean, error = trimmed_mean(np.array([1.0, 2.0, 3.0, 4.0, 100.0]))
    assert mean == pytest.approx(3.0)
    assert error == pytest.approx(math.sqrt(5) / 3)
    assert trimmed_mean(np.array([2.0])) == (2.0, math.inf)


def test_few_blocks_must_show_more() -> None:
    # Four standard errors are enough with 25 blocks (t with 14 degrees of freedom), but not with 9 (6 degrees).
    def spread(count: int) -> list[Block]:
        _, error = trimmed_mean(np.array([1.0, -1.0] * count)[:count])
        wanted = [0.02 + 0.005 / error * s for s in ([1.0, -1.0] * count)[:count]]
        return [Block((math.exp(w) * 1e-3, 1e-3, 1e-3, math.exp(w) * 1e-3)) for w in wanted]

    assert judge(spread(25)).counts
    assert not judge(spread(9)).counts


def test_one_block_never_counts() -> None:
    assert not judge(blocks(2.0, count=1)).counts


@pytest.mark.parametrize("times", [(0.0, 1.0, 1.0, 1.0), (1.0, math.nan, 1.0, 1.0), (1.0, 1.0, -1.0, 1.0)])
def test_times_that_cannot_be_are_refused(times: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        judge([Block(times)])
    with pytest.raises(ValueError, match="positive"):
        judge([])


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.03])
def test_equal_programs_rarely_differ_and_three_percent_is_found(noise: float) -> None:
    again = [judge(blocks(1.0, noise)) for _ in range(400)]
    assert sum(v.counts for v in again) <= 4  # one percent
    if noise <= 0.01:
        assert sum(judge(blocks(1.03, noise)).gain for _ in range(400)) >= 360


# ---- more blocks while it is undecided


def test_what_counts_or_cannot_count_is_decided() -> None:
    assert not is_undecided(blocks(1.25))
    assert not is_undecided(blocks(1.0))
    assert not is_undecided(blocks(1.2, seconds=1e-6))  # a gain of 0.2 us never counts
    assert not is_undecided([Block((1.0, math.nan, 1.0, 1.0))])


@pytest.mark.parametrize("speedup", [1.03, 0.97, 1.0])
def test_what_the_noise_may_hide_is_undecided(speedup: float) -> None:
    logs = [math.log(speedup) + s * 0.06 for s in [1.0, -1.0] * 12]
    noisy = [Block((math.exp(x) * 1e-3, 1e-3, 1e-3, math.exp(x) * 1e-3)) for x in logs]
    assert not judge(noisy).counts
    assert is_undecided(noisy)


def test_a_difference_that_is_looked_for_more_often_must_stand_out_more() -> None:
    # 25 blocks, 14 degrees of freedom: 3.7 standard errors are enough for one look, 4.2 for three.
    _, error = trimmed_mean(np.array([1.0, -1.0] * 13)[:25])
    logs = [0.02 + 0.02 / 3.95 / error * s for s in ([1.0, -1.0] * 13)[:25]]
    found = [Block((math.exp(x) * 1e-3, 1e-3, 1e-3, math.exp(x) * 1e-3)) for x in logs]
    assert judge(found).counts
    assert not judge(found, GATE, 3).counts


def test_the_program_that_runs_first_on_new_inputs_is_not_slower() -> None:
    inputs = [[np.zeros(1)], [np.ones(1)]]
    cached: list[object] = []

    def run(arrays: Sequence[Any], repeats: int) -> tuple[list[float], Sequence[Any]]:
        cold = cached != [id(arrays)]
        cached[:] = [id(arrays)]
        return [0.06 if cold else 0.04] * repeats, ()

    blocks, looks, _ = race(run, run, inputs, Budget(), lambda: 1e-4)
    assert judge(blocks, looks=looks).speedup.value == pytest.approx(1.0)


def raced(speedup: float, noise: float, rng: np.random.Generator, patience: int) -> tuple[bool, int]:
    """Race programs that take some 20 ms with noise; return whether a gain counts, and the number of blocks."""

    def runner(seconds: float) -> Any:
        return lambda _, repeats: ((seconds * np.exp(noise * rng.standard_normal(repeats))).tolist(), ())

    budget = Budget(seconds=9.0, patience=patience)
    found, looks, _ = race(runner(20e-3), runner(20e-3 / speedup), [[]], budget, lambda: 1e-4)
    return judge(found, looks=looks).gain, len(found)


def test_noisy_gains_are_found_with_patience_and_none_that_is_not_there() -> None:
    rng = np.random.default_rng(1)
    hasty, patient, none = ([raced(s, 0.05, rng, p) for _ in range(150)] for s, p in ((1.03, 1), (1.03, 4), (1.0, 4)))
    assert sum(gain for gain, _ in hasty) < 75
    assert sum(gain for gain, _ in patient) >= 135
    assert sum(gain for gain, _ in none) <= 1
    assert max(count for _, count in patient) <= PATIENCE * 25


def test_clear_races_take_no_longer() -> None:
    rng = np.random.default_rng(2)
    assert raced(1.2, 0.01, rng, 4) == (True, 25)
    assert raced(1.0, 0.001, rng, 4) == (False, 25)
