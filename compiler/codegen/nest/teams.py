"""Statements of the loop IR by which the threads of a GPU work together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler.codegen.nest.index import Var
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType

if TYPE_CHECKING:
    from compiler.codegen.nest.loop_ir import Stmt


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
class Combined:
    """An accumulator into which the lanes of a bound loop combine values in any order."""

    accumulator: str
    type: PrimitiveType
    combiner: Opcode


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
class OrderCompared:
    """order[n] = the number of the element at position n of a row that a CUDA block sorts; see `Sort`.

    Attributes:
        left, right: variables of two element numbers; their extent is the number of elements.
        compare: statements that define the pred scalar `before`.
        before: name of the pred scalar that says whether element `right` comes before element `left`.
        order: local array of S32, whose size is a power of two.
        size: its size.
    """

    left: Var
    right: Var
    compare: tuple[Stmt, ...]
    before: str
    order: str
    size: int


@dataclass(frozen=True, slots=True)
class ForFound:
    """A loop of a CUDA block over the iterations for which a pred is true, in order.

    The threads of the block compute the preds of adjacent iterations at a time, and all of them run each body.

    Attributes:
        var: the loop variable.
        test: statements that define the pred scalar; they may use the variable and change nothing.
        condition: name of the pred scalar.
        body: statements of one iteration.
        gather: statements that only the thread runs for which the pred is true, after the test.
        kept: names and types of scalars that the test or `gather` defines and the body uses. The thread puts them into
            shared memory, so that no thread of the body waits for memory.
        threads: the first so many threads run the bodies, which have no barriers then; 0: all.
    """

    var: Var
    test: tuple[Stmt, ...]
    condition: str
    body: tuple[Stmt, ...]
    gather: tuple[Stmt, ...] = ()
    kept: tuple[tuple[str, PrimitiveType], ...] = ()
    threads: int = 0


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
            longer; of one thread it has `count`.
        count: number of positions that are needed.
        words: number of 32-bit words of an entry: the key, and the number in the low half of one word or in one word.
        each: number of entries in the registers of a thread, a power of two; of one thread the number of elements.
        threads: number of threads of the block, a power of two; 1: each thread sorts a row of its own.
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
