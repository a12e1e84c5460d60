"""Distributions that random inputs of a program are drawn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["INPUT_SPECS", "InputSpec", "Normal", "Randint", "Uniform", "input_spec_from_json"]


@dataclass(frozen=True)
class Normal:
    """Values from a normal distribution."""

    mean: float = 0.0
    std: float = 1.0

    def draw(self, rng: np.random.Generator, dtype: np.dtype[Any], dims: Sequence[int]) -> npt.NDArray[Any]:
        """Return an array of such values; complex types get a real and an imaginary part."""
        values: npt.NDArray[Any] = rng.standard_normal(dims, dtype=np.float32 if dtype.itemsize <= 4 else np.float64)
        if np.issubdtype(dtype, np.complexfloating):
            values = values + 1j * rng.standard_normal(dims)
        return np.asarray(values * self.std + self.mean).astype(dtype)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as it is written in a manifest."""
        return {"kind": "normal", **asdict(self)}


@dataclass(frozen=True)
class Uniform:
    """Values from a uniform distribution over [low, high)."""

    low: float
    high: float

    def draw(self, rng: np.random.Generator, dtype: np.dtype[Any], dims: Sequence[int]) -> npt.NDArray[Any]:
        """Return an array of such values."""
        return np.asarray(rng.uniform(self.low, self.high, dims)).astype(dtype)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as it is written in a manifest."""
        return {"kind": "uniform", **asdict(self)}


@dataclass(frozen=True)
class Randint:
    """Integers from low to high - 1."""

    low: int
    high: int

    def draw(self, rng: np.random.Generator, dtype: np.dtype[Any], dims: Sequence[int]) -> npt.NDArray[Any]:
        """Return an array of such values."""
        wide = np.uint64 if self.high > 1 << 63 else np.int64
        return np.asarray(rng.integers(self.low, self.high, dims, dtype=wide)).astype(dtype)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as it is written in a manifest."""
        return {"kind": "randint", **asdict(self)}


InputSpec: TypeAlias = Normal | Uniform | Randint

INPUT_SPECS: Mapping[str, type[InputSpec]] = {"normal": Normal, "uniform": Uniform, "randint": Randint}
"""Input specs by their kind."""


def input_spec_from_json(values: Mapping[str, Any]) -> InputSpec:
    """Return the spec that `to_json` wrote."""
    fields = dict(values)
    return INPUT_SPECS[fields.pop("kind")](**fields)
