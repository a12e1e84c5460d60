"""Library calls: instructions that one call of a library computes, and matrix products by BLAS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compiler.codegen.schedules.kernel_choice import BoundKernel
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.runtime import gemm
from compiler.runtime.implementations import KernelImplementation, register_implementation

if TYPE_CHECKING:
    from compiler.runtime.thunk_emitter import ThunkEmitter


@dataclass(frozen=True)
class LibraryCall:
    """One instruction as a call of a library.

    Attributes:
        operation: the operation in the library's terms, as JSON data; only the backend reads it.
        operands: positions of the instruction's operands that the library reads, in its order.
        scratch_bytes: size of the temporary memory that the call needs.
        flops: number of floating point operations.
    """

    operation: Mapping[str, Any]
    operands: tuple[int, ...]
    scratch_bytes: int
    flops: int


def no_library(instruction: HloInstruction) -> str | None:
    """Return why no library computes an instruction, for backends that have none."""
    return f"no library computes %{instruction.name} on this backend"


def _blas_refusal(i: HloInstruction, backend: str) -> str | None:
    del backend
    if i.opcode is not Opcode.DOT:
        return f"BLAS computes no {i.opcode.text}"
    return None if gemm.canonical_form(i) is not None else f"%{i.name} is empty or of types that BLAS does not have"


def _emit_blas(
    emitter: ThunkEmitter, i: HloInstruction, operands: list[Any], thunks: list[Any], runs: float, bound: BoundKernel
) -> Any:
    del bound
    return emitter.product(i, operands, thunks, runs)


BLAS = register_implementation(KernelImplementation("blas", _blas_refusal, _emit_blas, prefers=lambda i, backend: True))
"""Matrix products by the BLAS of the backend, with the transposes that it needs."""
