"""The loop IR: loop nests over typed scalars, independent of the language that a kernel is printed in.

Values are named scalars, each assigned once by a `Let` (A-normal form) or a `Reduce`. `lower` makes a nest without a
schedule: its loops are INDEPENDENT, SERIAL or ATOMIC, and a reduction is one statement. `bind` applies a schedule: it
gives each loop the kind by which a device runs it, turns reductions into loops over accumulators, and places local
arrays. Printers translate a bound nest to C or CUDA C++ and decide nothing.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.order_method import OrderMethod
from compiler.codegen.nest.scalar_ops import ScalarOp
from compiler.codegen.nest.tile_attention import TileAttention
from compiler.codegen.nest.tiles import TileProduct
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType


class LoopKind(enum.Enum):
    """How the iterations of a loop may run, or after binding, how they do run."""

    INDEPENDENT = "independent"  # not bound: in any order, also at the same time
    ATOMIC = "atomic"  # not bound: independent except for `Update`s of the same element
    SERIAL = "serial"  # in program order
    UNROLLED = "unrolled"  # in program order, written out by the compiler of the language
    VECTOR = "vector"  # SIMD lanes of a CPU
    PARALLEL = "parallel"  # CPU threads; nested parallel loops with nothing between them are one loop
    PARALLEL_VECTOR = "parallel vector"  # CPU threads, each with the SIMD lanes of a range of iterations
    GRID = "grid"  # one element per CUDA thread, over all blocks
    BLOCK = "block"  # CUDA blocks, or teams of threads of CUDA blocks
    THREAD = "thread"  # the threads of a CUDA block, or of the team that runs the iteration of the loop around

    @property
    def is_vector(self) -> bool:
        """Whether iterations run in the SIMD lanes of a CPU."""
        return self in (LoopKind.VECTOR, LoopKind.PARALLEL_VECTOR)


class Scope(enum.Enum):
    """Where a local array is stored."""

    PRIVATE = "private"  # the iteration of the innermost parallel loop, or the CUDA thread
    REGISTER = "register"  # one element per CUDA thread
    SHARED = "shared"  # the threads of a CUDA block
    KERNEL = "kernel"  # all threads of a kernel on a CPU


# ---- scalar expressions, whose operands are names of values


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
class Apply:
    """A scalar operation and the names it is applied to."""

    op: ScalarOp
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Current:
    """The current value of an accumulator."""

    name: str


Expr = Constant | Opaque | IndexValue | IndexTest | Load | PairLoad | PairHalf | LocalLoad | Apply | Current


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


@dataclass(frozen=True, slots=True)
class TransposeTile:
    """array[a * size + b] = buffer[offset + a + b * stride] for a < rows and b < columns, both at most `size`.

    Attributes:
        array: a local array of size * size elements.
        buffer, offset, stride: where the elements are read.
        size: edge of the tile.
        rows, columns: index expressions whose values may exceed `size`; None for whole tiles.
        height: number of rows of a tile that is no square, whose array has height * size elements; 0 for a square.
    """

    array: str
    buffer: str
    offset: IndexExpr
    stride: int
    size: int
    rows: IndexExpr | None = None
    columns: IndexExpr | None = None
    height: int = 0


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
    """buffer[offset + k] = array[k] for k < count, rounded from f32 to f16."""

    buffer: str
    offset: IndexExpr
    array: str
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


@dataclass(frozen=True, slots=True)
class If:
    """A branch on a pred scalar."""

    condition: str
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


@dataclass(frozen=True, slots=True)
class Reduction:
    """One result of a `Reduce`: name = the combination, in any order, of `value` over all iterations.

    Attributes:
        name: the result.
        type: element type of value and result.
        combiner: one of `scalar_ops.COMBINERS`.
        value: the name that the body gives to the value of one iteration.
    """

    name: str
    type: PrimitiveType
    combiner: Opcode
    value: str


@dataclass(frozen=True, slots=True)
class Reduce:
    """Reductions over one domain: all combinations of the values of `vars`. The body computes the values to combine."""

    vars: tuple[Var, ...]
    reductions: tuple[Reduction, ...]
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Combined:
    """An accumulator into which the lanes of a bound loop combine values in any order."""

    accumulator: str
    type: PrimitiveType
    combiner: Opcode


@dataclass(frozen=True, slots=True)
class Team:
    """The threads of a CUDA block that run one iteration of a BLOCK loop together.

    Attributes:
        size: number of threads of a team, a power of two.
        teams: number of teams of a block, which run adjacent iterations.
        strided: whether adjacent threads belong to adjacent teams, rather than to one team.
    """

    size: int
    teams: int
    strided: bool = False

    @property
    def threads(self) -> int:
        """Return the number of threads of a block."""
        return self.size * self.teams


@dataclass(frozen=True, slots=True)
class For:
    """A loop over var = 0 .. extent-1; with a `base`, only while base + var < limit, as in a remainder tile.

    Attributes:
        var: the loop variable.
        kind: how iterations may run.
        body: statements of one iteration.
        combined: accumulators that a VECTOR or THREAD loop combines.
        base, limit: bound on the variable, see above.
        grain: of a PARALLEL loop, the least number of iterations that a thread takes at a time.
        brief: of a PARALLEL loop, whether one thread takes not much longer for it than waking another takes.
        poll: of a long SERIAL loop, the number of iterations between checks for interrupts; 0 for none.
        unroll: of a SERIAL loop, the number of iterations that are written out; 0 leaves it to the compiler.
        team: of a BLOCK loop, the threads that run an iteration; None: those of a block. THREAD loops inside are
            divided among them. The teams that the last block has too many repeat the last iteration without stores.
        blocks: of a BLOCK loop outside of all others, the number of blocks that run it; 0 for one per iteration.
        owner: of an ATOMIC loop, a 64-bit value of the body, and the number of its valid values, such that iterations
            with different values update different elements; None if there is none.
    """

    var: Var
    kind: LoopKind
    body: tuple[Stmt, ...]
    combined: tuple[Combined, ...] = ()
    base: IndexExpr | None = None
    limit: int | None = None
    grain: int = 1
    brief: bool = False
    poll: int = 0
    unroll: int = 0
    team: Team | None = None
    blocks: int = 0
    owner: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class While:
    """A sequential loop that runs as long as a pred scalar, which is computed before each iteration, is true.

    Attributes:
        test: statements that define the pred scalar; the body may use what they define.
        condition: name of the pred scalar.
        body: statements of one iteration.
        counter: a name for the number of the iteration.
        poll: once bound, the number of iterations between checks for interrupts; 0 for none.
    """

    test: tuple[Stmt, ...]
    condition: str
    body: tuple[Stmt, ...]
    counter: str
    poll: int = 0


@dataclass(frozen=True, slots=True)
class ForFound:
    """A loop of a CUDA block over the iterations for which a pred is true, in order.

    The threads of the block compute the preds of adjacent iterations at a time, and all of them run each body.

    Attributes:
        var: the loop variable.
        test: statements that define the pred scalar; they may use the variable and change nothing.
        condition: name of the pred scalar.
        body: statements of one iteration.
    """

    var: Var
    test: tuple[Stmt, ...]
    condition: str
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Barrier:
    """All threads of a CUDA block, or of a warp, wait for each other."""

    warp: bool = False


@dataclass(frozen=True, slots=True)
class CombineThreads:
    """Each accumulator becomes the combination of those of all threads of a team, in every thread of it.

    Attributes:
        combined: the accumulators.
        team: the team; None for all threads of a CUDA block.
    """

    combined: tuple[Combined, ...]
    team: Team | None = None


@dataclass(frozen=True, slots=True)
class ScanWarp:
    """name = the combination of the values of the threads of a warp up to this one; whole = that of all of them."""

    name: str
    whole: str
    type: PrimitiveType
    combiner: Opcode
    value: str


@dataclass(frozen=True, slots=True)
class ScanWarps:
    """name = the combination of the values of the warps of a block before this one; whole = that of all of them.

    All threads of a warp have the same value, and all threads of the block take part.
    """

    name: str
    whole: str
    type: PrimitiveType
    combiner: Opcode
    value: str


@dataclass(frozen=True, slots=True)
class OrderRow:
    """order[n] = the number of the element at position n < count of a row that a CUDA block sorts; see `SortByKey`.

    Attributes:
        element: variable of an element number; its extent is the number of elements.
        read: statements that define the scalar `key` of an element.
        key: name of the key.
        type: element type of the key; floats are in total order.
        descending: whether the largest key comes first; ties are still in order of the elements.
        order: local array of S32. It has each * threads elements, or that many for each word of an entry if the row is
            longer.
        count: number of positions that are needed.
        words: number of 32-bit words of an entry: the key, and the number in the low half of one word or in one word.
        each: number of entries in the registers of a thread, a power of two.
        threads: number of threads of the block, a power of two.
    """

    element: Var
    read: tuple[Stmt, ...]
    key: str
    type: PrimitiveType
    descending: bool
    order: str
    count: int
    words: int
    each: int
    threads: int


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
class Matrix:
    """A matrix in an array: element (r, c) is at `offset + r * row + c * column`; `local` arrays may be read past c."""

    array: str
    offset: IndexExpr
    row: int
    column: int
    local: bool


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """target = decay * target + lhs rhs, or lhs rhs if there is no `decay`.

    Attributes:
        target: rows x columns; its columns are adjacent.
        lhs: rows x depth.
        rhs: depth x columns; its columns are adjacent.
        type: element type of all three in memory, f32 or f64.
        rows, columns, depth: sizes.
        decay: local array of a factor for each column; empty for none.
        tile, narrow_tile: rows and vectors of a register tile for 32 registers of 512 bits, and for 16 of 256 bits.
    """

    target: Matrix
    lhs: Matrix
    rhs: Matrix
    type: PrimitiveType
    rows: Span
    columns: Span
    depth: Span
    decay: str = ""
    tile: tuple[int, int] = (8, 3)
    narrow_tile: tuple[int, int] = (4, 2)

    @property
    def matrices(self) -> tuple[Matrix, Matrix, Matrix]:
        """Return target, lhs and rhs."""
        return self.target, self.lhs, self.rhs

    @property
    def spans(self) -> tuple[Span, Span, Span]:
        """Return rows, columns and depth."""
        return self.rows, self.columns, self.depth

    def map_indices(self, f: Callable[[IndexExpr], IndexExpr]) -> MatrixProduct:
        """Return the statement with `f` applied to its index expressions."""
        target, lhs, rhs = (replace(m, offset=f(m.offset)) for m in self.matrices)
        rows, columns, depth = (s.map_base(f) for s in self.spans)
        return replace(self, target=target, lhs=lhs, rhs=rhs, rows=rows, columns=columns, depth=depth)

    @property
    def indices(self) -> tuple[IndexExpr, ...]:
        """Return its index expressions."""
        return (*(m.offset for m in self.matrices), *(s.base for s in self.spans if s.base is not None))


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


@dataclass(frozen=True, slots=True)
class SortByKey:
    """For each row, a loop over its elements in ascending order of a key, ties in order of the elements.

    Attributes:
        row: variable of a row; rows are independent.
        element: variable of an element number; its extent is the number of elements of a row.
        read: statements that define the scalar `key` of an element.
        key: name of the key.
        type: element type of the key; floats are in total order.
        descending: whether the largest key comes first; ties are still in order of the elements.
        position: variable of a position in the order; its extent is the number of positions that are needed.
        body: statements that run for each position, `element` being the element at that position.
        grain: once bound, the least number of rows that a thread takes at a time; 0 for no threads.
        method: once bound, the parameters of the algorithms.
    """

    row: Var
    element: Var
    read: tuple[Stmt, ...]
    key: str
    type: PrimitiveType
    descending: bool
    position: Var
    body: tuple[Stmt, ...]
    grain: int = 0
    method: OrderMethod = field(default_factory=OrderMethod)


@dataclass(frozen=True, slots=True)
class Carry:
    """A value that a `Scan` carries from step to step.

    Attributes:
        name: the value before a step.
        type: element type.
        start: name of the value before the first step.
        next: the name that the body gives to the value after a step.
    """

    name: str
    type: PrimitiveType
    start: str
    next: str


@dataclass(frozen=True, slots=True)
class Scan:
    """For each row, a sequential loop that carries values from step to step.

    Attributes:
        rows: two variables of independent rows; elements that differ by one in the second are adjacent in memory,
            unless its extent is 1.
        step: variable of a step.
        carries: the carried values.
        body: statements of one step: values and stores.
        combiner: if not None, the only carry is the combination of `value` over the steps, in any order.
        value: a name that the body defines without reading the carry.
    """

    rows: tuple[Var, Var]
    step: Var
    carries: tuple[Carry, ...]
    body: tuple[Stmt, ...]
    combiner: Opcode | None = None
    value: str = ""


@dataclass(frozen=True, slots=True)
class ForFlagged:
    """Loops over the positions 0 .. extent-1 whose flag is not zero; slot n belongs to the n-th of them.

    Attributes:
        flags: local array of S32 with one flag per position.
        position: variable of a position; its extent is the number of flags.
        slot: variable of a slot; its extent is at least the number of flags, rounded up to whole groups.
        group: number of slots, at most 16, to a multiple of which the slots of `body` are rounded up.
        body: statements that run for all slots, on vectors; a slot without a flagged position runs them for any
            position.
        ordered: statements that run after `body`, one after another, for the slots that have a flagged position.
    """

    flags: str
    position: Var
    slot: Var
    group: int
    body: tuple[Stmt, ...]
    ordered: tuple[Stmt, ...]


Stmt = (
    Let
    | Accumulator
    | Assign
    | LocalArray
    | LocalStore
    | TransposeTile
    | Store
    | StorePair
    | StreamStore
    | WidenHalves
    | NarrowHalves
    | WideLoad
    | WideStore
    | Update
    | If
    | Reduce
    | For
    | While
    | ForFound
    | Barrier
    | CombineThreads
    | ScanWarp
    | ScanWarps
    | OrderRow
    | Sort
    | MatrixProduct
    | TileProduct
    | TileAttention
    | SortByKey
    | Scan
    | ForFlagged
)
Body = tuple[Stmt, ...]


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
            along its row), "transpose", "in-place-update", "scatter", "sort", "top-k", "scan" or "loop-kernel".
        arguments: inputs first, then outputs.
        in_place: pairs of (input, output) argument positions that may share one buffer.
        must_alias: pairs of (input, output) argument positions that must share one buffer, because the kernel writes
            only part of the output.
        vector_bits: width of the SIMD vectors of a kernel bound to a CPU; 0 for scalar code.
        threads: threads per block of a kernel bound to a GPU.
        resident: of a kernel bound to a GPU, the blocks that a multiprocessor should hold at a time; 0 for any number.
        flags: position in COMPILER_FLAGS of the flags for a kernel bound to a CPU.
        nests: number of loop nests that compute outputs of different shapes one after the other.
    """

    kind: str
    arguments: tuple[Argument, ...]
    body: Body
    in_place: tuple[tuple[int, int], ...] = ()
    must_alias: tuple[tuple[int, int], ...] = ()
    vector_bits: int = 0
    threads: int = 0
    flags: int = 0
    nests: int = 1
    resident: int = 0


