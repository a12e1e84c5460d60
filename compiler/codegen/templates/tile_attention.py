"""Lowering of attention to a GPU: a block of threads computes a tile of queries from one tile of keys after another.

Scores are never in memory: they stay in registers, or in shared memory where no tensor cores multiply. What is between
the first dot and the softmax (scale, mask, bias) and what follows the second is generated code, as in the template for
CPUs (`attention`), and so is the test for tiles that a mask of indices excludes. Tensor cores multiply weights as sums
of two halves, so that they keep the precision that ARCHITECTURE.md promises.

Where few queries have many keys, blocks take parts of the keys (`lower_key_parts`), as in Dao et al., "Flash-Decoding
for long-context inference" (2023). What they store is added by a kernel of its own, see `runtime.key_parts`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from compiler.analysis.attention import Attention
from compiler.codegen.lowering.outputs import kernel_arguments, set_source, store_outputs
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Var
from compiler.codegen.nest.scalar_ops import conversion
from compiler.codegen.nest.tile_attention import SCALAR_THREADS, AttentionShape, KeyPart, TileAttention, TileMask
from compiler.codegen.nest.tiles import HALF_TYPES
from compiler.codegen.schedules.template_schedules import TileAttentionSchedule
from compiler.codegen.templates.attention_indices import AttentionIndices
from compiler.codegen.templates.block_masks import block_mask
from compiler.codegen.templates.tile_products import half_of, tile_operand
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType as T

MAX_HEAD = 256
"""Maximum size of a head: sums of all features of a query are in the registers of a warp."""
SMALL_HEAD, LARGE_HEAD = 64, 128
"""Sizes of a head up to which a warp has two matrices of queries, and from which on a tile has fewer keys."""
ENOUGH_BLOCKS = 119
"""Blocks with which nearly all multiprocessors of an H100 have one: with more, each would load the keys again."""
MANY_BLOCKS = 160
"""Blocks from which on each has more queries: enough for the multiprocessors of a large GPU."""
FEW_QUERIES = (4, 8, 16)
"""Queries of the smallest tiles without tensor cores, of which each thread has one."""
MERGED = 128
"""Queries up to which those of several heads that share keys are in one tile."""
UNITS, WARPS = 132, 16
"""Multiprocessors of an H100, and warps of one that wait for their loads at the same time."""
TENSOR_TILE, SCALAR_TILE = 5e-6, 7.5e-6
"""Estimated seconds of a block for a tile of keys of a small head, with and without tensor cores."""
SECOND_STAGE, BANDWIDTH = 3e-6, 2.5e12
"""Estimated seconds of the kernel that adds what parts of the keys contribute, and bytes per second that it reads."""
GAIN = 1.25
"""How many times as fast attention in parts must be estimated to be: the figures here are not measured."""
MOST_PARTS = 128
"""Maximum number of parts of the keys, which the second stage reads one after the other."""


def lower_tile_attention(
    fused: HloComputation, roots: Sequence[HloInstruction], attention: Attention, schedule: TileAttentionSchedule
) -> lir.Kernel:
    """Return the kernel of a computation that is an attention and elementwise ops before and after it.

    Raises:
        UnsupportedError: its dimensions do not divide into batch, queries, keys and features, or a type has no kernel.
    """
    return _Lowering(fused, roots, attention, schedule).kernel()


@dataclass(frozen=True)
class KeyParts:
    """An attention whose blocks take parts of the keys each.

    Attributes:
        kernel: what the blocks compute.
        outputs: shapes of its results: sums of weighted values by query, part and feature; maxima of the scores and
            sums of the weights by query and part.
        feature: the dimension of the attention that holds the features, or None if there is one feature alone. The
            other dimensions are those of the queries, in their order.
    """

    kernel: lir.Kernel
    outputs: tuple[Shape, Shape, Shape]
    feature: int | None


def lower_key_parts(
    fused: HloComputation,
    roots: Sequence[HloInstruction],
    attention: Attention,
    schedule: TileAttentionSchedule,
    parts: int,
) -> KeyParts:
    """Return the first stage of an attention in two stages; errors are those of `lower_tile_attention`."""
    return _Lowering(fused, roots, attention, schedule).parts(parts)


def best_parts(
    fused: HloComputation, roots: Sequence[HloInstruction], attention: Attention, schedule: TileAttentionSchedule
) -> int:
    """Return the number of parts of the keys with which attention takes least time by estimate; errors are the same."""
    return _Lowering(fused, roots, attention, schedule).best_parts()


class _Lowering(AttentionIndices):
    """Lowers one attention."""

    def __init__(
        self,
        fused: HloComputation,
        roots: Sequence[HloInstruction],
        attention: Attention,
        schedule: TileAttentionSchedule,
    ) -> None:
        # The largest score and the sum of each row may be results, too.
        rows = (attention.most, attention.total)
        super().__init__(fused, [r for r in roots if r not in rows], attention, MERGED)
        self.roots, self.row_results = roots, {n: r for n, r in enumerate(roots) if r in rows}
        self.schedule = schedule
        halves = {half_of(o) for o in (*attention.dot.operands, attention.values)}
        found = halves.pop() if len(halves) == 1 else None
        self.type = T.F32 if found is None else found
        converted = any(i.opcode is Opcode.CONVERT and i.shape.element_type is self.type for i in attention.chain)
        self.exact = not (converted and schedule.rounded)

    def kernel(self) -> lir.Kernel:
        """Return the kernel."""
        result = self.e.fresh("result")
        return self._kernel(self._shape(), self.arguments(), result, self._epilogue(result), kept=self._kept())

    def parts(self, count: int) -> KeyParts:
        """Return the kernel whose blocks take one of `count` parts of the keys each."""
        e, shape = self.e, self._shape(count)
        tiles = -(-self.key.extent // shape.keys)
        each = -(-tiles // count)
        part = Var(e.fresh("part"), -(-tiles // each))
        along = ix.of(self.feature)
        feature = next((n for n, x in enumerate(self.output_index) if x == along), None)
        rows = [n for n in range(len(self.output_index)) if n != feature]
        sizes = (*(self.a.output.shape.dimensions[n] for n in rows), part.extent)
        outputs = (Shape(T.F32, (*sizes, self.feature.extent)), Shape(T.F32, sizes), Shape(T.F32, sizes))
        row = ix.linearize([*(self.output_index[n] for n in rows), ix.of(part)], sizes)
        result, most, total = e.fresh("result"), e.fresh("most"), e.fresh("total")
        epilogue = lir.Store("o0", row * self.feature.extent + along, result)
        kept = (lir.Store("o1", row, most), lir.Store("o2", row, total))
        kernel = self._kernel(
            shape,
            kernel_arguments(self.fused.parameters, outputs),
            result,
            (epilogue,),
            part,
            KeyPart(ix.of(part) * each, each, most, total, kept),
        )
        return KeyParts(kernel, outputs, feature)

    def best_parts(self) -> int:
        """Return the number of parts of the keys by estimated time: whole waves of blocks, and the second stage."""
        outer = math.prod(v.extent for v in self.outer)
        head = max(self.depth.extent, self.feature.extent)
        each = (TENSOR_TILE if self.type in HALF_TYPES else SCALAR_TILE) * max(1.0, head / SMALL_HEAD)
        contributed = 8 * outer * self.query.extent * self.feature.extent / BANDWIDTH
        whole = self._shape()
        if outer * -(-self.query.extent // whole.queries) >= ENOUGH_BLOCKS:
            return 1

        def seconds(parts: int) -> float:
            shape = self._shape(parts)
            blocks = outer * -(-self.query.extent // shape.queries) * parts
            rounds = -(-self.key.extent // (shape.keys * parts)) * -(-blocks // (UNITS * max(2, WARPS // shape.warps)))
            return each * rounds + (SECOND_STAGE + parts * contributed if parts > 1 else 0.0)

        most = min(MOST_PARTS, -(-self.key.extent // whole.keys))
        best = min(range(1, most + 1), key=seconds)
        return best if seconds(best) * GAIN < seconds(1) else 1

    def _kernel(
        self,
        shape: AttentionShape,
        arguments: tuple[lir.Argument, ...],
        result: str,
        epilogue: tuple[lir.Stmt, ...],
        part: Var | None = None,
        kept: KeyPart | None = None,
    ) -> lir.Kernel:
        """Return the kernel with an epilogue, each of whose blocks takes a part of the keys unless `part` is None."""
        e = self.e
        tile = Var(e.fresh("q"), -(-self.query.extent // shape.queries))
        first = ix.of(tile) * shape.queries
        queries = tile_operand(e, self.queries, self.query_index, self.query, self.depth, self.type)
        keys = tile_operand(e, self.keys, self.key_index, self.key, self.depth, self.type)
        values = tile_operand(e, self.a.values, self.value_index, self.feature, self.key, self.type)
        product = e.fresh("product")
        scoring, score = self._scoring(product)
        attention = TileAttention(
            self.query, self.key, self.depth, self.feature, first, queries, keys, values, self.type, product,
            scoring, score, self._mask(first, shape), self.a.zero_if_masked, self.exact, result,
            epilogue, shape, kept,
        )  # fmt: skip
        with e.loops([*self.outer, tile, *(() if part is None else (part,))]):
            e.add(attention)
        return lir.Kernel("attention", arguments, tuple(e.frames[0].stmts))

    # ---- tiles

    def _shape(self, parts: int = 1) -> AttentionShape:
        """Return the sizes of the tiles for blocks that take parts of the keys.

        They are those of the schedule, otherwise they follow from the size of a head and the number of blocks.
        """
        s, head = self.schedule, max(self.depth.extent, self.feature.extent)
        if head > MAX_HEAD:
            raise UnsupportedError(
                f"%{self.a.output.name}: a head of {head} elements has no kernel, at most {MAX_HEAD}"
            )
        outer = math.prod(v.extent for v in self.outer)
        tensor = self.type in HALF_TYPES
        if not tensor:
            most = 64 if head <= LARGE_HEAD else 32
            enough = next((n for n in (*FEW_QUERIES, 32) if n >= self.query.extent), most)
            filling = _filling(outer * parts, self.query.extent, min(most, enough))
            queries, keys = s.queries or filling, s.keys or 64
            rows = next((n for n in FEW_QUERIES if n == queries), FEW_QUERIES[-1])
            columns = SCALAR_THREADS // rows
            if queries != _in_runs(queries, rows) or keys != _in_runs(keys, columns) or keys > 64 or queries > 64:
                raise UnsupportedError(f"a tile of {queries} queries and {keys} keys has no kernel")
            features = _in_runs(self.feature.extent, columns)
            return AttentionShape(queries, keys, self.depth.extent, features, SCALAR_THREADS // 32, rows)
        large = 128 if head <= SMALL_HEAD and outer * -(-self.query.extent // 128) >= MANY_BLOCKS else 64
        if head > LARGE_HEAD:
            large = 32
        queries = s.queries or (large if self.query.extent > 32 else 16 if self.query.extent <= 16 else 32)
        keys = s.keys or (64 if head <= LARGE_HEAD else 16)
        matrices = queries // 16
        warps = min(4, matrices)
        if matrices % warps or matrices // warps > 2 or keys > 64:
            raise UnsupportedError(f"a tile of {queries} queries and {keys} keys has no kernel")
        return AttentionShape(queries, keys, _up(self.depth.extent, 16), _up(self.feature.extent, 16), warps)

    def _mask(self, first: IndexExpr, shape: AttentionShape) -> TileMask | None:
        """Return the test for tiles of keys that a mask of indices excludes, or None if there is none."""
        e = self.e
        block = Var(e.fresh("b"), -(-self.key.extent // shape.keys))
        lane, position = Var(e.fresh("l"), shape.queries), Var(e.fresh("p"), shape.keys)
        at: dict[IndexSymbol, IndexExpr] = {
            self.query: first + ix.of(lane),
            self.key: ix.of(block) * shape.keys + ix.of(position),
        }
        found = block_mask(self.a.scores, self.score_index, at, lane, position)
        return None if found is None else TileMask(block, found.bound, found.low, found.value)

    # ---- bodies

    def _scoring(self, product: str) -> tuple[tuple[lir.Stmt, ...], str]:
        """Return the statements that compute a score from a product, and its name."""
        e = self.e
        set_source(e, self.a.dot, self.dot_index, T.F32, lambda: product)
        with e.guard() as body:
            name = e.value(self.a.scores, self.score_index)
        return tuple(body.stmts), name

    def _epilogue(self, result: str) -> tuple[lir.Stmt, ...]:
        """Return the statements that compute the outputs from one element of the result."""
        set_source(self.e, self.a.output, self.output_index, T.F32, lambda: result)
        numbers = [n for n in range(len(self.roots)) if n not in self.row_results]
        return store_outputs(self.e, self.a.output, self.output_index, self.roots, numbers)

    def _kept(self) -> KeyPart | None:
        """Return how the results of rows are stored, or None if there are none."""
        if not self.row_results:
            return None
        if not self.a.keeps_rows:
            raise UnsupportedError(f"%{self.a.output.name}: the results of rows are in another order than the scores")
        most, total = self.e.fresh("most"), self.e.fresh("total")
        index = self.score_index[: self.a.axis] + self.score_index[self.a.axis + 1 :]
        row = ix.linearize(index, self.a.most.shape.dimensions)
        stores: list[lir.Stmt] = []
        with self.e.guard() as body:
            for n, r in self.row_results.items():
                name, t = most if r is self.a.most else total, r.shape.element_type
                value = name if t is T.F32 else self.e.apply(conversion(T.F32, t), name)
                stores.append(lir.Store(f"o{n}", row, value))
        tiles = -(-self.key.extent // self._shape().keys)
        return KeyPart(ix.const(0), tiles, most, total, (*body.stmts, *stores), divided=True)


def _filling(outer: int, extent: int, most: int) -> int:
    """Return the queries of a tile without tensor cores: fewer where most multiprocessors would have no tile."""
    queries = most
    while queries > FEW_QUERIES[-1] and outer * -(-extent // queries) < ENOUGH_BLOCKS:
        queries //= 2
    return queries


def _in_runs(n: int, parts: int) -> int:
    """Return the least size from n on that threads divide into parts of one element, two or a multiple of four."""
    each = -(-n // parts)
    return parts * (each if each <= 2 else _up(each, 4))


def _up(n: int, to: int) -> int:
    return -(-n // to) * to
