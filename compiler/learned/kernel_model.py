"""A learned cost model of kernels on a CPU: the time of a kernel with a choice, with an uncertainty, in numpy.

The prediction has two parts. A linear part prices the counts of the bound loop nest: so many seconds per division, per
strided load and so on, none of them negative. An ensemble of small networks corrects it from all features. The members
differ in their initial weights and in the kernels that they saw, so they disagree where the data says little.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import PolicyError
from compiler.learned.features.kernel_costs import COST_FEATURE_VERSION, COST_FEATURES, cost_features
from compiler.learned.policy_folder import read_policy_folder, write_policy_folder
from compiler.runtime.kernel_sites import KernelSite

__all__ = ["KernelPrediction", "LearnedKernelCost", "correction_terms", "on_threads", "priced_amounts",
           "shipped_kernel_cost"]  # fmt: skip

FORMAT = "hlogym-kernel-cost"
SHIPPED = Path(__file__).parent / "kernel_cost_model"
MIN_SECONDS = 1e-9
"""Least time of the linear part, which is 0 for a kernel that does nothing it prices."""
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Layers: TypeAlias = tuple[tuple[Floats, Floats], ...]
"""The layers of one network: weights of inputs x outputs, and bias of outputs."""

_NOT_PRICED = ("deepest loop", "longest body", "longest chain", "statements", "expensive statements",
               "largest argument")  # fmt: skip
_NEST = [n for n, name in enumerate(COST_FEATURES) if name.startswith("nest: ") and name[6:] not in _NOT_PRICED]
_VECTOR = COST_FEATURES.index("field: vector")
_LIBRARY, _BYTES = COST_FEATURES.index("log library flops"), COST_FEATURES.index("kernel: log bytes read")
_OTHERS = [n for n, name in enumerate(COST_FEATURES) if name.startswith("implementation: ")]
PRICED = ("call", *(COST_FEATURES[n] for n in _NEST), "library flops", "library bytes")
"""What the linear part prices."""


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
        mean, scale: of the features; a feature whose scale is 0 did not vary in training and is ignored.
        members: the layers of each network, as (weights of inputs x outputs, bias of outputs).
        threads: greatest number of threads that the training data has; times on more threads are extrapolated.
        provenance: what it was trained on.
        correction: coefficients of `correction_terms`, of the calibration to another machine; None for none.
    """

    prices: Floats
    mean: Floats
    scale: Floats
    members: tuple[Layers, ...]
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
            weights = _placed(weights, names)
            members: list[Layers] = []
            while f"{len(members)}.0.weight" in weights:
                m = len(members)
                layers: list[tuple[Floats, Floats]] = []
                while f"{m}.{len(layers)}.weight" in weights:
                    k = len(layers)
                    layers.append((weights[f"{m}.{k}.weight"], weights[f"{m}.{k}.bias"]))
                members.append(tuple(layers))
            threads = int(description["threads"])
            model = LearnedKernelCost(
                weights["prices"], weights["mean"], weights["scale"], tuple(members), threads,
                description["provenance"],
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as e:
            raise PolicyError(f"the cost model in {folder} is incomplete: {e}") from e
        model._check(folder)
        return model

    def _check(self, where: str | Path) -> None:
        width = len(COST_FEATURES)
        fits = [a.shape == (width,) for a in (self.mean, self.scale)] + [self.prices.shape == (len(PRICED),)]
        fits.append(bool(self.members) and self.threads >= 1)
        for layers in self.members:
            inputs = width + 1
            for weight, bias in layers:
                fits.append(weight.ndim == 2 and weight.shape[0] == inputs and bias.shape == weight.shape[1:])
                inputs = weight.shape[-1]
            fits.append(inputs == 1)
        if not all(fits):
            raise PolicyError(f"the weights in {where} have other shapes than those of a cost model of kernels")

    def save(self, folder: str | Path) -> None:
        """Write the model, without its calibration; raise PolicyError if the folder cannot be written."""
        weights = {"prices": self.prices, "mean": self.mean, "scale": self.scale}
        for m, layers in enumerate(self.members):
            for k, (weight, bias) in enumerate(layers):
                weights[f"{m}.{k}.weight"], weights[f"{m}.{k}.bias"] = weight, bias
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
        linear = np.log(np.maximum(priced_amounts(features) @ self.prices.astype(np.float64), MIN_SECONDS))
        x = self.inputs(features, linear)
        out = np.stack([linear + _network(layers, x) for layers in self.members])
        return out if self.correction is None else out + correction_terms(features, out.mean(0)) @ self.correction

    def rank(self, site: KernelSite, choices: Sequence[KernelChoice]) -> Sequence[float]:
        """Return numbers of which the least belongs to the choice that is expected to be fastest."""
        return [float(r) for r in self.predict(site, choices).log_ratio]

    def knows(self, field: str) -> bool:
        """Check whether a field of the schedule varied in the training data."""
        columns = [n for n, name in enumerate(COST_FEATURES) if name == f"field: {field}"]
        if field == "flags":
            columns = [n for n, name in enumerate(COST_FEATURES) if name.startswith("flags: ")]
        return bool((self.scale[columns] > 0).any())

    @functools.cached_property
    def digest(self) -> str:
        """Identifies the weights."""
        digest = hashlib.sha256()
        arrays = [
            self.prices,
            self.mean,
            self.scale,
            *(a for layers in self.members for layer in layers for a in layer),
        ]
        for array in arrays:
            digest.update(np.ascontiguousarray(array, "<f4").tobytes())
        return digest.hexdigest()[:24]

    @property
    def correction_size(self) -> int:
        """Number of coefficients of a calibration."""
        return int(correction_terms(np.zeros((1, len(COST_FEATURES)), np.float32), np.zeros(1)).shape[1])

    def inputs(self, features: Floats, linear: Doubles) -> Floats:
        """Return the inputs of the networks: the scaled features and the logarithm of the linear part."""
        used = self.scale > 0
        scaled = np.where(used, (features - self.mean) / np.where(used, self.scale, 1.0), 0.0)
        return np.concatenate([np.clip(scaled, -6, 6), (linear[:, None] + 12) / 4], axis=1, dtype=np.float32)


def _placed(weights: Mapping[str, Floats], names: list[str]) -> dict[str, Floats]:
    """Return weights for the features of this version: those that the model was learned without are ignored.

    Raises:
        ValueError: the weights do not fit the names.
    """
    if names == list(COST_FEATURES):
        return dict(weights)
    places = [COST_FEATURES.index(n) for n in names]
    priced = [PRICED.index(n) for n in ("call", *(n for n in names if n in PRICED), *PRICED[-2:])]
    found = dict(weights)
    for name in weights:
        if name == "prices":
            found[name] = np.zeros(len(PRICED), np.float32)
            found[name][priced] = weights[name]
        elif name in ("mean", "scale"):
            found[name] = np.zeros(len(COST_FEATURES), np.float32)
            found[name][places] = weights[name]
        elif name.endswith(".0.weight"):
            wide = np.zeros((len(COST_FEATURES) + 1, weights[name].shape[-1]), np.float32)
            wide[[*places, len(COST_FEATURES)]] = weights[name]
            found[name] = wide
    return found


def priced_amounts(features: Floats) -> Doubles:
    """Return the amounts of PRICED for rows of features."""
    counts = np.exp2(features[:, _NEST].astype(np.float64)) - 1
    other = features[:, _OTHERS].max(1).astype(np.float64)
    flops = (np.exp2(features[:, _LIBRARY].astype(np.float64)) - 1) * other
    return np.column_stack([np.ones(len(features)), counts, flops, _array_bytes(features) * other])


def _network(layers: Sequence[tuple[Floats, Floats]], x: Floats) -> Doubles:
    for weight, bias in layers[:-1]:
        x = np.maximum(x @ weight + bias, 0)
    weight, bias = layers[-1]
    return np.asarray((x @ weight + bias)[:, 0], np.float64)


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
