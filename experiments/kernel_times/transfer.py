"""How well a cost model of kernels predicts on another machine than its own, before and after a calibration there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.learned.kernel_calibration import fit_calibration
from compiler.learned.kernel_cost import LearnedKernelCost
from experiments.calibration import SECONDS, measured_rows
from experiments.kernel_times.matrices import TimesMatrix
from experiments.kernel_times.quality import spearman
from experiments.yardstick.rows import write_page

__all__ = ["COUNTS", "Accuracy", "transferred", "write_transfer"]

COUNTS = (10, 30, 100, 300)
"""Numbers of kernels of training families by which the model is calibrated, besides what `doctor --calibrate` does."""
Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Accuracy:
    """How good predicted times are: the median relative error, and Spearman's rank correlation over all rows."""

    error: float
    correlation: float


def transferred(
    model: LearnedKernelCost, data: TimesMatrix, training: Rows, draws: int
) -> list[tuple[str, list[Accuracy]]]:
    """Return the accuracy of a model on kernels of families that it has not seen, by how it was calibrated.

    Args:
        model: learned on another machine.
        data: kernels measured on this one.
        training: which rows are of training families; the others judge.
        draws: number of random draws of the kernels of a calibration.
    """
    judged = data.rows(~training)
    found = [("none", [_accuracy(replace(model, correction=None), judged)])]
    features, seconds = measured_rows(SECONDS)
    name = f"hlogym doctor --calibrate, {len(seconds)} times of programs of its own"
    found.append((name, [_accuracy(_calibrated(model, features, seconds), judged)]))
    own = np.unique(data.kernel[training])
    for count in (c for c in COUNTS if c <= len(own)):
        drawn = [np.random.default_rng(seed).choice(own, count, replace=False) for seed in range(draws)]
        parts = [data.rows(np.isin(data.kernel, kernels)) for kernels in drawn]
        models = [_calibrated(model, part.features, np.exp(part.log_seconds).tolist()) for part in parts]
        times = round(float(np.mean([len(part.log_seconds) for part in parts])))
        found.append((f"{count} kernels of training families, {times} times", [_accuracy(m, judged) for m in models]))
    return found


def _calibrated(model: LearnedKernelCost, features: Floats, seconds: list[float]) -> LearnedKernelCost:
    return replace(model, correction=fit_calibration(model, features, seconds).coefficients)


def _accuracy(model: LearnedKernelCost, data: TimesMatrix) -> Accuracy:
    mean = model.log_seconds(data.features).mean(0)
    error = float(np.median(np.expm1(np.abs(mean - data.log_seconds))))
    return Accuracy(error, spearman(mean, data.log_seconds))


def write_transfer(
    out: Path, command: str, header: Mapping[str, Any], model: LearnedKernelCost,
    found: Sequence[tuple[str, Sequence[Accuracy]]], families: int, draws: int,
) -> str:  # fmt: skip
    """Write the page of a transfer and return it.

    Args:
        out: the file.
        command: the command, for the page.
        header: of the dataset that judges.
        model: what was transferred.
        found: what `transferred` returned.
        families: number of families that judge.
        draws: number of draws.
    """
    data = model.provenance.get("data", {})
    lines = [
        f"The cost model was learned on {data.get('machine')}, {data.get('date')}. Here it predicts the times of "
        f"kernels of {families} families that it was not trained on. They were measured on {header.get('machine')}, "
        f"{header.get('date')}, one by one, on one thread, the fastest of several samples.",
        "",
        "- error: median relative error of the time. Rank correlation: Spearman's, over all kernels and choices.",
        f"- median [least, greatest] of {draws} draws of the kernels of a calibration.",
    ]
    table = [["calibration", "error", "rank correlation"]]
    for name, accuracies in found:
        errors, correlations = [a.error for a in accuracies], [a.correlation for a in accuracies]
        table.append([name, _range(errors, ".1%"), _range(correlations, ".3f")])
    return write_page(out, "A cost model of kernels on another machine", command, lines, table)


def _range(values: Sequence[float], form: str) -> str:
    middle = f"{float(np.median(values)):{form}}"
    return middle if len(values) == 1 else f"{middle} [{min(values):{form}}, {max(values):{form}}]"
