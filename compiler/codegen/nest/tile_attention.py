"""Attention on a GPU: what the threads of a block compute together for a tile of queries."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.tiles import HALF_TYPES, TileOperand, half_words
from compiler.ir.types import PrimitiveType

SLAB = 16
"""Steps along the depth, or keys, that are in shared memory at a time where no tensor cores multiply."""
NEGLIGIBLE = 150.0
"""Scores that are lower than the maximum of their row by this have a weight of exactly 0 in f32."""
MAX_HELD = 128
"""Size of a head up to which queries stay in registers, for tensor cores."""
MAX_PART = 128
"""Features of the results that are in shared memory at a time, for tensor cores."""
FEW_QUERIES, FEW_THREADS = 16, 512
"""Queries of a block without tensor cores up to which a multiprocessor should hold so many threads."""
SCALAR_THREADS = 128
"""Threads of a block where no tensor cores multiply, each for a part of the rows and of the columns."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """How a block of threads divides an attention.

    Attributes:
        queries: queries of a block.
        keys: keys whose scores are computed at a time.
        depth, features: sizes of a head, rounded up to whole matrices.
        warps: number of warps of a block.
        row_parts: parts of the queries, one for each of so many threads, where no tensor cores multiply.
    """

    queries: int
    keys: int
    depth: int
    features: int
    warps: int
    row_parts: int = 0


@dataclass(frozen=True, slots=True)
class TileMask:
    """A test of a tile of scores: unless `bound` is at least `low`, all are `value`; `block` is the tile's number."""

    block: Var
    bound: IndexExpr
    low: int
    value: float

    @property
    def limit(self) -> float:
        """Return the maximum of a row from which on masked scores have weights of 0; -inf if they always do."""
        return self.value + max(NEGLIGIBLE, abs(self.value) * 1e-6) if math.isfinite(self.value) else -math.inf


@dataclass(frozen=True, slots=True)
class KeyPart:
    """What a block computes that takes a part of the keys, or keeps what the weights of each query are computed from.

    Attributes:
        first_tile: the first tile of keys.
        tiles: number of tiles, fewer where the keys end.
        most, total: names of the maximum of the scores of a query and of the sum of its weights in `epilogue`.
        epilogue: statements that run for each query; they contain the stores.
        divided: whether weighted values are divided by the sums of the weights, as the block takes all keys; otherwise
            that is done later.
    """

    first_tile: IndexExpr
    tiles: int
    most: str
    total: str
    epilogue: tuple[Any, ...]
    divided: bool = False