# ---- traversal and rewriting


_BODIES: dict[type, Callable[[Any], tuple[Body, ...]]] = {
    For: lambda s: (s.body,),
    Reduce: lambda s: (s.body,),
    Scan: lambda s: (s.body,),
    If: lambda s: (s.then, s.otherwise),
    While: lambda s: (s.test, s.body),
    ForFound: lambda s: (s.test, s.body),
    SortByKey: lambda s: (s.read, s.body),
    OrderRow: lambda s: (s.read,),
    ForFlagged: lambda s: (s.body, s.ordered),
    Sort: lambda s: (s.compare, s.body),
    TileProduct: lambda s: s.bodies,
    TileAttention: lambda s: s.bodies,
}


def bodies_of(s: Stmt) -> tuple[Body, ...]:
    """Return the statement lists nested in a statement."""
    found = _BODIES.get(type(s))
    return () if found is None else found(s)


def map_bodies(s: Stmt, f: Callable[[Body], Body]) -> Stmt:
    """Return a statement with `f` applied to each statement list nested in it."""
    if isinstance(s, For | Reduce | Scan):
        return replace(s, body=f(s.body))
    if isinstance(s, If):
        return replace(s, then=f(s.then), otherwise=f(s.otherwise))
    if isinstance(s, While | ForFound):
        return replace(s, test=f(s.test), body=f(s.body))
    if isinstance(s, SortByKey):
        return replace(s, read=f(s.read), body=f(s.body))
    if isinstance(s, OrderRow):
        return replace(s, read=f(s.read))
    if isinstance(s, ForFlagged):
        return replace(s, body=f(s.body), ordered=f(s.ordered))
    if isinstance(s, TileProduct | TileAttention):
        return s.map_bodies(f)
    return replace(s, compare=f(s.compare), body=f(s.body)) if isinstance(s, Sort) else s


