"""Robust statistics of timings: medians with intervals, ratios, geometric means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Interval", "geometric_mean", "median_interval", "ratio_interval", "share_slower"]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A value with the bounds of its confidence interval, all in the same unit."""

    value: float
    low: float
    high: float

    @property
    def is_known(self) -> bool:
        """Whether the bounds are known; they are not if there was a single value."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def scaled(self, factor: float) -> Interval:
        """Return the interval in another unit; `factor` is positive."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)

    def to_json(self) -> list[float | None]:
        """Return `[value, low, high]`, with null for unknown bounds, because JSON has no infinity."""
        return [v if math.isfinite(v) else None for v in (self.value, self.low, self.high)]

    @staticmethod
    def from_json(values: Sequence[float | None]) -> Interval:
        """Return the interval of `[value, low, high]`.

        Raises:
            ValueError: not three numbers or nulls.
        """
        if len(values) != 3 or any(isinstance(v, bool) or not isinstance(v, int | float | None) for v in values):
            raise ValueError(f"expected [value, low, high], got {values!r:.80}")
        unknown = (math.nan, -math.inf, math.inf)
        return Interval(*(float(u if v is None else v) for v, u in zip(values, unknown, strict=True)))


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the median with a distribution-free interval from order statistics.

    The interval between the k-th smallest and the k-th largest of n samples holds the median with probability
    1 - 2 P(Binomial(n, 1/2) < k). With fewer than six samples it is the whole range, whose probability is lower.

    Raises:
        ValueError: no samples.
    """
    if not samples:
        raise ValueError("cannot compute the median of no samples")
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    k = _order_rank(len(ordered), confidence)
    return Interval(float(np.median(ordered)), float(ordered[k - 1]), float(ordered[-k]))


def _order_rank(n: int, confidence: float) -> int:
    """Return the largest k >= 1 whose interval [x_(k), x_(n-k+1)] still has the confidence, or 1."""
    tail, k = 0.0, 0
    while k < n // 2:
        tail += math.comb(n, k) * 0.5**n
        if 2 * tail > 1 - confidence:
            break
        k += 1
    return max(1, k)


def ratio_interval(
    numerator: Sequence[float], denominator: Sequence[float], seed: int = 0, resamples: int = 1000
) -> Interval:
    """Return the ratio of two medians with a bootstrap interval.

    Args:
        numerator: samples.
        denominator: samples interleaved with those. If there are as many, pairs are resampled together, so that load
            that slowed down both cancels out.
        seed: seed of the resampling, so that the same samples give the same interval.
        resamples: number of bootstrap repetitions.

    Raises:
        ValueError: no samples.
    """
    a, b = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    if not a.size or not b.size:
        raise ValueError("cannot compute a ratio without samples")
    rng = np.random.default_rng(seed)
    picks_a = rng.integers(0, a.size, (resamples, a.size))
    picks_b = picks_a if a.size == b.size else rng.integers(0, b.size, (resamples, b.size))
    ratios = np.median(a[picks_a], axis=1) / np.median(b[picks_b], axis=1)
    return _percentiles(float(np.median(a) / np.median(b)), ratios)


def geometric_mean(values: Sequence[float], seed: int = 0, resamples: int = 2000) -> Interval:
    """Return the geometric mean of positive values, with a bootstrap interval; one value alone has unknown bounds.

    Raises:
        ValueError: no values, or one that is not positive.
    """
    v = np.asarray(values, dtype=np.float64)
    if not v.size or not (v > 0).all():
        raise ValueError("a geometric mean needs positive values")
    if v.size == 1:
        return Interval(float(v[0]), -math.inf, math.inf)
    logs = np.log(v)
    picks = np.random.default_rng(seed).integers(0, v.size, (resamples, v.size))
    return _percentiles(float(np.exp(logs.mean())), np.exp(logs[picks].mean(axis=1)))


def _percentiles(value: float, resampled: npt.NDArray[np.float64]) -> Interval:
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(resampled, [tail, 100 - tail])
    return Interval(value, float(low), float(high))


def share_slower(speedups: Sequence[Interval]) -> float:
    """Return the share of speedups whose whole interval is below one; 0 if there are none."""
    return sum(s.high < 1 for s in speedups) / len(speedups) if speedups else 0.0
