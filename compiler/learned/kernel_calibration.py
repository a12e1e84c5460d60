"""The calibration of the cost model of kernels to a machine: a linear correction of the predicted logarithms.

It is stored in the folder of compiled code, by machine and model, and used by every later compilation there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from compiler.backends.cpu import toolchain
from compiler.errors import BackendError, PolicyError
from compiler.learned.kernel_model import LearnedKernelCost, correction_terms
from compiler.support.files import write_file
from compiler.support.json_reading import read_object
from compiler.support.processor import processor
from compiler.support.threads import available_cores

__all__ = ["Calibration", "calibrated", "calibration_file", "fit_calibration", "store_calibration"]

FORMAT = 1
PENALTY = 1.0
"""Weight of the squared coefficients in the fit, in rows; it keeps the correction small where there is little data."""
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """A correction and what it achieves on the measurements that it was fitted to.

    Attributes:
        coefficients: of `correction_terms`.
        rows: number of measurements.
        before, after: median relative error of the predicted time without and with the correction.
    """

    coefficients: Doubles
    rows: int
    before: float
    after: float


def fit_calibration(
    model: LearnedKernelCost, features: npt.NDArray[np.float32], seconds: Sequence[float]
) -> Calibration:
    """Return the correction that fits measured times best, by ridge regression on the logarithms.

    Residuals above three times their median are clipped to that, so that a few disturbed timings have little influence.

    Raises:
        ValueError: there are fewer than eight measurements.
    """
    if len(seconds) < 8:
        raise ValueError("a calibration needs at least eight measurements")
    plain = replace(model, correction=None)
    predicted = plain.log_seconds(features).mean(0)
    wanted = np.log(np.maximum(np.array(seconds, np.float64), 1e-9)) - predicted
    terms = correction_terms(features, predicted)
    found = _ridge(terms, wanted)
    left = wanted - terms @ found
    limit = 3 * max(float(np.median(np.abs(left))), 1e-3)
    found = _ridge(terms, terms @ found + np.clip(left, -limit, limit))
    errors = [float(np.median(np.expm1(np.abs(wanted - c)))) for c in (0.0, terms @ found)]
    return Calibration(found, len(seconds), *errors)


def _ridge(terms: Doubles, wanted: Doubles) -> Doubles:
    square = terms.T @ terms + PENALTY * np.eye(terms.shape[1])
    return np.asarray(np.linalg.solve(square, terms.T @ wanted), np.float64)


def machine() -> str:
    """Return what a calibration holds for: the processor, its cores and the C compiler."""
    return f"{processor()}, {available_cores()} cores, {toolchain.toolchain().version}"


def calibration_file(model: LearnedKernelCost) -> Path:
    """Return the file of the calibration of a model to this machine; raise BackendError without a C compiler."""
    key = hashlib.sha256(f"{machine()}\n{model.digest}".encode()).hexdigest()[:24]
    return toolchain.object_cache().folder / "calibration" / f"{key}.json"


def store_calibration(model: LearnedKernelCost, calibration: Calibration) -> Path:
    """Write a calibration for later compilations and return its file.

    Raises:
        PolicyError: the file cannot be written.
    """
    path = calibration_file(model)
    data = {
        "format": FORMAT, "machine": machine(), "model": model.digest,
        "coefficients": calibration.coefficients.tolist(), "rows": calibration.rows,
        "before": calibration.before, "after": calibration.after,
    }  # fmt: skip
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(data, indent=1) + "\n")
    except OSError as e:
        raise PolicyError(f"cannot write the calibration to {path}: {e.strerror}") from e
    return path


def calibrated(model: LearnedKernelCost) -> LearnedKernelCost:
    """Return the model with the calibration to this machine; without one, or with a damaged one, the model itself."""
    try:
        path = calibration_file(model)
        data = read_object(path, PolicyError)
        coefficients = np.array(data["coefficients"], np.float64)
    except (BackendError, PolicyError, KeyError, TypeError, ValueError):
        return model
    fits = coefficients.shape == (model.correction_size,) and bool(np.isfinite(coefficients).all())
    return replace(model, correction=coefficients) if fits and data.get("format") == FORMAT else model
