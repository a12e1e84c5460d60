"""A kernel selector that predicts: it takes the choice that the learned cost model of kernels expects to be fastest."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from compiler.codegen.schedules.kernel_choice import GENERATED, KernelChoice
from compiler.learned.kernel_calibration import calibrated
from compiler.learned.kernel_model import KernelPrediction, LearnedKernelCost, shipped_kernel_cost
from compiler.runtime.kernel_sites import KernelSite

__all__ = ["KernelPrediction", "LearnedKernelCost", "LearnedKernels", "shipped_kernel_cost"]

BACKEND = "cpu"
"""The backend whose kernels the cost model knows."""
_THREAD_FIELDS = frozenset({"threads", "grain"})
"""Fields that matter on several threads only."""


@dataclass
class LearnedKernels:
    """Chooses kernels by predicted time, without measurements.

    The default is replaced where the prediction is sure: where the members of the ensemble expect a gain of more than
    `margin` even after `caution` standard deviations of their predictions of the gain.

    Attributes:
        model: predicts times.
        budget: greatest number of choices per kernel that are predicted, the default included.
        margin: share of the time that a choice must save.
        caution: number of standard deviations between the members.
        least_seconds: kernels that are expected to take less than this per run of the program keep their default,
            because finding their choices would take longer than is ever gained.
        fields: the fields of the schedule that may be changed; None: all that the model knows. The report of a model
            shows for which fields it predicts well.
    """

    model: LearnedKernelCost
    budget: int = 48
    margin: float = 0.1
    caution: float = 3.0
    least_seconds: float = 2e-6
    fields: Collection[str] | None = None
    _known: dict[tuple[str, str, str], KernelChoice] = field(default_factory=dict, init=False, repr=False)

    @staticmethod
    def load(folder: str | Path) -> LearnedKernels:
        """Return the selector of a model in a folder, with the calibration to this machine if there is one.

        Raises:
            PolicyError: there is no model, or it cannot be read.
        """
        return LearnedKernels(calibrated(LearnedKernelCost.load(folder)))

    def choose_kernel(self, site: KernelSite) -> KernelChoice:
        """Return the choice that is surely faster than the default, or the default."""
        if site.backend != BACKEND:
            return site.default
        key = site.fingerprint, str(site.default), str(site.default_schedule)
        if key not in self._known:
            self._known[key] = self._best(site)
        return self._known[key]

    def _best(self, site: KernelSite) -> KernelChoice:
        default = self.model.predict(site, [site.default])
        if default.seconds[0] * site.runs < self.least_seconds:
            return site.default
        candidates = self.candidates(site)
        predicted = self.model.predict(site, candidates)
        bound = predicted.log_ratio + self.caution * predicted.ratio_spread
        sure = bound < np.log1p(-self.margin)
        for n in map(int, np.argsort(predicted.log_ratio)):
            if sure[n] and site.check(candidates[n]) is None:
                return candidates[n]
        return site.default

    def candidates(self, site: KernelSite) -> Sequence[KernelChoice]:
        """Return the choices that may be taken: without those of threads if the model saw one thread only."""
        return [c for c in site.offered(self.budget) if c.implementation != GENERATED or self._may_change(c.schedule)]

    def _may_change(self, fields: Collection[str]) -> bool:
        if self.model.threads == 1 and _THREAD_FIELDS & set(fields):
            return False
        if self.fields is not None and not set(fields) <= set(self.fields):
            return False
        return all(self.model.knows(field) for field in fields)
