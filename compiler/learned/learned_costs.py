"""A cost model of modules whose kernels have the times that the learned cost model of kernels predicts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from compiler.analysis.cost_model import CostModel, DeviceModel
from compiler.backends.registry import find_backend
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.ir import HloInstruction
from compiler.learned.kernel_calibration import calibrated
from compiler.learned.kernel_model import LearnedKernelCost, shipped_kernel_cost
from compiler.plan import CompilationPlan
from compiler.runtime.executable import Estimated, Executable
from compiler.runtime.kernel_sites import KernelSite, KernelTarget
from compiler.support.lru_dict import LruDict

__all__ = ["BACKEND", "LearnedCosts", "shown_costs", "with_learned_costs"]

BACKEND = "cpu"
"""The backend whose kernels the learned cost model knows."""


class LearnedCosts(CostModel):
    """Estimates the time of modules on a CPU, with learned times for kernels.

    `module_cost(module, LearnedCosts(model))` is the time of a module. Everything that is no kernel, and kernels that
    cannot be generated, cost what the analytic model estimates. Each distinct kernel is generated once, which takes
    milliseconds, so this suits rewards of finished decisions rather than every step of a search.

    Args:
        model: predicts kernels.
        device: None means that of the cpu backend.
        choices: the kernels that do not have their default choice, by names of sequence and instruction.
    """

    def __init__(
        self,
        model: LearnedKernelCost,
        device: DeviceModel | None = None,
        choices: Mapping[str, Mapping[str, KernelChoice]] | None = None,
    ) -> None:
        backend = find_backend(BACKEND)
        super().__init__(device or backend.device_model())
        self.name = "learned cost model" + (" calibrated to this machine" if model.correction is not None else "")
        self._model, self._choices = model, choices or {}
        self._target = KernelTarget(BACKEND, str(backend.language), backend.default_schedule, self.device)
        self._learned: LruDict[tuple[str, KernelChoice], float] = LruDict(100_000)

    def instruction(self, i: HloInstruction) -> float:
        """Return the seconds of one execution of an instruction, without the computations it calls as control flow."""
        analytic = super().instruction(i)
        if not analytic or i.parent is None:
            return analytic
        site = KernelSite(i, self._target)
        if not site.is_kernel:
            return analytic
        choice = self._choices.get(site.sequence, {}).get(site.name, site.default)
        key = site.fingerprint, choice
        seconds = self._learned.get(key)
        if seconds is None:
            seconds = self._learned[key] = float(self._model.predict(site, [choice]).seconds[0])
        return seconds


@cache
def _shown_model() -> LearnedKernelCost | None:
    """Return the model that ships, calibrated if this machine has been measured; None if there is none."""
    model = shipped_kernel_cost()
    return None if model is None else calibrated(model)


def shown_costs(plan: CompilationPlan | None = None) -> CostModel:
    """Return the cost model of the times that people are shown for a CPU: the learned one that ships.

    Args:
        plan: whose kernel choices are priced; None: the defaults.
    """
    model = _shown_model()
    if model is None:
        return CostModel(find_backend(BACKEND).device_model())
    return LearnedCosts(model, choices=None if plan is None else plan.kernels)


def with_learned_costs(executable: Executable) -> Executable:
    """Return an executable whose explanation shows learned times, if it is one for a CPU."""
    if isinstance(executable, Estimated):
        executable.make_costs = shown_costs
    return executable
