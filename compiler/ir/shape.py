"""Shapes and layouts: what an HLO value is, before any value is there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from compiler.errors import ShapeError
from compiler.ir.types import PrimitiveType, from_dtype

MAX_TUPLE_DEPTH = 128
"""Deepest nesting of tuples; what walks over shapes may recurse."""
MAX_TUPLE_LEAVES = 1 << 18
"""Most leaves of a tuple. Tuples of tuples double with each line of a program, and every line spells its shape out."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Order of dimensions in memory, fastest first, with what tiling says.

    `suffix` is the text behind the colon (`T(8,128)S(1)`), kept as it was written.
    """

    minor_to_major: tuple[int, ...]
    suffix: str = ""

    def __str__(self) -> str:
        return "{" + ",".join(map(str, self.minor_to_major)) + (f":{self.suffix}" if self.suffix else "") + "}"


UNBOUNDED = -1
"""Size of a dimension written `?`."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An array, tuple, token or opaque shape.

    ShapeError when a tuple nests deeper than MAX_TUPLE_DEPTH or has more than MAX_TUPLE_LEAVES leaves.

    Attributes:
        element_type: TUPLE, TOKEN, OPAQUE and BUFFER mark the shapes that are not arrays.
        dimensions: sizes, major first; UNBOUNDED for `?`. For a dynamic dimension the upper bound.
        layout: None means the default, row-major.
        dynamic: per dimension, whether its size is only bounded (`<=8`); empty means all static.
        tuple_shapes: leaves of a tuple; the one inner shape of a buffer.
        depth: levels of tuples and buffers; 0 for an array.
        leaf_count: how many shapes `leaves` yields.
    """

    element_type: PrimitiveType
    dimensions: tuple[int, ...] = ()
    layout: Layout | None = None
    dynamic: tuple[bool, ...] = ()
    tuple_shapes: tuple[Shape, ...] = ()
    depth: int = field(default=0, init=False, repr=False, compare=False)
    leaf_count: int = field(default=1, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.tuple_shapes:
            depth = 1 + max([s.depth for s in self.tuple_shapes])
            if depth > MAX_TUPLE_DEPTH:
                raise ShapeError(f"tuples nest deeper than {MAX_TUPLE_DEPTH} levels")
            object.__setattr__(self, "depth", depth)
        if self.element_type is PrimitiveType.TUPLE:
            count = sum([s.leaf_count for s in self.tuple_shapes])
            if count > MAX_TUPLE_LEAVES:
                raise ShapeError(f"a tuple has {count} leaves, more than {MAX_TUPLE_LEAVES}")
            object.__setattr__(self, "leaf_count", count)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dimensions)

    @property
    def is_tuple(self) -> bool:
        """Whether it is a tuple, empty ones included."""
        return self.element_type is PrimitiveType.TUPLE

    @property
    def is_array(self) -> bool:
        """Whether it is an array, scalars included."""
        return self.element_type.bits > 0

    @property
    def is_scalar(self) -> bool:
        """Whether it is an array without dimensions."""
        return self.is_array and not self.dimensions

    @property
    def is_token(self) -> bool:
        """Whether it is a token."""
        return self.element_type is PrimitiveType.TOKEN

    @property
    def is_dynamic(self) -> bool:
        """Whether any size, in any leaf, is only bounded."""
        if not self.tuple_shapes:
            return True in self.dynamic
        return any(s.is_dynamic for s in self.tuple_shapes)

    @property
    def num_elements(self) -> int:
        """Elements of an array (1 for a scalar); 0 for what is not an array."""
        return math.prod(self.dimensions) if self.is_array else 0

    @property
    def byte_size(self) -> int:
        """Bytes of the elements, over all leaves of a tuple."""
        if self.is_array:
            return self.num_elements * self.element_type.byte_size
        return sum(s.byte_size for s in self.tuple_shapes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of the elements."""
        return self.element_type.dtype

    def leaves(self) -> Iterator[Shape]:
        """Array, token and opaque shapes from left to right; a shape that is no tuple is its own leaf."""
        stack = [self]
        while stack:
            s = stack.pop()
            if s.is_tuple:
                stack.extend(reversed(s.tuple_shapes))
            else:
                yield s

    def with_type(self, element_type: PrimitiveType) -> Shape:
        """The same sizes in another type."""
        return replace(self, element_type=element_type)

    def with_dimensions(self, dimensions: tuple[int, ...]) -> Shape:
        """Same type, other sizes, default layout, static."""
        return Shape(self.element_type, dimensions)

    def without_layout(self) -> Shape:
        """The same shape, default layouts throughout."""
        if self.layout is None and not self.tuple_shapes:
            return self
        return replace(self, layout=None, tuple_shapes=tuple(s.without_layout() for s in self.tuple_shapes))

    def compatible(self, other: Shape) -> bool:
        """Equal but for layouts and for which dimensions are dynamic."""
        if self is other:
            return True
        return (
            self.element_type is other.element_type
            and self.dimensions == other.dimensions
            and len(self.tuple_shapes) == len(other.tuple_shapes)
            and all(a.compatible(b) for a, b in zip(self.tuple_shapes, other.tuple_shapes, strict=True))
        )

    def same_dimensions(self, other: Shape) -> bool:
        """Whether both are arrays of the same sizes."""
        return self.is_array and other.is_array and self.dimensions == other.dimensions

    def to_text(self, layout: bool = True) -> str:
        """HLO spelling, with the layout unless told not to."""
        t = self.element_type
        if t is PrimitiveType.TUPLE:
            parts = [
                (f"/*index={i}*/" if i and i % 5 == 0 else "") + s.to_text(layout)
                for i, s in enumerate(self.tuple_shapes)
            ]
            return "(" + ", ".join(parts) + ")"
        if t is PrimitiveType.BUFFER:
            return "b(" + self.tuple_shapes[0].to_text(layout) + ")"
        if not self.is_array:
            return t.text + "[]"
        if self.dynamic or UNBOUNDED in self.dimensions:
            text = f"{t.text}[{','.join(self._bounds())}]"
        else:
            text = f"{t.text}[{','.join(map(str, self.dimensions))}]"
        if layout and (self.dimensions or (self.layout and self.layout.suffix)):
            text += str(self.layout or default_layout(len(self.dimensions)))
        return text

    def _bounds(self) -> Iterator[str]:
        """Sizes as they are written: `8`, `<=8`, `?`."""
        for i, d in enumerate(self.dimensions):
            if d == UNBOUNDED:
                yield "?"
            else:
                yield f"<={d}" if self.dynamic and self.dynamic[i] else str(d)

    def __str__(self) -> str:
        return self.to_text(layout=False)


