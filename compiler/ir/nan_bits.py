"""Sign and payload of NaNs, which HLO text prints (`-nan`, `nan(0x7f)`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np


class FloatFormat(NamedTuple):
    """An IEEE-like format: a NaN has an all-ones exponent and a non-zero mantissa."""

    word: np.dtype[Any]
    exponent: int
    mantissa: int

    @property
    def quiet(self) -> int:
        """The payload of the default quiet NaN."""
        return 1 << (self.mantissa - 1)


NAN_FORMATS: dict[np.dtype[Any], FloatFormat] = {
    np.dtype(dtype): FloatFormat(np.dtype(f"u{bits // 8}"), bits - 1 - mantissa, mantissa)
    for dtype, bits, mantissa in (
        (np.float64, 64, 52),
        (np.float32, 32, 23),
        (np.float16, 16, 10),
        (ml_dtypes.bfloat16, 16, 7),
        (ml_dtypes.float8_e5m2, 8, 2),
        (ml_dtypes.float8_e4m3, 8, 3),
        (ml_dtypes.float8_e3m4, 8, 4),
    )
}
"""Types whose NaNs have a payload; the others have one NaN, one per sign, or none."""


def nan_with(dtype: np.dtype[Any], negative: bool, payload: int | None = None) -> Any:
    """Return a NaN of this type as a numpy scalar; without a payload it is the default quiet NaN."""
    form = NAN_FORMATS.get(np.dtype(dtype))
    if form is None:
        with np.errstate(invalid="ignore"):
            return np.array([-np.nan if negative else np.nan]).astype(dtype)[0]
    bits = ((1 << form.exponent) - 1) << form.mantissa
    bits |= form.quiet if payload is None else payload
    bits |= int(negative) << (form.exponent + form.mantissa)
    return np.array([bits], dtype=form.word).view(dtype)[0]


def nan_text(value: Any) -> str:
    """Format a NaN with its sign and payload: `nan`, `-nan`, `nan(0x7f)`."""
    scalar = np.asarray(value).reshape(1)
    form = NAN_FORMATS.get(scalar.dtype)
    if form is None:
        # Of the types without payloads only this one has NaNs of both signs.
        signed = scalar.dtype == np.dtype(ml_dtypes.float8_e4m3fn)
        return "-nan" if signed and scalar.view(np.uint8)[0] >> 7 else "nan"
    bits = int(scalar.view(form.word)[0])
    sign = "-" if bits >> (form.exponent + form.mantissa) else ""
    payload = bits & ((1 << form.mantissa) - 1)
    return f"{sign}nan" if payload == form.quiet else f"{sign}nan(0x{payload:x})"
