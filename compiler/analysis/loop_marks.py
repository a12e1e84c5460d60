"""Loops that are to run inside one kernel: a request that is part of the HLO text."""

from __future__ import annotations

from compiler.ir.attributes import Raw
from compiler.ir.instruction import HloInstruction

_MARK = 'hlogym_loop="kernel"'


def mark_kernel_loop(loop: HloInstruction) -> None:
    """Ask for a `while` to become one kernel."""
    present = str(loop.attr("frontend_attributes", "{}"))[1:-1].strip()
    loop.attributes["frontend_attributes"] = Raw("{" + ",".join(filter(None, [present, _MARK])) + "}")


def is_kernel_loop(loop: HloInstruction) -> bool:
    """Whether `mark_kernel_loop` was called on it, in this process or before the text was written."""
    return _MARK in str(loop.attr("frontend_attributes", "")).replace(" ", "")
