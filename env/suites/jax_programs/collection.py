"""Collections of program builders by name, and arrays drawn from a seed that is the name."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Builder = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]


class Collection:
    """Builders by name; `collection.add` is a decorator."""

    def __init__(self) -> None:
        self.builders: dict[str, Builder] = {}

    def add(self, builder: Builder) -> Builder:
        """Add a builder under the name of its function."""
        name = builder.__name__
        if name in self.builders:
            raise ValueError(f"two programs are called {name!r}")
        self.builders[name] = builder
        return builder


def normal(name: str, *dims: int, dtype: Any = np.float32, scale: float = 1.0) -> Array:
    """Return normal values that depend only on the name and the dimensions."""
    rng = np.random.default_rng(zlib.crc32(f"{name}{dims}".encode()))
    return np.asarray(rng.standard_normal(dims) * scale).astype(dtype)


def uniform(name: str, low: float, high: float, *dims: int, dtype: Any = np.float32) -> Array:
    """Return uniform values in [low, high) that depend only on the name and the dimensions."""
    rng = np.random.default_rng(zlib.crc32(f"{name}{dims}".encode()))
    return rng.uniform(low, high, dims).astype(dtype)


def integers(name: str, low: int, high: int, *dims: int, dtype: Any = np.int32) -> Array:
    """Return integers from low to high - 1 that depend only on the name and the dimensions."""
    rng = np.random.default_rng(zlib.crc32(f"{name}{dims}".encode()))
    return rng.integers(low, high, dims).astype(dtype)
