"""The kernels that this process has generated, so that plans of one program share those they have in common."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from compiler.analysis.body_digest import body_digest
from compiler.codegen.kernel_spec import KernelSpec, fused_form, lower_instruction
from compiler.codegen.languages import find_language
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.instruction import HloInstruction
from compiler.support.bounded_table import BoundedTable

MOST = 2000
"""Kernels that are kept, with some kilobytes of source each; a model has about a hundred."""
_MADE: BoundedTable[Hashable, KernelSpec] = BoundedTable(MOST)
"""By what the source depends on. Looking up and adding are each one step, so threads may share it."""


def generated_kernel(i: HloInstruction, language: str, schedule: Schedule | None) -> KernelSpec:
    """Return the kernel of an instruction other than a loop; an equal one is generated once.

    Args:
        i: the instruction.
        language: a name in `codegen.languages.LANGUAGES`.
        schedule: the language's default schedule when None.

    Raises:
        UnsupportedError: the instruction cannot become one kernel with this schedule.
    """
    printer = find_language(language)
    # The number of threads is that of the machine model, which may change with the affinity of the process.
    threads = 0 if printer.threads is None else printer.threads()
    key = body_digest(fused_form(i)), printer, schedule, threads
    found = _MADE.get(key)
    if found is None:
        found = _MADE[key] = lower_instruction(i, language).bind(schedule)
    return found if found.name == i.name else replace(found, name=i.name)


def forget_kernels() -> None:
    """Drop all kernels, so that they are generated again: for measurements of compile times."""
    _MADE.clear()
