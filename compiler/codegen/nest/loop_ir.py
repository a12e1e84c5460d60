"""The loop IR: loop nests over typed scalars, independent of the language that a kernel is printed in.

Values are named scalars, each assigned once by a `Let` (A-normal form) or a `Reduce`. `lower` makes a nest without a
schedule: its loops are INDEPENDENT, SERIAL or ATOMIC, and a reduction is one statement. `bind` applies a schedule: it
gives each loop the kind by which a device runs it, turns reductions into loops over accumulators, and places local
arrays. Printers translate a bound nest to C or CUDA C++ and decide nothing.

This module has the scalars, loops and kernels, and names the whole language; its other statements are defined in
`memory`, `orders`, `teams`, `matrix_product`, `tiles`, `tile_attention` and `tile_chain`, its scalar expressions in
`expressions`. `traversal` walks and rewrites statements, `work` estimates them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from compiler.codegen.nest.expressions import (
    Apply,
    Constant,
    Current,
    Expr,
    IndexTest,
    IndexValue,
    LaneResult,
    Load,
    LocalLoad,
    Opaque,
    PairHalf,
    PairLoad,
    index_of,
)
from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.matrix_product import Matrix, MatrixProduct
from compiler.codegen.nest.memory import (
    CopyElements,
    LocalArray,
    LocalStore,
    NarrowHalves,
    RepeatElements,
    Scope,
    Span,
    Store,
    StorePair,
    StoreTransposed,
    StreamStore,
    TransposeTile,
    Update,
    WideLoad,
    WidenHalves,
    WideStore,
)
from compiler.codegen.nest.orders import Carry, ForFlagged, Scan, Sort, SortByKey
from compiler.codegen.nest.teams import (
    Barrier,
    Combined,
    CombineThreads,
    ForFound,
    OrderCompared,
    OrderRow,
    ScanWarp,
    ScanWarps,
    Team,
)
from compiler.codegen.nest.tile_attention import TileAttention
from compiler.codegen.nest.tile_chain import TileChain
from compiler.codegen.nest.tiles import TileProduct
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType

__all__ = [
    "Accumulator",
    "Apply",
    "Argument",
    "Assign",
    "Barrier",
    "Body",
    "Carry",
    "CombineThreads",
    "Combined",
    "Constant",
    "CopyElements",
    "Current",
    "Expr",
    "For",
    "ForFlagged",
    "ForFound",
    "If",
    "IndexTest",
    "IndexValue",
    "Kernel",
    "LaneResult",
    "Let",
    "Load",
    "LocalArray",
    "LocalLoad",
    "LocalStore",
    "LoopKind",
    "Matrix",
    "MatrixProduct",
    "NarrowHalves",
    "Opaque",
    "OrderCompared",
    "OrderRow",
    "PairHalf",
    "PairLoad",
    "Reduce",
    "Reduction",
    "RepeatElements",
    "Scan",
    "ScanWarp",
    "ScanWarps",
    "Scope",
    "Sort",
    "SortByKey",
    "Span",
    "Stmt",
    "Store",
    "StorePair",
    "StoreTransposed",
    "StreamStore",
    "Team",
    "TileAttention",
    "TileChain",
    "TileProduct",
    "TransposeTile",
    "Update",
    "While",
    "WideLoad",
    "WideStore",
    "WidenHalves",
    "index_of",
]


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


Stmt = (
    Let
    | Accumulator
    | Assign
    | LocalArray
    | LocalStore
    | TransposeTile
    | StoreTransposed
    | RepeatElements
    | Store
    | StorePair
    | StreamStore
    | WidenHalves
    | NarrowHalves
    | CopyElements
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
    | OrderCompared
    | OrderRow
    | Sort
    | MatrixProduct
    | TileProduct
    | TileAttention
    | TileChain
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
            along its row), "transpose", "in-place-update", "scatter", "sort", "top-k", "scan", "loop-kernel" or
            "block-loop" (a loop that blocks of threads run).
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

    @property
    def types(self) -> dict[str, PrimitiveType]:
        """The element types of the arguments, by name."""
        return {a.name: a.type for a in self.arguments}

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of the arguments, by name."""
        return {a.name: a.elements * a.type.byte_size for a in self.arguments}
