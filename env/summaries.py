"""Summaries of paired speedups over many programs: bootstrap over programs, seeds and rounds, profiles, probabilities.

A speedup here is the default's time over the candidate's, from samples of programs that ran in turns. The input is
nested: programs, then seeds of the search or the training, then rounds of the timing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from env.statistics import CONFIDENCE, Interval

__all__ = [
    "Nested",
    "SpeedupSummary",
    "hierarchical_interval",
    "paired_ratios",
    "performance_profile",
    "probability_of_improvement",
    "rank_correlation",
    "summarise",
]

Floats: TypeAlias = npt.NDArray[np.float64]
Nested: TypeAlias = Mapping[str, Sequence[Sequence[float]]]
"""Speedups by program, one list of rounds per seed."""
Statistic: TypeAlias = Callable[[Floats], Floats]
"""Maps log speedups of shape [resamples, programs] to one number per resample."""

NOISE_FLOOR = 0.01
"""Share by which a program must be slower or faster to count as that; A/A runs stay within it."""
RESAMPLES = 2000


def paired_ratios(default: Sequence[float], candidate: Sequence[float]) -> list[float]:
    """Return the speedup of each round; samples of one round were taken next to each other.

    Raises:
        ValueError: not as many samples of one as of the other.
    """
    return [d / c for d, c in zip(default, candidate, strict=True)]


@dataclass(frozen=True)
class SpeedupSummary:
    """Speedups over programs.

    Attributes:
        mean: geometric mean, with a hierarchical bootstrap interval.
        median: median of the programs' speedups, with such an interval.
        worst: the smallest.
        best: the largest.
        slower: share of the programs that are slower by more than the noise floor.
        faster: share of those that are faster by more than that.
        programs: number of programs.
    """

    mean: Interval
    median: Interval
    worst: float
    best: float
    slower: float
    faster: float
    programs: int


def summarise(speedups: Nested, floor: float = NOISE_FLOOR, seed: int = 0) -> SpeedupSummary:
    """Return the summary of paired speedups.

    Raises:
        ValueError: no programs, a program without samples, or a speedup that is not positive.
    """
    each = np.exp([_centre(program) for program in _logs(speedups)])
    return SpeedupSummary(
        hierarchical_interval(speedups, seed=seed),
        hierarchical_interval(speedups, lambda x: np.median(x, axis=1), seed=seed),
        float(each.min()),
        float(each.max()),
        float((each < 1 - floor).mean()),
        float((each > 1 + floor).mean()),
        len(each),
    )


def hierarchical_interval(
    speedups: Nested, statistic: Statistic | None = None, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """Return a statistic of the programs' speedups with a hierarchical bootstrap interval.

    Programs are resampled, within each its seeds, and within each seed its rounds, so that the interval covers other
    programs, other seeds and other timings. The speedup of a seed is the median of its rounds, that of a program the
    geometric mean of its seeds.

    Args:
        speedups: positive numbers.
        statistic: of log speedups; None: their mean, which makes the result a geometric mean.
        seed: seed of the resampling, so that the same samples give the same interval.
        resamples: number of bootstrap repetitions.

    Raises:
        ValueError: no programs, a program without samples, or a speedup that is not positive.
    """
    statistic = statistic or (lambda x: np.asarray(x.mean(axis=1)))
    rng = np.random.default_rng(seed)
    programs = _logs(speedups)
    value = float(np.exp(statistic(np.array([[_centre(p) for p in programs]]))[0]))
    if len(programs) == 1 and all(len(s) == 1 for s in programs[0]) and len(programs[0]) == 1:
        return Interval(value, -math.inf, math.inf)
    drawn = np.stack([_resampled(p, rng, resamples) for p in programs], axis=1)
    picks = rng.integers(0, len(programs), (resamples, len(programs)))
    found = np.exp(statistic(np.take_along_axis(drawn, picks, axis=1)))
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(found, [tail, 100 - tail])
    return Interval(value, float(low), float(high))


def _logs(speedups: Nested) -> list[list[Floats]]:
    programs = [[np.asarray(rounds, np.float64) for rounds in seeds] for seeds in speedups.values()]
    if not programs or not all(seeds and all(r.size and (r > 0).all() for r in seeds) for seeds in programs):
        raise ValueError("expected positive speedups of at least one program, seed and round")
    return [[np.log(r) for r in seeds] for seeds in programs]


def _centre(seeds: Sequence[Floats]) -> float:
    return float(np.mean([np.median(rounds) for rounds in seeds]))


def _resampled(seeds: Sequence[Floats], rng: np.random.Generator, resamples: int) -> Floats:
    """Return the log speedup of a program in each resample."""
    by_seed = np.stack(
        [np.median(rounds[rng.integers(0, rounds.size, (resamples, rounds.size))], axis=1) for rounds in seeds], axis=1
    )
    picks = rng.integers(0, len(seeds), (resamples, len(seeds)))
    return np.asarray(np.take_along_axis(by_seed, picks, axis=1).mean(axis=1))


def performance_profile(speedups: Nested, thresholds: Sequence[float], seed: int = 0) -> list[Interval]:
    """Return for each threshold the share of programs whose speedup is at least that, with bootstrap intervals."""

    def shares(least: float) -> Interval:
        found = hierarchical_interval(speedups, lambda x: np.log((np.exp(x) >= least).mean(axis=1) + 1), seed=seed)
        return Interval(found.value - 1, found.low - 1, found.high - 1)

    return [shares(t) for t in thresholds]


def probability_of_improvement(better: Nested, than: Nested, seed: int = 0) -> Interval:
    """Return the probability that one candidate beats another on a random program, ties counted half.

    For each program both have, every sample of one is compared with every sample of the other, as rliable does
    (Agarwal et al. 2021); the interval resamples programs.

    Raises:
        ValueError: they have no program in common.
    """
    names = [n for n in better if n in than]
    if not names:
        raise ValueError("expected results of both on the same programs")
    shares = np.array([_wins(_flat(better[n]), _flat(than[n])) for n in names])
    picks = np.random.default_rng(seed).integers(0, len(shares), (RESAMPLES, len(shares)))
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(shares[picks].mean(axis=1), [tail, 100 - tail])
    return Interval(float(shares.mean()), float(low), float(high))


def _flat(seeds: Sequence[Sequence[float]]) -> Floats:
    return np.concatenate([np.asarray(rounds, np.float64) for rounds in seeds])


def _wins(x: Floats, y: Floats) -> float:
    return float((x[:, None] > y).mean() + 0.5 * (x[:, None] == y).mean())


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's rank correlation; ties share their mean rank, and it is NaN if all values of one are equal.

    Raises:
        ValueError: fewer than two values, or not as many of one as of the other.
    """
    if len(x) != len(y) or len(x) < 2:
        raise ValueError("expected two sequences of the same length, of at least two values")
    a, b = _ranks(np.asarray(x, np.float64)), _ranks(np.asarray(y, np.float64))
    if a.std() == 0 or b.std() == 0:
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray(last - (counts - 1) / 2)[inverse]
