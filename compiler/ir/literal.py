"""Constant values: an array with its shape, or a tuple of literals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.shape import Shape, shape_of, tuple_shape

_MOST_COMPARED = 1 << 16
"""Largest array of which `common_value` compares the elements."""


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A constant value, which is immutable.

    `array` (read-only) is set for array shapes and `elements` for tuples; a token has neither.
    """

    shape: Shape
    array: NDArray[Any] | None = None
    elements: tuple[Literal, ...] = ()
    _common: tuple[Any] | None = field(default=None, init=False, repr=False)  # once it was asked for

    @staticmethod
    def from_array(array: Any, shape: Shape | None = None) -> Literal:
        """Make a literal from a copy of `array`; `shape` can add a layout or a type that numpy lacks (s1, u1)."""
        shape = shape or shape_of(array)
        # Not np.ascontiguousarray, which makes a 0-d array one-dimensional.
        value = np.array(array, dtype=shape.dtype, order="C")
        value.flags.writeable = False
        return Literal(shape, value)

    @staticmethod
    def adopt(array: NDArray[Any], shape: Shape) -> Literal:
        """Make a literal from `array` without a copy; the caller gives up the array, which has the dtype of `shape`."""
        array.flags.writeable = False
        return Literal(shape, array)

    @staticmethod
    def from_tuple(elements: tuple[Literal, ...]) -> Literal:
        """Make a tuple literal."""
        return Literal(tuple_shape(*(e.shape for e in elements)), None, elements)

    @property
    def value(self) -> NDArray[Any]:
        """The array of an array literal; TypeError for tuples and tokens."""
        if self.array is None:
            raise TypeError(f"literal of shape {self.shape} has no array")
        return self.array

    @property
    def common_value(self) -> Any | None:
        """The numpy scalar that all elements of an array have, bit by bit; None if they differ or are very many."""
        if self._common is None:
            object.__setattr__(self, "_common", (self._find_common_value(),))
        return None if self._common is None else self._common[0]

    def _find_common_value(self) -> Any | None:
        a = self.array
        if a is None or a.size == 0 or a.size > _MOST_COMPARED:
            return None
        first = a.flat[0]
        return first if a.size == 1 or a.tobytes() == first.tobytes() * a.size else None

    def is_all(self, number: complex) -> bool:
        """Check whether this is a non-empty array in which every element equals `number`."""
        a = self.array
        return a is not None and a.size > 0 and bool(np.all(a == a.dtype.type(number)))

    def same_value(self, other: Literal) -> bool:
        """Check for bitwise equality of shape (ignoring layout) and contents; a NaN equals a NaN with the same bits."""
        if not self.shape.compatible(other.shape):
            return False
        if self.array is not None and other.array is not None:
            return self.array.tobytes() == other.array.tobytes()
        return all(a.same_value(b) for a, b in zip(self.elements, other.elements, strict=True))
