"""What a shape rule is given, and the small checks all rules are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import ml_dtypes

from compiler.errors import ShapeError
from compiler.ir.shape import UNBOUNDED, Shape
from compiler.ir.types import PrimitiveType


class Signature(Protocol):
    """What a rule may ask of a called computation."""

    @property
    def name(self) -> str:
        """Without the percent sign."""
        ...

    @property
    def parameter_shapes(self) -> tuple[Shape, ...]:
        """By parameter number."""
        ...

    @property
    def result_shape(self) -> Shape:
        """The root's shape."""
        ...


@dataclass(frozen=True, slots=True)
class ShapeQuery:
    """Everything a shape rule may look at."""

    operands: Sequence[Shape]
    attributes: Mapping[str, Any]
    declared: Shape | None

    def attr(self, name: str) -> Any:
        """An attribute that must be there."""
        if name not in self.attributes:
            raise ShapeError(f"attribute {name} is missing")
        return self.attributes[name]

    def ints(self, name: str) -> tuple[int, ...]:
        """A list-of-int attribute; absent means empty."""
        value: tuple[int, ...] = self.attributes.get(name, ())
        return value


ShapeRule = Callable[[ShapeQuery], Shape]


def need(condition: bool, message: str, *parts: object) -> None:
    """ShapeError unless the condition holds; `parts` fill the braces of the message, and are spelled only then."""
    if not condition:
        raise ShapeError(message.format(*parts) if parts else message)


def array(q: ShapeQuery, i: int) -> Shape:
    """The i-th operand, which must be an array."""
    s = q.operands[i]
    if not s.is_array:
        raise ShapeError(f"operand {i} must be an array, is {s}")
    return s


def declared(q: ShapeQuery) -> Shape:
    """The result shape of ops whose result does not follow from their operands."""
    if q.declared is None:
        raise ShapeError("the result shape must be written out: it does not follow from the operands")
    return q.declared


def distinct_dims(dims: Sequence[int], rank: int, what: str) -> None:
    """Dimension numbers within the rank, each once."""
    need(len(set(dims)) == len(dims), f"{what} has repeated dimensions: {list(dims)}")
    need(all(0 <= d < rank for d in dims), f"{what} {list(dims)} out of range for rank {rank}")


def fits(a: int, b: int) -> bool:
    """Whether two sizes agree; one not known agrees with any."""
    return a == b or UNBOUNDED in (a, b)


def same_but_precision(a: Shape, b: Shape) -> bool:
    """Compatible shapes, any two floating-point types counting as one."""
    if a.is_tuple or b.is_tuple:
        return len(a.tuple_shapes) == len(b.tuple_shapes) and all(
            same_but_precision(x, y) for x, y in zip(a.tuple_shapes, b.tuple_shapes, strict=True)
        )
    same_type = a.element_type is b.element_type or (a.element_type.is_float and b.element_type.is_float)
    return same_type and a.dimensions == b.dimensions


def dynamic_flags(s: Shape) -> tuple[bool, ...]:
    """One flag a dimension, also for a static shape."""
    return s.dynamic or (False,) * s.rank


def with_sizes(s: Shape, sizes: Sequence[int], flags: Sequence[bool]) -> Shape:
    """Same type, other sizes, default layout, these dimensions dynamic."""
    return Shape(s.element_type, tuple(sizes), None, tuple(flags) if any(flags) else ())


@cache
def _precision(t: PrimitiveType) -> tuple[bool, int, int, int, bool]:
    """Complex before real, then range and precision of floating-point numbers, then width, then signed integers."""
    info = ml_dtypes.finfo(t.dtype) if t.is_float or t.is_complex else None  # type: ignore[no-untyped-call]
    exponent, mantissa = (-1, -1) if info is None else (int(info.maxexp), int(info.nmant))
    return t.is_complex, exponent, mantissa, t.bits, t.is_signed


def higher_precision(a: PrimitiveType, b: PrimitiveType) -> PrimitiveType:
    """The type an op on mixed operands yields when its result type is not written out.

    Source: `HigherPrecisionType` in XLA's `xla/primitive_util.h`.
    """
    return b if _precision(b) > _precision(a) else a


def combined(shapes: Sequence[Shape]) -> Shape:
    """One shape as it is, several as a tuple."""
    return shapes[0] if len(shapes) == 1 else Shape(PrimitiveType.TUPLE, tuple_shapes=tuple(shapes))


def is_prefix(part: Shape, whole: Shape) -> bool:
    """Whether one shape is the beginning of another: tuples may lack their last elements, at any depth."""
    if part.compatible(whole) or (part.is_tuple and not part.tuple_shapes):
        return True
    if not (part.is_tuple and whole.is_tuple) or len(part.tuple_shapes) > len(whole.tuple_shapes):
        return False
    return all(is_prefix(a, b) for a, b in zip(part.tuple_shapes, whole.tuple_shapes, strict=False))


def same_buffer(a: Shape, b: Shape) -> bool:
    """Compatible shapes, a buffer counting as what it holds: pinning a value makes a buffer of it in place."""
    unwrapped = (s.tuple_shapes[0] if s.element_type is PrimitiveType.BUFFER else s for s in (a, b))
    return next(unwrapped).compatible(next(unwrapped))