_DEFAULT_LAYOUTS = [Layout(tuple(range(r - 1, -1, -1))) for r in range(12)]


def default_layout(rank: int) -> Layout:
    """Row-major: the last dimension is the fastest."""
    return _DEFAULT_LAYOUTS[rank] if rank < 12 else Layout(tuple(range(rank - 1, -1, -1)))


def too_large(element_type: PrimitiveType, dimensions: Iterable[int]) -> bool:
    """Whether an array's size in bytes goes beyond 63 bits; dimensions of size 0 hide nothing, as in XLA and numpy."""
    return math.prod([n for n in dimensions if n > 0]) * max(1, element_type.byte_size) >= 1 << 63


def array_shape(element_type: PrimitiveType, *dimensions: int) -> Shape:
    """An array of these sizes."""
    return Shape(element_type, tuple(dimensions))


def tuple_shape(*shapes: Shape) -> Shape:
    """A tuple of these shapes."""
    return Shape(PrimitiveType.TUPLE, tuple_shapes=tuple(shapes))


def shape_of(array: Any) -> Shape:
    """Shape of a numpy array or scalar."""
    a = np.asarray(array)
    return Shape(from_dtype(a.dtype), tuple(a.shape))


TOKEN_SHAPE = Shape(PrimitiveType.TOKEN)
