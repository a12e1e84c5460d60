"""Matrix products by cuBLAS, on operands as the program stores them: no copies, no transposes in memory.

cuBLAS has column-major matrices. A row-major matrix is its transpose in column-major order, so the row-major product
`out = lhs rhs` is computed as `outᵀ = rhsᵀ lhsᵀ`, with the operands exchanged.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compiler.backends.cuda.bindings import cublas
from compiler.errors import BackendError
from compiler.ir.types import PrimitiveType as T
from compiler.runtime.thunks import GemmThunk

__all__ = ["Blas", "CublasError", "Product", "blas_of", "product_of", "workspace_bytes"]

# cudaDataType of CUDA's library_types.h.
_DATA_TYPES = {T.F32: 0, T.F64: 1, T.F16: 2, T.C64: 4, T.C128: 5, T.BF16: 14}
OP_N, OP_T = 0, 1
DEFAULT_MATH, GEMM_DEFAULT = 0, -1
COMPUTE_32F, COMPUTE_32F_FAST_TF32, COMPUTE_64F = 68, 77, 70
"""Values of cublasOperation_t, cublasMath_t, cublasGemmAlgo_t and cublasComputeType_t in cublas_api.h."""
_STATUS = {
    1: "not initialized", 3: "allocation failed", 7: "invalid value", 8: "architecture mismatch", 11: "mapping error",
    13: "execution failed", 14: "internal error", 15: "not supported",
}  # fmt: skip


def _single(x: float) -> Any:
    return (ctypes.c_float * 1)(x)


_SCALARS: dict[T, Callable[[float], Any]] = {
    T.F64: lambda x: (ctypes.c_double * 1)(x),
    T.C64: lambda x: (ctypes.c_float * 2)(x, 0.0),
    T.C128: lambda x: (ctypes.c_double * 2)(x, 0.0),
}


@dataclass(frozen=True)
class Product:
    """The arguments of one call of cuBLAS, in its column-major terms and without the pointers.

    `first` is the thunk's right operand and `second` its left one.

    Attributes:
        transpose_first, transpose_second: whether cuBLAS transposes the operands.
        m, n, k: sizes of the column-major product.
        ld_first, ld_second, ld_out: leading dimensions.
        stride_first, stride_second, stride_out: elements from one matrix of the batch to the next.
        batch: number of products.
        operand_type, out_type: element types.
    """

    transpose_first: bool
    transpose_second: bool
    m: int
    n: int
    k: int
    ld_first: int
    ld_second: int
    ld_out: int
    stride_first: int
    stride_second: int
    stride_out: int
    batch: int
    operand_type: T
    out_type: T


def product_of(t: GemmThunk) -> Product:
    """Return the call of cuBLAS that computes a thunk; raise BackendError if cuBLAS has no such product."""
    operand, out = t.lhs.shape.element_type, t.out.shape.element_type
    if operand not in _DATA_TYPES or out not in _DATA_TYPES or t.rhs.shape.element_type is not operand:
        raise BackendError(f"cuBLAS has no product of {operand.text} for %{t.name}")
    return Product(
        transpose_first=t.rhs_transposed,
        transpose_second=t.lhs_transposed,
        m=t.n,
        n=t.m,
        k=t.k,
        ld_first=t.k if t.rhs_transposed else t.n,
        ld_second=t.m if t.lhs_transposed else t.k,
        ld_out=t.n,
        stride_first=t.n * t.k,
        stride_second=t.m * t.k,
        stride_out=t.m * t.n,
        batch=t.batch,
        operand_type=operand,
        out_type=out,
    )


def workspace_bytes(compute_capability: int) -> int:
    """Return the bytes of workspace that NVIDIA recommends: 32 MiB from compute capability 9.0 on, else 4 MiB."""
    return (32 if compute_capability >= 90 else 4) << 20


class CublasError(Exception):
    """A call of cuBLAS failed.

    Attributes:
        status: the status that it returned (`cublasStatus_t`).
    """

    def __init__(self, function: str, status: int) -> None:
        self.status = status
        super().__init__(f"{function} returned status {status} ({_STATUS.get(status, 'unknown')})")


class Blas:
    """A handle of cuBLAS for the current device. Several threads may use it; each call sets its stream.

    Args:
        tf32: whether products of f32 may round their operands to 10 bits of mantissa (TF32).
    """

    def __init__(self, tf32: bool = False) -> None:
        self._functions = _declared(cublas())
        self._lock = threading.Lock()
        handle = ctypes.c_void_p()
        self._call("cublasCreate_v2", ctypes.pointer(handle))
        self._handle = handle.value
        self._call("cublasSetMathMode", self._handle, DEFAULT_MATH)
        self._tf32 = tf32
        self._constants: dict[T, tuple[Any, Any]] = {}

    def multiply(self, p: Product, first: int, second: int, out: int, stream: int, workspace: tuple[int, int]) -> None:
        """Launch a product on a stream.

        Args:
            p: the product.
            first: address of the right operand of the row-major product.
            second: address of the left operand.
            out: address of the result.
            stream: handle of the stream.
            workspace: address and bytes of memory that no other stream uses at the time.

        Raises:
            CublasError: cuBLAS refuses the call.
        """
        ops = tuple(OP_T if t else OP_N for t in (p.transpose_first, p.transpose_second))
        alpha, beta = (ctypes.addressof(x) for x in self._scalars(p.operand_type))
        types = _DATA_TYPES[p.operand_type], _DATA_TYPES[p.out_type]
        compute = self._compute_type(p.operand_type)
        with self._lock:
            self._call("cublasSetStream_v2", self._handle, stream)
            self._call("cublasSetWorkspace_v2", self._handle, *workspace)  # setting the stream has reset it
            if p.batch == 1:
                self._call(
                    "cublasGemmEx", self._handle, *ops, p.m, p.n, p.k, alpha, first, types[0], p.ld_first, second,
                    types[0], p.ld_second, beta, out, types[1], p.ld_out, compute, GEMM_DEFAULT,
                )  # fmt: skip
            else:
                self._call(
                    "cublasGemmStridedBatchedEx", self._handle, *ops, p.m, p.n, p.k, alpha, first, types[0],
                    p.ld_first, p.stride_first, second, types[0], p.ld_second, p.stride_second, beta, out, types[1],
                    p.ld_out, p.stride_out, p.batch, compute, GEMM_DEFAULT,
                )  # fmt: skip

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._functions, function)(*arguments)
        if status:
            raise CublasError(function, status)

    def _scalars(self, t: T) -> tuple[Any, Any]:
        """Return alpha = 1 and beta = 0 in the type in which products of a type are computed."""
        if t not in self._constants:
            make = _SCALARS.get(t, _single)
            self._constants[t] = make(1.0), make(0.0)
        return self._constants[t]

    def _compute_type(self, t: T) -> int:
        if t in (T.F64, T.C128):
            return COMPUTE_64F
        # Halves are accumulated in f32; COMPUTE_32F keeps all bits of f32 operands.
        return COMPUTE_32F_FAST_TF32 if self._tf32 and t in (T.F32, T.C64) else COMPUTE_32F


@functools.lru_cache(maxsize=64)
def blas_of(device: int, functions: int, tf32: bool = False) -> Blas:
    """Return the handle of a device, which is the current one; it is made once per process.

    Args:
        device: number of the device.
        functions: identity of the library.
        tf32: see `Blas`.
    """
    del device, functions
    return Blas(tf32)


def _declared(functions: Any) -> Any:
    """Declare the types of the functions that `Blas` calls, if they are those of a shared library."""
    if isinstance(functions, ctypes.CDLL):
        address, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
        matrix, strided = [address, number, number], [address, number, number, size]
        head = [address, number, number, number, number, number, address]
        tail = [number, number]
        for name, types in {
            "cublasCreate_v2": [ctypes.POINTER(address)],
            "cublasSetMathMode": [address, number],
            "cublasSetStream_v2": [address, address],
            "cublasSetWorkspace_v2": [address, address, ctypes.c_size_t],
            "cublasGemmEx": [*head, *matrix, *matrix, address, *matrix, *tail],
            "cublasGemmStridedBatchedEx": [*head, *strided, *strided, address, *strided, number, *tail],
        }.items():
            function = getattr(functions, name)
            function.argtypes, function.restype = types, number
    return functions
