"""Are a compiled program's outputs those of the interpreter, within the tolerance of their types?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from env.suites import Tolerance

__all__ = ["difference"]

# A reduction of a thousand elements in another order moves float32 by some 1e-5 of the sum of magnitudes.
_BY_PRECISION = ((20, Tolerance(1e-4, 1e-5)), (9, Tolerance(1e-2, 1e-3)), (6, Tolerance(4e-2, 1e-2)))
_LOWEST = Tolerance(2.5e-1, 6e-2)


def difference(
    got: Sequence[npt.NDArray[Any]], want: Sequence[npt.NDArray[Any]], tolerance: Tolerance | None = None
) -> str | None:
    """What is wrong with `got`, or None.

    Integers and truth values must be equal, but for the tolerance's fraction of mismatches; floats lie within
    `atol * scale + rtol * |want|`, where scale is the largest magnitude among the wanted (at least 1), because
    cancellation leaves small elements with the error of the large ones they came from. NaN equals NaN.
    """
    if len(got) != len(want):
        return f"{len(got)} outputs instead of {len(want)}"
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        if (finding := _array_difference(np.asarray(g), np.asarray(w), tolerance)) is not None:
            return f"output {i}: {finding}"
    return None


def _array_difference(got: npt.NDArray[Any], want: npt.NDArray[Any], tolerance: Tolerance | None) -> str | None:
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if not want.size:
        return None
    allowed = tolerance.mismatch_fraction if tolerance is not None else 0.0
    wrong = _mismatches(got, want, tolerance or _default_tolerance(want.dtype))
    count = int(wrong.sum())
    if count <= allowed * want.size:
        return None
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), want.shape))
    return f"{count} of {want.size} elements differ, the first at {list(at)}: {got[at]} instead of {want[at]}"


def _mismatches(got: npt.NDArray[Any], want: npt.NDArray[Any], tolerance: Tolerance) -> npt.NDArray[np.bool_]:
    if want.dtype == np.bool_ or _is_integer(want.dtype):
        return np.asarray(got != want)
    wide = np.complex128 if np.issubdtype(want.dtype, np.complexfloating) else np.float64
    g, w = got.astype(wide), want.astype(wide)
    finite = np.isfinite(g) & np.isfinite(w)
    same = (g == w) | (np.isnan(g) & np.isnan(w))
    magnitudes = np.abs(w[np.isfinite(w)])
    scale = max(1.0, float(magnitudes.max())) if magnitudes.size else 1.0
    with np.errstate(invalid="ignore", over="ignore"):
        near = finite & (np.abs(g - w) <= tolerance.atol * scale + tolerance.rtol * np.abs(w))
    return np.asarray(~(same | near))


def _is_integer(dtype: np.dtype[Any]) -> bool:
    try:
        ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        return False
    return True


def _default_tolerance(dtype: np.dtype[Any]) -> Tolerance:
    real = np.dtype(dtype).type(0).real.dtype if np.issubdtype(dtype, np.complexfloating) else dtype
    try:
        bits = int(ml_dtypes.finfo(real).nmant)  # type: ignore[no-untyped-call]
    except ValueError:
        return Tolerance(0.0, 0.0)
    return next((t for least, t in _BY_PRECISION if bits >= least), _LOWEST)
