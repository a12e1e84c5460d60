"""The input of shape rules, and the checks that rules share."""

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
    """What a rule needs to know of a called computation."""

    @property
    def name(self) -> str:
        """The name, without the percent sign."""
        ...

    @property
    def parameter_shapes(self) -> tuple[Shape, ...]:
        """The shapes of the parameters, ordered by number."""
        ...

    @property
    def result_shape(self) -> Shape:
        """The shape of the root."""
        ...


@dataclass(frozen=True, slots=True)
class ShapeQuery:
    """The input of a shape rule: operand shapes, attributes and the declared result shape, if any."""

    operands: Sequence[Shape]
    attributes: Mapping[str, Any]
    declared: Shape | None

    def attr(self, name: str) -> Any:
        """Return a required attribute; raise ShapeError if it is missing."""
        if name not in self.attributes:
            raise ShapeError(f"attribute {name} is missing")
        return self.attributes[name]

    def ints(self, name: str) -> tuple[int, ...]:
        """Return an attribute that is a list of integers; empty if it is absent."""
        value: tuple[int, ...] = self.attributes.get(name, ())
        return value


ShapeRule = Callable[[ShapeQuery], Shape]


def need(condition: bool, message: str, *parts: object) -> None:
    """Raise ShapeError unless `condition` holds; `parts` fill the braces of the message, formatted only then."""
    if not condition:
        raise ShapeError(message.format(*parts) if parts else message)


def array(q: ShapeQuery, i: int) -> Shape:
    """Return the shape of the i-th operand; raise ShapeError unless it is an array."""
    s = q.operands[i]
    if not s.is_array:
        raise ShapeError(f"operand {i} must be an array, is {s}")
    return s


def declared(q: ShapeQuery) -> Shape:
    """Return the declared result shape, for ops whose result does not follow from their operands."""
    if q.declared is None:
        raise ShapeError("it does not follow from the operands; declare it before the opcode")
    return q.declared


def distinct_dims(dims: Sequence[int], rank: int, what: str) -> None:
    """Raise ShapeError unless the dimension numbers are distinct and within the rank."""
    need(len(set(dims)) == len(dims), f"{what} has repeated dimensions: {list(dims)}")
    need(all(0 <= d < rank for d in dims), f"{what} {list(dims)} out of range for rank {rank}")


def fits(a: int, b: int) -> bool:
    """Check whether two sizes agree; an unbounded size agrees with any."""
    return a == b or UNBOUNDED in (a, b)


def same_but_precision(a: Shape, b: Shape) -> bool:
    """Check whether two shapes are compatible if all floating-point types count as one."""
    if a.is_tuple or b.is_tuple:
        return len(a.tuple_shapes) == len(b.tuple_shapes) and all(
            same_but_precision(x, y) for x, y in zip(a.tuple_shapes, b.tuple_shapes, strict=True)
        )
    same_type = a.element_type is b.element_type or (a.element_type.is_float and b.element_type.is_float)
    return same_type and a.dimensions == b.dimensions


def dynamic_flags(s: Shape) -> tuple[bool, ...]:
    """Return one dynamic flag per dimension, also for a static shape."""
    return s.dynamic or (False,) * s.rank


def with_sizes(s: Shape, sizes: Sequence[int], flags: Sequence[bool]) -> Shape:
    """Return a shape of the same element type and the default layout, with these sizes and dynamic flags."""
    return Shape(s.element_type, tuple(sizes), None, tuple(flags) if any(flags) else ())


@cache
def _precision(t: PrimitiveType) -> tuple[bool, int, int, int, bool]:
    """Return a sort key: complex above real, then floating-point range and precision, then width, then signedness."""
    info = ml_dtypes.finfo(t.dtype) if t.is_float or t.is_complex else None  # type: ignore[no-untyped-call]
    exponent, mantissa = (-1, -1) if info is None else (int(info.maxexp), int(info.nmant))
    return t.is_complex, exponent, mantissa, t.bits, t.is_signed


def higher_precision(a: PrimitiveType, b: PrimitiveType) -> PrimitiveType:
    """Return the element type of an op on mixed operands whose result type is not declared.

    Source: `HigherPrecisionType` in XLA's `xla/primitive_util.h`.
    """
    return b if _precision(b) > _precision(a) else a


def combined(shapes: Sequence[Shape]) -> Shape:
    """Return a single shape as it is, and several as a tuple."""
    return shapes[0] if len(shapes) == 1 else Shape(PrimitiveType.TUPLE, tuple_shapes=tuple(shapes))


def is_prefix(part: Shape, whole: Shape) -> bool:
    """Check whether a shape is a prefix of another: at any depth, tuples may lack their last elements."""
    if part.compatible(whole) or (part.is_tuple and not part.tuple_shapes):
        return True
    if not (part.is_tuple and whole.is_tuple) or len(part.tuple_shapes) > len(whole.tuple_shapes):
        return False
    return all(is_prefix(a, b) for a, b in zip(part.tuple_shapes, whole.tuple_shapes, strict=False))


def same_buffer(a: Shape, b: Shape) -> bool:
    """Check whether two shapes are compatible after unwrapping buffers: pinning makes a buffer of a value in place."""
    unwrapped = (s.tuple_shapes[0] if s.element_type is PrimitiveType.BUFFER else s for s in (a, b))
    return next(unwrapped).compatible(next(unwrapped))
