"""Lowering of matrix products: a dot with a generated prologue on its operands and a generated epilogue on its result.

The result is computed in blocks. A block of sums is either written to the output directly or kept in a local array,
from which a loop computes the epilogue: everything between the dot and the outputs. An operand is read where it is if
its elements are affine in the loop variables and it needs no arithmetic; otherwise a block of it is first computed into
a local array, a packed panel. One side of the dot becomes the rows of the blocks and the other the columns, along which
vectors run: the estimated cycles decide.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from compiler.codegen.lowering.emission import STATEMENT_LIMIT
from compiler.codegen.lowering.emit import Emitter
from compiler.codegen.lowering.outputs import forward_index, kernel_arguments, set_source, store_outputs
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Index, IndexExpr, Var
from compiler.codegen.nest.loop_ir import LoopKind
from compiler.codegen.nest.traversal import indices_in, walk
from compiler.codegen.schedules.schedule import LANES, LOCAL_BYTES
from compiler.codegen.schedules.template_schedules import ProductSchedule
from compiler.codegen.templates.dots import (
    contracted_sizes,
    dot_refusal,
    free_dimensions,
    loads_of,
    operand_indices,
)
from compiler.codegen.templates.packing import (
    Operand,
    divided_variables,
    operand_in_place,
    pack,
    pack_transposed,
    placed,
    rest_of,
)
from compiler.codegen.templates.register_tiles import best_tile, tile_cycles
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

ACCUMULATED_IN = {
    T.F16: T.F32, T.BF16: T.F32, T.F32: T.F32, T.F64: T.F64,
    T.S32: T.S32, T.U32: T.U32, T.S64: T.S64, T.U64: T.U64,
}  # fmt: skip
"""The type in which products of each element type are summed."""
GATHER, SCATTER, VECTOR = 0.4, 1.2, 0.1
"""Estimated cycles per element of packing an operand, of storing across the output, and of storing along it."""


def product_of(fused: HloComputation) -> HloInstruction | None:
    """Return the dot of a fused computation that has exactly one, otherwise None."""
    dots = [i for i in fused.post_order() if i.opcode is Opcode.DOT]
    return dots[0] if len(dots) == 1 else None


def lower_product(
    fused: HloComputation, roots: Sequence[HloInstruction], dot: HloInstruction, schedule: ProductSchedule
) -> lir.Kernel:
    """Return the kernel of a computation with one dot, each of whose outputs has one element per element of the dot.

    Raises:
        UnsupportedError: the dot has an unsupported type or is too deep, or an output has another number of elements.
    """
    return _Product(fused, roots, dot, schedule).kernel()


NARROW = 8
"""Adjacent elements of the result from which on vectors of an epilogue run along them."""
PACKED_ROWS = 64
"""Rows of a task from which on packing its columns takes a small part of its time."""
SHORT_ROWS = 32
"""Elements of the last free dimension of an operand below which it is one with those before it."""
STAGED = 4096
"""Elements of a part of a panel that is computed along the depth before it is transposed into the panel: 16 KiB of f32,
which leave room for the panel in the first-level cache."""
PACKED_BYTES = 32 * 1024
"""Size of packed rows, which each panel of columns reads again from the first-level cache where a tile of them fits."""
NEAR_BYTES = 1 << 19
"""Size of a right operand up to which it stays in the L2 cache of each core."""


@dataclass(frozen=True)
class _Side:
    """One side of the dot: the operand, and the variable along which its free elements are divided into blocks."""

    operand: HloInstruction
    index: Index
    var: Var


@dataclass(frozen=True)
class _Blocking:
    """How a product is divided.

    Attributes:
        tile: rows and vectors of a register tile.
        rows, columns: size of a block.
        shared: number of blocks of rows of a task, which share packed columns.
        tasks: number of tasks into which the blocks of rows are divided.
        pack_rows, pack_columns: whether blocks of an operand are computed into local arrays.
    """

    tile: tuple[int, int]
    rows: int
    columns: int
    shared: int
    tasks: int
    pack_rows: bool
    pack_columns: bool


@dataclass(frozen=True)
class _Group:
    """Dimensions of the result.

    Attributes:
        variables: of the loops over them.
        index: along each of the dimensions.
    """

    variables: Sequence[Var]
    index: Index


class _Product:
    """Lowers one product."""

    def __init__(
        self, fused: HloComputation, roots: Sequence[HloInstruction], dot: HloInstruction, schedule: ProductSchedule
    ) -> None:
        self.fused, self.roots, self.dot, self.schedule = fused, roots, dot, schedule
        refusal = dot_refusal(dot, ACCUMULATED_IN)
        if refusal is not None:
            raise UnsupportedError(refusal)
        for r in roots:
            if r.shape.num_elements != dot.shape.num_elements:
                raise UnsupportedError(f"%{r.name}: {r.shape} does not have one element per element of %{dot.name}")
        self.type = ACCUMULATED_IN[dot.shape.element_type]
        self.emitter = Emitter(fused, STATEMENT_LIMIT)
        self.epilogue: tuple[lir.Stmt, ...] = ()

    def kernel(self) -> lir.Kernel:
        e, dot = self.emitter, self.dot
        self.sizes = sizes = contracted_sizes(dot)
        self.depth = Var(e.fresh("k"), math.prod(sizes))
        self._inner = ix.delinearize(ix.of(self.depth), sizes)
        groups = self._groups()
        result = [v for group in groups for v in group.variables]
        self.at = tuple(x for group in groups for x in group.index)
        indices = operand_indices(dot, self.at, self._inner)
        first, second = (
            _Side(operand, index, self._blocked(group.variables))
            for operand, index, group in zip(dot.operands, indices, groups[1:], strict=True)
        )
        outer = [v for v in result if v not in (first.var, second.var)]
        self.outer = math.prod(v.extent for v in outer)
        ways = [(r, c, self._blocking(r, c)) for r, c in ((first, second), (second, first))]
        rows, columns, blocking = min(ways, key=lambda way: self._cost(*way))
        with e.loops(outer):
            self._blocks(rows, columns, blocking)
        arguments = kernel_arguments(self.fused.parameters, [r.shape for r in self.roots])
        body = tuple(e.frames[0].stmts)
        return lir.Kernel("product", arguments, body, self._in_place_pairs(body))

    def _groups(self) -> tuple[_Group, _Group, _Group]:
        """Return the dimensions of the result: of the batch, and the free ones of both operands.

        Free dimensions of an operand, the last of which is short, are one where every access allows it: blocks are
        larger, and what is packed for one serves more products.
        """
        left, right = (len(free) for free in free_dimensions(self.dot))
        dims = self.dot.shape.dimensions
        batch = len(dims) - left - right
        ends = (0, batch, batch + left, len(dims))
        found = [self._group(dims[first:end]) for first, end in itertools.pairwise(ends)]
        for n in (1, 2):
            sizes = dims[ends[n] : ends[n + 1]]
            long = [size for size in sizes if size != 1]
            if len(long) > 1 and long[-1] < SHORT_ROWS:
                merged = [*found[:n], self._merged(sizes), *found[n + 1 :]]
                if self._is_affine(merged, merged[n].variables[0]):
                    found = merged
        return found[0], found[1], found[2]

    def _group(self, sizes: Sequence[int]) -> _Group:
        variables = [Var(self.emitter.fresh("i"), n) for n in sizes]
        return _Group(variables, tuple(map(ix.of, variables)))

    def _merged(self, sizes: Sequence[int]) -> _Group:
        var = Var(self.emitter.fresh("i"), math.prod(sizes))
        return _Group([var], ix.delinearize(ix.of(var), sizes))

    def _is_affine(self, groups: Sequence[_Group], var: Var) -> bool:
        """Check whether the kernel needs no quotients and remainders of a variable of its result."""
        e, dot = self.emitter, self.dot
        at = tuple(x for group in groups for x in group.index)
        with e.guard() as scratch:
            try:
                for operand, index in zip(dot.operands, operand_indices(dot, at, self._inner), strict=True):
                    e.value(operand, index)
                set_source(e, dot, at, self.type, lambda: e.constant(0, self.type))
                stored = store_outputs(e, dot, at, self.roots)
            except UnsupportedError:
                return False
            finally:
                e.sources.pop(dot, None)
        return var not in divided_variables(indices_in((*scratch.stmts, *stored)))

    def _in_place_pairs(self, body: lir.Body) -> tuple[tuple[int, int], ...]:
        """Return the (input, output) argument positions that may share one buffer, such as a sum of products.

        Only the epilogue may read the input, and each iteration of it reads and writes the same element of both.
        """
        if any(isinstance(s, lir.If) for s in walk(self.epilogue)):
            return ()
        stores = {s.buffer: s.offset for s in self.epilogue if isinstance(s, lir.Store)}
        offsets: dict[str, set[IndexExpr]] = {}
        for load in loads_of(self.epilogue):
            offsets.setdefault(load.buffer, set()).add(load.offset)
        inside, total = (Counter(load.buffer for load in loads_of(b)) for b in (self.epilogue, body))
        for s in walk(body):
            if isinstance(s, lir.MatrixProduct):
                total.update((s.lhs.array, s.rhs.array))
            elif isinstance(s, lir.TransposeTile):
                total[s.buffer] += 1
        pairs = []
        for n, p in enumerate(self.fused.parameters):
            for k, r in enumerate(self.roots):
                same_size = p.shape.element_type.byte_size == r.shape.element_type.byte_size
                only_here = offsets.get(f"p{n}") == {stores.get(f"o{k}")} and inside[f"p{n}"] == total[f"p{n}"]
                if same_size and only_here:
                    pairs.append((n, len(self.fused.parameters) + k))
        return tuple(pairs)

    def _blocked(self, free: Sequence[Var]) -> Var:
        """Return the variable of a side that is divided into blocks: the last that is longer than 1."""
        long = [v for v in free if v.extent != 1]
        return long[-1] if long else Var(self.emitter.fresh("i"), 1)

    # ---- orientation

    def _in_place(self, side: _Side, across: Sequence[Var]) -> Operand:
        return operand_in_place(self.emitter, side.operand, side.index, self.type, across)

    def _cost(self, rows: _Side, columns: _Side, blocking: _Blocking) -> float:
        """Return the estimated cycles of a product with one side as rows and the other as columns."""
        m, n, depth = rows.var.extent, columns.var.extent, self.depth.extent
        (height, width), vectors = blocking.tile, -(-n // (64 // self.type.byte_size))
        cycles = depth * -(-m // height) * -(-vectors // width) * tile_cycles(height, width)
        if blocking.pack_columns:
            cycles += GATHER * n * depth * blocking.tasks
        if blocking.pack_rows and m > 1:
            cycles += GATHER * m * depth * (-(-n // blocking.columns) if blocking.pack_columns else 1)
        to = forward_index(self.dot, self.roots[0], self.at)
        adjacent = ix.linearize(to, self.roots[0].shape.dimensions).coefficient(columns.var) == 1
        return cycles + (VECTOR if adjacent or n == 1 else SCATTER) * m * n

    def _columns_adjacent(self, columns: _Side) -> bool:
        found = self._in_place(columns, (columns.var, self.depth))
        return found.buffer is not None and (columns.var.extent == 1 or found.offset.coefficient(columns.var) == 1)

    # ---- blocks

    def _blocking(self, rows: _Side, columns: _Side) -> _Blocking:
        """Return how a product with one side as rows and the other as columns is divided."""
        s = self.schedule
        m, n, depth = rows.var.extent, columns.var.extent, self.depth.extent
        bytes_ = self.type.byte_size
        lanes = 64 // bytes_
        tile = best_tile(m, -(-n // lanes), s.accumulators)
        pack_rows = self._in_place(rows, (rows.var, self.depth)).buffer is None
        pack_columns = not self._columns_adjacent(columns)
        row_size, column_size = _block(m, s.row_block, tile[0]), _block(n, s.column_block, tile[1] * lanes)
        while (
            self.outer * -(-m // row_size) * -(-n // column_size) < s.tasks
            and row_size * column_size * depth > s.task_products
            and (row_size > tile[0] or column_size > tile[1] * lanes)
        ):
            # Each task packs its columns: more blocks of rows pack them more often, more blocks of columns do not.
            by_columns = pack_columns and row_size <= PACKED_ROWS and column_size > tile[1] * lanes
            if row_size > tile[0] and not by_columns:
                row_size = _up(row_size // 2, tile[0])
            else:
                column_size = _up(column_size // 2, tile[1] * lanes)
        room = LOCAL_BYTES // bytes_ - row_size * (column_size + lanes) - 4096
        room -= STAGED if pack_columns and self._is_staged(columns) else 0
        while pack_rows and row_size > tile[0] and row_size * depth * (1 + pack_columns) > room:
            row_size = _up(row_size // 2, tile[0])
        if pack_rows and not pack_columns and tile[0] * depth * bytes_ <= PACKED_BYTES:
            while row_size > tile[0] and row_size * depth * bytes_ > PACKED_BYTES:
                row_size = _up(row_size // 2, tile[0])
        while (
            pack_columns and column_size > lanes and (column_size + lanes) * depth > room - pack_rows * row_size * depth
        ):
            column_size = _up(column_size // 2, lanes)
        shared = max(1, s.shared_rows // row_size) if pack_columns else 1
        blocks = -(-m // row_size)
        enough = max(-(-PACKED_ROWS // row_size), self.outer * blocks * -(-n // column_size) // s.tasks)
        shared = min(shared, blocks, enough)
        while blocks % shared:
            shared -= 1
        return _Blocking(tile, row_size, column_size, shared, blocks // shared, pack_rows, pack_columns)

    def _blocks(self, rows: _Side, columns: _Side, blocking: _Blocking) -> None:
        """Emit the loops over blocks.

        A panel of columns that must be packed serves all blocks of rows, and packed rows all blocks of columns.
        """
        e = self.emitter
        m, n = rows.var.extent, columns.var.extent
        row_size, column_size, shared = blocking.rows, blocking.columns, blocking.shared
        pack_rows, pack_columns = blocking.pack_rows, blocking.pack_columns
        lanes = 64 // self.type.byte_size
        self.tile = blocking.tile
        self.narrow_tile = best_tile(m, -(-2 * n // lanes), self.schedule.accumulators // 2)
        left = self._in_place(rows, (rows.var, self.depth))
        j_block = Var(e.fresh("n"), -(-n // column_size))
        i, j = Var(e.fresh("r"), min(row_size, m)), Var(e.fresh("c"), min(column_size, n))
        column_span, column_at = _span(j, ix.of(j_block) * j.extent, n)
        i_task, i_block = Var(e.fresh("t"), blocking.tasks), Var(e.fresh("m"), shared)
        row_span, row_at = _span(i, (ix.of(i_task) * shared + ix.of(i_block)) * i.extent, m)
        mapping: dict[ix.IndexSymbol, IndexExpr] = {rows.var: row_at, columns.var: column_at}
        pieces = _Pieces(i, j, row_span, column_span, mapping)
        if pack_rows and not pack_columns:
            with e.loops([i_task]):
                a = self._packed(rows, pieces, i, row_span, by_rows=True)
                with e.loops([j_block], LoopKind.SERIAL):
                    self._block(rows, columns, pieces, a, self._right(columns, pieces, False))
            return
        by_rows = not pack_columns and self._follows_rows(rows, columns, row_size)
        with e.loops([i_task, j_block] if by_rows else [j_block, i_task]):
            b = self._right(columns, pieces, pack_columns)
            with e.loops([i_block], LoopKind.SERIAL):
                if pack_rows:
                    a = self._packed(rows, pieces, i, row_span, by_rows=True)
                else:
                    a = self._left(left, rows, pieces)
                self._block(rows, columns, pieces, a, b)

    def _follows_rows(self, rows: _Side, columns: _Side, row_size: int) -> bool:
        """Check whether each thread should compute whole rows of the result.

        The kernels before and after it divide arrays by their first dimension, too, so that a core finds in its caches
        what it has written. Columns come first where reading all columns for each block of rows takes longer.
        """
        right_bytes = columns.var.extent * self.depth.extent * self.type.byte_size
        if right_bytes > NEAR_BYTES and row_size < PACKED_ROWS // 2:
            return False
        offset = ix.linearize(forward_index(self.dot, self.roots[0], self.at), self.roots[0].shape.dimensions)
        return offset.coefficient(rows.var) > offset.coefficient(columns.var)

    def _left(self, found: Operand, rows: _Side, pieces: _Pieces) -> lir.Matrix:
        offset = found.offset.substitute({self.depth: ix.const(0), **pieces.start(rows.var)})
        return lir.Matrix(
            found.buffer or "", pieces.at_start(offset), found.offset.coefficient(rows.var),
            found.offset.coefficient(self.depth), False,
        )  # fmt: skip

    def _right(self, columns: _Side, pieces: _Pieces, packed: bool) -> lir.Matrix:
        if packed:
            return self._packed(columns, pieces, pieces.j, pieces.column_span, by_rows=False)
        found = self._in_place(columns, (columns.var, self.depth))
        offset = found.offset.substitute({self.depth: ix.const(0), **pieces.start(columns.var)})
        return lir.Matrix(found.buffer or "", pieces.at_start(offset), found.offset.coefficient(self.depth), 1, False)

    def _packed(self, side: _Side, pieces: _Pieces, var: Var, span: lir.Span, by_rows: bool) -> lir.Matrix:
        """Emit the computation of a block of an operand: rows x depth, or depth x columns."""
        e, depth = self.emitter, self.depth
        array = e.fresh("panel")
        width = depth.extent if by_rows else _up(var.extent, 16)
        e.add(lir.LocalArray(array, self.type, var.extent * width if by_rows else depth.extent * width))
        if len(self.sizes) > 1 and not self._is_plain(side):
            return self._packed_by_steps(array, side, pieces, var, span, width, by_rows)
        k = Var(e.fresh("k"), depth.extent)
        index = tuple(x.substitute({depth: ix.of(k)}) for x in side.index)
        along = lir.For(k, LoopKind.VECTOR, ())
        across = lir.For(var, LoopKind.SERIAL, (), base=span.base, limit=span.limit if span.base is not None else None)
        step_by_step = [
            lir.For(k, LoopKind.SERIAL, ()),
            lir.For(var, LoopKind.VECTOR, (), base=across.base, limit=across.limit),
        ]
        if by_rows and self._is_adjacent_after(side, index, k):
            pack(e, array, step_by_step, side.operand, index, ix.of(k) * var.extent + ix.of(var), pieces.mapping)
            return lir.Matrix(array, ix.const(0), 1, var.extent, True)
        if by_rows:
            pack(e, array, [across, along], side.operand, index, ix.of(var) * width + ix.of(k), pieces.mapping)
            return lir.Matrix(array, ix.const(0), width, 1, True)
        found = operand_in_place(e, side.operand, index, self.type, (side.var, k))
        found = replace(found, offset=found.offset.substitute(pieces.mapping))
        self._clear(array, var, span, width)
        if pack_transposed(e, array, found, k, var, span, width):
            return lir.Matrix(array, ix.const(0), width, 1, True)
        if self._is_staged(side) and min(var.extent, depth.extent) >= LANES * 4 // self.type.byte_size:
            self._stage(array, side, pieces, var, span, width)
            return lir.Matrix(array, ix.const(0), width, 1, True)
        loops = step_by_step if self._is_adjacent_after(side, index) else [across, along]
        pack(e, array, loops, side.operand, index, ix.of(k) * width + ix.of(var), pieces.mapping)
        return lir.Matrix(array, ix.const(0), width, 1, True)

    def _is_staged(self, side: _Side) -> bool:
        """Check whether columns are computed along the depth, and so not in the order in which they are in a panel.

        What is the same along the depth, such as a factor of each column, does not count.
        """
        if len(self.sizes) > 1 or self._in_place(side, (side.var, self.depth)).buffer is not None:
            return False
        offsets = [i for i in self._offsets(side, side.index) if self.depth in i.variables()]
        return bool(offsets) and all(i.coefficient(side.var) != 1 for i in offsets)

    def _stage(self, array: str, side: _Side, pieces: _Pieces, var: Var, span: lir.Span, width: int) -> None:
        """Emit the computation of columns along the depth, in parts that are then transposed in registers.

        Storing each element where it belongs would take as long as several products with it.
        """
        e, depth = self.emitter, self.depth.extent
        parts = -(-depth // _up(max(LANES, STAGED // var.extent), LANES))
        part, k = Var(e.fresh("m"), parts), Var(e.fresh("k"), depth)
        inside = Var(e.fresh("k"), min(depth, _up(-(-depth // parts), LANES)))
        k_span, at = _span(inside, ix.of(part) * inside.extent, depth)
        rows = e.fresh("rows")
        e.add(lir.LocalArray(rows, self.type, var.extent * inside.extent))
        index = tuple(x.substitute({self.depth: ix.of(k)}) for x in side.index)
        loops = [
            lir.For(var, LoopKind.SERIAL, (), base=span.base, limit=_limit(span)),
            lir.For(inside, LoopKind.VECTOR, (), base=k_span.base, limit=_limit(k_span)),
        ]
        with e.loops([part], LoopKind.SERIAL):
            to = ix.of(var) * inside.extent + ix.of(inside)
            pack(e, rows, loops, side.operand, index, to, {**pieces.mapping, k: at})
            begin = ix.of(part) * (inside.extent * width)
            tile = lir.TransposeTile(array, rows, ix.const(0), inside.extent, width, rest_of(k_span), rest_of(span))
            e.add(replace(tile, height=inside.extent, to=begin))

    def _packed_by_steps(
        self, array: str, side: _Side, pieces: _Pieces, var: Var, span: lir.Span, width: int, by_rows: bool
    ) -> lir.Matrix:
        """Emit the computation of a block with a loop for each contracted dimension, such as those of a window.

        What an element needs is then affine in the variables of the loops, and the tests at the edges of a window are
        outside of the innermost one.
        """
        e, sizes = self.emitter, self.sizes
        steps = [Var(e.fresh("k"), n) for n in sizes]
        k = ix.linearize([ix.of(v) for v in steps], sizes)
        index = tuple(x.substitute({self.depth: k}) for x in side.index)
        across = lir.For(var, LoopKind.SERIAL, (), base=span.base, limit=span.limit if span.base is not None else None)
        last = max(range(len(sizes)), key=lambda n: (sizes[n] > 1, n))
        along = lir.For(steps[last], LoopKind.VECTOR, ())
        if by_rows:
            outer = [v for v in steps if v is not steps[last]]
            to = ix.of(var) * width + k
            pack(e, array, [across, along], side.operand, index, to, pieces.mapping, outer, steps[last])
            return lir.Matrix(array, ix.const(0), width, 1, True)
        self._clear(array, var, span, width)
        to = k * width + ix.of(var)
        if self._is_adjacent_after(side, index):
            loop = replace(across, kind=LoopKind.VECTOR)
            pack(e, array, [loop], side.operand, index, to, pieces.mapping, steps, side.var)
        else:
            outer = [v for v in steps if v is not steps[last]]
            pack(e, array, [across, along], side.operand, index, to, pieces.mapping, outer, steps[last])
        return lir.Matrix(array, ix.const(0), width, 1, True)

    def _is_plain(self, side: _Side) -> bool:
        """Check whether an element of an operand is a load that is affine in the depth, so that one loop packs it."""
        return operand_in_place(self.emitter, side.operand, side.index, self.type, (self.depth,)).buffer is not None

    def _clear(self, array: str, var: Var, span: lir.Span, width: int) -> None:
        """Emit zeros for the columns of a panel that only fill its last vectors.

        Their sums are not used, but they take a hundred times as long where the memory holds subnormal numbers.
        """
        first = 0 if span.base is not None else var.extent
        if first == width:
            return
        e = self.emitter
        k, column = Var(e.fresh("k"), self.depth.extent), Var(e.fresh("c"), width - first)
        loops = [lir.For(k, LoopKind.SERIAL, ()), lir.For(column, LoopKind.VECTOR, ())]
        with e.guard() as body:
            e.add(lir.LocalStore(array, ix.of(k) * width + ix.of(column) + first, e.constant(0, self.type)))
        nest = replace(loops[1], body=tuple(body.stmts))
        e.add(replace(loops[0], body=(nest,)))

    def _is_adjacent_after(self, side: _Side, index: Index, rather_than: Var | None = None) -> bool:
        """Check whether some load of a packed operand is contiguous along its rows or columns.

        Args:
            side: the operand.
            index: of its elements.
            rather_than: no load may be contiguous along this variable, if there is one.
        """
        offsets = self._offsets(side, index)
        if rather_than is not None and any(abs(i.coefficient(rather_than)) == 1 for i in offsets):
            return False
        return any(i.coefficient(side.var) == 1 for i in offsets)

    def _offsets(self, side: _Side, index: Index) -> list[IndexExpr]:
        """Return where an element of an operand loads from."""
        with self.emitter.guard() as scratch:
            self.emitter.value(side.operand, index)
        return [load.offset for load in loads_of(tuple(scratch.stmts))]

    def _block(self, rows: _Side, columns: _Side, pieces: _Pieces, left: lir.Matrix, right: lir.Matrix) -> None:
        """Emit the product of one block and its epilogue."""
        e = self.emitter
        spans = (pieces.row_span, pieces.column_span, lir.Span(self.depth.extent))
        direct = self._direct_target(rows, columns, pieces)
        if direct is not None:
            e.add(
                lir.MatrixProduct(direct, left, right, self.type, *spans, tile=self.tile, narrow_tile=self.narrow_tile)
            )
            return
        i, j = pieces.i, pieces.j
        width = _up(j.extent, 16)
        sums = e.fresh("sums")
        e.add(lir.LocalArray(sums, self.type, i.extent * width))
        target = lir.Matrix(sums, ix.const(0), width, 1, True)
        e.add(lir.MatrixProduct(target, left, right, self.type, *spans, tile=self.tile, narrow_tile=self.narrow_tile))

        offset = ix.linearize(forward_index(self.dot, self.roots[0], self.at), self.roots[0].shape.dimensions)
        loops = [(i, pieces.row_span), (j, pieces.column_span)]
        at = ix.of(i) * width + ix.of(j)
        is_across = offset.coefficient(rows.var) == 1 and offset.coefficient(columns.var) != 1
        if is_across and i.extent >= min(j.extent, NARROW):
            loops.reverse()  # to store adjacent elements
            if min(i.extent, j.extent) >= LANES * 4 // self.type.byte_size:
                sums, at = self._turned(sums, width, pieces)
        set_source(e, self.dot, self.at, self.type, lambda: e.let(self.type, lir.LocalLoad(sums, at)))
        self.epilogue = store_outputs(e, self.dot, self.at, self.roots)
        (outer, outer_span), (inner, inner_span) = loops
        stmts = placed(self.epilogue, pieces.mapping)
        nest = lir.For(inner, LoopKind.INDEPENDENT, stmts, base=inner_span.base, limit=_limit(inner_span))
        e.add(lir.For(outer, LoopKind.SERIAL, (nest,), base=outer_span.base, limit=_limit(outer_span)))

    def _turned(self, sums: str, width: int, pieces: _Pieces) -> tuple[str, IndexExpr]:
        """Emit the transposition of a block of sums in registers; return its array and where a position is in it."""
        i, j = pieces.i, pieces.j
        turned, pitch = self.emitter.fresh("turned"), _up(i.extent, 16)
        self.emitter.add(lir.LocalArray(turned, self.type, j.extent * pitch))
        self.emitter.add(
            lir.TransposeTile(
                turned, sums, ix.const(0), width, pitch, rest_of(pieces.column_span), rest_of(pieces.row_span), j.extent
            )
        )
        return turned, ix.of(j) * pitch + ix.of(i)

    def _direct_target(self, rows: _Side, columns: _Side, pieces: _Pieces) -> lir.Matrix | None:
        """Return the part of the output that a block of a product without an epilogue is, if columns are adjacent."""
        if len(self.roots) != 1 or self.roots[0].shape.element_type is not self.type:
            return None
        i = self.roots[0]
        while i is not self.dot:
            if i.opcode not in (Opcode.RESHAPE, Opcode.BITCAST, Opcode.TRANSPOSE):
                return None
            i = i.operands[0]
        offset = ix.linearize(forward_index(self.dot, self.roots[0], self.at), self.roots[0].shape.dimensions)
        inside = [s for s, _ in offset.terms if not isinstance(s, Var)]
        if inside or (offset.coefficient(columns.var) != 1 and columns.var.extent != 1):
            return None
        start = offset.substitute({**pieces.start(rows.var), **pieces.start(columns.var)})
        return lir.Matrix("o0", pieces.at_start(start), offset.coefficient(rows.var), 1, False)


@dataclass(frozen=True)
class _Pieces:
    """The variables of one block.

    Attributes:
        i, j: position within a block of rows and of columns.
        row_span, column_span: numbers of rows and columns.
        mapping: from the variables of the whole product to the position.
    """

    i: Var
    j: Var
    row_span: lir.Span
    column_span: lir.Span
    mapping: dict[ix.IndexSymbol, IndexExpr]

    def start(self, var: Var) -> dict[ix.IndexSymbol, IndexExpr]:
        """Return the mapping of one variable."""
        return {var: self.mapping[var]}

    def at_start(self, offset: IndexExpr) -> IndexExpr:
        """Return an offset at the first row and column of the block."""
        return offset.substitute({self.i: ix.const(0), self.j: ix.const(0)})


def _block(extent: int, preferred: int, multiple: int) -> int:
    """Return the size of blocks of almost equal size, a multiple of the tile unless one block is enough."""
    if extent <= max(preferred, multiple):
        return extent
    return _up(-(-extent // -(-extent // preferred)), multiple)


def _span(inside: Var, start: IndexExpr, extent: int) -> tuple[lir.Span, IndexExpr]:
    """Return the size of a block, and the index of a position in it."""
    if extent % inside.extent:
        return lir.Span(inside.extent, start, extent), start + ix.of(inside)
    return lir.Span(inside.extent), start + ix.of(inside)


def _limit(span: lir.Span) -> int | None:
    return span.limit if span.base is not None else None


def _up(n: int, to: int) -> int:
    return -(-n // to) * to
