"""The candidate features that say which pass a candidate runs: one slot per registered pass, identified by its name.

Exported weights are stored with the names of their slots. They are remapped to the passes of this version when they
are loaded, so a policy keeps working when passes are added, removed or renamed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from compiler.passes.infrastructure.registry import PASSES

__all__ = ["PASS_SLOTS", "PASS_SLOTS_BY_NAME", "pass_slots", "remap_pass_slots"]

PASS_SLOTS: tuple[str, ...] = tuple(sorted(PASSES))
"""Names of the passes in the order of their slots, which are the last of the candidate features."""
PASS_SLOTS_BY_NAME = {name: i for i, name in enumerate(PASS_SLOTS)}


def pass_slots(name: str) -> list[float]:
    """Return the slots of a candidate: 1 in the slot of the pass it runs, 0 elsewhere.

    All are 0 for a candidate that runs no pass, and for a pass that was registered after this module was imported.
    """
    slots = [0.0] * len(PASS_SLOTS)
    if name in PASS_SLOTS_BY_NAME:
        slots[PASS_SLOTS_BY_NAME[name]] = 1.0
    return slots


def remap_pass_slots(weight: npt.NDArray[np.float32], names: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return a weight matrix whose last columns belong to the slots `names` with columns for PASS_SLOTS instead.

    Columns are matched by name. A pass that is not among `names` gets a zero column; the column of a pass that does
    not exist any more is dropped.
    """
    others = weight.shape[1] - len(names)
    columns = dict(zip(names, weight[:, others:].T, strict=True))
    zero = np.zeros(len(weight), np.float32)
    slots = [columns.get(name, zero) for name in PASS_SLOTS]
    return np.concatenate([weight[:, :others], np.stack(slots, axis=1)], axis=1)
