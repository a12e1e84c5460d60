"""A builder for rewrites: new instructions in a computation, spelled shortly, and remembered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.ir import HloComputation, HloInstruction, Opcode, Shape
from compiler.ir.attributes import PadDim, SliceDim
from compiler.ir.types import PrimitiveType


class Builder:
    """Adds instructions to one computation.

    `made` lists them in order, so that the driver can visit them next, or remove them when a rewrite gives up.
    Shapes are inferred; the result has the default layout unless an operand's layout carries over.
    """

    def __init__(self, computation: HloComputation) -> None:
        self.computation = computation
        self.made: list[HloInstruction] = []

    def add(
        self, opcode: Opcode, *operands: HloInstruction, shape: Shape | None = None, **attributes: Any
    ) -> HloInstruction:
        """Any instruction; `shape` only where it does not follow."""
        return self._keep(self.computation.add(opcode, operands, shape, attributes=attributes))

    def with_operands(
        self, original: HloInstruction, operands: Sequence[HloInstruction], shape: Shape | None = None
    ) -> HloInstruction:
        """A copy of `original` on other operands, its attributes kept, its shape inferred unless given."""
        attributes = {k: v for k, v in original.attributes.items() if k != "control-predecessors"}
        declared = shape or original.shape
        return self._keep(self.computation.add(original.opcode, operands, declared, attributes=attributes))

    def constant(self, value: Any) -> HloInstruction:
        """A constant from a Literal or a numpy array."""
        return self._keep(self.computation.add_constant(value))

    def scalar(self, value: Any, element_type: PrimitiveType) -> HloInstruction:
        """A scalar constant of that type."""
        return self.constant(np.asarray(value).astype(element_type.dtype))

    def splat(self, value: Any, shape: Shape) -> HloInstruction:
        """`value` in every element of an array of `shape`: a scalar constant, broadcast where there are dimensions."""
        scalar = self.scalar(value, shape.element_type)
        return scalar if shape.rank == 0 else self.broadcast(scalar, shape.dimensions, ())

    def broadcast(self, x: HloInstruction, sizes: Sequence[int], dims: Sequence[int]) -> HloInstruction:
        """`x` repeated into `sizes`; dimension i of `x` becomes `dims[i]`.

        A broadcast is looked through, and where nothing is repeated or moved, `x` itself comes back.
        """
        sizes, dims = tuple(sizes), tuple(dims)
        while x.shape.dimensions != sizes or dims != tuple(range(len(sizes))):
            if x.opcode is not Opcode.BROADCAST:
                return self.add(Opcode.BROADCAST, x, shape=x.shape.with_dimensions(sizes), dimensions=dims)
            dims = tuple(dims[d] for d in x.dimensions)
            x = x.operands[0]
        return x

    def reshape(self, x: HloInstruction, sizes: Sequence[int]) -> HloInstruction:
        """`x` with other dimensions; `x` itself where they are the same."""
        if x.shape.dimensions == tuple(sizes):
            return x
        return self.add(Opcode.RESHAPE, x, shape=x.shape.with_dimensions(tuple(sizes)))

    def transpose(self, x: HloInstruction, dims: Sequence[int]) -> HloInstruction:
        """`x` with result dimension i taken from `dims[i]`; `x` itself for the identity."""
        if tuple(dims) == tuple(range(len(dims))):
            return x
        return self.add(Opcode.TRANSPOSE, x, dimensions=tuple(dims))

    def convert(self, x: HloInstruction, element_type: PrimitiveType) -> HloInstruction:
        """`x` in another element type; `x` itself where it has it."""
        if x.shape.element_type is element_type:
            return x
        return self.add(Opcode.CONVERT, x, shape=Shape(element_type, x.shape.dimensions))

    def slice(self, x: HloInstruction, spec: Sequence[SliceDim]) -> HloInstruction:
        """A slice; `x` itself where it takes everything."""
        whole = all(s == SliceDim(0, n) for s, n in zip(spec, x.shape.dimensions, strict=True))
        return x if whole else self.add(Opcode.SLICE, x, slice=tuple(spec))

    def pad(self, x: HloInstruction, value: HloInstruction, spec: Sequence[PadDim]) -> HloInstruction:
        """A pad; `x` itself where it adds nothing."""
        return x if all(p == PadDim(0, 0) for p in spec) else self.add(Opcode.PAD, x, value, padding=tuple(spec))

    def concatenate(self, parts: Sequence[HloInstruction], dim: int) -> HloInstruction:
        """A concatenate; the part itself where there is one."""
        return parts[0] if len(parts) == 1 else self.add(Opcode.CONCATENATE, *parts, dimensions=(dim,))

    def compare(self, a: HloInstruction, b: HloInstruction, direction: str) -> HloInstruction:
        """A comparison (EQ, NE, LT, LE, GT, GE)."""
        return self.add(Opcode.COMPARE, a, b, direction=direction)

    def reduce(
        self, x: HloInstruction, init: HloInstruction, dims: Sequence[int], function: HloComputation
    ) -> HloInstruction:
        """A reduction of one operand."""
        return self.add(Opcode.REDUCE, x, init, dimensions=tuple(dims), to_apply=function)

    def _keep(self, instruction: HloInstruction) -> HloInstruction:
        self.made.append(instruction)
        return instruction
