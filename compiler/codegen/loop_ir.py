"""The loop IR: what a kernel does, before any language spells it.

Values are named scalars, each assigned once by a `Let` (A-normal form); mutable state is an `Accumulator` or a
`LocalArray`. Loops carry a kind that says how a device may run them. Printers turn this into C or CUDA C++; schedules
rewrite it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from compiler.codegen.index import Int, Var
from compiler.ir.types import PrimitiveType


class LoopKind(enum.Enum):
    """How the iterations of a loop may run."""

    PARALLEL = "parallel"  # independent: CPU threads, CUDA blocks
    LANE = "lane"  # independent or a reduction, contiguous where it can be: SIMD lanes, CUDA threads
    SERIAL = "serial"  # in order
    ATOMIC = "atomic"  # independent but for `Update`s of one element: in order on a CPU, CUDA threads with atomics


# ---- scalar expressions (operands are names of lets)


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal scalar, as the text `codegen.scalar.constant_text` gives it."""

    text: str


@dataclass(frozen=True, slots=True)
class IndexValue:
    """An index used as a value (iota)."""

    value: Int


@dataclass(frozen=True, slots=True)
class Load:
    """Element of an array argument; conversion from the storage type is the printer's."""

    buffer: str
    offset: Int


@dataclass(frozen=True, slots=True)
class LocalLoad:
    """Element of a local array."""

    array: str
    offset: Int


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar operation as an expression template over names: `"{0} + {1}"`."""

    template: str
    args: tuple[str, ...]

    def text(self) -> str:
        return self.template.format(*self.args)


@dataclass(frozen=True, slots=True)
class Current:
    """The current value of an accumulator."""

    name: str


Expr = Constant | IndexValue | Load | LocalLoad | Apply | Current


# ---- statements


@dataclass(frozen=True, slots=True)
class Let:
    """name = value, once."""

    name: str
    type: PrimitiveType
    value: Expr


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A mutable scalar with its initial value (a name)."""

    name: str
    type: PrimitiveType
    init: str


@dataclass(frozen=True, slots=True)
class Assign:
    """accumulator = value."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class LocalArray:
    """An array local to the enclosing parallel iteration. `per_lane`: element t is only touched by lane t."""

    name: str
    type: PrimitiveType
    size: int
    per_lane: bool = True


@dataclass(frozen=True, slots=True)
class LocalStore:
    """array[offset] = value, in a local array."""

    array: str
    offset: Int
    value: str


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[offset] = value; conversion to the storage type is the printer's."""

    buffer: str
    offset: Int
    value: str


@dataclass(frozen=True, slots=True)
class Update:
    """buffer[offset] = combine(buffer[offset], value), indivisibly; the combiner as in `Reduction`."""

    buffer: str
    offset: Int
    combiner: str
    value: str


@dataclass(frozen=True, slots=True)
class If:
    """Statements run when a pred scalar holds, or else others."""

    condition: str
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


@dataclass(frozen=True, slots=True)
class Reduction:
    """What a LANE or PARALLEL loop accumulates: combine(accumulator, element) in any order."""

    accumulator: str
    type: PrimitiveType
    combiner: str  # "add", "multiply", "maximum", "minimum", "and", "or": see codegen.scalar.COMBINERS
    identity: str


@dataclass(frozen=True, slots=True)
class For:
    """var = 0 .. extent-1. With `tile_of`, only while base + var < limit (a tile at the edge)."""

    var: Var
    kind: LoopKind
    body: tuple[Stmt, ...]
    reductions: tuple[Reduction, ...] = ()
    base: Int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Sort:
    """Order the numbers 0 .. extent-1 stably, then run statements for each place.

    Attributes:
        left, right: variables of two numbers that are compared; their extent is how many there are.
        compare: statements that tell whether `right` comes before `left`; `before` is that pred scalar.
        place: variable of a place in the order; `left` is then the number that stands there.
        body: statements run for each place.
    """

    left: Var
    right: Var
    compare: tuple[Stmt, ...]
    before: str
    place: Var
    body: tuple[Stmt, ...]


Stmt = Let | Accumulator | Assign | LocalArray | LocalStore | Store | Update | If | For | Sort


