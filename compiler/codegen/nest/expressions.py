"""Scalar expressions of the loop IR, whose operands are names of values."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.codegen.nest.index import IndexExpr
from compiler.codegen.nest.scalar_ops import ScalarOp
from compiler.ir.opcodes import Opcode


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal scalar of the type of its `Let`."""

    value: bool | int | float


@dataclass(frozen=True, slots=True)
class Opaque:
    """An integer of which the compiler of the language does not know that it is a constant."""

    value: int


@dataclass(frozen=True, slots=True)
class IndexValue:
    """An index used as a value, as in iota."""

    value: IndexExpr


@dataclass(frozen=True, slots=True)
class IndexTest:
    """A pred: low <= value <= high; a bound that is None is not tested, and at least one is not None."""

    value: IndexExpr
    low: int | None
    high: int | None


@dataclass(frozen=True, slots=True)
class Load:
    """An element of an array argument; the printer converts it from the storage type."""

    buffer: str
    offset: IndexExpr


@dataclass(frozen=True, slots=True)
class PairLoad:
    """Two adjacent elements of 16 bits of an array argument, as one integer of 32 bits."""

    buffer: str
    offset: IndexExpr


@dataclass(frozen=True, slots=True)
class PairHalf:
    """The first or second bf16 of a pair."""

    pair: str
    second: bool


@dataclass(frozen=True, slots=True)
class LocalLoad:
    """An element of a local array."""

    array: str
    offset: IndexExpr


@dataclass(frozen=True, slots=True)
class LaneResult:
    """The elements of a local array of f32 or f64, which fill a vector, combined in any order.

    Attributes:
        array: a local array of `lanes` elements.
        combiner: the opcode by which they are combined.
        lanes: a power of two, at least 2.
    """

    array: str
    combiner: Opcode
    lanes: int


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar operation and the names it is applied to."""

    op: ScalarOp
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Current:
    """The current value of an accumulator."""

    name: str


Expr = (
    Constant | Opaque | IndexValue | IndexTest | Load | PairLoad | PairHalf | LocalLoad | LaneResult | Apply | Current
)


def index_of(value: Expr) -> IndexExpr | None:
    """Return the index expression in a scalar expression, if it has one."""
    if isinstance(value, Load | PairLoad | LocalLoad):
        return value.offset
    return value.value if isinstance(value, IndexValue | IndexTest) else None


def names_in(value: Expr) -> tuple[str, ...]:
    """Return the names of values, accumulators and local arrays that a scalar expression reads."""
    if isinstance(value, Apply):
        return value.args
    if isinstance(value, Current):
        return (value.name,)
    if isinstance(value, PairHalf):
        return (value.pair,)
    return (value.array,) if isinstance(value, LocalLoad | LaneResult) else ()
