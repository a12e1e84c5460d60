"""Lowering of chained products to a GPU: a block of threads computes rows of one or two outer products.

Weights are computed again for each outer product from the inner ones, tile by tile, as in the gradient of attention by
Dao, "FlashAttention-2" (2023). The rows are the free elements of the weights, the columns those that the outer products
add up. All operands are halves, which tensor cores multiply. Tiles of columns whose weights are all 0, since a mask of
indices excludes them, are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.analysis.chained_products import ChainedProducts
from compiler.codegen.lowering.emission import STATEMENT_LIMIT
from compiler.codegen.lowering.emit import Emitter
from compiler.codegen.lowering.outputs import kernel_arguments, set_source, store_outputs
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Index, IndexExpr, IndexSymbol, Var
from compiler.codegen.nest.indexing_maps import INDEXING_MAPS
from compiler.codegen.nest.tile_attention import TileMask
from compiler.codegen.nest.tile_chain import ChainShape, InnerProduct, KeptValues, OuterProduct, TileChain
from compiler.codegen.nest.tiles import TileOperand
from compiler.codegen.nest.traversal import indices_in, names_of, walk
from compiler.codegen.templates.block_masks import block_mask
from compiler.codegen.templates.dots import contracted_sizes, dot_refusal, index_of_groups, operand_indices
from compiler.codegen.templates.tile_products import SUMMED_IN, half_of, tile_operand
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

ROWS = 64
"""Rows of a block."""
COLUMNS = 32
"""Columns whose weights are computed at a time; with twice as many, registers spill for compute capability 10."""
MOST_LENGTH = 128
"""Depth of an inner product, and features of an outer one, at most."""


_HELD_AS_FLOATS = frozenset({T.F32, T.F16, T.BF16})


def lower_tile_chain(fused: HloComputation, roots: Sequence[HloInstruction], chain: ChainedProducts) -> lir.Kernel:
    """Return the kernel of a computation that consists of chained products and elementwise ops around them.

    Raises:
        UnsupportedError: its operands are no halves, its dimensions do not divide into rows, columns, depths and
            features, or there are too many of the latter.
    """
    return _Lowering(fused, roots, chain).kernel()


class _Lowering:
    """Lowers one chain."""

    def __init__(self, fused: HloComputation, roots: Sequence[HloInstruction], chain: ChainedProducts) -> None:
        self.fused, self.roots, self.chain = fused, roots, chain
        self.e = Emitter(fused, STATEMENT_LIMIT)
        values = [chain.values(n) for n in range(len(chain.outer))]
        halves = {half_of(o) for o in (*(o for d in chain.inner for o in d.operands), *values)}
        found = halves.pop() if len(halves) == 1 else None
        for dot in (*chain.inner, *chain.outer):
            if found is None or dot_refusal(dot, SUMMED_IN) is not None:
                raise UnsupportedError(f"%{dot.name}: chained products of these types have no kernel")
        self.type = T.F32 if found is None else found
        self._result_indices()
        self._inner_indices()

    def kernel(self) -> lir.Kernel:
        """Return the kernel."""
        e = self.e
        inner = [self._inner(n) for n in range(len(self.chain.inner))]
        weighing, weights = self._weighing([p.name for p in inner])
        outer = [self._outer(n, weights[n], inner) for n in range(len(self.chain.outer))]
        shape = self._shape(inner, outer)
        tile = Var(e.fresh("q"), -(-self.row.extent // shape.rows))
        first = ix.of(tile) * shape.rows
        mask, reach, reached, by_row = self._mask(first, shape)
        made = TileChain(
            self.row, self.column, first, tuple(inner), tuple(outer), self.type, *self._kept(weighing), mask, reach,
            reached, by_row, shape,
        )  # fmt: skip
        with e.loops([*self.outer_vars, tile]):
            e.add(made)
        arguments = kernel_arguments(self.fused.parameters, [r.shape for r in self.roots])
        return lir.Kernel("attention", arguments, tuple(e.frames[0].stmts))

    # ---- variables and indices

    def _result_indices(self) -> None:
        """Find the variables of rows and columns, and the indices of weights, values and results in terms of them."""
        e = self.e
        self.row = self.column = Var("", 0)
        self.outer_vars: list[Var] = []
        self.features: list[Var] = []
        self.weight_index: list[Index] = []
        self.value_index: list[Index] = []
        self.result_index: list[Index] = []
        for n, (dot, weights) in enumerate(zip(self.chain.outer, self.chain.weights, strict=True)):
            first = dot.operands[0] is weights
            values = self.chain.values(n)
            sides = ("lhs", "rhs") if first else ("rhs", "lhs")
            wb, wc = (list(dot.attr(f"{sides[0]}_{kind}_dims", ())) for kind in ("batch", "contracting"))
            vb, vc = (list(dot.attr(f"{sides[1]}_{kind}_dims", ())) for kind in ("batch", "contracting"))
            wf = [d for d in range(weights.shape.rank) if d not in wb and d not in wc]
            vf = [d for d in range(values.shape.rank) if d not in vb and d not in vc]
            sizes = {
                "batch": [weights.shape.dimensions[d] for d in wb],
                "rows": [weights.shape.dimensions[d] for d in wf],
            }
            columns = [weights.shape.dimensions[d] for d in wc]
            if n == 0:
                self.batch = [Var(e.fresh("i"), s) for s in sizes["batch"]]
                self.rows = [Var(e.fresh("i"), s) for s in sizes["rows"]]
                self.row = max(self.rows, key=lambda v: v.extent, default=Var(e.fresh("i"), 1))
                self.outer_vars = [v for v in (*self.batch, *self.rows) if v is not self.row]
                self.column = Var(e.fresh("k"), math.prod(columns))
            if [v.extent for v in self.batch] != sizes["batch"] or [v.extent for v in self.rows] != sizes["rows"]:
                raise UnsupportedError(f"%{dot.name}: chained products of different rows have no kernel")
            if math.prod(columns) != self.column.extent:
                raise UnsupportedError(f"%{dot.name}: chained products of different columns have no kernel")
            features = [values.shape.dimensions[d] for d in vf]
            feature = Var(e.fresh("f"), math.prod(features))
            along = [ix.of(self.column)] if len(columns) == 1 else ix.delinearize(ix.of(self.column), columns)
            across = [ix.of(feature)] if len(features) == 1 else ix.delinearize(ix.of(feature), features)
            self.features.append(feature)
            self.weight_index.append(
                index_of_groups(weights.shape.rank, ((wb, self.batch), (wf, self.rows), (wc, along)))
            )
            self.value_index.append(index_of_groups(values.shape.rank, ((vb, self.batch), (vf, across), (vc, along))))
            rows = [ix.of(v) for v in self.rows]
            self.result_index.append((*map(ix.of, self.batch), *([*rows, *across] if first else [*across, *rows])))

    def _inner_indices(self) -> None:
        """Find the indices of the inner products from which a weight is computed, and of their operands."""
        e = self.e
        seen: dict[HloInstruction, set[Index]] = {dot: set() for dot in self.chain.inner}

        def note(dot: HloInstruction) -> None:
            def element(index: Index) -> str:
                seen[dot].add(index)
                return e.constant(0.0, dot.shape.element_type)

            e.sources[dot] = element

        for dot in self.chain.inner:
            note(dot)
        with e.guard():
            for weights, index in zip(self.chain.weights, self.weight_index, strict=True):
                e.value(weights, index)
        for dot in self.chain.inner:
            del e.sources[dot]
        if any(len(indices) != 1 for indices in seen.values()):
            raise UnsupportedError(f"%{self.chain.outer[0].name}: a weight is computed from several elements")
        self.inner_index = [next(iter(seen[dot])) for dot in self.chain.inner]

    # ---- products

    def _inner(self, n: int) -> InnerProduct:
        """Return an inner product, whose sides are the rows and the columns."""
        e, dot = self.e, self.chain.inner[n]
        sizes = contracted_sizes(dot)
        depth = Var(e.fresh("k"), math.prod(sizes))
        indices = operand_indices(dot, self.inner_index[n], ix.delinearize(ix.of(depth), sizes))
        sides = list(zip(dot.operands, indices, strict=True))
        by_row, by_column = ([v in ix.variables_of(index) for _, index in sides] for v in (self.row, self.column))
        if sum(by_row) != 1 or any(a and b for a, b in zip(by_row, by_column, strict=True)):
            raise UnsupportedError(f"%{dot.name}: its sides are not the rows and the columns")
        row = by_row.index(True)
        left = tile_operand(e, *sides[row], self.row, depth, self.type)
        right = tile_operand(e, *sides[1 - row], self.column, depth, self.type)
        return InnerProduct(depth, left, right, e.fresh("product"))

    def _weighing(self, products: Sequence[str]) -> tuple[lir.Body, list[str]]:
        """Return the statements that compute the weights from the inner products, and their names."""
        e = self.e
        for dot, index, name in zip(self.chain.inner, self.inner_index, products, strict=True):
            set_source(e, dot, index, T.F32, lambda name=name: name)  # type: ignore[misc]
        with e.guard() as body:
            pairs = zip(self.chain.weights, self.weight_index, strict=True)
            names = [e.value(weights, index) for weights, index in pairs]
        return tuple(body.stmts), names

    def _kept(self, weighing: lir.Body) -> tuple[lir.Body, KeptValues, KeptValues]:
        """Divide the statements that compute weights: those for each of them, once for a row, and once for a column."""
        rest, rows = _divided(weighing, self.row, self.column)
        rest, columns = _divided(rest, self.column, self.row)
        return rest, rows, columns

    def _outer(self, n: int, weight: str, inner: Sequence[InnerProduct]) -> OuterProduct:
        """Return an outer product with its epilogue."""
        e, dot, feature = self.e, self.chain.outer[n], self.features[n]
        values = tile_operand(e, self.chain.values(n), self.value_index[n], feature, self.column, self.type)
        source = next((m for m, p in enumerate(inner) if _is_same(p, values, feature)), -1)
        result = e.fresh("result")
        set_source(e, dot, self.result_index[n], T.F32, lambda: result)
        numbers = [m for m, r in enumerate(self.roots) if _follows(r, dot)]
        if any(self.roots[m].shape.num_elements != dot.shape.num_elements for m in numbers):
            raise UnsupportedError(f"%{dot.name}: an output does not have one element per element of it")
        epilogue = store_outputs(e, dot, self.result_index[n], self.roots, numbers)
        exact = self.chain.weights[n].shape.element_type is not self.type
        return OuterProduct(feature, values, source, weight, exact, result, epilogue)

    def _shape(self, inner: Sequence[InnerProduct], outer: Sequence[OuterProduct]) -> ChainShape:
        """Return the sizes of the tiles."""
        depths, features = (
            tuple(-(-n // 16) * 16 for n in lengths)
            for lengths in ([p.depth.extent for p in inner], [p.feature.extent for p in outer])
        )
        if max(*depths, *features) > MOST_LENGTH:
            raise UnsupportedError(f"%{self.chain.outer[0].name}: a product of {max(*depths, *features)} has no kernel")
        return ChainShape(ROWS, COLUMNS, depths, features)

    # ---- masks

    def _mask(self, first: IndexExpr, shape: ChainShape) -> tuple[TileMask | None, lir.Body, str, bool]:
        """Return the test for tiles of columns whose weights are all 0, and what it presumes.

        Weights are 0 where exp(masked score - shift) is: the shift of the row has to be large enough.
        """
        none = None, (), "", True
        e = self.e
        found = next((i for i in self.fused.post_order() if i.opcode is Opcode.EXPONENTIAL), None)
        if found is None or found.operands[0].opcode is not Opcode.SUBTRACT:
            return none
        if not all(_vanishes(weights, found) for weights in self.chain.weights):
            return none
        scores, shift = found.operands[0].operands
        indices = {
            at
            for w, index in zip(self.chain.weights, self.weight_index, strict=True)
            for at in _indices_at(found, w, index)
        }
        if len(indices) != 1:
            return none
        (index,) = indices
        block = Var(e.fresh("b"), -(-self.column.extent // shape.columns))
        lane, position = Var(e.fresh("l"), shape.rows), Var(e.fresh("p"), shape.columns)
        at: dict[IndexSymbol, IndexExpr] = {
            self.row: first + ix.of(lane),
            self.column: ix.of(block) * shape.columns + ix.of(position),
        }
        mask = block_mask(scores, index, at, lane, position)
        if mask is None:
            return none
        with e.guard() as body:
            reached = e.value(shift, index)
        loads = [s.value for s in body.stmts if isinstance(s, lir.Let) and isinstance(s.value, lir.Load)]
        variables = {v for load in loads for v in ix.variables_of((load.offset,))}
        if self.row in variables and self.column in variables:
            return none
        tested = TileMask(block, mask.bound, mask.low, mask.value)
        return tested, tuple(body.stmts), reached, self.column not in variables


def _divided(body: lir.Body, along: Var, other: Var) -> tuple[lir.Body, KeptValues]:
    """Take out of statements the loads at one variable but not the other, and what is computed from them in f32."""
    taken: dict[str, lir.Stmt] = {}
    rest: list[lir.Stmt] = []
    for s in body:
        used = set(names_of(s))
        variables = {v for index in indices_in((s,)) for v in ix.variables_of((index,))}
        loads = isinstance(s, lir.Let) and isinstance(s.value, lir.Load) and along in variables
        follows = bool(used) and used <= taken.keys()
        if isinstance(s, lir.Let) and s.type in _HELD_AS_FLOATS and other not in variables and (loads or follows):
            taken[s.name] = s
        else:
            rest.append(s)
    needed = {name for s in walk(tuple(rest)) for name in names_of(s)}
    return tuple(rest), KeptValues(tuple(taken.values()), tuple(name for name in taken if name in needed))


def _is_same(p: InnerProduct, values: TileOperand, feature: Var) -> bool:
    """Check whether values have the elements of the right operand of an inner product, copied in the same way."""
    o = p.right
    return (
        bool(o.vector and values.vector) and o.buffer == values.buffer and p.depth.extent == feature.extent
        and not o.body and not values.body and o.along_depth is not values.along_depth
        and o.offset == values.offset.substitute({feature: ix.of(p.depth)})
    )  # fmt: skip


def _follows(root: HloInstruction, dot: HloInstruction) -> bool:
    """Check whether an output is computed from the result of a dot."""
    seen, work = set[HloInstruction](), [root]
    while work:
        i = work.pop()
        if i is dot:
            return True
        if i not in seen:
            seen.add(i)
            work += i.operands
    return False


def _vanishes(i: HloInstruction, zero: HloInstruction) -> bool:
    """Check whether an instruction is 0 wherever another one is, unless it meets an infinity or NaN."""
    if i is zero:
        return True
    match i.opcode:
        case Opcode.MULTIPLY:
            return any(_vanishes(o, zero) for o in i.operands)
        case Opcode.ADD | Opcode.SUBTRACT:
            return all(_vanishes(o, zero) for o in i.operands)
        case Opcode.CONVERT | Opcode.NEGATE | Opcode.DIVIDE | Opcode.TRANSPOSE:
            return _vanishes(i.operands[0], zero)
        case Opcode.SELECT:
            return all(_vanishes(o, zero) or _is_zero(o) for o in i.operands[1:])
        case _:
            return False


def _is_zero(i: HloInstruction) -> bool:
    while i.opcode in (Opcode.BROADCAST, Opcode.CONVERT):
        i = i.operands[0]
    return i.opcode is Opcode.CONSTANT and i.value.common_value == 0


def _indices_at(wanted: HloInstruction, i: HloInstruction, index: Index) -> set[Index]:
    """Return the indices of an instruction from whose elements one element of another is computed."""
    found, seen = set[Index](), set[tuple[HloInstruction, Index]]()
    work = [(i, index)]
    while work:
        i, index = work.pop()
        if (i, index) in seen:
            continue
        seen.add((i, index))
        if i is wanted:
            found.add(index)
        elif i.opcode in INDEXING_MAPS:
            work.append((i.operands[0], INDEXING_MAPS[i.opcode](i, index)))
        elif i.opcode.is_elementwise:
            work += [(o, index if o.shape.rank else ()) for o in i.operands]
    return found
