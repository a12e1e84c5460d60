"""Cumulative reduction in stages: chunks of long rows or columns are scanned by different blocks of a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, Opcode, PrimitiveType, Shape
from compiler.ir.attributes import PadDim, SliceDim, Window, WindowDim
from compiler.passes.infrastructure.base import InstructionPass, number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import identity_value, scalar_function
from compiler.passes.infrastructure.registry import register
from compiler.passes.reductions.reduce_stages import SECOND_STAGE, divisor_near
from compiler.passes.reductions.windows import SHORT_SCAN, has_scan, running_axis

COLUMNS = 8
"""Adjacent columns that one multiprocessor scans together."""
ROW_CHUNKS, COLUMN_CHUNKS = 4, 1
"""Chunks of rows and of columns that a multiprocessor scans."""
LEAST_BYTES = 4 * 1024
"""Minimum size of what one multiprocessor scans of a chunk."""
SINGLE_BYTES = 12e9
"""Estimated bytes per second that one multiprocessor scans alone."""
ALL_BYTES = 12e9
"""Estimated bytes per second that each multiprocessor reduces and scans while all of them do."""
_NARROW = frozenset({Opcode.ADD, Opcode.MULTIPLY})
"""Functions whose results in few bits are rounded."""


@register
@dataclass(frozen=True)
class ScanStages(InstructionPass):
    """Rewrite a cumulative reduction -> combine(results of the chunks before, cumulative reductions of chunks).

    The chunks are reduced first, and the results of those before each chunk are combined by a second reduction. It
    applies to functions with an identity element and to rows or columns so few that most multiprocessors of a GPU would
    be idle. How many chunks there are depends on shapes alone, so results do not depend on the GPU; sums change their
    order. Sums of floats narrower than 32 bits are computed in f32 and rounded once. Where no suitable number of chunks
    divides the dimension, it is padded with the identity.

    Attributes:
        units: number of multiprocessors.
    """

    name: ClassVar[str] = "scan-stages"
    units: int = number_option(132, 1, 4096)

    def visit(self, instruction: HloInstruction) -> bool:
        """Split a cumulative reduction; return whether anything changed."""
        i = instruction
        if not has_scan(i) or len(i.operands) != 2 or i.parent is None or i.control_predecessors or i.shape.is_dynamic:
            return False
        axis, x = running_axis(i), i.operand(0)
        function = scalar_function(i.attributes["to_apply"])
        if axis is None or function is None or i.shape.element_type is not x.shape.element_type:
            return False
        if identity_value(function, x.shape.element_type) is None or 0 in x.shape.dimensions:
            return False
        chunks = self._chunks(x.shape, axis)
        if chunks < 2:
            return False
        _Split(i, axis, chunks, function, Builder(i.parent)).apply()
        return True

    def _chunks(self, shape: Shape, axis: int) -> int:
        """Return into how many chunks the dimension should be divided; 1 for none."""
        dims, length = shape.dimensions, shape.dimensions[axis]
        outer, inner = math.prod(dims[:axis]), math.prod(dims[axis + 1 :])
        busy = outer * (inner if inner < COLUMNS else -(-inner // COLUMNS))
        size = shape.num_elements * shape.element_type.byte_size
        single = size / (min(busy, self.units) * SINGLE_BYTES)
        staged = 2 * size / (self.units * ALL_BYTES) + 2 * SECOND_STAGE
        if busy >= self.units or single < 1.5 * staged:
            return 1
        most = min(length // (2 * SHORT_SCAN), size // (busy * LEAST_BYTES))
        if most < 2:
            return 1
        each = ROW_CHUNKS if inner < COLUMNS else COLUMN_CHUNKS
        return divisor_near(min(-(-each * self.units // busy), most), length)


@dataclass(frozen=True)
class _Split:
    """A cumulative reduction that is divided.

    Attributes:
        i: the reduction.
        axis: the dimension along which it runs.
        chunks: number of chunks.
        function: how it combines.
        b: adds instructions.
    """

    i: HloInstruction
    axis: int
    chunks: int
    function: Opcode
    b: Builder

    def apply(self) -> None:
        """Replace the reduction by those of its chunks."""
        i, b, axis = self.i, self.b, self.axis
        (x, init), reducer = i.operands, i.attributes["to_apply"]
        t = x.shape.element_type
        if t.is_narrow_float and self.function in _NARROW:
            x, init = b.convert(x, PrimitiveType.F32), b.convert(init, PrimitiveType.F32)
            reducer = self._reducer(PrimitiveType.F32)
        dims, length = x.shape.dimensions, x.shape.dimensions[axis]
        neutral = b.scalar(identity_value(self.function, x.shape.element_type), x.shape.element_type)
        size = -(-length // self.chunks)
        if self.chunks * size != length:
            room = PadDim(0, self.chunks * size - length)
            x = b.pad(x, neutral, [room if d == axis else PadDim(0, 0) for d in range(len(dims))])
        divided = b.reshape(x, (*dims[:axis], self.chunks, size, *dims[axis + 1 :]))
        before = self._before(b.reduce(divided, neutral, (axis + 1,), reducer), neutral, reducer)
        others = [d for d in range(divided.shape.rank) if d != axis + 1]
        along = WindowDim(size, pad_high=size - 1) if self._is_reverse else WindowDim(size, pad_low=size - 1)
        moving = Window(tuple(along if d == axis + 1 else WindowDim(1) for d in range(divided.shape.rank)))
        scanned = b.add(Opcode.REDUCE_WINDOW, divided, init, window=moving, to_apply=reducer)
        whole = b.add(self.function, b.broadcast(before, divided.shape.dimensions, others), scanned)
        result = b.reshape(whole, x.shape.dimensions)
        if result.shape.dimensions != dims:
            result = b.slice(result, [SliceDim(0, n) for n in dims])
        assert i.parent is not None  # noqa: S101 - the pass found it in a computation
        i.parent.replace(i, b.convert(result, t))

    @property
    def _is_reverse(self) -> bool:
        window: Window = self.i.attributes["window"]
        return window.dims[self.axis].pad_high > 0

    def _before(self, totals: HloInstruction, neutral: HloInstruction, reducer: HloComputation) -> HloInstruction:
        """Return the combination of the results of the chunks before each one.

        It reads each result once per chunk: there are few, and one kernel of many threads is faster than a scan.
        """
        b, dims, axis = self.b, totals.shape.dimensions, self.axis
        pairs = (*dims[: axis + 1], *dims[axis:])
        positions = Shape(PrimitiveType.S32, (self.chunks, self.chunks))
        mine, other = (b.add(Opcode.IOTA, shape=positions, iota_dimension=d) for d in range(2))
        is_before = b.compare(other, mine, "GT" if self._is_reverse else "LT")
        each = b.broadcast(totals, pairs, [d for d in range(len(pairs)) if d != axis])
        none = b.broadcast(neutral, pairs, ())
        kept = b.add(Opcode.SELECT, b.broadcast(is_before, pairs, (axis, axis + 1)), each, none)
        return b.reduce(kept, neutral, (axis + 1,), reducer)

    def _reducer(self, element_type: PrimitiveType) -> HloComputation:
        """Return the function for another element type."""
        made, scalar = HloComputation(f"{self.function.text}_{element_type.text}"), Shape(element_type)
        made.root = made.add(self.function, [made.add_parameter(n, scalar) for n in range(2)])
        assert self.b.computation.parent is not None  # noqa: S101 - `has_scan` needs it
        return self.b.computation.parent.add(made)