def walk(body: Body) -> Iterator[Stmt]:
    """Yield every statement, outer before inner."""
    for s in body:
        yield s
        for inner in bodies_of(s):
            yield from walk(inner)


def index_of(value: Expr) -> IndexExpr | None:
    """Return the index expression in a scalar expression, if it has one."""
    if isinstance(value, Load | PairLoad | LocalLoad):
        return value.offset
    return value.value if isinstance(value, IndexValue | IndexTest) else None


def map_indices(body: Body, f: Callable[[IndexExpr], IndexExpr]) -> Body:
    """Return the statements with `f` applied to every index expression."""
    return tuple(_map_one(s, f) for s in body)


def _map_one(s: Stmt, f: Callable[[IndexExpr], IndexExpr]) -> Stmt:
    if isinstance(s, Let):
        v = s.value
        if isinstance(v, Load | PairLoad | LocalLoad):
            return replace(s, value=replace(v, offset=f(v.offset)))
        if isinstance(v, IndexValue | IndexTest):
            return replace(s, value=replace(v, value=f(v.value)))
        return s
    if isinstance(s, Store | StorePair | LocalStore | Update | WidenHalves | NarrowHalves | WideLoad | WideStore):
        return replace(s, offset=f(s.offset))
    if isinstance(s, MatrixProduct):
        return s.map_indices(f)
    if isinstance(s, TransposeTile):
        rows, columns = (None if x is None else f(x) for x in (s.rows, s.columns))
        return replace(s, offset=f(s.offset), rows=rows, columns=columns)
    if isinstance(s, StreamStore):
        return replace(s, offset=f(s.offset), span=s.span.map_base(f))
    if isinstance(s, For) and s.base is not None:
        s = replace(s, base=f(s.base))
    if isinstance(s, TileProduct | TileAttention):
        s = s.map_indices(f)
    return map_bodies(s, lambda inner: map_indices(inner, f))


