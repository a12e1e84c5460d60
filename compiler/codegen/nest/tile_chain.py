"""Chained products on a GPU: products whose one operand is computed from other products, which are never stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.tile_attention import TileMask
from compiler.codegen.nest.tiles import TileOperand, half_words
from compiler.ir.types import PrimitiveType

HELD_DEPTH = 128
"""Elements of all left operands together up to which they stay in registers."""
STAGES = 2
"""Tiles of columns that are in shared memory: one is used while the next one is copied."""


@dataclass(frozen=True, slots=True)
class ChainShape:
    """How a block of threads divides chained products.

    Attributes:
        rows: rows of a block, 16 for each warp.
        columns: columns whose weights are computed at a time.
        depths: depths of the inner products, rounded up to whole matrices.
        features: features of the results, likewise.
    """

    rows: int
    columns: int
    depths: tuple[int, ...]
    features: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InnerProduct:
    """A product of rows and columns from which weights are computed.

    Attributes:
        depth: variable along which it is summed.
        left: the operand with the elements (row, depth).
        right: the operand with the elements (column, depth).
        name: name of an element in `TileChain.weighing`.
    """

    depth: Var
    left: TileOperand
    right: TileOperand
    name: str


@dataclass(frozen=True, slots=True)
class OuterProduct:
    """A product of weights and values.

    Attributes:
        feature: variable of its features.
        values: the operand with the elements (feature, column).
        source: number of the inner product whose right operand has the same elements, or -1.
        weight: name of the weight in `TileChain.weighing`.
        exact: whether weights are multiplied with more precision than that of the operands.
        result: name of an element of the result in `epilogue`.
        epilogue: statements that run for each element of the result; they contain the stores.
        group: number of adjacent features that the epilogue takes at a time, which are in the local array GROUP; 0 for
            single ones.
    """

    feature: Var
    values: TileOperand
    source: int
    weight: str
    exact: bool
    result: str
    epilogue: tuple[Any, ...]
    group: int = 0


@dataclass(frozen=True, slots=True)
class KeptValues:
    """Values of f32 that are computed once for a row or a column.

    Attributes:
        body: statements that compute them.
        names: their names.
    """

    body: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TileChain:
    """A tile of rows of one or two outer products, whose weights are computed from one or two inner products.

    result(row, feature) = sum over columns of weight(row, column) * values(column, feature).

    Attributes:
        row, column: the variables of the whole products, which the bodies use.
        first_row: the first row of the tile.
        inner: the inner products.
        outer: the outer products.
        type: element type of the operands in shared memory.
        weighing: statements that compute the weights from the inner products.
        row_values: values of f32 that `weighing` reads and that depend on the row alone.
        column_values: those that depend on the column alone.
        mask: a test for tiles of columns whose weights are all 0, or None.
        reach: statements that compute the number that has to be at least `mask.limit` for that.
        reached: name of this number.
        by_row: whether this number depends on the row, otherwise on the column.
        shape: sizes of the tiles.
    """

    row: Var
    column: Var
    first_row: IndexExpr
    inner: tuple[InnerProduct, ...]
    outer: tuple[OuterProduct, ...]
    type: PrimitiveType
    weighing: tuple[Any, ...]
    row_values: KeptValues
    column_values: KeptValues
    mask: TileMask | None
    reach: tuple[Any, ...]
    reached: str
    by_row: bool
    shape: ChainShape

    @property
    def operands(self) -> tuple[TileOperand, ...]:
        """Return all operands."""
        return (*(o for p in self.inner for o in (p.left, p.right)), *(p.values for p in self.outer))

    def map_operands(self, f: Callable[[TileOperand, Var, Var], TileOperand]) -> TileChain:
        """Return the statement with each operand replaced by `f(operand, free, depth)`."""
        inner = tuple(
            replace(p, left=f(p.left, self.row, p.depth), right=f(p.right, self.column, p.depth)) for p in self.inner
        )
        outer = tuple(replace(p, values=f(p.values, p.feature, self.column)) for p in self.outer)
        return replace(self, inner=inner, outer=outer)

    @property
    def bodies(self) -> tuple[tuple[Any, ...], ...]:
        """Return the statement lists in it."""
        kept = (self.row_values.body, self.column_values.body)
        return (*(o.body for o in self.operands), *kept, self.weighing, self.reach, *(p.epilogue for p in self.outer))

    def map_bodies(self, f: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> TileChain:
        """Return the statement with `f` applied to each statement list in it."""
        made = self.map_operands(lambda o, free, depth: replace(o, body=f(o.body)))
        outer = tuple(replace(p, epilogue=f(p.epilogue)) for p in made.outer)
        rows, columns = (replace(v, body=f(v.body)) for v in (self.row_values, self.column_values))
        return replace(
            made, row_values=rows, column_values=columns, weighing=f(self.weighing), reach=f(self.reach), outer=outer
        )

    @property
    def indices(self) -> tuple[IndexExpr, ...]:
        """Return its own index expressions, without those of the bodies."""
        bound = () if self.mask is None else (self.mask.bound,)
        return (self.first_row, *(o.offset for o in self.operands), *bound)

    def map_indices(self, f: Callable[[IndexExpr], IndexExpr]) -> TileChain:
        """Return the statement with `f` applied to its own index expressions."""
        made = self.map_operands(lambda o, free, depth: replace(o, offset=f(o.offset)))
        mask = None if self.mask is None else replace(self.mask, bound=f(self.mask.bound))
        return replace(made, first_row=f(self.first_row), mask=mask)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names that it reads."""
        return (
            *(o.value for o in self.operands), *(p.weight for p in self.outer), self.reached,
            *self.row_values.names, *self.column_values.names,
        )  # fmt: skip

    @property
    def defined(self) -> tuple[str, ...]:
        """Return the names that it defines."""
        variables = (self.row, self.column, *(p.depth for p in self.inner), *(p.feature for p in self.outer))
        block = () if self.mask is None else (self.mask.block.name,)
        return (*(v.name for v in variables), *(p.name for p in self.inner), *(p.result for p in self.outer), *block)

    @property
    def products(self) -> int:
        """Return the number of multiplications of a block."""
        lengths = (*(p.depth.extent for p in self.inner), *(p.feature.extent for p in self.outer))
        return self.shape.rows * self.column.extent * sum(lengths)

    @property
    def results(self) -> int:
        """Return the number of elements that a tile computes."""
        return self.shape.rows * sum(self.shape.features)

    @property
    def epilogue(self) -> tuple[Any, ...]:
        """Return the statements that run for an element of each result."""
        return tuple(s for p in self.outer for s in p.epilogue)

    @property
    def threads(self) -> int:
        """Return the number of threads of a block."""
        return 2 * self.shape.rows

    @property
    def resident(self) -> int:
        """Return how many blocks a multiprocessor should hold, for which the compiler limits registers; 0: any."""
        return 1

    @property
    def shared_elements(self) -> int:
        """Return the size of the array in shared memory, in words of 32 bits.

        Left operands are there first, and remain if they do not stay in registers; then there are stages of the others,
        in whose place the results are put.
        """
        s = self.shape
        left = sum(half_words(s.rows, d, p.left) for d, p in zip(s.depths, self.inner, strict=True))
        stage = sum(half_words(s.columns, d, p.right) for d, p in zip(s.depths, self.inner, strict=True))
        stage += sum(
            half_words(f, s.columns, p.values) for f, p in zip(s.features, self.outer, strict=True) if p.source < 0
        )
        stage += s.columns * len(self.column_values.names)
        held = sum(s.depths) <= HELD_DEPTH
        results = s.rows * (max(s.features) + 8)
        return max(left, results, (0 if held else left) + STAGES * stage)

    @property
    def shared_bytes(self) -> int:
        """Return the bytes of shared memory that a block needs."""
        return 4 * self.shared_elements
