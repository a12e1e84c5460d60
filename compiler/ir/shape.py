"""Shapes and layouts of HLO values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from compiler.errors import ShapeError
from compiler.ir.types import PrimitiveType, from_dtype

MAX_TUPLE_DEPTH = 128
"""Deepest nesting of tuples, so that functions over shapes may recurse."""
MAX_TUPLE_LEAVES = 1 << 18
"""Largest number of leaves of a tuple: tuples of tuples can double with each line of a program."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The order of dimensions in memory, fastest-varying first, with its tiling.

    `suffix` is the text after the colon (`T(8,128)S(1)`), kept verbatim.
    """

    minor_to_major: tuple[int, ...]
    suffix: str = ""

    def __str__(self) -> str:
        return "{" + ",".join(map(str, self.minor_to_major)) + (f":{self.suffix}" if self.suffix else "") + "}"


UNBOUNDED = -1
"""Size of a dimension written as `?`."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of an array, tuple, token, buffer or opaque value.

    Raises ShapeError if a tuple nests deeper than MAX_TUPLE_DEPTH or has more than MAX_TUPLE_LEAVES leaves.

    Attributes:
        element_type: of an array; TUPLE, TOKEN, OPAQUE and BUFFER denote the other kinds of shape.
        dimensions: sizes, most major first; UNBOUNDED for `?`, the upper bound for a dynamic dimension.
        layout: None for the default, row-major layout.
        dynamic: for each dimension, whether its size is only bounded (`<=8`); empty if all are static.
        tuple_shapes: the elements of a tuple, or the one inner shape of a buffer.
        depth: nesting levels of tuples and buffers; 0 for an array.
        leaf_count: number of shapes that `leaves` yields.
        is_array: whether it is an array, possibly a scalar.
        num_elements: number of elements of an array (1 for a scalar); 0 for other shapes.
    """

    element_type: PrimitiveType
    dimensions: tuple[int, ...] = ()
    layout: Layout | None = None
    dynamic: tuple[bool, ...] = ()
    tuple_shapes: tuple[Shape, ...] = ()
    depth: int = field(default=0, init=False, repr=False, compare=False)
    leaf_count: int = field(default=1, init=False, repr=False, compare=False)
    # Found once, because they are read very often.
    is_array: bool = field(default=False, init=False, repr=False, compare=False)
    num_elements: int = field(default=0, init=False, repr=False, compare=False)
    _text: str = field(default="", init=False, repr=False, compare=False)  # with layout, once it was asked for
    _hash: int = field(default=0, init=False, repr=False, compare=False)  # 0 until it is asked for

    def __post_init__(self) -> None:
        if self.element_type.bits > 0:
            object.__setattr__(self, "is_array", True)
            object.__setattr__(self, "num_elements", math.prod(self.dimensions))
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

    def __hash__(self) -> int:
        if not self._hash:
            parts = self.element_type, self.dimensions, self.layout, self.dynamic, self.tuple_shapes
            object.__setattr__(self, "_hash", hash(parts))
        return self._hash

    def __reduce__(self) -> tuple[type[Shape], tuple[Any, ...]]:
        # What was found is left out: hashes of element types differ between processes.
        return Shape, (self.element_type, self.dimensions, self.layout, self.dynamic, self.tuple_shapes)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dimensions)

    @property
    def is_tuple(self) -> bool:
        """Whether it is a tuple, possibly empty."""
        return self.element_type is PrimitiveType.TUPLE

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
        """Whether any dimension of any leaf is dynamic."""
        if not self.tuple_shapes:
            return True in self.dynamic
        return any(s.is_dynamic for s in self.tuple_shapes)

    @property
    def byte_size(self) -> int:
        """Size of the elements in bytes, summed over the leaves of a tuple."""
        if self.is_array:
            return self.num_elements * self.element_type.byte_size
        return sum(s.byte_size for s in self.tuple_shapes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the elements."""
        return self.element_type.dtype

    def leaves(self) -> Iterator[Shape]:
        """Yield the leaves of a tuple (arrays, tokens, opaques, buffers) from left to right, or a non-tuple itself."""
        stack = [self]
        while stack:
            s = stack.pop()
            if s.is_tuple:
                stack.extend(reversed(s.tuple_shapes))
            else:
                yield s

    def with_type(self, element_type: PrimitiveType) -> Shape:
        """Return the same shape with another element type."""
        return replace(self, element_type=element_type)

    def with_dimensions(self, dimensions: tuple[int, ...]) -> Shape:
        """Return a static shape with the same element type, other sizes and the default layout."""
        return Shape(self.element_type, dimensions)

    def without_layout(self) -> Shape:
        """Return the same shape with default layouts in all leaves."""
        if self.layout is None and not self.tuple_shapes:
            return self
        return replace(self, layout=None, tuple_shapes=tuple(s.without_layout() for s in self.tuple_shapes))

    def compatible(self, other: Shape) -> bool:
        """Check for equality, ignoring layouts and which dimensions are dynamic."""
        if self is other:
            return True
        return (
            self.element_type is other.element_type
            and self.dimensions == other.dimensions
            and len(self.tuple_shapes) == len(other.tuple_shapes)
            and all(a.compatible(b) for a, b in zip(self.tuple_shapes, other.tuple_shapes, strict=True))
        )

    def same_dimensions(self, other: Shape) -> bool:
        """Check whether both are arrays of the same sizes."""
        return self.is_array and other.is_array and self.dimensions == other.dimensions

    def to_text(self, layout: bool = True) -> str:
        """Return the HLO text of the shape, by default with its layout."""
        if not layout:
            return self._to_text(False)
        if not self._text:
            object.__setattr__(self, "_text", self._to_text(True))
        return self._text

    def _to_text(self, layout: bool) -> str:
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
        """Yield the sizes as printed: `8`, `<=8`, `?`."""
        for i, d in enumerate(self.dimensions):
            if d == UNBOUNDED:
                yield "?"
            else:
                yield f"<={d}" if self.dynamic and self.dynamic[i] else str(d)

    def __str__(self) -> str:
        return self.to_text(layout=False)


_DEFAULT_LAYOUTS = [Layout(tuple(range(r - 1, -1, -1))) for r in range(12)]


def default_layout(rank: int) -> Layout:
    """Return the row-major layout: the last dimension varies fastest."""
    return _DEFAULT_LAYOUTS[rank] if rank < 12 else Layout(tuple(range(rank - 1, -1, -1)))


def too_large(element_type: PrimitiveType, dimensions: Iterable[int]) -> bool:
    """Check whether an array exceeds 2^63 bytes; as in XLA and numpy, dimensions of size 0 count as 1."""
    return math.prod([n for n in dimensions if n > 0]) * max(1, element_type.byte_size) >= 1 << 63


def array_shape(element_type: PrimitiveType, *dimensions: int) -> Shape:
    """Return an array shape."""
    return Shape(element_type, tuple(dimensions))


def tuple_shape(*shapes: Shape) -> Shape:
    """Return a tuple shape."""
    return Shape(PrimitiveType.TUPLE, tuple_shapes=tuple(shapes))


def shape_of(array: Any) -> Shape:
    """Return the shape of a numpy array or scalar."""
    a = np.asarray(array)
    return Shape(from_dtype(a.dtype), tuple(a.shape))


TOKEN_SHAPE = Shape(PrimitiveType.TOKEN)
