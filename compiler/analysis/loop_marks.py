"""Marks loops that run inside one kernel."""

from __future__ import annotations

from compiler.analysis.marks import is_marked, mark
from compiler.ir.instruction import HloInstruction

_MARK, _KERNEL = "hlogym_loop", "kernel"


def mark_kernel_loop(loop: HloInstruction) -> None:
    """Mark a `while` to become one kernel."""
    mark(loop, _MARK, _KERNEL)


def is_kernel_loop(loop: HloInstruction) -> bool:
    """Check whether a loop was marked by `mark_kernel_loop`."""
    return is_marked(loop, _MARK, _KERNEL)
