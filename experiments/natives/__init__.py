"""Programs written natively for JAX and for PyTorch. `KERNELS` and `MODELS` map the name of a program to both versions.

The suites "kernels" and "models" hold the HLO of the JAX functions (`python -m experiments.natives.lower`). Importing
this package needs JAX and PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable

from experiments.natives import (
    convolution,
    dense_models,
    elementwise,
    indexing,
    losses,
    normalisation,
    products,
    reductions,
    sequence_models,
    vision_models,
)
from experiments.natives.native import Input, Native, Table

__all__ = ["KERNELS", "MODELS", "Input", "Native", "find_native"]


def _joined(tables: Iterable[Table]) -> Table:
    return {name: native for table in tables for name, native in table.items()}


KERNELS: Table = _joined(
    family.TABLE for family in (normalisation, elementwise, reductions, losses, indexing, products, convolution)
)
MODELS: Table = _joined(family.TABLE for family in (dense_models, vision_models, sequence_models))


def find_native(suite: str, program: str) -> Native:
    """Return both versions of a program of the suite "kernels" or "models"."""
    return {"kernels": KERNELS, "models": MODELS}[suite][program]
