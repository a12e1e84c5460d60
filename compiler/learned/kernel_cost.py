"""A kernel selector that predicts: it takes the choice that the learned cost model of kernels expects to be fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.learned.kernel_calibration import calibrated
from compiler.learned.kernel_model import KernelPrediction, LearnedKernelCost, shipped_kernel_cost
from compiler.runtime.kernel_sites import KernelSite
from compiler.support.lru_dict import LruDict

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
    """

    model: LearnedKernelCost
    budget: int = 48
    margin: float = 0.05
    caution: float = 1.5
    least_seconds: float = 2e-6
    _known: LruDict[tuple[str, str, str], KernelChoice] = field(
        default_factory=lambda: LruDict(10_000), init=False, repr=False
    )

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
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._best(site)
        return known

    def _best(self, site: KernelSite) -> KernelChoice:
        default = self.model.predict(site, [site.default])
        if default.seconds[0] * site.runs < self.least_seconds:
            return site.default
        candidates = self.candidates(site)
        predicted = self.model.predict(site, candidates)
        bound = predicted.log_ratio + self.caution * predicted.ratio_spread
        sure = bound < np.log1p(-self.margin)
        for n in np.argsort(predicted.log_ratio):
            if sure[n] and site.check(candidates[n]) is None:
                return candidates[n]
        return site.default

    def candidates(self, site: KernelSite) -> Sequence[KernelChoice]:
        """Return the choices whose times the model knows: without those of threads if it saw one thread only."""
        offered = site.offered(self.budget)
        if self.model.threads > 1:
            return offered
        return [c for c in offered if not _THREAD_FIELDS & c.schedule.keys()]
