"""A builder for rewrites: shorthands for new instructions, which it records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.ir import HloComputation, HloInstruction, Opcode, Shape
from compiler.ir.attributes import PadDim, SliceDim
from compiler.ir.types import PrimitiveType


class Builder:
    """Adds instructions to one computation.

    `made` lists them in order, so that the driver can visit them, or remove them if a rewrite gives up. Shapes are
    inferred; results have the default layout unless the op keeps the layout of its operand.
    """

    def __init__(self, computation: HloComputation) -> None:
        self.computation = computation
        self.made: list[HloInstruction] = []

    def add(
        self, opcode: Opcode, *operands: HloInstruction, shape: Shape | None = None, **attributes: Any
    ) -> HloInstruction:
        """Add an instruction; `shape` is only needed if it does not follow from the operands."""
        return self._keep(self.computation.add(opcode, operands, shape, attributes=attributes))

    def with_operands(
        self, original: HloInstruction, operands: Sequence[HloInstruction], shape: Shape | None = None
    ) -> HloInstruction:
        """Add a copy of `original` with other operands and the same attributes; its shape is inferred unless given."""
        attributes = {k: v for k, v in original.attributes.items() if k != "control-predecessors"}
        declared = shape or original.shape
        return self._keep(self.computation.add(original.opcode, operands, declared, attributes=attributes))

    def constant(self, value: Any) -> HloInstruction:
        """Add a constant from a Literal or a numpy array."""
        return self._keep(self.computation.add_constant(value))

    def scalar(self, value: Any, element_type: PrimitiveType) -> HloInstruction:
        """Add a scalar constant of this type."""
        return self.constant(np.asarray(value).astype(element_type.dtype))

    def splat(self, value: Any, shape: Shape) -> HloInstruction:
        """Return an array of `shape` filled with `value`: a scalar constant, broadcast if there are dimensions."""
        scalar = self.scalar(value, shape.element_type)
        return scalar if shape.rank == 0 else self.broadcast(scalar, shape.dimensions, ())

    def broadcast(self, x: HloInstruction, sizes: Sequence[int], dims: Sequence[int]) -> HloInstruction:
        """Broadcast `x` to `sizes`; dimension i of `x` becomes `dims[i]`.

        Broadcasts of broadcasts are combined, and an identity broadcast returns `x` itself.
        """
        sizes, dims = tuple(sizes), tuple(dims)
        while x.shape.dimensions != sizes or dims != tuple(range(len(sizes))):
            if x.opcode is not Opcode.BROADCAST:
                return self.add(Opcode.BROADCAST, x, shape=x.shape.with_dimensions(sizes), dimensions=dims)
            dims = tuple(dims[d] for d in x.dimensions)
            x = x.operands[0]
        return x

    def reshape(self, x: HloInstruction, sizes: Sequence[int]) -> HloInstruction:
        """Reshape `x`; return `x` itself if the dimensions are the same."""
        if x.shape.dimensions == tuple(sizes):
            return x
        return self.add(Opcode.RESHAPE, x, shape=x.shape.with_dimensions(tuple(sizes)))

    def transpose(self, x: HloInstruction, dims: Sequence[int]) -> HloInstruction:
        """Transpose `x`, with result dimension i from `dims[i]`; return `x` itself for the identity."""
        if tuple(dims) == tuple(range(len(dims))):
            return x
        return self.add(Opcode.TRANSPOSE, x, dimensions=tuple(dims))

    def convert(self, x: HloInstruction, element_type: PrimitiveType) -> HloInstruction:
        """Convert `x` to another element type; return `x` itself if it has that type."""
        if x.shape.element_type is element_type:
            return x
        return self.add(Opcode.CONVERT, x, shape=Shape(element_type, x.shape.dimensions))

    def slice(self, x: HloInstruction, spec: Sequence[SliceDim]) -> HloInstruction:
        """Slice `x`; return `x` itself if the slice contains everything."""
        whole = all(s == SliceDim(0, n) for s, n in zip(spec, x.shape.dimensions, strict=True))
        return x if whole else self.add(Opcode.SLICE, x, slice=tuple(spec))

    def pad(self, x: HloInstruction, value: HloInstruction, spec: Sequence[PadDim]) -> HloInstruction:
        """Pad `x`; return `x` itself if no padding is added."""
        return x if all(p == PadDim(0, 0) for p in spec) else self.add(Opcode.PAD, x, value, padding=tuple(spec))

    def concatenate(self, parts: Sequence[HloInstruction], dim: int) -> HloInstruction:
        """Concatenate the parts; return a single part itself."""
        return parts[0] if len(parts) == 1 else self.add(Opcode.CONCATENATE, *parts, dimensions=(dim,))

    def compare(self, a: HloInstruction, b: HloInstruction, direction: str) -> HloInstruction:
        """Add a comparison (EQ, NE, LT, LE, GT, GE)."""
        return self.add(Opcode.COMPARE, a, b, direction=direction)

    def reduce(
        self, x: HloInstruction, init: HloInstruction, dims: Sequence[int], function: HloComputation
    ) -> HloInstruction:
        """Add a reduction of one operand."""
        return self.add(Opcode.REDUCE, x, init, dimensions=tuple(dims), to_apply=function)

    def sum(self, x: HloInstruction, dims: Sequence[int]) -> HloInstruction:
        """Add the sum over some dimensions; its reducer is added to the module if it does not exist.

        Raises:
            ValueError: the computation is in no module.
        """
        module = self.computation.parent
        if module is None:
            raise ValueError("a computation outside of a module cannot have a reducer")
        scalar = x.shape.with_dimensions(())
        name = f"add_{x.shape.element_type.text}"
        function = module.find(name)
        if function is None or function.root.opcode is not Opcode.ADD or not _is_binary(function, scalar):
            function = HloComputation(name)
            function.root = function.add(Opcode.ADD, [function.add_parameter(n, scalar) for n in range(2)])
            module.add(function)
        return self.reduce(x, self.scalar(0, x.shape.element_type), dims, function)

    def _keep(self, instruction: HloInstruction) -> HloInstruction:
        self.made.append(instruction)
        return instruction


def _is_binary(function: HloComputation, scalar: Shape) -> bool:
    """Check whether a computation is one op on its two parameters, which yields a scalar of a shape."""
    return len(function) == 3 and function.result_shape == scalar
