"""Constants of a GPU's model fitted to measured kernels, and how far its predictions are off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from compiler.backends.cuda.device_times import KernelWork, kernel_seconds
from compiler.backends.cuda.gpu_models import GpuModel
from compiler.errors import ArgumentError

__all__ = ["FITTED", "Errors", "Fit", "MeasuredKernel", "errors_of", "fit"]

FITTED = (
    "memory_bandwidth", "l2_bandwidth", "l2_bytes_per_cycle", "float_rate", "issue_rate", "memory_latency",
    "l2_latency", "barrier", "exchange", "update", "launch",
)  # fmt: skip
"""The constants that are fitted; the others are facts of the device."""
_PRIOR = 0.02
"""Weight of the known constants: an error of a factor of e counts as much as an error of 2% in one measurement."""
_BOUND = 2.5
"""Most that the logarithm of a constant changes."""


@dataclass(frozen=True)
class MeasuredKernel:
    """A kernel and the seconds that it took on a GPU."""

    work: KernelWork
    seconds: float


@dataclass(frozen=True)
class Errors:
    """How far predictions are off, as factors of at least 1: 1.2 means a fifth too long or too short.

    Attributes:
        count: number of kernels.
        typical: geometric mean.
        median: of the kernels.
        ninth: that 90% of the kernels do not exceed.
        worst: the largest, and the name of its kernel.
    """

    count: int
    typical: float
    median: float
    ninth: float
    worst: float
    worst_kernel: str


@dataclass(frozen=True)
class Fit:
    """The result of a fit.

    Attributes:
        gpu: the model with fitted constants.
        before: errors of the model as it was.
        after: errors of the fitted one.
        changes: factors by which constants changed, by name.
    """

    gpu: GpuModel
    before: Errors
    after: Errors
    changes: dict[str, float]


def errors_of(kernels: Sequence[MeasuredKernel], gpu: GpuModel) -> Errors:
    """Return how far the model is off; raise ArgumentError if there are no kernels or their times are not positive."""
    _check(kernels)
    logs = np.abs(_deviations(kernels, gpu))
    worst = int(np.argmax(logs))
    typical, median, ninth = logs.mean(), np.median(logs), np.quantile(logs, 0.9)
    return Errors(
        len(kernels), math.exp(typical), math.exp(median), math.exp(ninth), math.exp(logs[worst]),
        kernels[worst].work.name,
    )  # fmt: skip


def fit(kernels: Sequence[MeasuredKernel], gpu: GpuModel) -> Fit:
    """Return the model whose constants predict measured kernels best, by least squares on the logarithms of times.

    Constants that the measurements say little about stay near where they were. Large errors of single kernels count
    less than their square.

    Raises:
        ArgumentError: there are no kernels, or a time is not positive.
    """
    before = errors_of(kernels, gpu)

    def residuals(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.concatenate([_deviations(kernels, _moved(gpu, x)), _PRIOR * x])

    found = least_squares(
        residuals, np.zeros(len(FITTED)), bounds=(-_BOUND, _BOUND), loss="soft_l1", f_scale=0.3, x_scale=1.0
    )
    fitted = _moved(gpu, found.x)
    changes = {name: math.exp(v) for name, v in zip(FITTED, found.x, strict=True)}
    return Fit(fitted, before, errors_of(kernels, fitted), changes)


def _moved(gpu: GpuModel, logs: npt.NDArray[Any]) -> GpuModel:
    values: dict[str, Any] = {n: getattr(gpu, n) * math.exp(v) for n, v in zip(FITTED, logs, strict=True)}
    return replace(gpu, **values)


def _deviations(kernels: Sequence[MeasuredKernel], gpu: GpuModel) -> npt.NDArray[Any]:
    return np.array([math.log(kernel_seconds(k.work, gpu) / k.seconds) for k in kernels])


def _check(kernels: Sequence[MeasuredKernel]) -> None:
    if not kernels:
        raise ArgumentError("there are no measured kernels to compare the model with")
    bad = next((k for k in kernels if not (math.isfinite(k.seconds) and k.seconds > 0)), None)
    if bad is not None:
        raise ArgumentError(f"the time of kernel {bad.work.name} must be positive, not {bad.seconds}")