def indices_in(body: Body) -> Iterator[IndexExpr]:
    """Yield every index expression in the statements."""
    for s in walk(body):
        yield from _indices_of(s)


def _indices_of(s: Stmt) -> Iterator[IndexExpr]:
    """Yield the index expressions of a statement, without those of the statements nested in it."""
    if isinstance(s, Let):
        found = index_of(s.value)
        if found is not None:
            yield found
    elif isinstance(s, Store | StorePair | LocalStore | Update | WidenHalves | NarrowHalves | WideLoad | WideStore):
        yield s.offset
    elif isinstance(s, StreamStore):
        yield from (x for x in (s.offset, s.span.base) if x is not None)
    elif isinstance(s, TransposeTile):
        yield from (x for x in (s.offset, s.rows, s.columns) if x is not None)
    elif isinstance(s, For) and s.base is not None:
        yield s.base
    elif isinstance(s, MatrixProduct | TileProduct | TileAttention):
        yield from s.indices


def names_used(body: Body) -> Iterator[str]:
    """Yield the names that statements read or assign: values, accumulators, local arrays and loop variables."""
    for s in walk(body):
        yield from names_of(s)


def names_of(s: Stmt) -> Iterator[str]:
    """Yield the names that a statement itself reads or assigns, without those of the statements nested in it."""
    if isinstance(s, Let):
        yield from _names_of(s.value)
    elif isinstance(s, Accumulator):
        yield s.init
    elif isinstance(s, Assign):
        yield from (s.name, s.value)
    elif isinstance(s, LocalStore):
        yield from (s.array, s.value)
    elif isinstance(s, TransposeTile | StreamStore | WidenHalves | NarrowHalves | WideLoad | WideStore):
        yield s.array
    elif isinstance(s, Store | Update | ScanWarp | ScanWarps):
        yield s.value
    elif isinstance(s, StorePair):
        yield from (s.first, s.second)
    elif isinstance(s, If | While | ForFound):
        yield s.condition
    elif isinstance(s, Reduce):
        yield from (r.value for r in s.reductions)
    elif isinstance(s, Sort):
        yield s.before
    elif isinstance(s, MatrixProduct):
        yield from (*(m.array for m in s.matrices), s.decay)
    elif isinstance(s, TileProduct | TileAttention):
        yield from s.names
    elif isinstance(s, SortByKey):
        yield s.key
    elif isinstance(s, OrderRow):
        yield from (s.key, s.order)
    elif isinstance(s, Scan):
        yield from (name for c in s.carries for name in (c.start, c.next))
        yield s.value
    elif isinstance(s, ForFlagged):
        yield s.flags
    for i in _indices_of(s):
        yield from (v.name for v in i.variables())


