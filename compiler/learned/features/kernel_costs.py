"""The features from which the time of a kernel with a choice is predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from compiler.analysis.cost_model import CostModel, cpu
from compiler.analysis.library_work import library_flops
from compiler.codegen.nest.counts import NEST_COUNTS, nest_counts
from compiler.codegen.schedules.kernel_choice import GENERATED, KernelChoice
from compiler.codegen.schedules.schedule import COMPILER_FLAGS, FIELD_RANGES
from compiler.errors import PlanError
from compiler.ir.opcodes import Opcode
from compiler.runtime.kernel_features import FEATURE_NAMES, kernel_features
from compiler.runtime.kernel_sites import KernelSite

__all__ = ["COST_FEATURES", "COST_FEATURE_VERSION", "cost_features"]

COST_FEATURE_VERSION = 1
_IMPLEMENTATIONS = (GENERATED, "blas", "onednn", "separate")
_GPU_PARTS = ("gpu.", "tiles.", "tile_attention.")
_FIELDS = tuple(name for name in FIELD_RANGES if name not in ("block", "flags") and not name.startswith(_GPU_PARTS))
COST_FEATURES = (
    *(f"kernel: {name}" for name in FEATURE_NAMES),
    *(f"nest: {name}" for name in NEST_COUNTS),
    *(f"change: {name}" for name in NEST_COUNTS),
    *(f"field: {name}" for name in _FIELDS),
    *(f"flags: {' '.join(flags)}" for flags in COMPILER_FLAGS[1:]),
    *(f"implementation: {name}" for name in _IMPLEMENTATIONS[1:]),
    "implementation: other", "log library flops", "is default", "log threads",
)  # fmt: skip
"""What the entries of `cost_features` mean.

"kernel" entries are those of `kernel_features`, "nest" entries the logarithms of the counts of the bound nest, and
"change" entries their differences to those of the nest with the default schedule. All logarithms are base 2.
"""
_CORE = cpu(1)
"""Features describe the kernel on one core, whatever the machine; the number of threads is a feature of its own."""
Matrix = npt.NDArray[np.float32]


def cost_features(site: KernelSite, choices: Sequence[KernelChoice], threads: Sequence[int]) -> Matrix:
    """Return the features of choices of a kernel on a CPU, one row each.

    Args:
        site: the kernel.
        choices: choices that the site accepts. A choice that it refuses has the row of a kernel without a nest.
        threads: the number of threads that run each of the choices.
    """
    seconds = CostModel(_CORE).instruction(site.instruction)
    kernel = kernel_features(site.instruction, site.spec, _CORE, seconds, 1.0)
    nests = _Nests(site)
    rows = [[*kernel, *_choice_features(site, choice, n, nests)] for choice, n in zip(choices, threads, strict=True)]
    return np.array(rows, np.float32).reshape(len(rows), len(COST_FEATURES))


class _Nests:
    """The counts of the nests of one kernel, by schedule."""

    def __init__(self, site: KernelSite) -> None:
        self._site = site
        self._known: dict[KernelChoice, npt.NDArray[np.float64]] = {}
        self.default = self.counts(KernelChoice())

    def counts(self, choice: KernelChoice) -> npt.NDArray[np.float64]:
        """Return the logarithms of the counts in the order of NEST_COUNTS."""
        found = self._known.get(choice)
        if found is None:
            counts = self._counted(choice)
            found = self._known[choice] = np.log2([1.0 + counts.get(name, 0.0) for name in NEST_COUNTS])
        return found

    def _counted(self, choice: KernelChoice) -> Mapping[str, float]:
        if choice.implementation != GENERATED:
            return {}
        try:
            schedule = self._site.default_schedule.with_values(choice.schedule)
        except PlanError:
            return {}
        nest = self._site.bound_nest(schedule)
        return {} if nest is None else nest_counts(nest.body, nest.arguments)


def _choice_features(site: KernelSite, choice: KernelChoice, threads: int, nests: _Nests) -> list[float]:
    name, generated = choice.implementation, choice.implementation == GENERATED
    counts = nests.counts(choice)
    preset = site.default_schedule
    values = choice.schedule if generated else {}
    flags = values.get("flags", preset.flags)
    i = site.instruction
    flops = library_flops(i) if i.opcode in (Opcode.DOT, Opcode.CONVOLUTION) else 0.0
    return [
        *counts,
        *(counts - nests.default),
        *(np.log2(1.0 + values.get(field, preset.value(field))) for field in _FIELDS),
        *(float(generated and flags == n) for n in range(1, len(COMPILER_FLAGS))),
        *(float(name == other) for other in _IMPLEMENTATIONS[1:]),
        float(name not in _IMPLEMENTATIONS),
        float(np.log2(1.0 + flops)),
        float(choice == site.default),
        float(np.log2(threads)),
    ]
