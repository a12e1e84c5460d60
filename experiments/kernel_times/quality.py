"""How good a cost model of kernels is on measured times: rank correlation, errors, and what its choices lose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from experiments.kernel_times.matrices import TimesMatrix

__all__ = ["Quality", "quality"]

Doubles = npt.NDArray[np.float64]
MIN_CHOICES = 3
"""Number of choices from which a kernel counts for correlations within kernels and for losses."""


@dataclass(frozen=True)
class Quality:
    """The quality of predictions.

    Attributes:
        rows, kernels: how many there are.
        correlation: Spearman's rank correlation of predicted and measured times over all rows.
        error: median relative error of the time.
        within: mean rank correlation over the choices of a kernel.
        ratio_error: median relative error of the time relative to the default of the kernel, over other choices.
        loss: geometric mean of the time of the choice that is predicted best over that of the one measured best, - 1.
        default_loss: the same for the default.
        careful_loss: the same for a choice that replaces the default only where the members agree.
        worse: share of kernels whose careful choice is slower than the default by more than 3%.
    """

    rows: int
    kernels: int
    correlation: float
    error: float
    within: float
    ratio_error: float
    loss: float
    default_loss: float
    careful_loss: float
    worse: float


def quality(data: TimesMatrix, log_seconds: Doubles, margin: float, caution: float) -> Quality:
    """Return the quality of predictions of all rows.

    Args:
        data: measured times.
        log_seconds: predicted logarithms, members x rows.
        margin: see `LearnedKernels`.
        caution: see `LearnedKernels`.
    """
    y, mean = data.log_seconds, log_seconds.mean(0)
    own, changed = np.arange(len(y)), data.default != np.arange(len(y))
    predicted_ratio = log_seconds - log_seconds[:, data.default]
    error = np.expm1(np.abs(predicted_ratio.mean(0) - (y - y[data.default])))
    within, losses = [], []
    for rows in np.split(own, np.flatnonzero(np.diff(data.kernel)) + 1):
        if len(rows) < MIN_CHOICES:
            continue
        within.append(spearman(mean[rows], y[rows]))
        bound = predicted_ratio.mean(0)[rows] + caution * predicted_ratio.std(0)[rows]
        base = data.default[rows[0]]
        chosen = rows[np.argmin(np.where(bound < np.log1p(-margin), predicted_ratio.mean(0)[rows], 0.0))]
        if bound[chosen - rows[0]] >= np.log1p(-margin):
            chosen = base
        best = y[rows].min()
        losses.append((y[rows[np.argmin(mean[rows])]] - best, y[base] - best, y[chosen] - best, y[chosen] - y[base]))
    table = np.array(losses).reshape(-1, 4)
    loss, default_loss, careful = (float(np.expm1(column.mean())) for column in table.T[:3])
    return Quality(
        len(y), len(losses), spearman(mean, y), float(np.median(np.expm1(np.abs(mean - y)))), float(np.nanmean(within)),
        float(np.median(error[changed])), loss, default_loss, careful, float((table[:, 3] > np.log(1.03)).mean()),
    )  # fmt: skip


def spearman(a: Doubles, b: Doubles) -> float:
    """Return the rank correlation of two lists, nan if one of them is constant."""
    ranks = [_ranks(x) for x in (a, b)]
    if any(r.std() == 0 for r in ranks):
        return float("nan")
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: Doubles) -> Doubles:
    """Return the ranks of values; equal ones share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[place]
