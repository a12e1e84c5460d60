"""Compare the outputs of a compiled program with a reference, element by element, up to the effect of rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from env.rounding import is_float, precision
from env.suites import ManifestError, Tolerance

__all__ = ["Finding", "Spread", "absolute_part", "default_tolerance", "difference", "find_difference"]

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

WIDE_STEPS, NARROW_STEPS = 64, 1
"""Units in the last place that are always allowed: for float32 and float64, and for narrower types."""
SAFETY = 1.5
"""How far two correct evaluations may differ, as a multiple of the largest deviation seen in a few of them."""
FEW_RUNS, MANY_RUNS = 3, 16
"""Evaluations with random rounding: at first, and if only a few elements are still wrong after those."""
FEW_ELEMENTS, FEW_SHARE = 16, 0.01
NO_EXPONENT = -(1 << 14)
LEAST_ALIKE = 8
"""Number of elements of one magnitude from which their median deviation means something."""
LONGEST_RUN = 3
"""Elements that differ by chance are isolated; more of them in a row along every axis are a region that is wrong."""


@dataclass(frozen=True)
class Spread:
    """How far rounding alone may move an output. Arrays for complex outputs have a last axis for the two parts.

    Attributes:
        allowance: how far each element may be off.
        unsettled: whether each element was finite in some evaluations and not in others.
    """

    allowance: npt.NDArray[np.float64]
    unsettled: Mask

    @staticmethod
    def of(deviation: npt.NDArray[np.float64], unsettled: Mask, want: Array) -> Spread:
        """Return the spread of an output from the largest deviation of each element in a few evaluations."""
        usual = usual_deviation(deviation, np.abs(parts(want))) if is_float(want.dtype) else 0.0
        return Spread(SAFETY * (deviation + usual), unsettled)


@dataclass(frozen=True)
class Finding:
    """A difference: the output (None: there are too many or too few), what differs, and in how many elements."""

    output: int | None
    what: str
    elements: int = 0
    size: int = 0

    @property
    def is_small(self) -> bool:
        """Whether so few elements are wrong that rounding may have changed a decision for them."""
        return 0 < self.elements <= max(FEW_ELEMENTS, FEW_SHARE * self.size)

    def __str__(self) -> str:
        return self.what if self.output is None else f"output {self.output}: {self.what}"


def difference(
    got: Sequence[Array],
    want: Sequence[Array],
    tolerance: Tolerance | None = None,
    spread: Callable[[int], Sequence[Spread]] | None = None,
) -> str | None:
    """Return a description of how `got` differs beyond rounding, or None; see `find_difference`.

    Args:
        got: outputs to check.
        want: outputs of the reference.
        tolerance: the tolerance in the program's manifest.
        spread: estimates how far rounding moves the outputs, from a number of evaluations (`Reference.spread`). It is
            only called if outputs do not match closely. Without it, a sum whose terms cancel looks wrong when it is
            added up in another order.
    """
    finding = find_difference(got, want, tolerance)
    if spread is not None and finding is not None and finding.elements:
        finding = find_difference(got, want, tolerance, spread(FEW_RUNS))
    if spread is not None and finding is not None and finding.is_small:
        finding = find_difference(got, want, tolerance, spread(MANY_RUNS))
    return None if finding is None else str(finding)


def find_difference(
    got: Sequence[Array],
    want: Sequence[Array],
    tolerance: Tolerance | None = None,
    spread: Sequence[Spread] | None = None,
) -> Finding | None:
    """Return the first output that differs, or None.

    Each element of a floating-point output must lie within `atol + rtol * |want|` plus what its spread allows, whatever
    the other elements are. NaN equals NaN, infinities must have the same sign, and the parts of a complex number are
    two numbers. Integers and booleans must be equal, except for those that rounding was seen to move.

    Args:
        got: outputs to check.
        want: outputs of the reference.
        tolerance: the tolerance in the program's manifest; the parts it leaves out follow from the types.
        spread: how far rounding may move each output.

    Raises:
        ManifestError: the tolerance has absolute parts for another number of outputs.
    """
    if len(got) != len(want):
        return Finding(None, f"{len(got)} outputs instead of {len(want)}")
    tolerance = tolerance or Tolerance()
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        g, w = np.asarray(g), np.asarray(w)
        if g.shape != w.shape or g.dtype != w.dtype:
            return Finding(i, f"{g.dtype}{list(g.shape)} instead of {w.dtype}{list(w.shape)}")
        atol = absolute_part(tolerance, i, len(want))
        if _is_close(g, w, tolerance.rtol):
            continue
        allowed = _allowed(w, tolerance.rtol, atol, spread[i] if spread else None)
        wrong = _wrong(g, w, allowed, spread[i] if spread else None)
        count = int(wrong.sum())
        if count and not (count <= tolerance.mismatch_fraction * w.size and is_scattered(wrong)):
            return Finding(i, _described(g, w, wrong, allowed), count, w.size)
    return None


@cache
def default_tolerance(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the relative and absolute part for a type: some units in the last place, and numbers flushed to zero."""
    if not is_float(dtype):
        return 0.0, 0.0
    p = precision(dtype)
    steps = WIDE_STEPS if p.bits >= 20 else NARROW_STEPS
    # Zero must not pass for any number of a type as coarse as float8_e8m0fnu.
    return min(steps * p.eps, 0.5), max(p.smallest, min(p.tiny, float(np.finfo(np.float32).tiny)))