def _names_of(value: Expr) -> tuple[str, ...]:
    if isinstance(value, Apply):
        return value.args
    if isinstance(value, Current):
        return (value.name,)
    if isinstance(value, PairHalf):
        return (value.pair,)
    return (value.array,) if isinstance(value, LocalLoad) else ()


def names_defined(body: Body) -> Iterator[str]:
    """Yield the names that statements define."""
    for s in walk(body):
        if isinstance(s, Let | Accumulator | LocalArray):
            yield s.name
        elif isinstance(s, ScanWarp | ScanWarps):
            yield from (s.name, s.whole)
        elif isinstance(s, For):
            yield s.var.name
        elif isinstance(s, Reduce):
            yield from (v.name for v in s.vars)
            yield from (r.name for r in s.reductions)
        elif isinstance(s, Sort):
            yield from (s.left.name, s.right.name, s.position.name)
        elif isinstance(s, Scan):
            yield from (v.name for v in (*s.rows, s.step))
            yield from (c.name for c in s.carries)
        elif isinstance(s, TileProduct | TileAttention):
            yield from s.defined
        elif isinstance(s, SortByKey):
            yield from (s.row.name, s.element.name, s.position.name)
        elif isinstance(s, OrderRow):
            yield s.element.name
        elif isinstance(s, ForFlagged):
            yield from (s.position.name, s.slot.name)


