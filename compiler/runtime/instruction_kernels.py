"""The kernels of single instructions: which instructions get one, and with which schedules.

`ThunkEmitter` and the choices of plans and selectors both go through `emit_kernel`, so that they agree.
"""

from __future__ import annotations

from collections.abc import Mapping

from compiler.analysis.loop_marks import is_kernel_loop
from compiler.codegen.kernel_spec import KernelSpec, make_kernel
from compiler.codegen.languages import default_schedule
from compiler.codegen.loop_kernel import LoopKernel, default_loop_schedule, make_loop_kernel
from compiler.codegen.schedule import Schedule
from compiler.errors import PlanError, UnsupportedError
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.runtime import gemm

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
    if not is_kernel_candidate(i):
        raise UnsupportedError(f"a {i.opcode.text} here needs no kernel")
    if i.opcode is Opcode.WHILE:
        return make_loop_kernel(i, language, schedule)
    return make_kernel(i, language, schedule)


def has_kernel(i: HloInstruction, language: str) -> bool:
    """Check whether a kernel can be emitted for an instruction."""
    return _refusal(i, language) is None


def schedule_for_choice(i: HloInstruction, language: str, choice: Mapping[str, object]) -> Schedule:
    """Return the schedule of an instruction's kernel with the fields of `choice` changed.

    Raises:
        PlanError: the choice has an unknown field or an invalid value, the instruction has no kernel, or its kernel
            does not support the choice.
    """
    schedule = Schedule.from_json(choice, _default_schedule(i, language))
    reason = _refusal(i, language, schedule)
    if reason is not None:
        raise PlanError(f"no kernel of %{i.name} can be made with {dict(choice)}: {reason}")
    return schedule


def _refusal(i: HloInstruction, language: str, schedule: Schedule | None = None) -> str | None:
    try:
        emit_kernel(i, language, schedule)
    except UnsupportedError as e:
        return str(e)
    return None


def _default_schedule(i: HloInstruction, language: str) -> Schedule:
    if is_kernel_loop(i):
        try:
            return default_loop_schedule(i, language)
        except UnsupportedError:
            pass
    return default_schedule(language)
