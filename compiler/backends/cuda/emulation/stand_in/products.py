"""The C functions of cuBLAS that the backend calls, by numpy on the same arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from compiler.backends.cuda.emulation.stand_in.gpu import Gpu, Work
from compiler.backends.cuda.emulation.stand_in.memory import Access, FaultError, host_bytes
from compiler.backends.cuda.emulation.stand_in.ordering import Stamp

__all__ = ["Cublas"]

# cudaDataType, and cublasComputeType_t with the type in which sums are made.
_TYPES: dict[int, Any] = {
    0: np.float32,
    1: np.float64,
    2: np.float16,
    4: np.complex64,
    5: np.complex128,
    14: ml_dtypes.bfloat16,
}
_COMPUTE = {68: 32, 77: 32, 70: 64}
_INVALID = 7


@dataclass(frozen=True)
class _Operand:
    """A batch of column-major matrices.

    Attributes:
        address: of the first element.
        dtype: element type.
        rows, columns: of each matrix as it is stored.
        ld: elements from one column to the next.
        stride: elements from one matrix to the next.
        batch: number of matrices.
    """

    address: int
    dtype: np.dtype[Any]
    rows: int
    columns: int
    ld: int
    stride: int
    batch: int

    @property
    def size(self) -> int:
        """Return the bytes from the first to the last element."""
        return ((self.batch - 1) * self.stride + (self.columns - 1) * self.ld + self.rows) * self.dtype.itemsize

    def view(self) -> NDArray[Any]:
        """Return an array of batch x rows x columns."""
        raw = host_bytes(self.address, self.size).view(self.dtype)
        item = self.dtype.itemsize
        strides = (self.stride * item, item, self.ld * item)
        return np.lib.stride_tricks.as_strided(raw, (self.batch, self.rows, self.columns), strides)


class Cublas:
    """A handle keeps its stream and its workspace; as in cuBLAS, setting the stream resets the workspace."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._stream = 0
        self._workspace: tuple[int, int] | None = None

    def cublasCreate_v2(self, handle: Any) -> int:  # noqa: N802 - names of cuBLAS
        self._gpu.forbid_in_capture("a handle of cuBLAS is created")
        handle.contents.value = 1
        return 0

    def cublasSetMathMode(self, handle: int, mode: int) -> int:  # noqa: N802
        return 0 if handle == 1 and mode == 0 else _INVALID

    def cublasSetStream_v2(self, handle: int, stream: int) -> int:  # noqa: N802
        del handle
        self._stream, self._workspace = stream, None
        return 0

    def cublasSetWorkspace_v2(self, handle: int, address: int, size: int) -> int:  # noqa: N802
        del handle
        self._workspace = (address, size)
        return 0 if address % 256 == 0 else _INVALID

    def cublasGemmEx(  # noqa: N802
        self, handle: int, op_a: int, op_b: int, m: int, n: int, k: int, alpha: int, a: int, type_a: int, ld_a: int,
        b: int, type_b: int, ld_b: int, beta: int, c: int, type_c: int, ld_c: int, compute: int, algorithm: int,
    ) -> int:  # fmt: skip
        return self.cublasGemmStridedBatchedEx(
            handle, op_a, op_b, m, n, k, alpha, a, type_a, ld_a, 0, b, type_b, ld_b, 0, beta, c, type_c, ld_c, 0, 1,
            compute, algorithm,
        )  # fmt: skip

    def cublasGemmStridedBatchedEx(  # noqa: N802
        self, handle: int, op_a: int, op_b: int, m: int, n: int, k: int, alpha: int, a: int, type_a: int, ld_a: int,
        stride_a: int, b: int, type_b: int, ld_b: int, stride_b: int, beta: int, c: int, type_c: int, ld_c: int,
        stride_c: int, batch: int, compute: int, algorithm: int,
    ) -> int:  # fmt: skip
        """Compute c = alpha op(a) op(b) + beta c for each matrix of a batch, all of them column-major."""
        del handle, algorithm
        self._gpu.check_alive()
        if self._workspace is None:
            raise FaultError("cuBLAS would allocate a workspace: none was set after its stream")
        rows_a, columns_a = (k, m) if op_a else (m, k)
        rows_b, columns_b = (n, k) if op_b else (k, n)
        if ld_a < rows_a or ld_b < rows_b or ld_c < m or compute not in _COMPUTE:
            return _INVALID
        first = _Operand(a, np.dtype(_TYPES[type_a]), rows_a, columns_a, ld_a, stride_a, batch)
        second = _Operand(b, np.dtype(_TYPES[type_b]), rows_b, columns_b, ld_b, stride_b, batch)
        out = _Operand(c, np.dtype(_TYPES[type_c]), m, n, ld_c, stride_c, batch)
        wide = _wide(first.dtype, _COMPUTE[compute])
        scale, keep = (host_bytes(x, wide.itemsize).view(wide)[0] for x in (alpha, beta))

        def run(stamp: Stamp) -> None:
            del stamp
            x, y = first.view().astype(wide), second.view().astype(wide)
            product = scale * ((x.swapaxes(1, 2) if op_a else x) @ (y.swapaxes(1, 2) if op_b else y))
            target = out.view()
            target[...] = (product + keep * target.astype(wide) if keep else product).astype(out.dtype)

        accesses = (
            Access(a, first.size, False), Access(b, second.size, False), Access(c, out.size, True),
            Access(*self._workspace, True),
        )  # fmt: skip
        self._gpu.submit(self._stream, Work("a product by cuBLAS", accesses, run))
        return 0


def _wide(dtype: np.dtype[Any], bits: int) -> np.dtype[Any]:
    """Return the type in which products of a type are computed."""
    if dtype.kind == "c":
        return np.dtype(np.complex64 if bits == 32 else np.complex128)
    return np.dtype(np.float32 if bits == 32 else np.float64)
