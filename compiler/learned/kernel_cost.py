"""A learned cost model of kernels on a CPU: the time of a kernel with a choice, with an uncertainty, in numpy.

The prediction has two parts. A linear part prices the counts of the bound loop nest: so many seconds per division, per
strided load and so on, none of them negative. An ensemble of small networks corrects it from all features. The members
differ in their initial weights and in the kernels that they saw, so they disagree where the data says little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import PolicyError
from compiler.learned.features.kernel_costs import COST_FEATURE_VERSION, COST_FEATURES, cost_features
from compiler.learned.policy_folder import read_policy_folder, write_policy_folder
from compiler.runtime.kernel_sites import KernelSite

__all__ = ["KernelPrediction", "LearnedKernelCost", "priced_amounts"]

FORMAT = "hlogym-kernel-cost"
MIN_SECONDS = 1e-9
"""Least time of the linear part, which is 0 for a kernel that does nothing it prices."""
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

_NOT_PRICED = ("deepest loop", "longest body", "longest chain", "statements", "expensive statements",
               "largest argument")  # fmt: skip
_NEST = [n for n, name in enumerate(COST_FEATURES) if name.startswith("nest: ") and name[6:] not in _NOT_PRICED]
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
        correction: coefficients of the calibration to another machine, see `calibrated`; None for none.
    """

    prices: Floats
    mean: Floats
    scale: Floats
    members: tuple[tuple[tuple[Floats, Floats], ...], ...]
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
        if description.get("features") != list(COST_FEATURES):
            raise PolicyError(f"the cost model in {folder} was learned on other features; train it again")
        try:
            members = []
            while f"{len(members)}.0.weight" in weights:
                m, layers = len(members), []
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
        rows = cost_features(site, [site.default, *choices], [1] * (1 + len(choices)))
        logs = self.log_seconds(rows)
        ratios = logs - logs[:, :1]
        seconds = np.exp(logs.mean(0)) * _on_threads(rows, site.device.units)
        return KernelPrediction(seconds[1:], logs.std(0)[1:], ratios.mean(0)[1:], ratios.std(0)[1:])

    def log_seconds(self, features: Floats) -> Doubles:
        """Return the natural logarithm of the seconds on one thread, members x rows of features."""
        linear = np.log(np.maximum(priced_amounts(features) @ self.prices.astype(np.float64), MIN_SECONDS))
        x = self.inputs(features, linear)
        out = np.stack([linear + _network(layers, x) for layers in self.members])
        return out if self.correction is None else _corrected(out, features, self.correction)

    def inputs(self, features: Floats, linear: Doubles) -> Floats:
        """Return the inputs of the networks: the scaled features and the logarithm of the linear part."""
        used = self.scale > 0
        scaled = np.where(used, (features - self.mean) / np.where(used, self.scale, 1.0), 0.0)
        return np.concatenate([np.clip(scaled, -6, 6), (linear[:, None] + 12) / 4], axis=1, dtype=np.float32)


def priced_amounts(features: Floats) -> Doubles:
    """Return the amounts of PRICED for rows of features."""
    counts = np.exp2(features[:, _NEST].astype(np.float64)) - 1
    other = features[:, _OTHERS].max(1).astype(np.float64)
    flops = (np.exp2(features[:, _LIBRARY].astype(np.float64)) - 1) * other
    size = sum(np.exp2(26 * features[:, _BYTES + n].astype(np.float64)) - 1 for n in range(2)) * other
    return np.column_stack([np.ones(len(features)), counts, flops, size])


def _network(layers: Sequence[tuple[Floats, Floats]], x: Floats) -> Doubles:
    for weight, bias in layers[:-1]:
        x = np.maximum(x @ weight + bias, 0)
    weight, bias = layers[-1]
    return (x @ weight + bias)[:, 0].astype(np.float64)


_PARALLEL, _SERIAL = COST_FEATURES.index("nest: parallel work"), COST_FEATURES.index("nest: serial work")
_TASKS = COST_FEATURES.index("nest: tasks")


def _on_threads(features: Floats, threads: int) -> Doubles:
    """Return the time on several threads relative to that on one: work in parallel loops is divided among them."""
    parallel, serial, tasks = (np.exp2(features[:, n].astype(np.float64)) - 1 for n in (_PARALLEL, _SERIAL, _TASKS))
    share = parallel / np.maximum(parallel + serial, 1.0)
    return 1 - share + share / np.clip(np.ceil(tasks), 1, max(1, threads))


def _corrected(logs: Doubles, features: Floats, correction: Doubles) -> Doubles:
    return logs + correction_terms(features, logs.mean(0)) @ correction


def correction_terms(features: Floats, logs: Doubles) -> Doubles:
    """Return the terms of the calibration for rows of features: rows x terms.

    They are a constant, the predicted logarithm, and the shares of memory traffic that fits into each cache.
    """
    size = np.log2(1.0 + sum(np.exp2(26 * features[:, _BYTES + n].astype(np.float64)) - 1 for n in range(2)))
    return np.column_stack([
        np.ones(len(logs)), (logs + 12) / 4, np.clip(size - 15, 0, 5) / 5, np.clip(size - 20, 0, 5) / 5,
        features[:, _OTHERS].max(1), features[:, [n for n in range(len(COST_FEATURES)) if COST_FEATURES[n] in _VECTOR]],
    ])  # fmt: skip


_VECTOR = ("field: vector",)
