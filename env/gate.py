"""Paired timings of two programs in ABBA blocks, and the gate that says when a difference between them counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from env.statistics import Interval

__all__ = ["GATE", "PATIENCE", "Block", "Gate", "Verdict", "is_undecided", "judge", "quiet_blocks", "trimmed_mean"]

Floats = npt.NDArray[np.float64]

TRIM = 0.2
"""Share of the blocks that are left out at each end, because other work on the machine disturbs some of them."""
ALWAYS_KEPT = 0.5
"""Share of the blocks that are kept however busy the machine was."""
DISTURBED = 1.25
"""Reference load, as a multiple of its least time, beyond which a block counts as disturbed."""
Z = 1.96
PATIENCE = 4
"""How many times as many blocks as usual are timed at most while a race is undecided."""


@dataclass(frozen=True)
class Gate:
    """When a difference counts: a gain must pass all four conditions, as XLA demands of its measured fusion decisions.

    A loss need not be a loss of `seconds`: a plan that is twice as slow is bad even if the program is short.

    Attributes:
        share: least difference as a share of the default's time.
        seconds: least gain in seconds per call.
        errors: least difference in standard errors of the mean over the blocks, for many of them; for few blocks it is
            as many more as Student's t distribution demands for the same rate of false gains.
        both_orders: whether it must exceed `share` both where the default ran first and where it ran second.
    """

    share: float = 0.01
    seconds: float = 1e-6
    errors: float = 3.0
    both_orders: bool = True

    def __str__(self) -> str:
        orders = ", in both orders" if self.both_orders else ""
        gains = f"; a gain also above {self.seconds * 1e6:g} us"
        return f"above {self.share:.0%} and {self.errors:g} standard errors{orders}{gains}"


GATE = Gate()


@dataclass(frozen=True)
class Block:
    """One ABBA or BAAB block: seconds per call of the default, the candidate, the candidate and the default.

    Attributes:
        times: the four times. In the first two the default ran first, in the last two the candidate: in a BAAB block
            these two came before the others.
        load: seconds of the reference load before the block, which shows how busy the machine was.
    """

    times: tuple[float, float, float, float]
    load: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """What the blocks say.

    Attributes:
        speedup: default's time over the candidate's, with a 95% interval.
        default: seconds per call of the default.
        seconds: seconds per call of the candidate.
        counts: whether the difference passes the gate, be it a gain or a loss.
        blocks: number of blocks that were used.
    """

    speedup: Interval
    default: Interval
    seconds: Interval
    counts: bool
    blocks: int

    @property
    def counted(self) -> float:
        """The speedup if it counts, else 1."""
        return self.speedup.value if self.counts else 1.0

    @property
    def gain(self) -> bool:
        """Whether the candidate is faster beyond doubt."""
        return self.counts and self.speedup.value > 1


def judge(blocks: Sequence[Block], gate: Gate = GATE, looks: int = 1) -> Verdict:
    """Return the speedup that ABBA blocks show, and whether it counts.

    The log ratio of a block is that of the geometric means of its pairs, in which a steady drift cancels out. The
    estimate is the trimmed mean over the quiet blocks, with the standard error by Yuen (1974).

    Args:
        blocks: the blocks.
        gate: when a difference counts.
        looks: how many times these and fewer blocks were judged, this time included. A difference that is looked for
            more often must be clearer: the tail that the gate allows is divided by this number.

    Raises:
        ValueError: no blocks, or a time that is not positive.
    """
    times = _used(blocks)
    first, second = _orders(times)
    mean, error = trimmed_mean((first + second) / 2)
    default, seconds = _time(times[:, [0, 3]]), _time(times[:, [1, 2]])
    speedup = Interval(math.exp(mean), math.exp(mean - Z * error), math.exp(mean + Z * error))
    return Verdict(
        speedup, default, seconds, _counts(mean, error, (first, second), default.value, gate, looks), len(times)
    )


def is_undecided(blocks: Sequence[Block], gate: Gate = GATE, looks: int = 1) -> bool:
    """Check whether more blocks may change what counts: no difference does yet, but the 95% interval holds some.

    False where a time is not positive, which more blocks do not change. Arguments are those of `judge`.

    Raises:
        ValueError: no blocks.
    """
    if not all(math.isfinite(t) and t > 0 for b in blocks for t in b.times):
        return False
    times = _used(blocks)
    first, second = _orders(times)
    mean, error = trimmed_mean((first + second) / 2)
    default = _time(times[:, [0, 3]]).value
    if _counts(mean, error, (first, second), default, gate, looks):
        return False
    least, high, low = math.log1p(gate.share), mean + Z * error, mean - Z * error
    return low < -least or (high > least and default * (1 - math.exp(-high)) > gate.seconds)


def _used(blocks: Sequence[Block]) -> Floats:
    """Return the times of the quiet blocks, [blocks, 4]."""
    times = np.array([b.times for b in quiet_blocks(blocks)])
    if not times.size or not (np.isfinite(times) & (times > 0)).all():
        raise ValueError("expected blocks of positive times")
    return times


def _orders(times: Floats) -> tuple[Floats, Floats]:
    """Return the log ratios of the pairs in which the default ran first, and of those in which it ran second."""
    logs = np.log(times)
    return logs[:, 0] - logs[:, 1], logs[:, 3] - logs[:, 2]


def quiet_blocks(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks whose reference load ran at about its usual speed, in order; at least half of all blocks."""
    least = min((b.load for b in blocks), default=0.0)
    ranked = sorted(range(len(blocks)), key=lambda i: blocks[i].load)
    always = set(ranked[: math.ceil(ALWAYS_KEPT * len(blocks))])
    return [b for i, b in enumerate(blocks) if i in always or b.load <= DISTURBED * least]


def trimmed_mean(values: Floats, trim: float = TRIM) -> tuple[float, float]:
    """Return the trimmed mean and its standard error; the error is infinite for a single value.

    The error follows from the winsorised variance: Yuen, "The two-sample trimmed t for unequal population variances",
    Biometrika 1974.
    """
    n, cut = len(values), int(trim * len(values))
    ordered = np.sort(values)
    mean = float(ordered[cut : n - cut].mean())
    if n < 2:
        return mean, math.inf
    winsorised = np.clip(ordered, ordered[cut], ordered[n - cut - 1])
    return mean, float(winsorised.std(ddof=1) * math.sqrt(n) / (n - 2 * cut))


def _demanded(errors: float, blocks: int, looks: int) -> float:
    """Return the standard errors that have the same tail for this many blocks as `errors` for many, shared by looks."""
    from scipy.special import ndtr, stdtrit  # only measurements need it

    freedom = blocks - 2 * int(TRIM * blocks) - 1
    return float(-stdtrit(freedom, ndtr(-errors) / looks)) if freedom > 0 else math.inf


def _counts(mean: float, error: float, orders: tuple[Floats, Floats], default: float, gate: Gate, looks: int) -> bool:
    size, sign = abs(mean), math.copysign(1.0, mean)
    least = math.log1p(gate.share)
    saved = default * abs(1 - math.exp(-mean))
    if not (size > least and size > _demanded(gate.errors, len(orders[0]), looks) * error) or (
        sign > 0 and saved <= gate.seconds
    ):
        return False
    return not gate.both_orders or all(sign * trimmed_mean(o)[0] > least for o in orders)


def _time(times: Floats) -> Interval:
    """Return the median of the blocks' means, with the quartiles as bounds."""
    each = times.mean(axis=1)
    low, high = np.percentile(each, [25, 75])
    return Interval(float(median(each)), float(low), float(high))
