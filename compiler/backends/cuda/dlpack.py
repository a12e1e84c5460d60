"""Reading of DLPack tensors: where an array of another library lies, without a copy and for every element type.

The layouts are those of dlpack.h, versions 0 and 1. The capsule keeps the memory; nothing is taken over from it.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from compiler.errors import ArgumentError

__all__ = ["Tensor", "read_tensor"]

ON_HOST = (1, 3)  # kDLCPU and kDLCUDAHost
ON_GPU = (2, 13)  # kDLCUDA and kDLCUDAManaged
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_TYPES: dict[tuple[int, int], Any] = {
    **{(_INT, 8 * n): f"i{n}" for n in (1, 2, 4, 8)},
    **{(_UINT, 8 * n): f"u{n}" for n in (1, 2, 4, 8)},
    **{(_FLOAT, 8 * n): f"f{n}" for n in (2, 4, 8)},
    **{(_COMPLEX, 8 * n): f"c{n}" for n in (8, 16)},
    (_BOOL, 8): "?",
    (_BFLOAT, 16): ml_dtypes.bfloat16,
    # DLDataTypeCode 7 to 14, of dlpack.h 1.1.
    (7, 8): ml_dtypes.float8_e3m4,
    (8, 8): ml_dtypes.float8_e4m3,
    (9, 8): ml_dtypes.float8_e4m3b11fnuz,
    (10, 8): ml_dtypes.float8_e4m3fn,
    (11, 8): ml_dtypes.float8_e4m3fnuz,
    (12, 8): ml_dtypes.float8_e5m2,
    (13, 8): ml_dtypes.float8_e5m2fnuz,
    (14, 8): ml_dtypes.float8_e8m0fnu,
}


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _VersionedHead(ctypes.Structure):
    """What precedes the tensor in DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class Tensor:
    """An array of another library.

    Attributes:
        address: address of its first element.
        dtype: element type.
        dimensions: its sizes.
        strides: elements from one index to the next in each dimension.
        row_major: whether its elements follow each other in row-major order.
        on_host: whether it is in memory of the host.
        device: number of the GPU.
        capsule: keeps the memory allocated.
    """

    address: int
    dtype: np.dtype[Any]
    dimensions: tuple[int, ...]
    strides: tuple[int, ...]
    row_major: bool
    on_host: bool
    device: int
    capsule: Any

    def on_this_host(self) -> NDArray[Any]:
        """Return an array in memory of the host as a numpy array, which must not outlive this object."""
        item = self.dtype.itemsize
        reach = [(d - 1) * s for d, s in zip(self.dimensions, self.strides, strict=True)]
        if 0 in self.dimensions:
            return np.empty(self.dimensions, self.dtype)
        before, after = -sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
        memory: Any = (ctypes.c_uint8 * (item * (before + after + 1))).from_address(self.address - item * before)
        strides = [item * s for s in self.strides]
        return np.ndarray(self.dimensions, self.dtype, memory, offset=item * before, strides=strides)


def read_tensor(array: Any, stream: int, number: int) -> Tensor:
    """Return where an array lies; work that the other library has launched on it precedes what `stream` does next.

    Args:
        array: an array with `__dlpack__`.
        stream: handle of a CUDA stream.
        number: number of the argument, for errors.

    Raises:
        ArgumentError: it cannot be read, or its type is unknown.
    """
    try:
        kind, device = (int(n) for n in array.__dlpack_device__())
        # By DLPack's convention 1 is the legacy default stream, whose handle is 0.
        capsule = array.__dlpack__(stream=stream or 1) if kind in ON_GPU else array.__dlpack__()
    except Exception as e:  # each library raises its own
        raise ArgumentError(f"argument {number}: DLPack cannot read a {type(array).__name__}: {e}") from e
    if kind not in ON_GPU + ON_HOST:
        raise ArgumentError(
            f"argument {number}: a {type(array).__name__} on a device of another kind (DLPack's {kind})"
        )
    t = _tensor_in(capsule, number)
    dimensions = tuple(t.shape[n] for n in range(t.rank))
    found = _TYPES.get((t.dtype.code, t.dtype.bits))
    if found is None or t.dtype.lanes != 1:
        raise ArgumentError(
            f"argument {number}: a {type(array).__name__} of an unknown type (DLPack's code {t.dtype.code} with "
            f"{t.dtype.bits} bits)"
        )
    strides = tuple(t.strides[n] for n in range(t.rank)) if t.strides else _row_major_strides(dimensions)
    return Tensor(
        address=(t.data or 0) + t.byte_offset, dtype=np.dtype(found), dimensions=dimensions, strides=strides,
        row_major=_is_row_major(dimensions, strides), on_host=kind in ON_HOST, device=device, capsule=capsule,
    )  # fmt: skip


def _tensor_in(capsule: Any, number: int) -> _DLTensor:
    """Return the tensor in a capsule."""
    for name, offset in ((b"dltensor", 0), (b"dltensor_versioned", ctypes.sizeof(_VersionedHead))):
        if _valid()(capsule, name):
            return _DLTensor.from_address(_pointer()(capsule, name) + offset)
    raise ArgumentError(f"argument {number}: its DLPack capsule has no tensor, or was used before")


def _row_major_strides(dimensions: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(dimensions[n + 1 :]) for n in range(len(dimensions)))


def _is_row_major(dimensions: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    wanted = zip(dimensions, strides, _row_major_strides(dimensions), strict=True)
    return 0 in dimensions or all(size == 1 or stride == expected for size, stride, expected in wanted)


def _valid() -> Any:
    function = ctypes.pythonapi.PyCapsule_IsValid
    function.restype, function.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
    return function


def _pointer() -> Any:
    function = ctypes.pythonapi.PyCapsule_GetPointer
    function.restype, function.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return function
