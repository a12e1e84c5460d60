"""The programs of the suites "kernels" and "models" by name, for JAX and for PyTorch. Importing this needs JAX."""

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
from experiments.natives.native import Native, Table

__all__ = ["KERNELS", "MODELS", "find_native"]


def _joined(tables: Iterable[Table]) -> Table:
    return {name: native for table in tables for name, native in table.items()}


KERNELS: Table = _joined(
    family.TABLE for family in (normalisation, elementwise, reductions, losses, indexing, products, convolution)
)
MODELS: Table = _joined(family.TABLE for family in (dense_models, vision_models, sequence_models))


def find_native(suite: str, program: str) -> Native:
    """Return both versions of a program of the suite "kernels" or "models"."""
    return {"kernels": KERNELS, "models": MODELS}[suite][program]
