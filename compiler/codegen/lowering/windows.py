"""Windows: the elements of an array under each position and each element of a sliding window, which kernels compute.

HLO has no op for them without a copy per element of the window. Lowering adds one to its own copy of a computation, and
the emitter turns it into index arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.codegen.nest import index as ix
from compiler.codegen.nest.index import Index
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape

_KEY = "hlogym_windows"


@dataclass(frozen=True)
class Windows:
    """The indices of an array of windows.

    Attributes:
        terms: for each dimension of the operand, (dimension of the windows, step) pairs: an index is the sum of the
            steps along these dimensions.
        starts: for each dimension of the operand, the index of the first element.
    """

    terms: tuple[tuple[tuple[int, int], ...], ...]
    starts: tuple[int, ...]

    def index(self, at: Index) -> Index:
        """Return the index in the operand of an element of the windows."""
        found = []
        for terms, start in zip(self.terms, self.starts, strict=True):
            total = ix.const(start)
            for d, step in terms:
                total = total + at[d] * step
            found.append(total)
        return tuple(found)


def add_windows(
    computation: HloComputation, x: HloInstruction, sizes: Sequence[int], windows: Windows
) -> HloInstruction:
    """Add the windows of an array of these sizes; only the emitter of kernels knows what they are."""
    shape = Shape(x.shape.element_type, tuple(sizes))
    attributes = {"custom_call_target": _KEY, _KEY: windows}
    return computation.add(Opcode.CUSTOM_CALL, [x], shape, attributes=attributes)


def windows_of(i: HloInstruction) -> Windows | None:
    """Return the windows that an instruction is, or None if it is another instruction."""
    found = i.attributes.get(_KEY) if i.opcode is Opcode.CUSTOM_CALL else None
    return found if isinstance(found, Windows) else None
