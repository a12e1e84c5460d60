"""Products of tiles on a GPU: what the threads of a block compute together, from tiles of operands in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from compiler.codegen.nest.index import IndexExpr, Var
from compiler.ir.types import PrimitiveType

HALF_TYPES = frozenset({PrimitiveType.F16, PrimitiveType.BF16})
"""Element types whose products tensor cores compute."""

LARGE_BLOCK = 256
"""Threads of a block of which two fill the registers of a multiprocessor with 128 for each thread."""
NOWHERE = IndexExpr()
"""The offset of what is in no buffer."""


@dataclass(frozen=True, slots=True)
class TileShape:
    """How a block of threads divides a product.

    Attributes:
        rows, columns: size of the tile of the result that a block computes.
        depth: steps along the contracted dimension whose operands are in shared memory at a time.
        row_parts, column_parts: number of parts into which the tile is divided, for warps (tensor cores) or threads.
        stages: number of steps of `depth` that are in shared memory.
        depth_parts: groups of threads that take the steps of `depth` in turns; one for tensor cores.
    """

    rows: int
    columns: int
    depth: int
    row_parts: int
    column_parts: int
    stages: int = 2
    depth_parts: int = 1


GROUP = "group_"
"""Name of the array of elements that are computed at a time."""
LEFT, RIGHT = "left_", "right_"
"""Names of the elements of a row and of a column from which a term is computed."""


def group_number(along: Var, group: int) -> Var:
    """Return the variable that numbers the groups of so many elements along a variable."""
    return Var(f"{along.name}w", along.extent // group)


@dataclass(frozen=True, slots=True)
class TileOperand:
    """An operand of a product: the element at a free index and a position along the depth.

    Attributes:
        body: statements that compute the element, or where it is copied.
        value: name of the element; where elements are copied, of the test without which they are 0, if there is one.
        along_depth: whether elements that are adjacent in memory follow each other along the depth.
        buffer: the array argument from which elements are copied as they are; empty if `body` computes them.
        offset: of the element in the buffer.
        vector: number of adjacent elements that are copied at a time, aligned to their size.
        group: number of adjacent elements that `group_body` computes at a time; 0 for none.
        group_body: statements that put these elements into the local array GROUP.
    """

    body: tuple[Any, ...]
    value: str
    along_depth: bool
    buffer: str = ""
    offset: IndexExpr = NOWHERE
    vector: int = 0
    group: int = 0
    group_body: tuple[Any, ...] = ()

    def along(self, free: Var, depth: Var) -> Var:
        """Return the variable along which adjacent elements follow each other."""
        return depth if self.along_depth else free


def half_words(rows: int, depth: int, operand: TileOperand) -> int:
    """Return the words of 32 bits of a tile of rows x depth elements of 16 bits, with four between its lines."""
    return rows * (depth // 2 + 4) if operand.along_depth else depth * (rows // 2 + 4)


def scalar_elements(t: TileShape) -> int:
    """Return the elements in shared memory without tensor cores: two stages, in whose place the results are put."""
    return t.depth_parts * max(2 * t.depth * (t.rows + t.columns + 8), t.row_parts * (t.columns + 4))


@dataclass(frozen=True, slots=True)
class TileProduct:
    """A tile of a matrix product, and what is computed from its elements.

    Attributes:
        row, column, depth: the variables of the whole product, which the bodies use.
        first_row, first_column: the position of the tile.
        lhs: the operand with the elements (row, depth).
        rhs: the operand with the elements (column, depth).
        type: element type of the operands in shared memory; products of f16 and bf16 use tensor cores.
        sums: type in which the products are added up.
        result: name of the sum in `epilogue`.
        epilogue: statements that run for each element of the tile; they contain the stores.
        shape: sizes of the tile.
        group: number of adjacent columns that the epilogue takes at a time, whose sums are in the local array GROUP;
            0 for single sums.
        term: statements that compute from the elements LEFT and RIGHT what is added up, if it is not their product.
        term_value: name of this term; empty for products.
    """

    row: Var
    column: Var
    depth: Var
    first_row: IndexExpr
    first_column: IndexExpr
    lhs: TileOperand
    rhs: TileOperand
    type: PrimitiveType
    sums: PrimitiveType
    result: str
    epilogue: tuple[Any, ...]
    shape: TileShape
    group: int = 0
    term: tuple[Any, ...] = ()
    term_value: str = ""

    @property
    def bodies(self) -> tuple[tuple[Any, ...], ...]:
        """Return the statement lists in it."""
        return self.lhs.body, self.rhs.body, self.epilogue, self.term

    def map_bodies(self, f: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> TileProduct:
        """Return the statement with `f` applied to each statement list in it."""
        return replace(
            self,
            lhs=replace(self.lhs, body=f(self.lhs.body)),
            rhs=replace(self.rhs, body=f(self.rhs.body)),
            epilogue=f(self.epilogue),
            term=f(self.term),
        )

    @property
    def indices(self) -> tuple[IndexExpr, ...]:
        """Return its own index expressions, without those of the bodies."""
        return self.first_row, self.first_column, self.lhs.offset, self.rhs.offset

    def map_indices(self, f: Callable[[IndexExpr], IndexExpr]) -> TileProduct:
        """Return the statement with `f` applied to its own index expressions."""
        return replace(
            self,
            first_row=f(self.first_row),
            first_column=f(self.first_column),
            lhs=replace(self.lhs, offset=f(self.lhs.offset)),
            rhs=replace(self.rhs, offset=f(self.rhs.offset)),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names that it reads."""
        return self.lhs.value, self.rhs.value, self.term_value

    @property
    def defined(self) -> tuple[str, ...]:
        """Return the names that it defines."""
        return self.row.name, self.column.name, self.depth.name, self.result, LEFT, RIGHT

    @property
    def products(self) -> int:
        """Return the number of multiplications of one tile."""
        return self.shape.rows * self.shape.columns * self.depth.extent

    @property
    def results(self) -> int:
        """Return the number of elements that a tile has."""
        return self.shape.rows * self.shape.columns

    @property
    def uses_tensor_cores(self) -> bool:
        """Whether tensor cores compute the product; shared memory then holds two elements per word of 32 bits."""
        return self.type in HALF_TYPES

    @property
    def threads(self) -> int:
        """Return the number of threads of a block."""
        t = self.shape
        return t.row_parts * t.column_parts * (32 if self.uses_tensor_cores else t.depth_parts)

    @property
    def resident(self) -> int:
        """Return how many blocks a multiprocessor should hold, for which the compiler limits registers; 0: any."""
        copied = bool(self.lhs.vector and self.rhs.vector)
        return 2 if self.uses_tensor_cores and copied and self.threads == LARGE_BLOCK else 0

    @property
    def shared_elements(self) -> int:
        """Return the size of the array in shared memory: the stages, in whose place the results are put later."""
        t = self.shape
        if not self.uses_tensor_cores:
            return scalar_elements(t)
        stage = half_words(t.rows, t.depth, self.lhs) + half_words(t.columns, t.depth, self.rhs)
        return max(t.stages * stage, t.row_parts * 16 * (t.columns + 8))

    @property
    def shared_bytes(self) -> int:
        """Return the bytes of shared memory that a block needs."""
        return self.shared_elements * (4 if self.uses_tensor_cores else self.type.byte_size)
