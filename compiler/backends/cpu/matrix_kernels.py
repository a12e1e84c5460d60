"""Kernels in C that compute the matrices of a batch one by one, and in parallel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from compiler.codegen.kernel_spec import KernelSpec, spec_of_text
from compiler.codegen.languages import C
from compiler.codegen.schedules.kernel_choice import BoundKernel
from compiler.ir.instruction import HloInstruction
from compiler.runtime.implementations import KernelImplementation
from compiler.runtime.thunk_emitter import ThunkEmitter


def by_kernels(
    name: str,
    backend: str,
    kernel: Callable[[HloInstruction], KernelSpec],
    has_kernel: Callable[[HloInstruction], bool],
    refusal: str,
) -> KernelImplementation:
    """Return the implementation of instructions of one backend that one kernel each computes.

    Args:
        name: of the implementation.
        backend: name of the backend.
        kernel: returns the kernel of an instruction that has one.
        has_kernel: whether an instruction has one.
        refusal: why others have none.
    """

    def why_refused(i: HloInstruction, target: str) -> str | None:
        if target != backend:
            return f"it is a kernel of the {backend} backend"
        return None if has_kernel(i) else refusal

    def emit(
        emitter: ThunkEmitter,
        i: HloInstruction,
        operands: list[Any],
        thunks: list[Any],
        runs: float,
        bound: BoundKernel,
    ) -> Any:
        return emitter.launch(kernel(i), i.shape, list(operands), thunks, runs)

    return KernelImplementation(name, why_refused, emit, prefers=lambda i, target: True)


def matrix_kernel(
    i: HloInstruction,
    kind: str,
    text: str,
    macros: Mapping[str, str | int],
    operations: int,
    grain: int,
    in_place: tuple[int, int] | None,
    rank: int = 2,
) -> KernelSpec:
    """Return the kernel of an instruction whose first operand is a batch of matrices.

    Args:
        i: the instruction.
        kind: kind of the kernel.
        text: C statements that compute the matrix with the number `item`, given `arguments`.
        macros: definitions of the macros in the text by their names, with parameters if they have any.
        operations: floating point operations of one matrix.
        grain: number of matrices of a parallel task.
        in_place: the positions of an input and an output among the arguments, which may share one buffer;
            None if there are none.
        rank: rank of what one item has of the first operand; all dimensions before it are those of the batch.
    """
    inputs, outputs = tuple(o.shape for o in i.operands), tuple(i.shape.leaves())
    batch = math.prod(inputs[0].dimensions[: inputs[0].rank - rank])
    run = "HLOGYM_KERNEL_range((void *)arguments, 0, 1);" if batch == 1 else (
        f"hlogym_parallel(HLOGYM_KERNEL_range, (void *)arguments, {batch}, {grain});"
    )  # fmt: skip
    source = "\n".join(
        [
            *(f"#define {name} {value}" for name, value in macros.items()),
            "VECTOR_BITS(512) static void HLOGYM_KERNEL_one(void *const *arguments, int64_t item) {",
            text.rstrip("\n"),
            "}",
            "VECTOR_BITS(512) static void HLOGYM_KERNEL_range(void *context, int64_t first, int64_t last) {",
            "  for (int64_t item = first; item < last; item++) HLOGYM_KERNEL_one((void *const *)context, item);",
            "}",
            f"void HLOGYM_KERNEL(void *const *arguments) {{ {run} }}",
            *(f"#undef {name.split('(')[0]}" for name in macros),
            "",
        ]
    )
    spec = spec_of_text(i, kind, C.name, source, inputs, outputs, batch * operations)
    return replace(spec, in_place=() if in_place is None else (in_place,))
