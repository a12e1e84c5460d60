"""Products of halves and complex numbers by cuBLAS, which lowering would otherwise compute in f32 or by parts."""

from __future__ import annotations

import math
from typing import Any

from compiler.codegen.schedules.kernel_choice import BoundKernel
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T
from compiler.passes.dots.dot_properties import DotDims, is_plain_dot
from compiler.runtime import gemm
from compiler.runtime.implementations import KernelImplementation
from compiler.runtime.thunk_emitter import ThunkEmitter

__all__ = ["TYPES", "cublas_of", "product_refusal"]

TYPES = frozenset({(T.BF16, T.BF16), (T.BF16, T.F32), (T.F16, T.F16), (T.F16, T.F32), (T.C64, T.C64), (T.C128, T.C128)})
"""Element types of operands and result, besides those of every BLAS; sums of halves are in f32."""


def product_refusal(i: HloInstruction) -> str | None:
    """Return why cuBLAS should not compute an instruction as one of these products, or None if it should.

    A product with a vector is left to a reduction, which fuses with what surrounds it.
    """
    if i.opcode is not Opcode.DOT:
        return f"cuBLAS computes no {i.opcode.text}"
    if not is_plain_dot(i) or gemm.canonical_form(i, TYPES) is None:
        return f"%{i.name} is empty or of types that cuBLAS does not have"
    dims, (lhs, rhs) = DotDims.of(i), i.operands
    left = math.prod(lhs.shape.dimensions[d] for d in dims.lhs_free(lhs.shape.rank))
    right = math.prod(rhs.shape.dimensions[d] for d in dims.rhs_free(rhs.shape.rank))
    return f"%{i.name} suits a reduction" if min(left, right) == 1 else None


def cublas_of(backend: str) -> KernelImplementation:
    """Return the implementation of these products on the backend with this name."""

    def refusal(i: HloInstruction, name: str) -> str | None:
        return product_refusal(i) if name == backend else f"cuBLAS is a library of the backend {backend!r}"

    return KernelImplementation("cublas", refusal, _emit, prefers=lambda i, name: name == backend)


def _emit(
    emitter: ThunkEmitter, i: HloInstruction, operands: list[Any], thunks: list[Any], runs: float, bound: BoundKernel
) -> Any:
    del bound
    return emitter.product(i, operands, thunks, runs, TYPES)
