"""The page that says how good a cost model is on kernels of families that it has not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.learned.features.kernel_costs import COST_FEATURES
from compiler.learned.kernel_cost import LearnedKernelCost, LearnedKernels
from experiments.kernel_times.dataset import KernelTimes
from experiments.kernel_times.matrices import TimesMatrix
from experiments.kernel_times.quality import Quality, field_errors, quality
from experiments.yardstick.rows import write_page

__all__ = ["write_report"]

LONG_SECONDS = 1e-6
"""Default time from which a kernel counts as long: the clock resolves the choices of shorter ones badly."""


def write_report(
    out: Path,
    command: str,
    header: Mapping[str, Any],
    kernels: Sequence[KernelTimes],
    data: TimesMatrix,
    training: npt.NDArray[np.bool_],
    model: LearnedKernelCost,
) -> str:
    """Write the page and return it.

    Args:
        out: the file.
        command: the command, for the page.
        header: of the dataset.
        kernels: of the dataset, in the order of `data.kernel`.
        data: all rows.
        training: which rows are of training programs.
        model: what is judged.
    """
    selector = LearnedKernels(model)
    logs = model.log_seconds(data.features)
    analytic = _analytic(data)
    long = data.log_seconds[data.default] >= np.log(LONG_SECONDS)
    found = []
    for name, keep in (
        ("training families", training), ("validation families", ~training),
        ("validation, 1 us and longer", ~training & long),
    ):  # fmt: skip
        if keep.any():
            part = data.rows(keep)
            found.append((name, quality(part, logs[:, keep], selector.margin, selector.caution)))
    base = ~training if (~training).any() else training
    part = data.rows(base)
    found.append(("validation, analytic model", quality(part, analytic[:, base], selector.margin, selector.caution)))
    families = {split: {k.family for k in kernels if k.split == split} for split in ("train", "validation")}
    lines = [
        f"The learned cost model of kernels on kernels of {len(families['validation'])} validation families; it was "
        f"trained on {len(families['train'])} other families. Each kernel was compiled alone and timed with some of "
        "its choices in turns, on one thread. `python -m experiments.kernel_times collect` measured the kernels: "
        f"commit {header.get('commit')}, {header.get('date')}, {header.get('machine')}.",
        "",
        "- rank correlation: Spearman's, of predicted and measured times over all choices of all kernels; within: the "
        "mean over kernels of the correlation over the choices of one kernel.",
        "- error: median relative error of the time of a choice; of ratios: of its time relative to the default.",
        "- loss: geometric mean of the time of the choice taken over that of the choice that is measured fastest, "
        "minus one; that choice is found by every other round, and both valued by the rounds between, both ways, so "
        "that the luck of the fastest measurement is no loss. Careful: what `LearnedKernels` takes, "
        f"with a margin of {selector.margin:.0%} and {selector.caution:g} standard deviations.",
        "- made slower: share of kernels whose careful choice is slower than the default by more than 3%.",
        "- changes of one field (the list below): root mean square of the logarithm of the time relative "
        "to the default, and of the error of its prediction on validation families.",
        "",
        "| change | choices | effect | error |",
        "|---|---|---|---|",
        *(f"| {f.change} | {f.rows} | {f.effect:.3f} | {f.error:.3f} |" for f in field_errors(part, logs[:, base])),
        "",
    ]
    return write_page(out, "The learned cost model of kernels", command, lines, _table(found))


def _analytic(data: TimesMatrix) -> npt.NDArray[np.float64]:
    """Return the logarithms that the analytic cost model predicts, which does not know of choices, as one member."""
    estimate = data.features[:, COST_FEATURES.index("kernel: log seconds")].astype(np.float64)
    return np.asarray(np.log(np.maximum(np.exp2(30 * estimate) - 1, 1e-3) * 1e-9)[None], np.float64)


def _table(found: Sequence[tuple[str, Quality]]) -> list[list[str]]:
    head = ["kernels", "times", "number", "rank correlation", "within", "error", "error of ratios", "loss of the best "
            "predicted", "loss, careful", "loss of the default", "made slower"]  # fmt: skip
    return [head, *(
        [name, str(q.rows), str(q.kernels), f"{q.correlation:.3f}", f"{q.within:.3f}", f"{q.error:.1%}",
         f"{q.ratio_error:.1%}", f"{q.loss:.1%}", f"{q.careful_loss:.1%}", f"{q.default_loss:.1%}", f"{q.worse:.1%}"]
        for name, q in found
    )]  # fmt: skip
