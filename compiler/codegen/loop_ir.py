"""The loop IR: loop nests over typed scalars, independent of the language that a kernel is printed in.

Values are named scalars, each assigned once by a `Let` (A-normal form). Mutable state is an `Accumulator` or a
`LocalArray`. Each loop has a kind that says how its iterations may run. Schedules rewrite the IR, and printers
translate it to C or CUDA C++.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from compiler.codegen.index import IndexExpr, Var
from compiler.ir.types import PrimitiveType


class LoopKind(enum.Enum):
    """How a device may run the iterations of a loop."""

    PARALLEL = "parallel"  # independent: CPU threads, CUDA blocks
    LANE = "lane"  # independent or a reduction, contiguous where it can be: SIMD lanes, CUDA threads
    SERIAL = "serial"  # in program order
    ATOMIC = (
        "atomic"  # independent except for `Update`s of the same element: in order on a CPU, atomics in CUDA threads
    )


# ---- scalar expressions, whose operands are names of lets


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal scalar, printed by `codegen.scalar.constant_text`."""

    text: str


@dataclass(frozen=True, slots=True)
class IndexValue:
    """An index used as a value, as in iota."""

    value: IndexExpr


@dataclass(frozen=True, slots=True)
class Load:
    """An element of an array argument; the printer converts it from the storage type."""

    buffer: str
    offset: IndexExpr


@dataclass(frozen=True, slots=True)
class LocalLoad:
    """An element of a local array."""

    array: str
    offset: IndexExpr


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar operation: an expression template such as `"{0} + {1}"` and the names it is applied to."""

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
    """name = value, a definition."""

    name: str
    type: PrimitiveType
    value: Expr


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A mutable scalar; `init` is the name of its initial value."""

    name: str
    type: PrimitiveType
    init: str


@dataclass(frozen=True, slots=True)
class Assign:
    """accumulator = value, an assignment."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class LocalArray:
    """An array that is local to the enclosing parallel iteration."""

    name: str
    type: PrimitiveType
    size: int


@dataclass(frozen=True, slots=True)
class LocalStore:
    """array[offset] = value for a local array."""

    array: str
    offset: IndexExpr
    value: str


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[offset] = value for an array argument; the printer converts the value to the storage type."""

    buffer: str
    offset: IndexExpr
    value: str


@dataclass(frozen=True, slots=True)
class Update:
    """buffer[offset] = combine(buffer[offset], value), atomically; combiners are named as in `Reduction`."""

    buffer: str
    offset: IndexExpr
    combiner: str
    value: str


@dataclass(frozen=True, slots=True)
class If:
    """A branch on a pred scalar."""

    condition: str
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction that a LANE or PARALLEL loop may perform in any order."""

    accumulator: str
    type: PrimitiveType
    combiner: str  # "add", "multiply", "maximum", "minimum", "and" or "or", see codegen.scalar.COMBINERS
    identity: str


@dataclass(frozen=True, slots=True)
class For:
    """A loop over var = 0 .. extent-1; with a `base`, only while base + var < limit, as in a remainder tile."""

    var: Var
    kind: LoopKind
    body: tuple[Stmt, ...]
    reductions: tuple[Reduction, ...] = ()
    base: IndexExpr | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Sort:
    """A stable sort of the element numbers 0 .. extent-1, followed by a loop over the sorted order.

    Attributes:
        left, right: variables of the two element numbers that are compared; their extent is the number of elements.
        compare: statements that define the pred scalar `before`.
        before: name of the pred scalar that says whether element `right` comes before element `left`.
        position: variable of a position in the sorted order; in `body`, `left` is the element number at that position.
        body: statements that run for each position.
    """

    left: Var
    right: Var
    compare: tuple[Stmt, ...]
    before: str
    position: Var
    body: tuple[Stmt, ...]


Stmt = Let | Accumulator | Assign | LocalArray | LocalStore | Store | Update | If | For | Sort


@dataclass(frozen=True, slots=True)
class Argument:
    """An array argument of a kernel; `elements` is the size of the array."""

    name: str
    type: PrimitiveType
    elements: int
    is_output: bool


@dataclass(frozen=True, slots=True)
class Kernel:
    """A complete kernel that has no symbol yet.

    Attributes:
        kind: "loop", "reduction" (of rows), "column-reduction", "block" (a reduction whose result is broadcast back
            along its row), "transpose", "in-place-update", "scatter", "sort" or "loop-kernel".
        arguments: inputs first, then outputs.
        in_place: pairs of (input, output) argument positions that may share one buffer.
        must_alias: pairs of (input, output) argument positions that must share one buffer, because the kernel writes
            only part of the output.
    """

    kind: str
    arguments: tuple[Argument, ...]
    body: tuple[Stmt, ...]
    in_place: tuple[tuple[int, int], ...] = ()
    must_alias: tuple[tuple[int, int], ...] = ()


def walk(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Yield every statement, outer before inner."""
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


def map_indices(body: tuple[Stmt, ...], f: Callable[[IndexExpr], IndexExpr]) -> tuple[Stmt, ...]:
    """Return the statements with `f` applied to every index expression."""
    return tuple(_map_one(s, f) for s in body)


def _map_one(s: Stmt, f: Callable[[IndexExpr], IndexExpr]) -> Stmt:
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


def indices_in(body: tuple[Stmt, ...]) -> Iterator[IndexExpr]:
    """Yield every index expression in the statements."""
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
    """Yield the names that statements read or assign: values, accumulators, local arrays and loop variables."""
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
    """Yield the names that statements define."""
    for s in walk(body):
        if isinstance(s, Let | Accumulator | LocalArray):
            yield s.name
        elif isinstance(s, For):
            yield s.var.name
        elif isinstance(s, Sort):
            yield from (s.left.name, s.right.name, s.position.name)