@dataclass(frozen=True, slots=True)
class TileAttention:
    """The attention of a tile of queries: softmax(scores) values, with an online softmax over tiles of keys.

    Attributes:
        query, key, depth, feature: the variables of the whole attention, which the bodies use.
        first_query: the first query of the tile.
        queries: the operand with the elements (query, depth).
        keys: the operand with the elements (key, depth).
        values: the operand with the elements (feature, key).
        type: element type of the operands in shared memory.
        product: name of the product of a query and a key in `scoring`.
        scoring: statements that compute the score.
        score: name of the score.
        mask: a test for tiles of keys that are not needed, or None.
        zero_if_masked: whether a row whose scores are all -inf has weights of 0 instead of NaN.
        exact_weights: whether weights are multiplied with more precision than that of `type`.
        result: name of an element of the result in `epilogue`.
        epilogue: statements that run for each element of the result; they contain the stores.
        shape: sizes of the tiles.
        part: the part of the keys that a block takes, or what it keeps of its queries; None if it takes all and keeps
            nothing.
    """

    query: Var
    key: Var
    depth: Var
    feature: Var
    first_query: IndexExpr
    queries: TileOperand
    keys: TileOperand
    values: TileOperand
    type: PrimitiveType
    product: str
    scoring: tuple[Any, ...]
    score: str
    mask: TileMask | None
    zero_if_masked: bool
    exact_weights: bool
    result: str
    epilogue: tuple[Any, ...]
    shape: AttentionShape
    part: KeyPart | None = None

    @property
    def operands(self) -> tuple[TileOperand, TileOperand, TileOperand]:
        """Return queries, keys and values."""
        return self.queries, self.keys, self.values

    @property
    def bodies(self) -> tuple[tuple[Any, ...], ...]:
        """Return the statement lists in it."""
        kept = () if self.part is None else (self.part.epilogue,)
        return (*(o.body for o in self.operands), self.scoring, self.epilogue, *kept)

    def map_bodies(self, f: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> TileAttention:
        """Return the statement with `f` applied to each statement list in it."""
        queries, keys, values = (replace(o, body=f(o.body)) for o in self.operands)
        part = None if self.part is None else replace(self.part, epilogue=f(self.part.epilogue))
        return replace(
            self, queries=queries, keys=keys, values=values, scoring=f(self.scoring), epilogue=f(self.epilogue),
            part=part,
        )  # fmt: skip

    @property
    def indices(self) -> tuple[IndexExpr, ...]:
        """Return its own index expressions, without those of the bodies."""
        bound = () if self.mask is None else (self.mask.bound,)
        first = () if self.part is None else (self.part.first_tile,)
        return (self.first_query, *(o.offset for o in self.operands), *bound, *first)

    def map_indices(self, f: Callable[[IndexExpr], IndexExpr]) -> TileAttention:
        """Return the statement with `f` applied to its own index expressions."""
        queries, keys, values = (replace(o, offset=f(o.offset)) for o in self.operands)
        mask = None if self.mask is None else replace(self.mask, bound=f(self.mask.bound))
        part = None if self.part is None else replace(self.part, first_tile=f(self.part.first_tile))
        return replace(
            self, first_query=f(self.first_query), queries=queries, keys=keys, values=values, mask=mask, part=part
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names that it reads."""
        return (*(o.value for o in self.operands), self.score)

    @property
    def defined(self) -> tuple[str, ...]:
        """Return the names that it defines."""
        variables = (self.query, self.key, self.depth, self.feature, *(() if self.mask is None else (self.mask.block,)))
        kept = () if self.part is None else (self.part.most, self.part.total)
        return (*(v.name for v in variables), self.product, self.result, *kept)

    @property
    def tiles(self) -> int:
        """Return the number of tiles of all keys."""
        return -(-self.key.extent // self.shape.keys)

    @property
    def products(self) -> int:
        """Return the number of multiplications of a block."""
        keys = self.key.extent if self.part is None else self.part.tiles * self.shape.keys
        return self.shape.queries * keys * (self.depth.extent + self.feature.extent)

    @property
    def results(self) -> int:
        """Return the number of elements that a tile computes."""
        return self.shape.queries * self.shape.features

    @property
    def uses_tensor_cores(self) -> bool:
        """Whether tensor cores multiply; shared memory then holds two elements per word of 32 bits."""
        return self.type in HALF_TYPES

    @property
    def threads(self) -> int:
        """Return the number of threads of a block."""
        return 32 * self.shape.warps

    @property
    def resident(self) -> int:
        """Return how many blocks a multiprocessor should hold, for which the compiler limits registers.

        Few queries need some 128 registers per thread; a few more would leave room for fewer blocks.
        """
        s = self.shape
        few = not self.uses_tensor_cores and s.queries <= FEW_QUERIES and max(s.depth, s.features) <= MAX_HELD
        return max(1, FEW_THREADS // self.threads) if few else 1

    @property
    def shared_elements(self) -> int:
        """Return the size of the array in shared memory, in words of 32 bits."""
        s = self.shape
        if not self.uses_tensor_cores:
            weights = s.keys * (s.queries + 4)
            slabs = SLAB * max(s.queries + s.keys + 8, s.features + 4)
            return max(weights + slabs, s.row_parts * (s.features + 4))
        queries = half_words(s.queries, s.depth, self.queries)
        keys = half_words(s.keys, s.depth, self.keys)
        values = half_words(s.features, s.keys, self.values)
        part = s.features // 2 if s.features > MAX_PART else s.features
        held = 0 if s.depth <= MAX_HELD else queries
        return max(queries, held + keys + values, s.warps * 16 * (part + 8))

    @property
    def shared_bytes(self) -> int:
        """Return the bytes of shared memory that a block needs."""
        return 4 * self.shared_elements
