"""A learned cost model of kernels on a CPU: the time of a kernel with a choice, with an uncertainty, in numpy.

The prediction has two parts. A linear part prices the counts of the bound loop nest: so many seconds per division, per
strided load and so on, none of them negative. An ensemble of boosted trees corrects it from all features and from the
shares that the counts have in the linear part. The members saw different kernels, so they disagree where the data says
little.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import PolicyError
from compiler.learned.boosted_trees import BoostedTrees
from compiler.learned.features.kernel_costs import COST_FEATURE_VERSION, COST_FEATURES, cost_features
from compiler.learned.policy_folder import read_policy_folder, write_policy_folder
from compiler.learned.tree_nodes import TreeNodes
from compiler.runtime.kernel_sites import KernelSite

__all__ = ["INPUTS", "PRICED", "KernelPrediction", "LearnedKernelCost", "correction_terms", "model_inputs",
           "on_threads", "priced_amounts", "shipped_kernel_cost"]  # fmt: skip

FORMAT = "hlogym-kernel-cost"
SHIPPED = Path(__file__).parent / "kernel_cost_model"
MIN_SECONDS = 1e-9
"""Least time of the linear part, which is 0 for a kernel that does nothing it prices."""
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

_NOT_PRICED = ("deepest loop", "longest body", "longest chain", "statements", "expensive statements",
               "largest argument")  # fmt: skip
_NEST = [n for n, name in enumerate(COST_FEATURES) if name.startswith("nest: ") and name[6:] not in _NOT_PRICED]
_VECTOR = COST_FEATURES.index("field: vector")
_LIBRARY, _BYTES = COST_FEATURES.index("log library flops"), COST_FEATURES.index("kernel: log bytes read")
_OTHERS = [n for n, name in enumerate(COST_FEATURES) if name.startswith("implementation: ")]
PRICED = ("call", *(COST_FEATURES[n] for n in _NEST), "library flops", "library bytes")
"""What the linear part prices."""
_LINEAR = "log linear"
INPUTS = (
    *COST_FEATURES,
    _LINEAR,
    *(f"share: {name}" for name in PRICED),
    *(f"relative {COST_FEATURES[n]}" for n in _NEST),
)
"""What the trees look at, see `model_inputs`."""


@dataclass(frozen=True)
class KernelPrediction:
    """Predicted times of choices of one kernel.

    Attributes:
        seconds: of one execution with each choice.
        spread: standard deviation of the logarithm of `seconds` between the members of the ensemble.
        log_ratio: logarithm of the time relative to the kernel's default.
        ratio_spread: standard deviation of `log_ratio` between the members.
    """

    seconds: Doubles
    spread: Doubles
    log_ratio: Doubles
    ratio_spread: Doubles


@dataclass(frozen=True)
class LearnedKernelCost:
    """The cost model.

    Attributes:
        prices: seconds for each of PRICED.
        varied: 1 for each of COST_FEATURES that varied in training, else 0.
        members: the trees of each member of the ensemble, over INPUTS.
        threads: greatest number of threads that the training data has; times on more threads are extrapolated.
        provenance: what it was trained on.
        correction: coefficients of `correction_terms`, of the calibration to another machine; None for none.
    """

    prices: Floats
    varied: Floats
    members: tuple[BoostedTrees, ...]
    threads: int = 1
    provenance: Mapping[str, Any] = field(default_factory=dict)
    correction: Doubles | None = None

    @staticmethod
    def load(folder: str | Path) -> LearnedKernelCost:
        """Read a model that `save` wrote.

        Raises:
            PolicyError: there is none, it was learned on other features, or its weights are not those of a model.
        """
        description, weights = read_policy_folder(Path(folder), FORMAT, COST_FEATURE_VERSION)
        names = description.get("features")
        if not isinstance(names, list) or not set(map(str, names)) <= set(COST_FEATURES):
            raise PolicyError(f"the cost model in {folder} was learned on other features; train it again")
        try:
            threads, provenance = int(description["threads"]), description["provenance"]
            prices, varied, members = _placed(weights, names)
        except (KeyError, TypeError, ValueError) as e:
            raise PolicyError(f"the cost model in {folder} is incomplete: {e}") from e
        except PolicyError as e:
            raise PolicyError(f"the cost model in {folder} cannot be used: {e}") from e
        if threads < 1 or not members:
            raise PolicyError(f"the cost model in {folder} has {threads} threads and {len(members)} members")
        return LearnedKernelCost(prices, varied, members, threads, provenance)

    def save(self, folder: str | Path) -> None:
        """Write the model, without its calibration; raise PolicyError if the folder cannot be written."""
        weights = {"prices": self.prices, "varied": self.varied}
        for m, trees in enumerate(self.members):
            weights.update({f"{m}.{name}": array for name, array in trees.to_arrays().items()})
        description = {
            "format": FORMAT, "feature_version": COST_FEATURE_VERSION, "features": list(COST_FEATURES),
            "threads": self.threads, "provenance": dict(self.provenance),
        }  # fmt: skip
        write_policy_folder(Path(folder), description, weights)

    # ---- prediction

    def predict(self, site: KernelSite, choices: Sequence[KernelChoice]) -> KernelPrediction:
        """Return the predicted times of choices of a kernel on the cores of its device.

        Args:
            site: a kernel for the cpu backend.
            choices: choices that the site accepts.
        """
        logs = self.log_seconds_on(site.device.units, self.site_rows(site, [site.default, *choices]))
        ratios = logs - logs[:, :1]
        return KernelPrediction(np.exp(logs.mean(0))[1:], logs.std(0)[1:], ratios.mean(0)[1:], ratios.std(0)[1:])

    def site_rows(self, site: KernelSite, choices: Sequence[KernelChoice]) -> Floats:
        """Return the features of choices on the cores of the site's device, or on as many as the training data has."""
        return cost_features(site, choices, [self._known_threads(site.device.units)] * len(choices))

    def log_seconds_on(self, units: int, features: Floats) -> Doubles:
        """Return the natural logarithm of the seconds on some cores, members x rows of `site_rows`.

        Beyond the number of threads that the training data has, work in parallel loops is divided among the cores.
        """
        beyond = on_threads(features, units) / on_threads(features, self._known_threads(units))
        return self.log_seconds(features) + np.log(beyond)

    def _known_threads(self, units: int) -> int:
        """Return the number of cores, or the greatest number of threads that the training data has."""
        return max(1, min(self.threads, units))

    def log_seconds(self, features: Floats) -> Doubles:
        """Return the natural logarithm of the seconds of rows of features, members x rows."""
        linear, inputs = model_inputs(features, self.prices)
        nodes, value, starts = self._trees
        added = np.add.reduceat(value[nodes.leaves(inputs.astype(np.float64))], starts, axis=1)
        out = linear + np.asarray(added.T, np.float64)
        return out if self.correction is None else out + correction_terms(features, out.mean(0)) @ self.correction

    @functools.cached_property
    def _trees(self) -> tuple[TreeNodes, Doubles, npt.NDArray[np.int64]]:
        """The trees of all members, what their leaves add, and the first tree of each member."""
        starts = np.cumsum([0, *(len(m.nodes.roots) for m in self.members[:-1])])
        return (
            TreeNodes.joined([m.nodes for m in self.members]),
            np.concatenate([m.value for m in self.members]),
            starts,
        )

    def rank(self, site: KernelSite, choices: Sequence[KernelChoice]) -> Sequence[float]:
        """Return numbers of which the least belongs to the choice that is expected to be fastest."""
        return [float(r) for r in self.predict(site, choices).log_ratio]

    def knows(self, field: str) -> bool:
        """Check whether a field of the schedule varied in the training data."""
        columns = [n for n, name in enumerate(COST_FEATURES) if name == f"field: {field}"]
        if field == "flags":
            columns = [n for n, name in enumerate(COST_FEATURES) if name.startswith("flags: ")]
        return bool((self.varied[columns] > 0).any())

    @functools.cached_property
    def digest(self) -> str:
        """Identifies the weights."""
        digest = hashlib.sha256()
        arrays = [self.prices, self.varied]
        for trees in self.members:
            arrays += trees.to_arrays().values()
        for array in arrays:
            digest.update(np.ascontiguousarray(array, "<f4").tobytes())
        return digest.hexdigest()[:24]

    @property
    def correction_size(self) -> int:
        """Number of coefficients of a calibration."""
        return int(correction_terms(np.zeros((1, len(COST_FEATURES)), np.float32), np.zeros(1)).shape[1])


