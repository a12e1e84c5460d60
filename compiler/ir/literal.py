"""Constant values: an array with its shape, or a tuple of such."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.shape import Shape, shape_of, tuple_shape


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A constant.

    `array` is set (and read-only) for array shapes, `elements` for tuples; both are empty for a token.
    """

    shape: Shape
    array: NDArray[Any] | None = None
    elements: tuple[Literal, ...] = ()

    @staticmethod
    def from_array(array: Any, shape: Shape | None = None) -> Literal:
        """A literal of `array`; `shape` may add a layout or a type numpy cannot tell apart (s1, u1)."""
        shape = shape or shape_of(array)
        # ascontiguousarray would turn a 0-d array into one of rank 1.
        value = np.array(array, dtype=shape.dtype, order="C")
        value.flags.writeable = False
        return Literal(shape, value)

    @staticmethod
    def adopt(array: NDArray[Any], shape: Shape) -> Literal:
        """A literal that takes over `array`, which nobody else may hold and which has the shape's dtype already."""
        array.flags.writeable = False
        return Literal(shape, array)

    @staticmethod
    def from_tuple(elements: tuple[Literal, ...]) -> Literal:
        """A tuple of literals."""
        return Literal(tuple_shape(*(e.shape for e in elements)), None, elements)

    @property
    def value(self) -> NDArray[Any]:
        """The array of an array literal; TypeError for a tuple."""
        if self.array is None:
            raise TypeError(f"literal of shape {self.shape} has no array")
        return self.array

    def is_all(self, number: complex) -> bool:
        """Whether this is a non-empty array whose every element equals `number`."""
        a = self.array
        return a is not None and a.size > 0 and bool(np.all(a == a.dtype.type(number)))

    def same_value(self, other: Literal) -> bool:
        """Bitwise equality of shape (layout aside) and contents; NaN equals the same NaN."""
        if not self.shape.compatible(other.shape):
            return False
        if self.array is not None and other.array is not None:
            return self.array.tobytes() == other.array.tobytes()
        return all(a.same_value(b) for a, b in zip(self.elements, other.elements, strict=True))
