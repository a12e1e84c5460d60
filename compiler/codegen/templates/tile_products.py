"""Lowering of matrix products to a GPU: a dot with a generated prologue on its operands and epilogue on its result.

The free dimensions of each operand are one variable, and so are the contracted ones. A block of threads computes a tile
of the result, for which tiles of both operands are brought to shared memory: copied in pieces of 16 bytes where the
elements need no arithmetic and are aligned, otherwise computed one by one. The side of the dot along which the result
is contiguous becomes the columns, along which adjacent threads store. The sums have the order in which the
operands are read in fewest sectors of memory, as the kernel of a convolution may be turned against its patches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from compiler.codegen.lowering.emission import STATEMENT_LIMIT
from compiler.codegen.lowering.emit import Emitter
from compiler.codegen.lowering.outputs import forward_index, kernel_arguments, set_source, store_outputs
from compiler.codegen.lowering.regular_pieces import use_regular_pieces
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Index, IndexExpr, Var
from compiler.codegen.nest.tiles import (
    HALF_TYPES,
    LEFT,
    RIGHT,
    TileOperand,
    TileProduct,
    TileShape,
    half_words,
    scalar_elements,
)
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.cuda_shapes import MULTIPROCESSORS
from compiler.codegen.schedules.template_schedules import TileSchedule
from compiler.codegen.templates.dots import (
    contracted_sizes,
    dot_refusal,
    free_dimensions,
    loads_of,
    operand_indices,
)
from compiler.codegen.templates.guarded_loads import GuardedLoad, guarded_load
from compiler.codegen.templates.pair_sums import PairSum
from compiler.codegen.templates.warp_reads import SECTOR_BYTES, orders_of, reads_of, sectors_along
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

SUMMED_IN = {T.F16: T.F32, T.BF16: T.F32, T.F32: T.F32, T.F64: T.F64, T.S32: T.S32}
"""The type in which a GPU sums products of each element type."""
COPY_BYTES, LEAST_BYTES = 16, 4
"""Bytes of the largest access of a thread to memory, and of the smallest asynchronous copy to shared memory."""
MAX_STAGES, STAGE_BYTES = 4, 48 * 1024
"""Most stages of copies that are useful, and the shared memory that they may take."""
_LARGE: tuple[tuple[int, int], ...] = ((128, 128), (128, 64), (64, 64), (64, 32), (32, 32))
TILE_SIZES: dict[T, tuple[tuple[int, int], ...]] = {
    T.BF16: _LARGE, T.F16: _LARGE, T.F32: _LARGE[1:], T.S32: _LARGE[1:], T.F64: _LARGE[2:],
}  # fmt: skip
"""Rows and columns of tiles, the largest first. Without tensor cores, a thread of a tile of 128 x 128 elements has so
many registers that a multiprocessor holds one block."""
THREADS = 128
"""Least threads of a block where no tensor cores multiply."""
DEPTH_PARTS = (4, 2)
"""Numbers of groups of threads among which a block may divide the depth."""
MOST_GROUPS, MOST_THREADS = 2 * MULTIPROCESSORS, 512
"""Most groups of all blocks that divide the depth, and threads of such a block, which have 128 registers each."""
GROUP = 8
"""Most rows of tiles that neighboring blocks compute."""
MANY_TILES = 160
"""Tiles of a result from which on they are large: enough for the multiprocessors of a large GPU."""
SMALL_INTEGERS = frozenset({T.S8, T.U8, T.S4, T.U4, T.S2, T.U2, T.PRED})
"""Integers that bf16 represents exactly."""
MOST_ORDERS = 2
"""Other orders of sums that are tried, each of which takes the time of generating a kernel."""
_MOVED = frozenset({Opcode.RESHAPE, Opcode.BITCAST, Opcode.TRANSPOSE, Opcode.BROADCAST, Opcode.SLICE, Opcode.COPY})
LONG = 32
"""Elements of a dimension from which on it is divided into tiles by itself, if merging it with others costs copies."""


def lower_tile_product(
    fused: HloComputation,
    roots: Sequence[HloInstruction],
    dot: HloInstruction,
    schedule: TileSchedule,
    is_trial: bool = False,
    pair: PairSum | None = None,
) -> lir.Kernel:
    """Return the kernel of a computation with one dot, each of whose outputs has one element per element of the dot.

    Args:
        fused: the computation.
        roots: its outputs.
        dot: its dot.
        schedule: the sizes of the tiles.
        is_trial: whether it is only asked if there is a kernel: it is the first that there is, and not the best.
        pair: the sum of a function of pairs that the dot represents, if it is no product.

    Raises:
        UnsupportedError: the dot has an unsupported type, an output has another number of elements, or an operand
            depends on a reduction, all of which each of its elements would compute.
    """
    refusal = dot_refusal(dot, SUMMED_IN)
    if refusal is not None:
        raise UnsupportedError(refusal)
    reduced = next((i for i in _behind(dot) if i.opcode is Opcode.REDUCE), None)
    if reduced is not None:
        raise UnsupportedError(f"%{reduced.name} would be computed again for each element of an operand of %{dot.name}")
    for r in roots:
        if r.shape.num_elements != dot.shape.num_elements:
            raise UnsupportedError(f"%{r.name}: {r.shape} does not have one element per element of %{dot.name}")
    # Dimensions that are not adjacent in memory cost copies as one variable, and their indices may be too complex.
    if is_trial:
        found = _attempt(fused, roots, dot, schedule, True, 1, pair)
        return _Lowering(fused, roots, dot, schedule, False, 1, pair).kernel() if found is None else found[1]
    plain = [
        lowering for merged in (True, False) if (lowering := _best_order(fused, roots, dot, schedule, merged, pair))
    ]
    if not plain:
        return _Lowering(fused, roots, dot, schedule, False, 1, pair).kernel()
    return min(plain, key=lambda found: found.cost).made


@dataclass(frozen=True)
class _Attempt:
    """A kernel, and estimates to compare it with others.

    Attributes:
        made: the kernel.
        cost: time that its operands and the edges of its tiles take.
        sectors: what its blocks read of the operands.
    """

    made: lir.Kernel
    cost: float
    sectors: float


def _behind(dot: HloInstruction) -> Iterator[HloInstruction]:
    """Yield the instructions of a computation on which the operands of its dot depend."""
    seen, work = set[HloInstruction](), list(dot.operands)
    while work:
        i = work.pop()
        if i not in seen:
            seen.add(i)
            yield i
            work += i.operands


def _best_order(
    fused: HloComputation,
    roots: Sequence[HloInstruction],
    dot: HloInstruction,
    schedule: TileSchedule,
    merged: bool,
    pair: PairSum | None,
) -> _Attempt | None:
    """Return the kernel with the order of sums in which it reads least, that of the program if all are equal."""
    first = _attempt(fused, roots, dot, schedule, merged, 1, pair)
    if first is None:
        return None
    orders = () if pair else sorted(first[0].orders())[:MOST_ORDERS]
    others = [_attempt(fused, roots, dot, schedule, merged, order, pair) for order in orders]
    rated = [_Attempt(made, *lowering.rate()) for lowering, made in (first, *(o for o in others if o is not None))]
    return min(rated, key=lambda found: found.sectors)


def _attempt(
    fused: HloComputation,
    roots: Sequence[HloInstruction],
    dot: HloInstruction,
    schedule: TileSchedule,
    merged: bool,
    order: int,
    pair: PairSum | None,
) -> tuple[_Lowering, lir.Kernel] | None:
    """Return a kernel and what made it, or None if there is none in this form."""
    lowering = _Lowering(fused, roots, dot, schedule, merged, order, pair)
    try:
        return lowering, lowering.kernel()
    except UnsupportedError:
        return None


@dataclass(frozen=True)
class _Side:
    """One side of the dot: the operand, the variable of its tiles, and the index of an element."""

    operand: HloInstruction
    index: Index
    var: Var


class _Lowering:
    """Lowers one product.

    Args:
        fused: the computation.
        roots: its outputs.
        dot: its dot.
        schedule: the sizes of the tiles.
        merged: whether all free dimensions of an operand are one variable, and not the last alone.
        order: the sums take every so many steps of the contracted dimension first, and then those between.
        pair: the sum that the dot represents, if it is no product.
    """

    def __init__(
        self,
        fused: HloComputation,
        roots: Sequence[HloInstruction],
        dot: HloInstruction,
        schedule: TileSchedule,
        merged: bool,
        order: int = 1,
        pair: PairSum | None = None,
    ) -> None:
        self.fused, self.roots, self.dot, self.schedule, self.merged = fused, roots, dot, schedule, merged
        self.order, self.pair = order, pair
        self.sums = SUMMED_IN[dot.shape.element_type]
        types = {half_of(o) or o.shape.element_type for o in dot.operands}
        self.type = next(iter(types)) if len(types) == 1 and pair is None else self.sums
        self.emitter = Emitter(fused, STATEMENT_LIMIT)
        use_regular_pieces(self.emitter, fused)
        self.tile: TileProduct | None = None
        self.covered = 0

    def kernel(self) -> lir.Kernel:
        """Return the kernel."""
        e = self.emitter
        rows, columns = self._sides()
        m, n = rows.var.extent, columns.var.extent
        lhs, rhs = (
            tile_operand(e, side.operand, side.index, side.var, self.depth, self.type) for side in (rows, columns)
        )
        shape = self._shape(m, n, lhs, rhs)
        group, column_tile, row_tile = self._tiles(-(-m // shape.rows), -(-n // shape.columns))
        result = e.fresh("sum")
        epilogue = self._epilogue(result)
        term, value = self._term()
        tile = TileProduct(
            rows.var, columns.var, self.depth,
            (ix.of(group) * row_tile.extent + ix.of(row_tile)) * shape.rows, ix.of(column_tile) * shape.columns,
            lhs, rhs, self.type, self.sums, result, epilogue, shape, 0, term, value,
        )  # fmt: skip
        with e.loops([*self.outer, group, column_tile, row_tile]):
            e.add(tile)
        self.tile = tile
        self.covered = group.extent * row_tile.extent * shape.rows * column_tile.extent * shape.columns
        arguments = kernel_arguments(self.fused.parameters, [r.shape for r in self.roots])
        return lir.Kernel("product", arguments, tuple(e.frames[0].stmts), self._in_place_pairs(tile))

    # ---- estimates of the kernel that was made

    def rate(self) -> tuple[float, float]:
        """Return the cost and the sectors of the kernel, see `_Attempt`."""
        if self.tile is None:
            return math.inf, math.inf
        tile, shape, sectors = self.tile, self.tile.shape, 0.0
        computed = sum(1.0 for o in (tile.lhs, tile.rhs) if not o.vector)
        for o, free, size in ((tile.lhs, tile.row, shape.rows), (tile.rhs, tile.column, shape.columns)):
            sectors += self._sectors(o, free) * self.covered / (shape.rows * shape.columns) * size
        return math.prod(v.extent for v in self.outer) * self.covered * (1.0 + computed), sectors

    def orders(self) -> set[int]:
        """Return other orders of the sums of the kernel."""
        tile = self.tile
        return set() if tile is None else {n for o in (tile.lhs, tile.rhs) for n in orders_of(o.body, self.depth)}

    def _sectors(self, operand: TileOperand, free: Var) -> float:
        """Return the sectors that a block reads per element of an operand."""
        if operand.vector:
            return self.type.byte_size / SECTOR_BYTES
        return reads_of(operand.body, free, self.depth)[1]

    # ---- indices

    def _sides(self) -> tuple[_Side, _Side]:
        """Return the sides that become rows and columns, and set the other variables and the index of the result."""
        e, dot = self.emitter, self.dot
        lhs, rhs = dot.operands
        sizes = contracted_sizes(dot)
        self.depth = Var(e.fresh("k"), math.prod(sizes))
        step, whole = ix.of(self.depth), self.depth.extent // self.order
        if self.order > 1:
            step = step.mod(whole) * self.order + step.floordiv(whole)
        self.inner = inner = ix.delinearize(step, sizes)
        batch = [Var(e.fresh("i"), lhs.shape.dimensions[d]) for d in dot.attr("lhs_batch_dims", ())]
        self.outer = list(batch)
        lf, rf = free_dimensions(dot)
        left, left_at = self._free([lhs.shape.dimensions[d] for d in lf])
        right, right_at = self._free([rhs.shape.dimensions[d] for d in rf])
        self.at = (*map(ix.of, batch), *left_at, *right_at)
        left_index, right_index = operand_indices(dot, self.at, inner)
        first, second = _Side(lhs, left_index, left), _Side(rhs, right_index, right)
        root = self.roots[0]
        offset = ix.linearize(forward_index(dot, root, self.at), root.shape.dimensions)
        size = root.shape.element_type.byte_size
        across = sectors_along(offset, left, size) < sectors_along(offset, right, size)
        self.turned = across
        return (second, first) if across else (first, second)

    def _free(self, sizes: Sequence[int]) -> tuple[Var, Index]:
        """Return the variable of free dimensions that is divided into tiles, and their index."""
        e = self.emitter
        if self.merged:
            var = Var(e.fresh("i"), math.prod(sizes))
            return var, ix.delinearize(ix.of(var), sizes)
        variables = [Var(e.fresh("i"), n) for n in sizes]
        long = [v for v in variables if v.extent >= LONG] or [v for v in variables if v.extent != 1]
        var = long[-1] if long else Var(e.fresh("i"), 1)
        self.outer += [v for v in variables if v is not var]
        return var, tuple(map(ix.of, variables))

    # ---- tiles

    def _tiles(self, rows: int, columns: int) -> tuple[Var, Var, Var]:
        """Return the variables of groups of tiles, of their columns, and of the rows of a group, in order of blocks.

        Blocks that run at the same time then share what they read of both operands in the cache.
        """
        e = self.emitter
        group = next(n for n in range(min(rows, GROUP), 0, -1) if rows % n == 0) if columns > 1 else 1
        return Var(e.fresh("g"), rows // group), Var(e.fresh("n"), columns), Var(e.fresh("m"), group)

    def _shape(self, m: int, n: int, lhs: TileOperand, rhs: TileOperand) -> TileShape:
        """Return the sizes of the tiles: those of the schedule, otherwise the largest that suffice for all units."""
        s, batch = self.schedule, math.prod(v.extent for v in self.outer)

        def count(size: tuple[int, int]) -> int:
            return batch * -(-m // size[0]) * -(-n // size[1])

        # A result of few rows has tiles of as many elements as others, along its columns.
        sizes = tuple((c, r) if 32 <= _covering(m, r, 16) < r <= n else (r, c) for r, c in TILE_SIZES[self.type])
        size = next((size for size in sizes if count(size) >= MANY_TILES), sizes[-1])
        rows, columns = s.rows or _covering(m, size[0], 16), s.columns or _covering(n, size[1], 32)
        if s.stages == 1:
            raise UnsupportedError("a tile is copied to one stage while another is read: there are at least two stages")
        tiles = count((rows, columns))
        halves = self.type in HALF_TYPES
        shape = self._tensor_shape(rows, columns) if halves else self._scalar_shape(rows, columns, tiles)
        if shape is None:
            raise UnsupportedError(
                f"a tile of {rows} x {columns} elements cannot be divided into the parts of its choice"
            )
        if not halves or not (lhs.vector or rhs.vector):
            return shape
        stage = 4 * (half_words(rows, shape.depth, lhs) + half_words(columns, shape.depth, rhs))
        fit = min(MAX_STAGES, STAGE_BYTES // stage, -(-self.depth.extent // shape.depth))
        return replace(shape, stages=s.stages or max(2, fit))

    def _tensor_shape(self, rows: int, columns: int) -> TileShape | None:
        """Return the shape of a tile that warps divide, or None if they cannot."""
        s = self.schedule
        depth = s.depth or (32 if self.depth.extent > 16 else 16)
        row_parts = s.row_parts or (1 if rows == 16 else 2)
        column_parts = s.column_parts or min(columns // 16, 4 if rows * columns >= 1 << 14 or row_parts == 1 else 2)
        if rows % (16 * row_parts) or columns % (16 * column_parts) or depth % 16:
            return None
        return TileShape(rows, columns, depth, row_parts, column_parts, s.stages or 2)

    def _scalar_shape(self, rows: int, columns: int, tiles: int) -> TileShape | None:
        """Return the shape of a tile that threads divide, or None if they cannot.

        Where there are so few tiles that multiprocessors wait for memory, several groups of threads divide the depth.
        """
        s = self.schedule
        # Of small tiles there are few, which wait for memory: they load more at a time, at most 16 elements per thread.
        small = self.type.byte_size == 4 and max(rows, columns) * 32 <= 16 * THREADS
        longest = 32 if small and self.depth.extent >= 64 else 16
        depth = s.depth or (8 if rows * columns >= 1 << 13 else longest)
        row_parts, column_parts = s.row_parts or max(1, rows // 8), s.column_parts or max(1, columns // 8)
        while row_parts * column_parts < THREADS and not (s.row_parts or s.column_parts):
            if columns // column_parts >= rows // row_parts:
                column_parts *= 2
            else:
                row_parts *= 2
        runs = [_run(rows, row_parts), _run(columns, column_parts)]
        if 0 in runs or row_parts * column_parts % 32 or depth % 4:
            return None
        shape = TileShape(rows, columns, depth, row_parts, column_parts)
        if s.depth_parts:
            return replace(shape, depth_parts=s.depth_parts)
        for parts in DEPTH_PARTS:
            if tiles * parts > MOST_GROUPS or row_parts * column_parts * parts > MOST_THREADS:
                continue
            for steps in (depth,) if s.depth else dict.fromkeys((depth, 16, 8)):
                found = replace(shape, depth=min(steps, depth), depth_parts=parts)
                fits = scalar_elements(found) * self.type.byte_size <= STAGE_BYTES
                if fits and found.depth * parts <= self.depth.extent:
                    return found
        return shape

    # ---- results

    def _epilogue(self, result: str) -> tuple[lir.Stmt, ...]:
        """Return the statements that compute the outputs from one sum."""
        set_source(self.emitter, self.dot, self.at, self.sums, lambda: result)
        return store_outputs(self.emitter, self.dot, self.at, self.roots)

    def _term(self) -> tuple[tuple[lir.Stmt, ...], str]:
        """Return the statements that compute the term of two elements that are no product, and its name."""
        pair, e = self.pair, self.emitter
        if pair is None:
            return (), ""
        names = (LEFT, RIGHT) if not self.turned else (RIGHT, LEFT)
        for side, name in zip((pair.left, pair.right), names, strict=True):
            e.sources[side] = partial(_named, name)
        index = (*self.at, *self.inner)
        with e.guard() as body:
            value = e.value(pair.term, tuple(ix.const(0) if n < 0 else index[n] for n in pair.order))
        return tuple(body.stmts), value

    def _in_place_pairs(self, tile: TileProduct) -> tuple[tuple[int, int], ...]:
        """Return the (input, output) argument positions that may share one buffer, such as a sum of products.

        Only the epilogue may read the input, and it reads and writes the same element of both.
        """
        if any(isinstance(s, lir.If) for s in walk(tile.epilogue)):
            return ()
        stores = {s.buffer: s.offset for s in tile.epilogue if isinstance(s, lir.Store)}
        read: dict[str, set[IndexExpr]] = {}
        for load in loads_of(tile.epilogue):
            read.setdefault(load.buffer, set()).add(load.offset)
        outside = {load.buffer for o in (tile.lhs, tile.rhs) for load in loads_of(o.body)}
        outside |= {tile.lhs.buffer, tile.rhs.buffer}
        outside |= {
            load.buffer for load in loads_of(tuple(s for s in self.emitter.frames[0].stmts if isinstance(s, lir.Let)))
        }
        first = len(self.fused.parameters)
        return tuple(
            (n, first + k)
            for n, p in enumerate(self.fused.parameters)
            for k, r in enumerate(self.roots)
            if p.shape.element_type.byte_size == r.shape.element_type.byte_size
            and f"p{n}" not in outside
            and read.get(f"p{n}") == {stores[f"o{k}"]}
        )


def _named(name: str, index: Index) -> str:
    del index
    return name


def tile_operand(e: Emitter, operand: HloInstruction, index: Index, free: Var, depth: Var, t: T) -> TileOperand:
    """Return how the elements of an operand of a product are found.

    Args:
        e: the emitter.
        operand: the operand.
        index: of the element at the variables `free` and `depth`.
        free: variable of its free elements.
        depth: variable along which products are summed.
        t: element type in shared memory.
    """
    with e.guard() as body:
        name = e.value(operand, index)
    load = _plain_load(body.stmts, t, (free, depth))
    copied = None if load is None else _copied(load, free, depth, t)
    if copied is None and (guarded := guarded_load(body.stmts, t, [s for f in e.frames for s in f.stmts])) is not None:
        copied = _copied_where(guarded, free, depth, t)
    if copied is not None:
        return copied
    along, _ = reads_of(tuple(body.stmts), free, depth)
    return TileOperand(tuple(body.stmts), name, along)


def _copied(load: lir.Load, free: Var, depth: Var, t: T) -> TileOperand | None:
    """Return an operand that is copied in pieces, or None if its elements are not adjacent or aligned."""
    for inner, along in ((depth, True), (free, False)):
        if load.offset.coefficient(inner) != 1 or inner.extent == 1:
            continue
        rest = load.offset - ix.of(inner)
        vector = COPY_BYTES // t.byte_size
        while vector * t.byte_size >= LEAST_BYTES:
            if inner.extent % vector == 0 and rest.factor % vector == 0:
                return TileOperand((), "", along, load.buffer, load.offset, vector)
            vector //= 2
    return None


def _copied_where(guarded: GuardedLoad, free: Var, depth: Var, t: T) -> TileOperand | None:
    """Return an operand that is copied in pieces, zeros where its test fails, or None if pieces are not uniform."""
    for inner, along in ((depth, True), (free, False)):
        vector = COPY_BYTES // t.byte_size
        while vector * t.byte_size >= LEAST_BYTES:
            if inner.extent % vector == 0 and guarded.is_wide(inner, vector):
                load = guarded.load
                return TileOperand(guarded.tests, guarded.condition, along, load.buffer, load.offset, vector)
            vector //= 2
    return None


def half_of(i: HloInstruction) -> T | None:
    """Return the type of 16 bits that all elements of an instruction are values of, if they were converted to f32.

    Integers of up to 8 bits are values of bf16, whose products and sums below 2**24 are exact in f32.
    """
    while i.opcode in _MOVED or i.opcode is Opcode.CONVERT:
        if i.shape.element_type in HALF_TYPES:
            return i.shape.element_type
        if i.opcode is Opcode.CONVERT and i.shape.element_type is not T.F32:
            return None
        i = i.operands[0]
        if i.shape.element_type in SMALL_INTEGERS:
            return T.BF16
    return i.shape.element_type if i.shape.element_type in HALF_TYPES else None


def _plain_load(stmts: Sequence[lir.Stmt], t: T, variables: Sequence[Var]) -> lir.Load | None:
    """Return the load of an element that is of type `t` in memory, if nothing but a conversion from it follows.

    Its offset is affine in the variables.
    """
    first, *more = stmts or (None,)
    if not isinstance(first, lir.Let) or not isinstance(first.value, lir.Load) or first.type is not t:
        return None
    name = first.name
    for s in more:
        value = s.value if isinstance(s, lir.Let) else None
        if not isinstance(value, lir.Apply) or value.op.opcode is not Opcode.CONVERT or value.args != (name,):
            return None
        if value.op.result is not T.F32:
            return None
        name = s.name if isinstance(s, lir.Let) else name
    symbols = (s for s, _ in first.value.offset.terms if not isinstance(s, Var))
    inside = {v for s in symbols for v in IndexExpr(((s, 1),)).variables()}
    return first.value if inside.isdisjoint(variables) else None


def _covering(extent: int, most: int, least: int) -> int:
    """Return the smallest power of two from `least` on that covers an extent, or `most`."""
    size = least
    while size < min(extent, most):
        size *= 2
    return min(size, most)


def _run(size: int, parts: int) -> int:
    """Return the number of elements of a part, 0 if the template does not support it."""
    each = size // parts
    return each if size % parts == 0 and each & (each - 1) == 0 and 1 <= each <= 8 else 0
