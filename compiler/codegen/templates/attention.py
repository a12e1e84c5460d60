"""Lowering of attention: blocks of scores stay in the cache, and the softmax is computed as they arrive.

For a block of queries, the kernel walks over blocks of keys. Queries run along vectors, so that the maximum and the sum
of a row are one lane each: the scores of a block are keys x queries, and the result is features x queries. When a block
of scores raises the maximum of a row, what has been summed so far decays by exp(old maximum - new maximum), as in
Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), and Dao et al., "FlashAttention" (2022).

Everything between the first dot and the softmax (scale, mask, bias) and everything after the second is generated code.
Blocks that a mask of indices excludes entirely are skipped, for example those above the diagonal of a causal mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from compiler.analysis.attention import Attention
from compiler.codegen.lowering.outputs import set_source, store_outputs
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Index, IndexExpr, IndexSymbol, Var
from compiler.codegen.nest.loop_ir import LoopKind
from compiler.codegen.nest.scalar_ops import ScalarOp, binary, comparison
from compiler.codegen.nest.tile_attention import NEGLIGIBLE
from compiler.codegen.schedules.template_schedules import AttentionSchedule
from compiler.codegen.templates.attention_indices import AttentionIndices, substituted
from compiler.codegen.templates.block_masks import BlockMask, block_mask
from compiler.codegen.templates.packing import operand_in_place, pack, pack_transposed, placed
from compiler.codegen.templates.register_tiles import best_tile
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

LANES = 16
_EXP, _SUM, _MAX = ScalarOp(Opcode.EXPONENTIAL, T.F32, T.F32), binary(Opcode.ADD, T.F32), binary(Opcode.MAXIMUM, T.F32)
_SUB, _MUL, _DIV = (binary(op, T.F32) for op in (Opcode.SUBTRACT, Opcode.MULTIPLY, Opcode.DIVIDE))
_SELECT = ScalarOp(Opcode.SELECT, T.F32, T.F32)
MAX_STAGED = 2
"""Maximum number of arrays of which blocks are transposed before they are used."""


def lower_attention(
    fused: HloComputation,
    roots: Sequence[HloInstruction],
    attention: Attention,
    schedule: AttentionSchedule,
) -> lir.Kernel:
    """Return the kernel of a computation that is an attention and elementwise ops before and after it.

    Raises:
        UnsupportedError: its dimensions do not divide into batch, queries, keys and features, or a type has no kernel.
    """
    return _Lowering(fused, roots, attention, schedule).kernel()


class _Lowering(AttentionIndices):
    """Lowers one attention."""

    def __init__(
        self, fused: HloComputation, roots: Sequence[HloInstruction], attention: Attention, schedule: AttentionSchedule
    ) -> None:
        super().__init__(fused, roots, attention)
        self.schedule = schedule

    def kernel(self) -> lir.Kernel:
        """Return the kernel."""
        e = self.e
        self._blocks()
        with e.loops([*self.outer, self.query_block]):
            self._task()
        return lir.Kernel("attention", self.arguments(), tuple(e.frames[0].stmts))

    # ---- blocks

    def _blocks(self) -> None:
        """Divide queries and keys into blocks."""
        e, s = self.e, self.schedule
        queries, keys = self.query.extent, self.key.extent
        self.width = _up(-(-queries // -(-queries // s.queries)), LANES)
        size = -(-keys // -(-keys // s.keys))
        self.query_block, self.key_block = (
            Var(e.fresh("q"), -(-queries // self.width)),
            Var(e.fresh("b"), -(-keys // size)),
        )
        self.lane = Var(e.fresh("l"), min(self.width, queries))
        self.position = Var(e.fresh("p"), size)
        query_start, key_start = ix.of(self.query_block) * self.width, ix.of(self.key_block) * size
        self.lanes = lir.Span(self.lane.extent)
        if queries % self.lane.extent:
            self.lanes = lir.Span(self.lane.extent, query_start, queries)
        self.positions = lir.Span(size, key_start, keys) if keys % size else lir.Span(size)
        self.at_query: dict[IndexSymbol, IndexExpr] = {self.query: query_start + ix.of(self.lane)}
        self.at_both = {**self.at_query, self.key: key_start + ix.of(self.position)}

    def _array(self, prefix: str, size: int) -> str:
        name = self.e.fresh(prefix)
        self.e.add(lir.LocalArray(name, T.F32, size))
        return name

    def _lanes(self, write: Callable[[], None]) -> None:
        """Emit a vector loop over the queries of a block."""
        with self.e.guard() as body:
            write()
        self.e.add(_loop(self.lane, LoopKind.VECTOR, self.lanes, placed(body.stmts, self.at_both)))

    def _rows(self, write: Callable[[], None]) -> None:
        """Emit a loop over the keys of a block, and in it one over the queries."""
        with self.e.guard() as body:
            self._lanes(write)
        self.e.add(_loop(self.position, LoopKind.SERIAL, self.positions, body.stmts))

    def _task(self) -> None:
        """Emit the attention of one block of queries."""
        e, width, depth, features = self.e, self.width, self.depth.extent, self.feature.extent
        here = ix.of(self.lane)
        queries, scores = self._array("queries", depth * width), self._array("scores", self.position.extent * width)
        sums, most = self._array("sums", features * width), self._array("most", width)
        total, decay = self._array("total", width), self._array("decay", width)
        k = Var(e.fresh("k"), depth)
        index = substituted(self.query_index, {self.depth: ix.of(k)})
        lanes = lir.For(self.lane, LoopKind.SERIAL, (), base=self.lanes.base, limit=_limit(self.lanes))
        found = operand_in_place(e, self.queries, index, T.F32, (self.query, k))
        found = replace(found, offset=found.offset.substitute(self.at_query))
        if not pack_transposed(e, queries, found, k, self.lane, self.lanes, width):
            pack(
                e,
                queries,
                [lanes, lir.For(k, LoopKind.VECTOR, ())],
                self.queries,
                index,
                ix.of(k) * width + here,
                self.at_query,
            )

        self._fill(most, width, -math.inf)
        self._fill(total, width, 0.0)
        self._fill(sums, features * width, 0.0)
        mask = block_mask(self.a.scores, self.score_index, self.at_both, self.lane, self.position)
        with e.guard() as blocks:
            with e.guard() as block:
                self._block(queries, scores, sums, most, total, decay)
            if mask is None:
                blocks.stmts += block.stmts
            else:
                e.add(lir.If(self._is_needed(mask, most), tuple(block.stmts)))
        e.add(lir.For(self.key_block, LoopKind.SERIAL, tuple(blocks.stmts)))
        self._results(sums, most, total)

    def _fill(self, array: str, size: int, value: float) -> None:
        """Emit the initial values of a local array, also for lanes that no query uses."""
        v = Var(self.e.fresh("l"), size)
        with self.e.guard() as body:
            self.e.add(lir.LocalStore(array, ix.of(v), self.e.constant(value, T.F32)))
        self.e.add(lir.For(v, LoopKind.VECTOR, tuple(body.stmts)))

    def _is_needed(self, mask: BlockMask, most: str) -> str:
        """Emit whether a block of keys has a score that matters and return the name of the pred."""
        e = self.e
        some = e.let(T.PRED, lir.IndexTest(mask.bound, mask.low, None))
        if mask.value == -math.inf:
            return some
        # A finite score counts unless the maximum of every row is so much higher that its weight is 0.
        v = Var(e.fresh("l"), self.lane.extent)
        low = e.fresh("v")
        with e.guard() as body:
            value = e.let(T.F32, lir.LocalLoad(most, ix.of(v)))
        e.add(lir.Reduce((v,), (lir.Reduction(low, T.F32, Opcode.MINIMUM, value),), tuple(body.stmts)))
        bound = e.constant(mask.value + max(NEGLIGIBLE, abs(mask.value) * 1e-6), T.F32)
        above = e.apply(comparison("GE", T.F32), low, bound)
        return e.apply(binary(Opcode.OR, T.PRED), some, e.apply(ScalarOp(Opcode.NOT, T.PRED, T.PRED), above))

    def _block(self, queries: str, scores: str, sums: str, most: str, total: str, decay: str) -> None:
        """Emit the update of the sums by a block of keys."""
        e, width, here = self.e, self.width, ix.of(self.lane)
        columns, depth = lir.Span(width), lir.Span(self.depth.extent)
        vectors, narrow = width // LANES, 2 * width // LANES
        of_scores = lir.Matrix(scores, ix.const(0), width, 1, True)
        of_sums = lir.Matrix(sums, ix.const(0), width, 1, True)
        of_queries = lir.Matrix(queries, ix.const(0), width, 1, True)
        keys = self._matrix(self.keys, self.key_index, self.position, self.depth, "keys")
        e.add(
            lir.MatrixProduct(
                of_scores, keys, of_queries, T.F32, self.positions, columns, depth,
                tile=best_tile(self.position.extent, vectors, self.schedule.accumulators),
                narrow_tile=best_tile(self.position.extent, narrow, self.schedule.accumulators // 2),
            )
        )  # fmt: skip
        at = ix.of(self.position) * width + here

        set_source(e, self.a.dot, self.dot_index, T.F32, lambda: e.let(T.F32, lir.LocalLoad(scores, at)))
        high = self._array("high", width)

        def begin() -> None:
            e.add(lir.LocalStore(high, here, e.let(T.F32, lir.LocalLoad(most, here))))

        def score() -> None:
            value = e.value(self.a.scores, self.score_index)
            e.add(lir.LocalStore(scores, at, value))
            e.add(lir.LocalStore(high, here, e.apply(_MAX, e.let(T.F32, lir.LocalLoad(high, here)), value)))

        def rescale() -> None:
            # While all scores are -inf, 0 stands for their maximum, so that their weights are 0 and not NaN.
            before, after = e.let(T.F32, lir.LocalLoad(most, here)), e.let(T.F32, lir.LocalLoad(high, here))
            none = e.apply(comparison("EQ", T.F32), after, e.constant(-math.inf, T.F32))
            shift = e.apply(_SELECT, none, e.constant(0.0, T.F32), after)
            factor = e.apply(_EXP, e.apply(_SUB, before, shift))
            e.add(lir.LocalStore(most, here, after))
            e.add(lir.LocalStore(high, here, shift))
            e.add(lir.LocalStore(decay, here, factor))
            e.add(lir.LocalStore(total, here, e.apply(_MUL, e.let(T.F32, lir.LocalLoad(total, here)), factor)))

        def weigh() -> None:
            value, shift = e.let(T.F32, lir.LocalLoad(scores, at)), e.let(T.F32, lir.LocalLoad(high, here))
            weight = e.apply(_EXP, e.apply(_SUB, value, shift))
            e.add(lir.LocalStore(scores, at, weight))
            e.add(lir.LocalStore(total, here, e.apply(_SUM, e.let(T.F32, lir.LocalLoad(total, here)), weight)))

        self._lanes(begin)
        with e.guard() as scoring:
            self._rows(score)
        for s in self._staged(scoring.stmts):
            e.add(s)
        self._lanes(rescale)
        self._rows(weigh)
        values = self._matrix(self.a.values, self.value_index, self.feature, self.key, "values")
        features = self.feature.extent
        e.add(
            lir.MatrixProduct(
                of_sums, values, of_scores, T.F32, lir.Span(features), columns, self.positions, decay,
                tile=best_tile(features, vectors, self.schedule.accumulators),
                narrow_tile=best_tile(features, narrow, self.schedule.accumulators // 2),
            )
        )  # fmt: skip

    def _staged(self, body: Sequence[lir.Stmt]) -> list[lir.Stmt]:
        """Return the loops over scores, before them the transposition of arrays whose keys are adjacent, such as masks.

        Queries run along vectors, so these arrays would be read element by element.
        """
        (keys,) = body
        queries = keys.body[-1] if isinstance(keys, lir.For) else None
        if not isinstance(keys, lir.For) or not isinstance(queries, lir.For) or len(keys.body) != 1:
            return list(body)
        before: list[lir.Stmt] = []
        inside: list[lir.Stmt] = []
        for s in queries.body:
            load = s.value if isinstance(s, lir.Let) else None
            if not isinstance(s, lir.Let) or not isinstance(load, lir.Load) or len(before) >= 2 * MAX_STAGED:
                inside.append(s)
                continue
            stride = load.offset.coefficient(self.lane)
            origin = load.offset.substitute({self.lane: ix.const(0), self.position: ix.const(0)})
            if stride <= 1 or load.offset != origin + ix.of(self.position) + ix.of(self.lane) * stride:
                inside.append(s)
                continue
            array = self.e.fresh("staged")
            rows, columns = (
                None if span.base is None else ix.const(span.limit) - span.base for span in (self.positions, self.lanes)
            )
            columns = ix.const(self.lane.extent) if columns is None else columns
            before.append(lir.LocalArray(array, s.type, self.position.extent * self.width))
            before.append(
                lir.TransposeTile(
                    array, load.buffer, origin, stride, self.width, rows, columns, height=self.position.extent
                )
            )
            at = ix.of(self.position) * self.width + ix.of(self.lane)
            inside.append(replace(s, value=lir.LocalLoad(array, at)))
        return [*before, replace(keys, body=(replace(queries, body=tuple(inside)),))]

    def _matrix(self, operand: HloInstruction, index: Index, row: Var, column: Var, prefix: str) -> lir.Matrix:
        """Return keys or values as a matrix; those that are not in memory as f32 are computed for this block."""
        e = self.e
        positions: dict[IndexSymbol, IndexExpr] = {self.key: self.at_both[self.key]}
        row_is_key = row is self.position
        found = operand_in_place(e, operand, index, T.F32, (self.key, row, column))
        if found.buffer is not None:
            start = found.offset.substitute(positions)
            start = start.substitute(dict.fromkeys((self.position, self.depth, self.feature), ix.const(0)))
            by_key = found.offset.coefficient(self.key)
            across = found.offset.coefficient(self.depth if row_is_key else self.feature)
            return lir.Matrix(
                found.buffer, start, by_key if row_is_key else across, across if row_is_key else by_key, False
            )
        other = self.depth if row_is_key else self.feature
        array = self._array(prefix, self.position.extent * other.extent)
        v = Var(e.fresh("k"), other.extent)
        at = ix.of(self.position) * other.extent + ix.of(v)
        loops = [
            lir.For(self.position, LoopKind.SERIAL, (), base=self.positions.base, limit=_limit(self.positions)),
            lir.For(v, LoopKind.VECTOR, ()),
        ]
        pack(e, array, loops, operand, substituted(index, {other: ix.of(v)}), at, positions)
        strides = (other.extent, 1) if row_is_key else (1, other.extent)
        return lir.Matrix(array, ix.const(0), *strides, True)

    # ---- results

    def _results(self, sums: str, most: str, total: str) -> None:
        """Emit the division by the sum of the weights, and what follows the attention."""
        e, a, here = self.e, self.a, ix.of(self.lane)

        def invert() -> None:
            value = e.apply(_DIV, e.constant(1.0, T.F32), e.let(T.F32, lir.LocalLoad(total, here)))
            if a.zero_if_masked:
                low = e.apply(
                    comparison("EQ", T.F32), e.let(T.F32, lir.LocalLoad(most, here)), e.constant(-math.inf, T.F32)
                )
                value = e.apply(_SELECT, low, e.constant(0.0, T.F32), value)
            e.add(lir.LocalStore(total, here, value))

        self._lanes(invert)
        c = Var(e.fresh("c"), self.feature.extent)
        wanted = substituted(self.output_index, {self.feature: ix.of(c)})

        def divided() -> str:
            value = e.let(T.F32, lir.LocalLoad(sums, ix.of(c) * self.width + here))
            return e.apply(_MUL, value, e.let(T.F32, lir.LocalLoad(total, here)))

        set_source(e, a.output, wanted, T.F32, divided)
        stmts = store_outputs(e, a.output, wanted, self.roots)
        inner = lir.For(c, LoopKind.VECTOR, placed(stmts, self.at_query))
        e.add(_loop(self.lane, LoopKind.SERIAL, self.lanes, [inner]))


def _loop(var: Var, kind: LoopKind, span: lir.Span, body: Sequence[lir.Stmt]) -> lir.For:
    return lir.For(var, kind, tuple(body), base=span.base, limit=_limit(span))


def _limit(span: lir.Span) -> int | None:
    return span.limit if span.base is not None else None


def _up(n: int, to: int) -> int:
    return -(-n // to) * to