UNKNOWN_TRIPS = 10
"""Iterations that are assumed for a loop whose number of iterations is known only at run time."""
PRODUCTS_PER_STATEMENT = 1
"""Multiplications of a `MatrixProduct` that take as long as a statement in a vector loop."""
EXPENSIVE_STATEMENTS = 8
"""Statements that take as long as an expensive one, such as a division or an inline exponential."""


def work_of(body: Body, expensive: int = EXPENSIVE_STATEMENTS) -> int:
    """Return the number of statements that one execution runs, as an estimate of its work.

    Args:
        body: the statements.
        expensive: how many statements an expensive one counts as.
    """
    total = 0
    for s in body:
        if isinstance(s, For):
            total += s.var.extent * work_of(s.body, expensive)
        elif isinstance(s, Reduce):
            runs = 1
            for v in s.vars:
                runs *= v.extent
            total += runs * (work_of(s.body, expensive) + len(s.reductions))
        elif isinstance(s, If):
            total += 1 + max(work_of(s.then, expensive), work_of(s.otherwise, expensive))
        elif isinstance(s, While):
            total += UNKNOWN_TRIPS * (1 + work_of(s.test, expensive) + work_of(s.body, expensive))
        elif isinstance(s, Sort):
            n = s.position.extent
            total += n * (max(1, n - 1).bit_length() * (2 + work_of(s.compare, expensive)) + work_of(s.body, expensive))
        elif isinstance(s, MatrixProduct):
            total += 1 + math.prod(span.extent for span in s.spans) // PRODUCTS_PER_STATEMENT
        elif isinstance(s, TileProduct | TileAttention):
            total += s.products // PRODUCTS_PER_STATEMENT + s.results * work_of(s.epilogue)
        elif isinstance(s, Scan):
            total += s.rows[0].extent * s.rows[1].extent * s.step.extent * (work_of(s.body, expensive) + len(s.carries))
        elif isinstance(s, SortByKey):
            n, k = s.element.extent, s.position.extent
            total += s.row.extent * (n * work_of(s.read, expensive) + k * (k.bit_length() + work_of(s.body, expensive)))
        elif isinstance(s, ForFlagged):  # as many groups as there are if one position in 16 is flagged
            total += (
                s.position.extent // 16 * (work_of(s.body, expensive) + work_of(s.ordered, expensive))
                + s.position.extent
            )
        elif isinstance(s, StreamStore):
            total += s.span.extent
        elif isinstance(s, WidenHalves | NarrowHalves | WideLoad | WideStore):
            total += s.count
        elif isinstance(s, TransposeTile):
            total += s.size * (s.height or s.size)
        elif isinstance(s, Let) and isinstance(s.value, Apply) and s.value.op.is_expensive:
            total += expensive
        elif not (isinstance(s, Let) and isinstance(s.value, Constant)):
            total += 1
    return total