def absolute_part(tolerance: Tolerance | None, index: int, count: int) -> float | None:
    """Return the absolute part for one of `count` outputs; None leaves it to the type.

    Raises:
        ManifestError: the tolerance has absolute parts for another number of outputs.
    """
    atol = None if tolerance is None else tolerance.atol
    if not isinstance(atol, tuple):
        return atol
    if len(atol) != count:
        raise ManifestError(f"tolerance: {len(atol)} values of atol for {count} outputs")
    return atol[index]


def _is_close(got: Array, want: Array, rtol: float | None) -> bool:
    """Check quickly, in the type of the output, whether it is right by its relative tolerance alone."""
    if want.dtype not in (np.float32, np.float64):
        return want.dtype.kind in "biu" and bool(np.array_equal(got, want))
    with np.errstate(all="ignore"):
        allowed = np.abs(want) * want.dtype.type(default_tolerance(want.dtype)[0] if rtol is None else rtol)
        return bool(np.all(np.abs(got - want) <= allowed))


def _allowed(want: Array, rtol: float | None, atol: float | None, spread: Spread | None) -> npt.NDArray[np.float64]:
    """Return how far each element (each part of a complex one) may be off."""
    default_rtol, default_atol = default_tolerance(want.dtype)
    allowed = np.zeros(parts(want).shape)
    size = np.abs(parts(want))
    if is_float(want.dtype):
        with np.errstate(all="ignore"):
            allowed += (default_rtol if rtol is None else rtol) * size
        allowed += default_atol if atol is None else atol
    if spread is not None:
        allowed += spread.allowance
    return allowed


def usual_deviation(deviation: npt.NDArray[np.float64], size: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return for each element the median deviation among the elements of its magnitude (within a factor of two).

    A few evaluations may by chance hardly move an element, but not most of the elements like it. Elements of other
    magnitudes, such as those that a mask has set to -1e9, do not count.
    """
    flat_size = size.reshape(-1)
    exponents = np.where((flat_size > 0) & np.isfinite(flat_size), np.frexp(flat_size)[1], NO_EXPONENT)
    order = np.argsort(exponents, kind="stable")
    starts = np.flatnonzero(np.diff(exponents[order], prepend=exponents[order[:1]] - 1)) if order.size else order
    flat, usual = deviation.reshape(-1), np.zeros(deviation.size)
    for members in np.split(order, starts[1:]):
        if members.size >= LEAST_ALIKE:
            usual[members] = np.median(flat[members])
    return usual.reshape(deviation.shape)


def parts(x: Array) -> npt.NDArray[np.float64]:
    """Return values in double precision, with the parts of complex numbers along a new last axis."""
    if x.dtype.kind == "c":
        return np.stack([x.real, x.imag], -1).astype(np.float64)
    return x.astype(np.float64)


def _wrong(got: Array, want: Array, allowed: npt.NDArray[np.float64], spread: Spread | None) -> Mask:
    """Return which elements are wrong."""
    g, w = parts(got), parts(want)
    right = np.asarray((g == w) | (np.isnan(g) & np.isnan(w)))
    if not is_float(want.dtype):
        right &= np.asarray(got == want)  # large integers differ in more digits than double precision has
    finite = np.isfinite(g) & np.isfinite(w)
    with np.errstate(invalid="ignore", over="ignore"):
        right |= finite & (allowed > 0) & (np.abs(g - w) <= allowed)
    if spread is not None:
        right |= spread.unsettled & ~finite
    return np.asarray(~right.all(-1) if want.dtype.kind == "c" else ~right)


def _described(got: Array, want: Array, wrong: Mask, allowed: npt.NDArray[np.float64]) -> str:
    count = int(wrong.sum())
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), want.shape))
    within = f" within {np.max(allowed[at]):.2g}" if is_float(want.dtype) else ""
    return f"{count} of {want.size} elements differ, the first at {list(at)}: {got[at]} instead of {want[at]}{within}"


def is_scattered(wrong: Mask) -> bool:
    """Check whether at most LONGEST_RUN neighbours in a row are wrong along some axis."""
    return any(n > 1 and _longest_run(wrong, axis) <= LONGEST_RUN for axis, n in enumerate(wrong.shape))


def _longest_run(mask: Mask, axis: int) -> int:
    lines = np.moveaxis(mask, axis, -1)
    still = lines
    for length in range(LONGEST_RUN + 1):
        if not still.any():
            return length
        still = still[..., :-1] & lines[..., length + 1 :]
    return LONGEST_RUN + 1
