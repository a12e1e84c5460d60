"""Kernel choices: which instructions become kernels, and whether one can be made as somebody chose."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.analysis.loop_marks import is_kernel_loop
from compiler.codegen.kernel_spec import make_kernel
from compiler.codegen.languages import default_schedule
from compiler.codegen.loop_kernel import default_loop_schedule, make_loop_kernel
from compiler.codegen.schedule import Schedule
from compiler.errors import PlanError, UnsupportedError
from compiler.ir.instruction import HloInstruction
from compiler.runtime.thunk_emitter import wants_kernel


def becomes_kernel(i: HloInstruction, language: str) -> bool:
    """Whether the planner makes a kernel of this instruction of a sequence."""
    return why_no_kernel(i, language, {}) is None


def chosen_schedule(i: HloInstruction, language: str, choice: Mapping[str, object]) -> Schedule:
    """The schedule of an instruction's kernel with the fields of `choice`.

    Raises:
        PlanError: the choice names a field or value that cannot be, the instruction becomes no kernel, or its kernel
            cannot be made that way.
    """
    schedule = Schedule.from_json(choice, _default(i, language))
    reason = why_no_kernel(i, language, choice)
    if reason is not None:
        raise PlanError(f"no kernel of %{i.name} can be made with {dict(choice)}: {reason}")
    return schedule


def why_no_kernel(i: HloInstruction, language: str, choice: Mapping[str, object]) -> str | None:
    """Why an instruction of a sequence does not become a kernel with this choice, or None when it does."""
    if not wants_kernel(i):
        return f"a {i.opcode.text} here needs no kernel"
    try:
        schedule = Schedule.from_json(choice, _default(i, language))
        if is_kernel_loop(i):
            make_loop_kernel(i, language, schedule)
        else:
            make_kernel(i, language, schedule)
    except UnsupportedError as e:
        return str(e)
    return None


def _default(i: HloInstruction, language: str) -> Schedule:
    if is_kernel_loop(i):
        try:
            return default_loop_schedule(i, language)
        except UnsupportedError:
            pass
    return default_schedule(language)