@dataclass(frozen=True, slots=True)
class Argument:
    """An array argument of a kernel."""

    name: str
    type: PrimitiveType
    elements: int
    is_output: bool


@dataclass(frozen=True, slots=True)
class Kernel:
    """A whole kernel, before its name is known.

    Attributes:
        kind: "loop", "reduction" (row), "column-reduction", "block" (a reduction whose result is broadcast back along
            its row), "transpose", "in-place-update", "scatter", "sort", "loop-kernel".
        arguments: inputs, then outputs, in order of the call.
        in_place: (input, output) argument positions that may be one buffer.
        must_alias: (input, output) positions that must be one buffer: the kernel writes only part of the output.
    """

    kind: str
    arguments: tuple[Argument, ...]
    body: tuple[Stmt, ...]
    in_place: tuple[tuple[int, int], ...] = ()
    must_alias: tuple[tuple[int, int], ...] = ()


def walk(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement, outer before inner."""
    for s in body:
        yield s
        if isinstance(s, For):
            yield from walk(s.body)
        elif isinstance(s, If):
            yield from walk(s.then)
            yield from walk(s.otherwise)
        elif isinstance(s, Sort):
            yield from walk(s.compare)
            yield from walk(s.body)


def map_indices(body: tuple[Stmt, ...], f: Callable[[Int], Int]) -> tuple[Stmt, ...]:
    """The same statements with `f` applied to every index expression."""
    return tuple(_map_one(s, f) for s in body)


def _map_one(s: Stmt, f: Callable[[Int], Int]) -> Stmt:
    if isinstance(s, Let):
        v = s.value
        if isinstance(v, Load | LocalLoad):
            return replace(s, value=replace(v, offset=f(v.offset)))
        if isinstance(v, IndexValue):
            return replace(s, value=IndexValue(f(v.value)))
        return s
    if isinstance(s, Store | LocalStore | Update):
        return replace(s, offset=f(s.offset))
    if isinstance(s, If):
        return replace(s, then=map_indices(s.then, f), otherwise=map_indices(s.otherwise, f))
    if isinstance(s, Sort):
        return replace(s, compare=map_indices(s.compare, f), body=map_indices(s.body, f))
    if isinstance(s, For):
        base = None if s.base is None else f(s.base)
        return replace(s, body=map_indices(s.body, f), base=base)
    return s


def indices_in(body: tuple[Stmt, ...]) -> Iterator[Int]:
    """Every index expression."""
    for s in walk(body):
        if isinstance(s, Let) and isinstance(s.value, Load | LocalLoad):
            yield s.value.offset
        elif isinstance(s, Let) and isinstance(s.value, IndexValue):
            yield s.value.value
        elif isinstance(s, Store | LocalStore | Update):
            yield s.offset
        elif isinstance(s, For) and s.base is not None:
            yield s.base


def names_used(body: tuple[Stmt, ...]) -> Iterator[str]:
    """Every name that statements read or assign: values, accumulators, local arrays, loop variables."""
    for s in walk(body):
        if isinstance(s, Let):
            yield from _names_of(s.value)
        elif isinstance(s, Accumulator):
            yield s.init
        elif isinstance(s, Assign):
            yield from (s.name, s.value)
        elif isinstance(s, LocalStore):
            yield from (s.array, s.value)
        elif isinstance(s, Store | Update):
            yield s.value
        elif isinstance(s, If):
            yield s.condition
    for i in indices_in(body):
        yield from (v.name for v in i.variables())


def _names_of(value: Expr) -> tuple[str, ...]:
    if isinstance(value, Apply):
        return value.args
    if isinstance(value, Current):
        return (value.name,)
    return (value.array,) if isinstance(value, LocalLoad) else ()


def names_defined(body: tuple[Stmt, ...]) -> Iterator[str]:
    """Every name that statements introduce."""
    for s in walk(body):
        if isinstance(s, Let | Accumulator | LocalArray):
            yield s.name
        elif isinstance(s, For):
            yield s.var.name
        elif isinstance(s, Sort):
            yield from (s.left.name, s.right.name, s.place.name)
