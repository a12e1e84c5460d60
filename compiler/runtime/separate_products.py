"""The implementation of products, convolutions and attention op by op, which leaves each to a library."""

from __future__ import annotations

from typing import Any

from compiler.codegen.schedules.kernel_choice import BoundKernel
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.runtime.implementations import KernelImplementation, register_implementation


def _refusal(i: HloInstruction, backend: str) -> str | None:
    if backend not in ("cpu", "cuda") or i.opcode is not Opcode.FUSION:
        return f"%{i.name} is not a fusion on a backend with generated products"
    if all(x.opcode not in (Opcode.DOT, Opcode.CONVOLUTION) for x in i.attributes["calls"].instructions):
        return f"%{i.name} has no dot and no convolution"
    return None


def _emit(
    emitter: Any, i: HloInstruction, operands: list[Any], thunks: list[Any], runs: float, bound: BoundKernel
) -> Any:
    del bound
    return emitter.unfused(i, operands, thunks, runs)


SEPARATE = register_implementation(KernelImplementation("separate", _refusal, _emit))
