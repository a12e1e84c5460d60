"""What a choice of a kernel is expected to gain over another if it is taken where it is faster, by boosted trees.

A search wants to know which choices are worth a measurement, and most of them lose. A model of times is fitted to how
much they lose; this one to what is left when losses do not count. It looks at the kernel with the first choice, at what
the other changes, and at what the cost model of kernels predicts of it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import PolicyError
from compiler.learned.boosted_trees import BoostedTrees
from compiler.learned.features.kernel_costs import COST_FEATURE_VERSION, COST_FEATURES
from compiler.learned.kernel_model import LearnedKernelCost, shipped_kernel_cost
from compiler.learned.policy_folder import read_policy_folder, write_policy_folder
from compiler.runtime.kernel_sites import KernelSite

__all__ = ["GAIN_INPUTS", "ChoiceGains", "gain_inputs", "shipped_choice_gains"]

FORMAT = "hlogym-choice-gains"
SHIPPED = Path(__file__).parent / "choice_gains_model"
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
GAIN_INPUTS = (*COST_FEATURES, *(f"changed {name}" for name in COST_FEATURES), "predicted gain")
"""What the trees look at, see `gain_inputs`."""


@dataclass(frozen=True)
class ChoiceGains:
    """The model.

    Attributes:
        trees: over GAIN_INPUTS.
        kernel_costs: digest of the cost model of kernels whose predictions it looks at.
        provenance: what it was trained on.
    """

    trees: BoostedTrees
    kernel_costs: str
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def load(folder: str | Path, costs: LearnedKernelCost) -> ChoiceGains:
        """Read a model that `save` wrote.

        Args:
            folder: of the model.
            costs: the cost model of kernels that it will be asked with.

        Raises:
            PolicyError: there is none, it was learned on other features or with another cost model, or it is damaged.
        """
        description, weights = read_policy_folder(Path(folder), FORMAT, COST_FEATURE_VERSION)
        if description.get("features") != list(COST_FEATURES) or description.get("kernel_costs") != costs.digest:
            raise PolicyError(f"the model in {folder} was learned on other features or costs; train it again")
        try:
            trees = BoostedTrees.from_arrays(weights, len(GAIN_INPUTS))
        except PolicyError as e:
            raise PolicyError(f"the model in {folder} cannot be used: {e}") from e
        return ChoiceGains(trees, costs.digest, description["provenance"])

    def save(self, folder: str | Path) -> None:
        """Write the model; raise PolicyError if the folder cannot be written."""
        description = {
            "format": FORMAT, "feature_version": COST_FEATURE_VERSION, "features": list(COST_FEATURES),
            "kernel_costs": self.kernel_costs, "provenance": dict(self.provenance),
        }  # fmt: skip
        write_policy_folder(Path(folder), description, self.trees.to_arrays())

    def predict(self, inputs: Floats) -> Doubles:
        """Return the mean gains for rows of GAIN_INPUTS, as logarithms; none is negative."""
        leaves = self.trees.nodes.leaves(inputs.astype(np.float64))
        return np.asarray(np.maximum(self.trees.value[leaves].sum(axis=1), 0.0))

    def of_choices(self, costs: LearnedKernelCost, site: KernelSite, choices: Sequence[KernelChoice]) -> Doubles:
        """Return the mean gains of choices of a kernel over the first of them, without that one.

        Args:
            costs: the cost model that the model was trained with.
            site: a kernel for the cpu backend.
            choices: choices that the site accepts.
        """
        rows = costs.site_rows(site, choices)
        logs = costs.log_seconds_on(site.device.units, rows).mean(0)
        return self.predict(gain_inputs(rows, logs, np.zeros(len(rows), np.int64)))[1:]


def gain_inputs(features: Floats, logs: Doubles, base: npt.NDArray[np.int64]) -> Floats:
    """Return rows of GAIN_INPUTS.

    Args:
        features: [choices, COST_FEATURES].
        logs: predicted logarithms of the times.
        base: for each choice, the row of the one that it is compared with.
    """
    first = features[base]
    columns = (first, features - first, (logs[base] - logs)[:, None])
    return np.concatenate(columns, axis=1, dtype=np.float32)


@functools.cache
def shipped_choice_gains() -> ChoiceGains | None:
    """Return the model that comes with hlogym; None if there is none, or it does not fit the cost model that does."""
    costs = shipped_kernel_cost()
    try:
        return None if costs is None else ChoiceGains.load(SHIPPED, costs)
    except PolicyError:
        return None
