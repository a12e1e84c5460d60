"""The kernels of single instructions: which instructions get one, and with which schedules.

`ThunkEmitter` and the choices of plans and selectors both go through `emit_kernel`, so that they agree.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from compiler.analysis.loop_marks import is_kernel_loop, kernel_loop_of
from compiler.codegen.kernel_spec import KernelSpec, lower_instruction
from compiler.codegen.languages import default_schedule
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.templates.loop_kernel import LoopKernel, make_loop_kernel
from compiler.codegen.templates.loop_state import default_loop_schedule
from compiler.errors import UnsupportedError
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.runtime import gemm
from compiler.runtime.kernel_memo import generated_kernel

GenerateKernel: TypeAlias = Callable[[Schedule | None], KernelSpec | LoopKernel]
"""Makes a kernel with a schedule, None for the default one; raises UnsupportedError if it refuses the schedule."""

_ALIASES = frozenset({Opcode.RESHAPE, Opcode.COPY, Opcode.OPTIMIZATION_BARRIER, Opcode.ADD_DEPENDENCY, Opcode.DOMAIN})
_NO_KERNEL = frozenset(
    {
        Opcode.PARAMETER, Opcode.CONSTANT, Opcode.TUPLE, Opcode.AFTER_ALL, Opcode.GET_TUPLE_ELEMENT, Opcode.CALL,
        Opcode.CONDITIONAL,
    }
)  # fmt: skip


def is_alias(i: HloInstruction) -> bool:
    """Check whether the value of an instruction is the memory of its operand, possibly with another shape."""
    return (i.opcode in _ALIASES and _same_type(i)) or (i.opcode is Opcode.BITCAST and _same_memory(i))


def _same_type(i: HloInstruction) -> bool:
    """Check that the element type stays the same; a copy in a module of mixed precision may convert."""
    return i.shape.element_type is i.operand(0).shape.element_type


def _same_memory(i: HloInstruction) -> bool:
    """Check whether a bitcast keeps row-major bytes as they are."""
    return all(s.layout is None for s in (i.shape, i.operands[0].shape)) and i.shape.is_array


def is_kernel_candidate(i: HloInstruction) -> bool:
    """Check whether a kernel should be emitted for an instruction, judging by its opcode and its kernel-loop mark."""
    op = i.opcode
    if op in _NO_KERNEL or is_alias(i):
        return False
    if op is Opcode.WHILE:
        return is_kernel_loop(i)
    return op is not Opcode.DOT or gemm.canonical_form(i) is None


def emit_kernel(i: HloInstruction, language: str, schedule: Schedule | None = None) -> KernelSpec | LoopKernel:
    """Return the kernel of an instruction: a `LoopKernel` for a while, a `KernelSpec` for any other.

    Args:
        i: an instruction of a control-flow computation.
        language: a name in `codegen.languages.LANGUAGES`.
        schedule: the default schedule of the kernel when None.

    Raises:
        UnsupportedError: the instruction needs no kernel, or cannot become one with this schedule.
    """
    if i.opcode is Opcode.WHILE or not is_kernel_candidate(i):
        return kernel_generator(i, language)(schedule)
    return generated_kernel(i, language, schedule)


def kernel_generator(i: HloInstruction, language: str) -> GenerateKernel:
    """Return the function that makes the kernel of an instruction with a schedule, as `emit_kernel` does.

    The instruction is lowered once, so that many schedules can be tried.

    Raises:
        UnsupportedError: the instruction needs no kernel, or cannot become one with any schedule.
    """
    if not is_kernel_candidate(i):
        raise UnsupportedError(f"a {i.opcode.text} here needs no kernel")
    if i.opcode is Opcode.WHILE:
        return functools.partial(make_loop_kernel, i, language)
    return lower_instruction(i, language)


def has_kernel(i: HloInstruction, language: str) -> bool:
    """Check whether a kernel can be emitted for an instruction."""
    return kernel_refusal(i, language) is None


def kernel_refusal(i: HloInstruction, language: str, schedule: Schedule | None = None) -> str | None:
    """Return why no kernel of an instruction can be generated with a schedule, or None when one can."""
    try:
        emit_kernel(i, language, schedule)
    except UnsupportedError as e:
        return str(e)
    return None


def default_kernel_schedule(i: HloInstruction, language: str, preset: Schedule) -> Schedule:
    """Return the schedule of an instruction's kernel when none is chosen.

    Args:
        i: an instruction of a control-flow computation.
        language: a name in `codegen.languages.LANGUAGES`.
        preset: the default schedule of the backend. A loop kernel has fewer lanes if its state would not fit.
    """
    loop = kernel_loop_of(i)
    if loop is None:
        return preset
    if preset == default_schedule(language):
        with contextlib.suppress(UnsupportedError):
            return default_loop_schedule(loop, language)
        return preset
    fitted = preset
    while fitted.lanes > 1 and kernel_refusal(i, language, fitted) is not None:
        fitted = replace(fitted, lanes=fitted.lanes // 2)
    return preset if kernel_refusal(i, language, fitted) is not None else fitted


def kernel_code(
    generate: Callable[[Schedule], KernelSpec | LoopKernel], schedule: Schedule
) -> tuple[str, int, int] | None:
    """Return what identifies the code of a kernel and its launch, or None when it refuses the schedule."""
    try:
        kernel = generate(schedule)
    except UnsupportedError:
        return None
    spec = kernel.spec if isinstance(kernel, LoopKernel) else kernel
    return spec.symbol, spec.grid, spec.block
