"""A structured view of the `scan` op, and its construction: inputs are sliced along one dimension, carries updated.

The operands of a scan are its inputs, then the initial carries. Its function takes one step of each input and the
carries, and returns one step of each output, then the next carries. The result has the outputs, then the last carries
(`HloScanInstruction` of `xla/hlo/ir/hlo_instructions.h`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.ir import HloComputation, HloInstruction, Opcode, Shape
from compiler.ir.attributes import SliceDim
from compiler.ir.shape import tuple_shape
from compiler.passes.infrastructure.builder import Builder


@dataclass(frozen=True)
class ScanView:
    """A scan of arrays.

    Attributes:
        instruction: the scan.
        axis: the dimension of the steps in inputs and outputs.
        length: number of steps.
        reverse: whether it starts at the last step.
        inputs, init: its operands.
        outputs: shapes of the outputs with all steps.
    """

    instruction: HloInstruction
    axis: int
    length: int
    reverse: bool
    inputs: tuple[HloInstruction, ...]
    init: tuple[HloInstruction, ...]
    outputs: tuple[Shape, ...]

    @property
    def function(self) -> HloComputation:
        """The computation of one step."""
        found: HloComputation = self.instruction.attributes["to_apply"]
        return found

    @property
    def returned(self) -> tuple[HloInstruction, ...]:
        """The results of the function: one step of each output, then the next carries."""
        root = self.function.root
        return root.operands if root.opcode is Opcode.TUPLE else (root,)


def view_scan(i: HloInstruction) -> ScanView | None:
    """Return the structured view of a scan; None for other ops, dynamic shapes, and values that are not arrays."""
    if i.opcode is not Opcode.SCAN or any(not o.shape.is_array or o.shape.is_dynamic for o in i.operands):
        return None
    leaves = i.shape.tuple_shapes if i.shape.is_tuple else (i.shape,)
    root = i.attributes["to_apply"].root
    if any(not s.is_array or s.is_dynamic for s in leaves) or (i.shape.is_tuple and root.opcode is not Opcode.TUPLE):
        return None
    (axis,) = i.dimensions
    carries: int = i.attributes["num_carries"]
    split = len(i.operands) - carries
    inputs, outputs = i.operands[:split], leaves[: len(leaves) - carries]
    whole = inputs[0].shape if inputs else outputs[0]
    reverse = bool(i.attr("is_reverse", False))
    return ScanView(i, axis, whole.dimensions[axis], reverse, inputs, i.operands[split:], outputs)


def add_scan(
    b: Builder,
    function: HloComputation,
    inputs: Sequence[HloInstruction],
    init: Sequence[HloInstruction],
    axis: int,
    reverse: bool,
) -> list[HloInstruction]:
    """Add a scan by a function that returns a tuple; return its outputs, then its last carries."""
    length = inputs[0].shape.dimensions[axis]
    returned = function.root.shape.tuple_shapes
    count = len(returned) - len(init)
    outputs = [s.with_dimensions(with_steps(s.dimensions, axis, length)) for s in returned[:count]]
    shape = tuple_shape(*outputs, *returned[count:])
    more = {"is_reverse": True} if reverse else {}
    scan = b.add(
        Opcode.SCAN, *inputs, *init, shape=shape, dimensions=(axis,), num_carries=len(init), to_apply=function, **more
    )
    return [b.add(Opcode.GET_TUPLE_ELEMENT, scan, index=n) for n in range(len(returned))]


def with_steps(dims: Sequence[int], axis: int, length: int) -> tuple[int, ...]:
    """Return the dimensions of `length` stacked arrays of dimensions `dims`."""
    return (*dims[:axis], length, *dims[axis:])


def step_of_array(x: HloInstruction, axis: int, n: int, b: Builder) -> HloInstruction:
    """Return entry `n` along the axis, without that dimension."""
    dims = x.shape.dimensions
    spec = [SliceDim(n, n + 1) if d == axis else SliceDim(0, m) for d, m in enumerate(dims)]
    return b.reshape(b.slice(x, spec), (*dims[:axis], *dims[axis + 1 :]))


def inline_step(function: HloComputation, values: Sequence[HloInstruction], b: Builder) -> list[HloInstruction]:
    """Inline one step into the builder's computation; return the results (their tuple is left dead)."""
    before = set(b.computation.notable)
    root = b.computation.inline(function, values)
    for i in b.computation.notable:
        if i.opcode is Opcode.FUSION and i not in before and function.parent is not None:
            i.set_attribute("calls", function.parent.add(i.attributes["calls"].clone()))
    return list(root.operands) if root.opcode is Opcode.TUPLE else [root]