def _placed(weights: Mapping[str, Floats], names: Sequence[str]) -> tuple[Floats, Floats, tuple[BoostedTrees, ...]]:
    """Return prices, what varied, and trees for the features of this version; a model ignores those that it never saw.

    Args:
        weights: as in the file.
        names: the features that the model was learned on, in their order.

    Raises:
        KeyError, ValueError: the weights do not fit the names.
        PolicyError: some are not those of trees.
    """
    priced = [n for n, name in enumerate(PRICED) if name in names or name not in COST_FEATURES]
    places = [COST_FEATURES.index(n) for n in names]
    prices, varied = np.zeros(len(PRICED), np.float32), np.zeros(len(COST_FEATURES), np.float32)
    if weights["prices"].shape != (len(priced),) or weights["varied"].shape != (len(places),):
        raise ValueError("its weights have other shapes than its features")
    prices[priced], varied[places] = weights["prices"], weights["varied"]
    kept = {*names, _LINEAR, *(PRICED[n] for n in priced)}
    known = [n for n, name in enumerate(INPUTS) if name.removeprefix("share: ").removeprefix("relative ") in kept]
    members: list[BoostedTrees] = []
    while any(name.startswith(prefix := f"{len(members)}.") for name in weights):
        arrays = {name.removeprefix(prefix): a for name, a in weights.items() if name.startswith(prefix)}
        trees = BoostedTrees.from_arrays(arrays, len(known))
        members.append(trees if len(known) == len(INPUTS) else trees.with_features(known))
    return prices, varied, tuple(members)


