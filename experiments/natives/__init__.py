"""Programs written natively for JAX and for PyTorch. `KERNELS` and `MODELS` map the name of a program to both versions.

The suites "kernels" and "models" hold the HLO of the JAX functions (`python -m experiments.natives.lower`). Importing
this package needs JAX and PyTorch.
"""

from __future__ import annotations

from experiments.natives import convolution, elementwise, indexing, losses, normalisation, products, reductions
from experiments.natives.native import Input, Native, Table

__all__ = ["KERNELS", "MODELS", "Input", "Native", "find_native"]

KERNELS: Table = {
    name: native
    for family in (normalisation, elementwise, reductions, losses, indexing, products, convolution)
    for name, native in family.TABLE.items()
}
MODELS: Table = {}


def find_native(suite: str, program: str) -> Native:
    """Return both versions of a program of the suite "kernels" or "models"."""
    return {"kernels": KERNELS, "models": MODELS}[suite][program]
