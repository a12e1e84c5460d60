"""Element types of HLO arrays and the numpy (ml_dtypes) dtype of each."""

from __future__ import annotations

import enum
from typing import Any

import ml_dtypes
import numpy as np


class PrimitiveType(enum.Enum):
    """An element type; its `text` is that of HLO (`PrimitiveType.F32.text == "f32"`)."""

    PRED = "pred"
    S1, S2, S4, S8, S16, S32, S64 = "s1", "s2", "s4", "s8", "s16", "s32", "s64"
    U1, U2, U4, U8, U16, U32, U64 = "u1", "u2", "u4", "u8", "u16", "u32", "u64"
    F16, BF16, F32, F64 = "f16", "bf16", "f32", "f64"
    F8E5M2, F8E4M3, F8E4M3FN, F8E4M3B11FNUZ = "f8e5m2", "f8e4m3", "f8e4m3fn", "f8e4m3b11fnuz"
    F8E3M4, F8E5M2FNUZ, F8E4M3FNUZ = "f8e3m4", "f8e5m2fnuz", "f8e4m3fnuz"
    F4E2M1FN, F8E8M0FNU, F6E3M2FN, F6E2M3FN = "f4e2m1fn", "f8e8m0fnu", "f6e3m2fn", "f6e2m3fn"
    C64, C128 = "c64", "c128"
    TOKEN, OPAQUE, TUPLE, BUFFER = "token", "opaque", "tuple", "b"

    __hash__ = object.__hash__

    text: str
    bits: int
    dtype: np.dtype[Any]
    is_signed: bool
    is_unsigned: bool
    is_float: bool
    is_half: bool
    is_narrow_float: bool
    is_complex: bool

    @property
    def is_integer(self) -> bool:
        """Whether it is a signed or unsigned integer type (pred is neither)."""
        return self.is_signed or self.is_unsigned

    @property
    def is_array(self) -> bool:
        """Whether arrays of this type exist (not tuple, token, opaque, buffer)."""
        return self.bits > 0

    @property
    def byte_size(self) -> int:
        """Bytes per element in memory; sub-byte types take one byte each."""
        return max(1, self.bits // 8)


_NUMPY: dict[str, Any] = {
    "pred": np.bool_, "s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "s1": np.int8, "u1": np.uint8,
    "s2": ml_dtypes.int2, "s4": ml_dtypes.int4, "u2": ml_dtypes.uint2, "u4": ml_dtypes.uint4,
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
    "f8e5m2": ml_dtypes.float8_e5m2, "f8e4m3": ml_dtypes.float8_e4m3, "f8e4m3fn": ml_dtypes.float8_e4m3fn,
    "f8e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz, "f8e3m4": ml_dtypes.float8_e3m4,
    "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz, "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "f4e2m1fn": ml_dtypes.float4_e2m1fn, "f8e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "f6e3m2fn": ml_dtypes.float6_e3m2fn, "f6e2m3fn": ml_dtypes.float6_e2m3fn,
    "c64": np.complex64, "c128": np.complex128,
}  # fmt: skip


def _bits(text: str) -> int:
    if text == "pred":
        return 8
    if text not in _NUMPY:
        return 0
    digits = text.lstrip("bfcsu")
    return int(digits.split("e")[0])


for _t in PrimitiveType:
    _t.text = _t.value
    _t.bits = _bits(_t.value)
    _t.is_float = _t.value[0] in "fb" and _t.bits > 0
    _t.is_half = _t.value in ("f16", "bf16")
    _t.is_narrow_float = _t.is_float and _t.bits < 32
    _t.is_complex = _t.value[0] == "c"
    _t.is_signed = _t.value[0] == "s" and _t.bits > 0
    _t.is_unsigned = _t.value[0] == "u" and _t.bits > 0
    _t.dtype = np.dtype(_NUMPY.get(_t.value, np.void))

BY_TEXT: dict[str, PrimitiveType] = {t.text: t for t in PrimitiveType}
_BY_DTYPE: dict[np.dtype[Any], PrimitiveType] = {
    t.dtype: t for t in PrimitiveType if t.bits and t not in (PrimitiveType.S1, PrimitiveType.U1)
}


def from_dtype(dtype: Any) -> PrimitiveType:
    """Return the element type of a numpy or ml_dtypes dtype; raise TypeError if HLO has none."""
    found = _BY_DTYPE.get(np.dtype(dtype))
    if found is None:
        raise TypeError(f"HLO has no element type for numpy dtype {np.dtype(dtype)}")
    return found
