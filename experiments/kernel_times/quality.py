"""How good a cost model of kernels is on measured times: rank correlation, errors, and what its choices lose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compiler.learned.features.kernel_costs import COST_FEATURES
from experiments.kernel_times.matrices import TimesMatrix

__all__ = ["FieldErrors", "Quality", "field_errors", "quality", "spearman"]

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
        loss: geometric mean of the time of the choice that is predicted best over that of the one measured best, - 1;
            the latter is measured best by one half of the rounds, and both times are those of the other half.
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
        taken = [rows[np.argmin(mean[rows])], base, chosen]
        losses.append((*_losses(data.halves, rows, taken), y[chosen] - y[base]))
    table = np.array(losses).reshape(-1, 4) if losses else np.full((1, 4), np.nan)
    loss, default_loss, careful = (float(np.expm1(column.mean())) for column in table.T[:3])
    known = [w for w in within if not np.isnan(w)]
    return Quality(
        rows=len(y),
        kernels=len(losses),
        correlation=spearman(mean, y),
        error=float(np.median(np.expm1(np.abs(mean - y)))),
        within=float(np.mean(known)) if known else math.nan,
        ratio_error=float(np.median(error[changed])) if changed.any() else math.nan,
        loss=loss,
        default_loss=default_loss,
        careful_loss=careful,
        worse=float((table[:, 3] > np.log(1.03)).mean()),
    )


def _losses(halves: Doubles, rows: npt.NDArray[np.int64], taken: Sequence[int]) -> list[float]:
    """Return the logarithms of the times of choices relative to that of the choice that is measured fastest.

    The fastest is found by one half of the rounds and valued by the other one, both ways: the least of several times is
    low by chance as well.
    """
    found = [0.0] * len(taken)
    for by, valued in ((0, 1), (1, 0)):
        best = rows[np.argmin(halves[rows, by])]
        for n, choice in enumerate(taken):
            found[n] += float(halves[choice, valued] - halves[best, valued]) / 2
    return found


@dataclass(frozen=True)
class FieldErrors:
    """How well the effect of a change is predicted, over choices that differ from the default in nothing else.

    Attributes:
        change: a field of the schedule, "flags", or "implementation".
        rows: number of choices.
        effect: root mean square of the logarithm of the time relative to the default.
        error: root mean square error of the prediction of that logarithm; a model that knows nothing has `effect`.
    """

    change: str
    rows: int
    effect: float
    error: float


def field_errors(data: TimesMatrix, log_seconds: Doubles) -> list[FieldErrors]:
    """Return the errors of each change that occurs, those of most rows first; arguments as for `quality`."""
    groups: dict[str, list[int]] = {}
    for n, name in enumerate(COST_FEATURES):
        kind, _, field = name.partition(": ")
        if kind in ("field", "flags", "implementation"):
            groups.setdefault(field if kind == "field" else kind, []).append(n)
    moved = data.features != data.features[data.default]
    changed = np.stack([moved[:, columns].any(1) for columns in groups.values()])
    single = changed.sum(0) == 1
    measured = data.log_seconds - data.log_seconds[data.default]
    mean = log_seconds.mean(0)
    wrong = mean - mean[data.default] - measured
    found = []
    for name, rows in zip(groups, changed & single, strict=True):
        if rows.any():
            effect, error = (float(np.sqrt((x[rows] ** 2).mean())) for x in (measured, wrong))
            found.append(FieldErrors(name, int(rows.sum()), effect, error))
    return sorted(found, key=lambda f: -f.rows)


def spearman(a: Doubles, b: Doubles) -> float:
    """Return the rank correlation of two lists, nan if one of them is constant."""
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size else float("nan")


def _ranks(values: Doubles) -> Doubles:
    """Return the ranks of values; equal ones share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[place], np.float64)