def model_inputs(features: Floats, prices: Floats) -> tuple[Doubles, Floats]:
    """Return the logarithm of the linear part for rows of features, and INPUTS.

    Beside the features these are the linear part, the share of each of PRICED in it, and how the counts of the nest
    compare with it: trees split one number at a time, so that ratios have to be numbers of their own.
    """
    parts = priced_amounts(features) * prices.astype(np.float64)
    total = np.maximum(parts.sum(1), MIN_SECONDS)
    linear = np.log(total)
    relative = features[:, _NEST] - np.log2(total)[:, None]
    columns = (features, linear[:, None], parts / total[:, None], relative)
    return np.asarray(linear, np.float64), np.concatenate(columns, axis=1, dtype=np.float32)


def priced_amounts(features: Floats) -> Doubles:
    """Return the amounts of PRICED for rows of features."""
    counts = np.exp2(features[:, _NEST].astype(np.float64)) - 1
    other = features[:, _OTHERS].max(1).astype(np.float64)
    flops = (np.exp2(features[:, _LIBRARY].astype(np.float64)) - 1) * other
    return np.column_stack([np.ones(len(features)), counts, flops, _array_bytes(features) * other])


_PARALLEL, _SERIAL = COST_FEATURES.index("nest: parallel work"), COST_FEATURES.index("nest: serial work")
_TASKS = COST_FEATURES.index("nest: tasks")


def on_threads(features: Floats, threads: int) -> Doubles:
    """Return the time of rows of features on several threads relative to that on one thread.

    Work in parallel loops is divided among the threads.
    """
    parallel, serial, tasks = (np.exp2(features[:, n].astype(np.float64)) - 1 for n in (_PARALLEL, _SERIAL, _TASKS))
    share = parallel / np.maximum(parallel + serial, 1.0)
    return np.asarray(1 - share + share / np.clip(np.ceil(tasks), 1, max(1, threads)), np.float64)


def correction_terms(features: Floats, logs: Doubles) -> Doubles:
    """Return the terms of a calibration for rows of features and predicted logarithms: rows x terms.

    They are a constant, the prediction, how far the arrays exceed the first and the second level of cache, whether a
    library computes the kernel, and the vector width.
    """
    size = np.log2(1.0 + _array_bytes(features))
    beyond = [np.clip(size - level, 0, 5) / 5 for level in (15, 20)]
    library = features[:, _OTHERS].max(1)
    terms = [np.ones(len(logs)), (logs + 12) / 4, *beyond, library, features[:, _VECTOR] / 9 - 1]
    return np.asarray(np.column_stack(terms), np.float64)


def _array_bytes(features: Floats) -> Doubles:
    """Return the bytes that are read and written."""
    read, written = (np.exp2(26 * features[:, _BYTES + n].astype(np.float64)) - 1 for n in range(2))
    return np.asarray(read + written)


@functools.cache
def shipped_kernel_cost() -> LearnedKernelCost | None:
    """Return the model that comes with hlogym; None if there is none, or it is of another version."""
    try:
        return LearnedKernelCost.load(SHIPPED)
    except PolicyError:
        return None
