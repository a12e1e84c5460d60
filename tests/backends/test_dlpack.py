"""Arrays of other libraries, read through DLPack: where they lie, of which type, and in which order of streams."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from compiler import CompileOptions, compile
from compiler.backends.cuda.dlpack import read_tensor
from compiler.backends.cuda.emulation import stand_in
from compiler.errors import ArgumentError
from tests.backends.test_cuda_executable import _product

PLAIN = CompileOptions(optimize=False)
GPU, VULKAN = 2, 7
FLOAT, BFLOAT, FLOAT8 = 2, 4, 10


class _Exported(ctypes.Structure):
    """A DLManagedTensor of dlpack.h, written down again here so that the test does not share the reader's layout."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    )  # fmt: skip


class Foreign:
    """An array of another library."""

    def __init__(
        self, address: int, shape: tuple[int, ...], code: int, bits: int, strides: tuple[int, ...] | None = None,
        kind: int = GPU, device: int = 0, offset: int = 0,
    ) -> None:  # fmt: skip
        self.kind, self.device = kind, device
        self.streams: list[int | None] = []
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = None if strides is None else (ctypes.c_int64 * len(shape))(*strides)
        at = None if self._strides is None else ctypes.addressof(self._strides)
        self._tensor = _Exported(
            address, kind, device, len(shape), code, bits, 1, ctypes.addressof(self._shape), at, offset, None, None
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, self.device

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        self.streams.append(stream)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._tensor), b"dltensor", None)


def test_arrays_of_numpy() -> None:
    x = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    for array in (x, x[:, ::2], x.transpose(2, 0, 1), x[::-1], x[:0], np.array(3.0)):
        tensor = read_tensor(array, 0, 0)
        assert tensor.on_host
        assert tensor.row_major == array.flags.c_contiguous
        np.testing.assert_array_equal(tensor.on_this_host(), array)


def test_types_that_numpy_does_not_export() -> None:
    x = np.arange(6, dtype=np.float32).astype(ml_dtypes.bfloat16)
    tensor = read_tensor(Foreign(x.ctypes.data, (2, 2), BFLOAT, 16, kind=1, offset=4), 0, 0)
    np.testing.assert_array_equal(tensor.on_this_host().astype(np.float32), [[2, 3], [4, 5]])
    assert read_tensor(Foreign(64, (2,), FLOAT8, 8), 0, 0).dtype == ml_dtypes.float8_e4m3fn


def test_what_cannot_be_read() -> None:
    with pytest.raises(ArgumentError, match=r"argument 3: a Foreign of an unknown type .*code 2 with 12 bits"):
        read_tensor(Foreign(64, (2,), FLOAT, 12), 0, 3)
    with pytest.raises(ArgumentError, match="argument 3: a Foreign on a device of another kind"):
        read_tensor(Foreign(64, (2,), FLOAT, 32, kind=VULKAN), 0, 3)
    with pytest.raises(ArgumentError, match="argument 3: DLPack cannot read a object"):
        read_tensor(object(), 0, 3)


def test_arrays_on_the_gpu_are_not_copied() -> None:
    executable = compile(_product("f32", "mk", "kn", 0), backend="cuda", options=PLAIN)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((5, 6)).astype(np.float32), rng.standard_normal((6, 7)).astype(np.float32)
    with stand_in.installed() as gpu:
        cupy: Any = importlib.import_module("cupy")
        a, b = cupy.asarray(x), cupy.asarray(y)
        foreign = [Foreign(a.data.ptr, (5, 6), FLOAT, 32), Foreign(b.data.ptr, (6, 7), FLOAT, 32, (7, 1))]
        copies = sum("copy" in w for w in gpu.launched)
        for _ in range(3):
            np.testing.assert_allclose(executable(*foreign)[0].get(), x @ y, rtol=1e-5)
        assert sum("copy" in w for w in gpu.launched) == copies
        assert foreign[0].streams == [1, 1, 1]  # DLPack's number of the legacy default stream
        with cupy.cuda.Stream() as stream:
            executable(*foreign)
            stream.synchronize()
        assert foreign[0].streams[-1] == stream.ptr


def test_arrays_on_the_gpu_that_do_not_match() -> None:
    executable = compile(_product("f32", "mk", "kn", 0), backend="cuda", options=PLAIN)
    with stand_in.installed():
        y = np.zeros((6, 7), np.float32)
        with pytest.raises(ArgumentError, match=r"argument 0: expected f32\[5,6\] .*given float32\[6,5\]"):
            executable(Foreign(64, (6, 5), FLOAT, 32), y)
        with pytest.raises(ArgumentError, match="argument 0: it is on GPU 1"):
            executable(Foreign(64, (5, 6), FLOAT, 32, device=1), y)
