"""Marks of loops: those that run inside one kernel, and those of which one iteration runs several."""

from __future__ import annotations

import math
import re

from compiler.analysis.marks import is_marked, mark
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode

_MARK, _KERNEL = "hlogym_loop", "kernel"
_UNROLLED = re.compile(r'\bunrolled_by="(\d+)"')


def mark_kernel_loop(loop: HloInstruction) -> None:
    """Mark a `while` to become one kernel."""
    mark(loop, _MARK, _KERNEL)


def is_kernel_loop(loop: HloInstruction) -> bool:
    """Check whether a loop was marked by `mark_kernel_loop`."""
    return is_marked(loop, _MARK, _KERNEL)


def packed_loop(computation: HloComputation) -> HloInstruction | None:
    """Return the kernel loop in the body of a fusion that packs and unpacks its state; None if there is none."""
    return next((i for i in computation.notable if i.opcode is Opcode.WHILE and is_kernel_loop(i)), None)


def kernel_loop_of(i: HloInstruction) -> HloInstruction | None:
    """Return the loop that an instruction runs in one kernel: itself, or that of a fusion; None if there is none."""
    if i.opcode is Opcode.WHILE:
        return i if is_kernel_loop(i) else None
    return packed_loop(i.attributes["calls"]) if i.opcode is Opcode.FUSION else None


def unroll_factor(loop: HloInstruction) -> int:
    """Return how many original iterations (or steps of a scan) one iteration runs, according to the loop's mark."""
    found = _UNROLLED.search(str(loop.attr("frontend_attributes", "")))
    return int(found.group(1)) if found else 1


def assumed_trips(loop: HloInstruction, iterations: float) -> float:
    """Return the trip count of a loop that had so many iterations before it was unrolled."""
    return math.ceil(iterations / unroll_factor(loop))
