"""Arguments for the modules of golden tests; integers are small, so that they are also valid indices and counts."""

from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.ir import HloModule, Shape


def random_arguments(module: HloModule, seed: int) -> list[npt.NDArray[Any]]:
    """Return one array per parameter: normally distributed floats, integers from 0 to 5, or booleans."""
    rng = np.random.default_rng(seed)
    return [_random(shape, rng) for shape in module.parameter_shapes]


def _random(shape: Shape, rng: np.random.Generator) -> npt.NDArray[Any]:
    if shape.element_type.is_float:
        return np.asarray(rng.normal(size=shape.dimensions)).astype(shape.dtype)
    low_high = (0, 6) if shape.element_type.is_integer else (0, 2)
    return np.asarray(rng.integers(*low_high, size=shape.dimensions)).astype(shape.dtype)
