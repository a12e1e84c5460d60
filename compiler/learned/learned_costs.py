"""A cost model of modules whose kernels have the times that the learned cost model of kernels predicts."""

from __future__ import annotations

from compiler.analysis.cost_model import CostModel, DeviceModel
from compiler.backends.registry import find_backend
from compiler.ir import HloInstruction
from compiler.learned.kernel_model import LearnedKernelCost
from compiler.runtime.kernel_sites import KernelSite, KernelTarget
from compiler.support.lru_dict import LruDict

__all__ = ["LearnedCosts"]

BACKEND = "cpu"


class LearnedCosts(CostModel):
    """Estimates the time of modules on a CPU, with learned times for kernels with their default choices.

    `module_cost(module, LearnedCosts(model))` is the time of a module. Everything that is no kernel, and kernels that
    cannot be generated, cost what the analytic model estimates. Each distinct kernel is generated once, which takes
    milliseconds, so this suits rewards of finished decisions rather than every step of a search.

    Args:
        model: predicts kernels.
        device: None means that of the cpu backend.
    """

    def __init__(self, model: LearnedKernelCost, device: DeviceModel | None = None) -> None:
        backend = find_backend(BACKEND)
        super().__init__(device or backend.device_model())
        self._model = model
        self._target = KernelTarget(BACKEND, str(backend.language), backend.default_schedule, self.device)
        self._learned: LruDict[str, float] = LruDict(100_000)

    def instruction(self, i: HloInstruction) -> float:
        """Return the seconds of one execution of an instruction, without the computations it calls as control flow."""
        analytic = super().instruction(i)
        if not analytic or i.parent is None:
            return analytic
        site = KernelSite(i, self._target)
        if not site.is_kernel:
            return analytic
        key = site.fingerprint
        seconds = self._learned.get(key)
        if seconds is None:
            seconds = self._learned[key] = float(self._model.predict(site, [site.default]).seconds[0])
        return seconds
