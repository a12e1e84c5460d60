"""The page that says how well a model of gains finds the choices of kernels that are worth a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.learned.choice_gains import ChoiceGains
from compiler.learned.kernel_model import LearnedKernelCost
from experiments.kernel_times.matrices import TimesMatrix
from experiments.kernel_times.training import gain_rows
from experiments.yardstick.rows import write_page

__all__ = ["share_found", "write_gains"]

SHARES = (0.05, 0.1, 0.2, 0.3, 0.5)
"""Shares of the choices that are measured first."""
NOTABLE = 0.03
"""A choice that is faster by this share is worth finding."""
Doubles = npt.NDArray[np.float64]


def share_found(gains: Doubles, order: Doubles, share: float) -> float:
    """Return how much of all gains the choices that come first have.

    Args:
        gains: of each choice, see `gain_rows`.
        order: a number for each; those with the greatest come first.
        share: of the choices.
    """
    return float(gains[_first(order, share)].sum() / gains.sum()) if gains.any() else 0.0


def _first(order: Doubles, share: float) -> npt.NDArray[np.int64]:
    """Return the positions of the choices that come first."""
    return np.argsort(-order, kind="stable")[: round(share * len(order))]


def write_gains(
    out: Path,
    command: str,
    datasets: Sequence[tuple[Mapping[str, Any], TimesMatrix]],
    costs: LearnedKernelCost,
    model: ChoiceGains,
) -> str:
    """Write the page and return it.

    Args:
        out: the file.
        command: the command, for the page.
        datasets: the header of each, and rows of kernels of families that the models have not seen.
        costs: the cost model of kernels.
        model: what is judged.
    """
    table = [["measured on", "order", *(f"first {s:.0%}" for s in SHARES), "worth it"]]
    lines = [
        "What the model of gains finds among choices of kernels of validation families; it was trained on "
        f"{model.provenance.get('rows')} choices of other families.",
        "",
    ]
    for header, data in datasets:
        inputs, gains = gain_rows(data, costs)
        worth = gains > np.log1p(NOTABLE)
        machine = str(header.get("machine")).partition(",")[0]
        lines.append(
            f"- {machine}: {len(gains)} choices, of which {worth.mean():.1%} are faster than the default by "
            f"{NOTABLE:.0%} and more. `python -m experiments.kernel_times collect` measured them: commit "
            f"{header.get('commit')}, {header.get('date')}, {header.get('machine')}."
        )
        orders = {
            "the cost model's": inputs[:, -1].astype(np.float64), "this one's": model.predict(inputs),
            "of the gains": gains,
        }  # fmt: skip
        table.append([machine, "any", *(f"{s:.0%}" for s in SHARES), f"{worth.mean():.0%}"])
        for name, order in orders.items():
            found = [f"{share_found(gains, order, s):.0%}" for s in SHARES]
            table.append([machine, name, *found, f"{worth[_first(order, 0.1)].mean():.0%}"])
    lines += [
        "",
        "If only the first choices of an order are measured, they have this share of all gains. A gain counts if it is "
        "taken, from 1% on, by one half of the measurements, and is what the other half says, both ways, so that luck "
        f"is no gain. The last column is the share of the first tenth that is faster by {NOTABLE:.0%}.",
    ]
    return write_page(out, "Which choices of kernels are worth a measurement", command, lines, table)
