"""Marks loops that run inside one kernel; the mark is part of the HLO text."""

from __future__ import annotations

from compiler.ir.attributes import Raw
from compiler.ir.instruction import HloInstruction

_MARK = 'hlogym_loop="kernel"'


def mark_kernel_loop(loop: HloInstruction) -> None:
    """Mark a `while` to become one kernel."""
    present = str(loop.attr("frontend_attributes", "{}"))[1:-1].strip()
    loop.attributes["frontend_attributes"] = Raw("{" + ",".join(filter(None, [present, _MARK])) + "}")


def is_kernel_loop(loop: HloInstruction) -> bool:
    """Check whether a loop was marked by `mark_kernel_loop`."""
    return _MARK in str(loop.attr("frontend_attributes", "")).replace(" ", "")
