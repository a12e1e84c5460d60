"""Concatenates of slices of one array at regular distances, such as the patches of a convolution.

Which element of the array a patch has follows from its number, without a test for each piece.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import partial

from compiler.codegen.lowering.emission import EmissionState
from compiler.codegen.nest import index as ix
from compiler.codegen.nest.index import Index, IndexExpr
from compiler.ir.attributes import SliceDim
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode

FEWEST = 2
"""Least number of pieces: tests take longer, and hide which elements are adjacent."""


@dataclass(frozen=True)
class _Starts:
    """The starts of the pieces in one dimension: `first + step * (number // run % cycle)`."""

    first: int
    step: int
    run: int
    cycle: int

    @staticmethod
    def of(starts: Sequence[int]) -> _Starts | None:
        """Return the form of some starts, or None if they have no such form."""
        first, count = starts[0], len(starts)
        run = next((n for n, s in enumerate(starts) if s != first), count)
        if run == count:
            return _Starts(first, 0, 1, 1)
        step = starts[run] - first
        again = next((n for n in range(run, count) if starts[n] == first), count)
        cycle = -(-again // run)
        found = _Starts(first, step, run, cycle)
        return found if all(found.number(n) == s for n, s in enumerate(starts)) else None

    def number(self, n: int) -> int:
        """Return the start of a piece."""
        return self.first + self.step * (n // self.run % self.cycle)

    def at(self, piece: IndexExpr) -> IndexExpr:
        """Return the start of a piece as an expression."""
        return piece.floordiv(self.run).mod(self.cycle) * self.step + self.first


@dataclass(frozen=True)
class RegularPieces:
    """A concatenate of slices of one array at regular distances.

    Attributes:
        concatenate: the instruction.
        source: the array.
        slice: the first slice.
        starts: those of the slices, for each dimension of the array.
    """

    concatenate: HloInstruction
    source: HloInstruction
    slice: HloInstruction
    starts: tuple[_Starts, ...]

    @staticmethod
    def of(i: HloInstruction) -> RegularPieces | None:
        """Return the pieces of an instruction, or None if it is no such concatenate."""
        if i.opcode is not Opcode.CONCATENATE or len(i.operands) < FEWEST:
            return None
        slices = [_slice_of(o) for o in i.operands]
        first = slices[0]
        if first is None or 0 in i.shape.dimensions or len({o.shape.dimensions for o in i.operands}) > 1:
            return None
        specs: list[tuple[SliceDim, ...]] = []
        for s in slices:
            if s is None or s.operands[0] is not first.operands[0] or s.shape.dimensions != first.shape.dimensions:
                return None
            specs.append(s.attributes["slice"])
        if any([d.stride for d in spec] != [d.stride for d in specs[0]] for spec in specs):
            return None
        found = [_Starts.of([spec[d].start for spec in specs]) for d in range(len(specs[0]))]
        starts = tuple(s for s in found if s is not None)
        return RegularPieces(i, first.operands[0], first, starts) if len(starts) == len(found) else None

    def index(self, index: Index) -> Index:
        """Return the index in the array of an element of the concatenate."""
        i = self.concatenate
        dim, piece = i.dimensions[0], i.operands[0].shape
        size = piece.dimensions[dim]
        number = index[dim].floordiv(size)
        inside = ix.reshaped(
            (*index[:dim], index[dim].mod(size), *index[dim + 1 :]), piece.dimensions, self.slice.shape.dimensions
        )
        spec: tuple[SliceDim, ...] = self.slice.attributes["slice"]
        return tuple(at * d.stride + s.at(number) for at, d, s in zip(inside, spec, self.starts, strict=True))


def use_regular_pieces(e: EmissionState, fused: HloComputation, apart: Container[HloInstruction] = ()) -> None:
    """Let an emitter compute elements of such concatenates by arithmetic, but those in `apart`."""
    for i in fused.instructions:
        found = RegularPieces.of(i) if i not in apart else None
        if found is not None:
            e.sources[i] = partial(_value, e, found)


def _value(e: EmissionState, pieces: RegularPieces, index: Index) -> str:
    return e.value(pieces.source, pieces.index(index))


def _slice_of(i: HloInstruction) -> HloInstruction | None:
    """Return the slice that an instruction is up to reshapes, or None."""
    while i.opcode in (Opcode.RESHAPE, Opcode.BITCAST) and i.shape.element_type is i.operands[0].shape.element_type:
        i = i.operands[0]
    return i if i.opcode is Opcode.SLICE else None
