"""A collection of idioms with their cases, and the elementwise comparison of results."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Closeness:
    """The tolerance of floats: |a - b| <= rtol |b| + atol * typical, where typical is the median magnitude of b.

    The median is over finite nonzero elements, so that neither a mask of -1e9 nor many zeros change the tolerance of
    the other elements.

    Attributes:
        rtol: relative tolerance.
        atol: absolute tolerance, in units of the typical magnitude.
        floor: minimum of the typical magnitude, for results that are zero up to rounding.
    """

    rtol: float
    atol: float
    floor: float = 0.0


BY_PRECISION = ((50, Closeness(1e-11, 1e-11)), (20, Closeness(5e-5, 5e-5)), (9, Closeness(8e-3, 8e-3)),
                (6, Closeness(4e-2, 4e-2)))  # fmt: skip
"""Default tolerances by the minimum number of bits of the significand."""


class Case(NamedTuple):
    """One set of arguments of an idiom."""

    name: str
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Idiom:
    """A function written as in user code, with its cases.

    Attributes:
        name: name of the idiom.
        fn: the function, or a factory of a PyTorch module.
        cases: the cases it is tested on.
        closeness: the tolerance; None for the default of the element type.
        x64: whether JAX lowers and runs it with 64-bit types.
        makes_module: whether `fn` is a factory of a PyTorch module.
        training: whether that module is in training mode.
    """

    name: str
    fn: Callable[..., Any]
    cases: tuple[Case, ...]
    closeness: Closeness | None = None
    x64: bool = False
    makes_module: bool = False
    training: bool = False


@dataclass
class Idioms:
    """The idioms of one subject."""

    idioms: dict[str, Idiom] = field(default_factory=dict)

    def on(
        self, closeness: Closeness | None = None, /, x64: bool = False, **cases: tuple[Any, ...]
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorate a function to register it with its cases; only the first case runs in the fast tests."""

        def take(fn: Callable[..., Any]) -> Callable[..., Any]:
            assert fn.__name__ not in self.idioms, fn.__name__
            listed = tuple(Case(name, args) for name, args in cases.items())
            self.idioms[fn.__name__] = Idiom(fn.__name__, fn, listed, closeness, x64)
            return fn

        return take

    def module(
        self,
        name: str,
        make: Callable[[], Any],
        closeness: Closeness | None = None,
        /,
        training: bool = False,
        **cases: tuple[Any, ...],
    ) -> None:
        """Register a factory of a PyTorch module with the inputs of its cases."""
        assert name not in self.idioms, name
        listed = tuple(Case(case, args) for case, args in cases.items())
        self.idioms[name] = Idiom(name, make, listed, closeness, makes_module=True, training=training)

    def __iter__(self) -> Iterator[Idiom]:
        return iter(self.idioms.values())


def parameters(subjects: Mapping[str, Idioms], fast: bool) -> list[Any]:
    """Return parameters for `pytest.mark.parametrize`: each idiom with its first case, or with all others."""
    return [
        pytest.param(idiom, case, id=f"{subject}-{idiom.name}-{case.name}")
        for subject, idioms in subjects.items()
        for idiom in idioms
        for case in (idiom.cases[:1] if fast else idiom.cases[1:])
    ]


def assert_close(got: Sequence[Any], want: Sequence[Any], closeness: Closeness | None, whose: str) -> None:
    """Assert that all elements of all outputs are close, with NaN and infinities in the same positions."""
    assert len(got) == len(want), f"{whose}: {len(got)} outputs instead of {len(want)}"
    for k, (g, w) in enumerate(zip(got, want, strict=True)):
        g, w = np.asarray(g), np.asarray(w)
        assert (g.dtype, g.shape) == (w.dtype, w.shape), f"{whose}, output {k}: {g.dtype}{g.shape}, {w.dtype}{w.shape}"
        wrong = _mismatches(g, w, closeness)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise AssertionError(
                f"{whose}, output {k} {w.dtype}{list(w.shape)}: {int(wrong.sum())} of {w.size} elements differ, "
                f"the first at {list(at)}: {g[at]} instead of {w[at]}"
            )


def _mismatches(g: Array, w: Array, closeness: Closeness | None) -> npt.NDArray[np.bool_]:
    bits = _significand(w.dtype)
    if bits is None:
        return np.asarray(g != w)
    closeness = closeness or next(c for least, c in BY_PRECISION if bits >= least)
    wide = np.complex128 if np.issubdtype(w.dtype, np.complexfloating) else np.float64
    g, w = g.astype(wide), w.astype(wide)
    magnitudes = np.abs(w[np.isfinite(w) & (w != 0)])
    typical = float(np.median(magnitudes)) if magnitudes.size else 1.0
    typical = max(typical, closeness.floor)
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.isfinite(g) & (np.abs(g - w) <= closeness.atol * typical + closeness.rtol * np.abs(w))
    return np.asarray(~(near | (g == w) | (np.isnan(g) & np.isnan(w))))


def _significand(dtype: np.dtype[Any]) -> int | None:
    """Return the bits of the significand of a float or complex type, or None for other types."""
    if np.issubdtype(dtype, np.complexfloating):
        dtype = np.dtype(dtype).type(0).real.dtype
    try:
        return int(ml_dtypes.finfo(dtype).nmant)  # type: ignore[no-untyped-call]
    except ValueError:
        return None


def normal(*dims: int, dtype: Any = np.float32, scale: float = 1.0, name: str = "") -> Array:
    """Return normally distributed values that depend only on the dimensions and the name."""
    return np.asarray(_rng("n" + name, dims).standard_normal(dims) * scale).astype(dtype)


def uniform(*dims: int, low: float = 0.0, high: float = 1.0, dtype: Any = np.float32, name: str = "") -> Array:
    """Return uniformly distributed values in [low, high)."""
    return np.asarray(_rng("u" + name, dims).uniform(low, high, dims)).astype(dtype)


def integers(*dims: int, low: int = 0, high: int = 5, dtype: Any = np.int32, name: str = "") -> Array:
    """Return random integers from low to high - 1."""
    return np.asarray(_rng("w" + name, dims).integers(low, high, dims)).astype(dtype)


def booleans(*dims: int, name: str = "", chance: float = 0.5) -> Array:
    """Return random booleans that are True with probability `chance`."""
    return np.asarray(_rng("t" + name, dims).uniform(size=dims) < chance)


def _rng(name: str, dims: tuple[int, ...]) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(f"{name}{dims}".encode()))
