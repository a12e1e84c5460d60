"""Statements of the loop IR that read and write memory: local arrays, stores, wide accesses and tiles."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace

from compiler.codegen.nest.index import IndexExpr, const
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType


class Scope(enum.Enum):
    """Where a local array is stored."""

    PRIVATE = "private"  # the iteration of the innermost parallel loop, or the CUDA thread
    REGISTER = "register"  # one element per CUDA thread
    SHARED = "shared"  # the threads of a CUDA block
    DYNAMIC = "dynamic"  # the threads of a CUDA block, in shared memory of a size that the launch says
    KERNEL = "kernel"  # all threads of a kernel on a CPU


@dataclass(frozen=True, slots=True)
class Span:
    """A number of rows, columns or steps: `extent`, or with a `base`, what remains of it: min(extent, limit - base)."""

    extent: int
    base: IndexExpr | None = None
    limit: int = 0

    @property
    def total(self) -> int:
        """Return the number over all values of the base."""
        return self.extent if self.base is None else self.limit

    def map_base(self, f: Callable[[IndexExpr], IndexExpr]) -> Span:
        """Return the span with `f` applied to its base."""
        return self if self.base is None else replace(self, base=f(self.base))


@dataclass(frozen=True, slots=True)
class LocalArray:
    """An array that exists only while the kernel runs."""

    name: str
    type: PrimitiveType
    size: int
    scope: Scope = Scope.PRIVATE


@dataclass(frozen=True, slots=True)
class LocalStore:
    """array[offset] = value for a local array."""

    array: str
    offset: IndexExpr
    value: str


_START = const(0)


@dataclass(frozen=True, slots=True)
class TransposeTile:
    """array[to + a * size + b] = buffer[offset + a + b * stride] for a < rows and b < columns, both at most `size`.

    Attributes:
        array: a local array of size * size elements, or an array argument.
        buffer, offset, stride: where the elements are read: an array argument, or a local array of f32 or f64.
        size: edge of the tile.
        rows, columns: index expressions whose values may exceed `size`; None for whole tiles.
        height: number of rows of a tile that is no square, whose array has height * size elements; 0 for a square.
        to: where the tile begins in the array.
        pitch: distance of the rows of the tile in the array; 0: `size`.
    """

    array: str
    buffer: str
    offset: IndexExpr
    stride: int
    size: int
    rows: IndexExpr | None = None
    columns: IndexExpr | None = None
    height: int = 0
    to: IndexExpr = _START
    pitch: int = 0


@dataclass(frozen=True, slots=True)
class StoreTransposed:
    """buffer[offset + a + b * stride] = array[a * size + b] for a < stride and b < size: rows from their columns."""

    buffer: str
    offset: IndexExpr
    stride: int
    array: str
    size: int


@dataclass(frozen=True, slots=True)
class RepeatElements:
    """array[k] = source[k / times] for k < size * times, both local arrays of `type`; `size` is a multiple of 64.

    The elements have 8 or 32 bits, as they are computed.
    """

    array: str
    source: str
    type: PrimitiveType
    times: int
    size: int


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[offset] = value for an array argument; the printer converts the value to the storage type."""

    buffer: str
    offset: IndexExpr
    value: str


@dataclass(frozen=True, slots=True)
class StorePair:
    """buffer[offset] = first and buffer[offset + 1] = second for an array argument of bf16."""

    buffer: str
    offset: IndexExpr
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class StreamStore:
    """buffer[offset + k] = array[k] for all k < span, past the caches.

    The array argument has the same type in memory as the local array.
    """

    buffer: str
    offset: IndexExpr
    array: str
    span: Span


@dataclass(frozen=True, slots=True)
class WidenHalves:
    """array[k] = buffer[offset + k] for k < count, whose elements are f16; those of the local array are f32."""

    array: str
    buffer: str
    offset: IndexExpr
    count: int


@dataclass(frozen=True, slots=True)
class NarrowHalves:
    """buffer[offset + k] = array[start + k] for k < count, rounded from f32 to f16; the array may be in memory."""

    buffer: str
    offset: IndexExpr
    array: str
    start: IndexExpr
    count: int


@dataclass(frozen=True, slots=True)
class CopyElements:
    """buffer[offset + k] = source[start + k] for k < count; both are arrays in memory, of one type, which are apart."""

    buffer: str
    offset: IndexExpr
    source: str
    start: IndexExpr
    count: int


@dataclass(frozen=True, slots=True)
class WideLoad:
    """array[k] = buffer[offset + k] for k < count, in one access; the offset is a multiple of the count."""

    array: str
    buffer: str
    offset: IndexExpr
    count: int


@dataclass(frozen=True, slots=True)
class WideStore:
    """buffer[offset + k] = array[k] for k < count, in one access; the offset is a multiple of the count."""

    buffer: str
    offset: IndexExpr
    array: str
    count: int


@dataclass(frozen=True, slots=True)
class Update:
    """buffer[offset] = combine(buffer[offset], value), atomically."""

    buffer: str
    offset: IndexExpr
    combiner: Opcode
    value: str
