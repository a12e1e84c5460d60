"""The dataset of kernel times as matrices: features and targets of every measured choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.learned.features.kernel_costs import COST_FEATURE_VERSION, COST_FEATURES, cost_features
from experiments.kernel_times.dataset import ChoiceTime, KernelTimes, site_of

__all__ = ["TimesMatrix", "joined", "times_matrix"]

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TimesMatrix:
    """Measured choices as rows.

    Attributes:
        features: rows x COST_FEATURES.
        log_seconds: natural logarithm of the time of each row.
        noise: of each row, see `ChoiceTime`.
        halves: rows x 2, the logarithms of two measurements of each, see `ChoiceTime.halves`.
        kernel: number of the kernel of each row, ascending.
        default: for each row, the row of the default of its kernel with as many threads.
    """

    features: Floats
    log_seconds: npt.NDArray[np.float64]
    noise: Floats
    halves: npt.NDArray[np.float64]
    kernel: Integers
    default: Integers

    def rows(self, keep: npt.NDArray[np.bool_]) -> TimesMatrix:
        """Return the rows of some kernels: all or none of the rows of a kernel must be kept."""
        number = np.cumsum(keep) - 1
        return TimesMatrix(
            self.features[keep], self.log_seconds[keep], self.noise[keep], self.halves[keep], self.kernel[keep],
            number[self.default[keep]],
        )  # fmt: skip


def joined(matrices: Sequence[TimesMatrix]) -> TimesMatrix:
    """Return the rows of several datasets, whose kernels count as different ones.

    Raises:
        ValueError: there are none.
    """
    rows = np.cumsum([0, *(len(m.kernel) for m in matrices[:-1])])
    kernels = np.cumsum([0, *(int(m.kernel.max(initial=-1)) + 1 for m in matrices[:-1])])
    return TimesMatrix(
        np.concatenate([m.features for m in matrices]),
        np.concatenate([m.log_seconds for m in matrices]),
        np.concatenate([m.noise for m in matrices]),
        np.concatenate([m.halves for m in matrices]),
        np.concatenate([m.kernel + n for m, n in zip(matrices, kernels, strict=True)]),
        np.concatenate([m.default + n for m, n in zip(matrices, rows, strict=True)]),
    )


def times_matrix(
    kernels: Sequence[KernelTimes], cache: Path | None = None, most_noise: float = math.inf
) -> TimesMatrix:
    """Return the rows of kernels; kernels without the default are left out.

    Args:
        kernels: of a dataset.
        cache: a file in which features are kept, because computing them binds every nest again.
        most_noise: times with more noise are left out.
    """
    known = _read(cache)
    features, seconds, noise, halves, number, default = [], [], [], [], [], []
    count = 0
    for n, kernel in enumerate(kernels):
        rows = known.get(kernel.fingerprint)
        if rows is None or len(rows) != len(kernel.times):
            choices, threads = [t.choice for t in kernel.times], [t.threads for t in kernel.times]
            rows = known[kernel.fingerprint] = cost_features(site_of(kernel), choices, threads)
        quiet = [t for t in kernel.times if t.noise <= most_noise]
        places = _defaults(kernel.times[0].choice, quiet)
        if not places:
            continue
        features += [row for row, t in zip(rows, kernel.times, strict=True) if t.noise <= most_noise]
        for t in quiet:
            seconds.append(t.seconds)
            noise.append(t.noise)
            halves.append(t.halves or (t.seconds, t.seconds))
            number.append(n)
            default.append(count + places.get(t.threads, places[1]))
        count += len(quiet)
    _write(cache, known)
    shape = len(features), len(COST_FEATURES)
    return TimesMatrix(
        np.array(features, np.float32).reshape(shape), _logs(seconds), np.array(noise, np.float32),
        _logs(halves).reshape(len(halves), 2), np.array(number, np.int64), np.array(default, np.int64),
    )  # fmt: skip


def _logs(seconds: Sequence[float] | Sequence[tuple[float, float]]) -> npt.NDArray[np.float64]:
    return np.log(np.maximum(np.array(seconds, np.float64), 1e-9))


def _defaults(default: KernelChoice, times: Sequence[ChoiceTime]) -> dict[int, int]:
    """Return the position of the default among times by number of threads; empty if it was not timed on one thread."""
    found = {t.threads: n for n, t in enumerate(times) if t.choice == default}
    return found if 1 in found else {}


def _read(cache: Path | None) -> dict[str, Floats]:
    if cache is None or not cache.exists():
        return {}
    with np.load(cache, allow_pickle=False) as data:
        if int(data["version"]) != COST_FEATURE_VERSION or data["rows"].shape[1] != len(COST_FEATURES):
            return {}
        rows, ends = data["rows"], data["ends"]
        return dict(zip(map(str, data["names"]), np.split(rows, ends[:-1]), strict=True))


def _write(cache: Path | None, known: dict[str, Floats]) -> None:
    if cache is None or not known:
        return
    rows = np.concatenate(list(known.values()))
    ends = np.cumsum([len(r) for r in known.values()])
    np.savez_compressed(cache, version=COST_FEATURE_VERSION, rows=rows, ends=ends, names=np.array(list(known)))
