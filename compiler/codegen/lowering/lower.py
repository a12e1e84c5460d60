"""Lowering of a fused computation to a loop nest without a schedule.

The loop nest has one of these forms, the kinds of `loop_ir.Kernel`:
    loop: there is no reduction; every output is traversed in the order of the first.
    reduction: the reduced dimensions are the fastest-varying; each row yields one value per output.
    block: values of what is reduced are needed again afterwards, along rows (softmax, layer normalization) or along
        columns (batch normalization).
    column-reduction: the fastest-varying dimension is kept.
    attention: there are two dots with a softmax between them, see `attention`, or chained products as in its gradient,
        see `tile_chains`.
    product: there is one dot or convolution, with elementwise ops before and after it, see `products` and
        `convolutions`.
    sort: there is a sort, see `sort`.
    scan: there is a cumulative reduction, see `running`.
    top-k: the root is a topk of a parameter, see `sort`.
    loop-kernel: there is a marked loop, see `packed_loop`.
    scatter: the root is a scatter, see `scatter`.
    in-place-update: the root is a dynamic-update-slice of a parameter; only the window is written.

Outputs of different shapes that have nothing in common are nests of the forms loop, reduction, block and
column-reduction that follow each other, see `nests`.

As in XLA, the reductions that determine the form are called heroes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from compiler.analysis.ancestors import ancestors
from compiler.analysis.attention import attention_of
from compiler.analysis.chained_products import chained_products
from compiler.analysis.element_work import MOST_JOINED, needs_loop
from compiler.analysis.update_chains import updates_of
from compiler.codegen.lowering.emission import STATEMENT_LIMIT
from compiler.codegen.lowering.emit import Emitter
from compiler.codegen.lowering.nests import looped_reductions, nests_of
from compiler.codegen.lowering.outputs import kernel_arguments
from compiler.codegen.lowering.reductions import Domain, combiner_of, result_index
from compiler.codegen.lowering.regular_pieces import use_regular_pieces
from compiler.codegen.lowering.select_regions import REGION_OPS, update_starts
from compiler.codegen.lowering.vector_products import with_vector_product_as_sum
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Index, Var
from compiler.codegen.nest.scalar_ops import is_value_type
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.templates.attention import lower_attention
from compiler.codegen.templates.convolutions import convolution_of, with_convolution_expanded
from compiler.codegen.templates.packed_loop import lower_packed_loop, packed_loop
from compiler.codegen.templates.pair_sums import pair_sum_of
from compiler.codegen.templates.products import lower_product, product_of
from compiler.codegen.templates.running import inner_running_of, lower_running, running_of
from compiler.codegen.templates.scatter import lower_scatter
from compiler.codegen.templates.sort import inner_sort_of, lower_sort, lower_top_k, sort_of, top_k_of
from compiler.codegen.templates.tile_attention import lower_tile_attention
from compiler.codegen.templates.tile_chains import lower_tile_chain
from compiler.codegen.templates.tile_products import lower_tile_product
from compiler.errors import UnsupportedError
from compiler.ir.callgraph import CallGraph
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.support.recursion import deep_recursion

BASE_STATEMENTS, STATEMENTS_PER_INSTRUCTION = 400, 16
"""A kernel may have BASE_STATEMENTS and STATEMENTS_PER_INSTRUCTION for each instruction; one with more would recompute
the same instructions at many indices."""
MAX_CALLS = 500
"""Maximum nesting depth of calls in a fused computation."""


NEAR = 1024
"""Adjacent elements of an operand of a concatenation up to which operands share a nest, so as to write whole lines."""
MOST_SINGLE, FEWEST_ROWS = 16, 64
"""Operands of one element in each row that share a nest, which writes whole rows, and the least number of rows whose
elements are written out."""
_PRODUCTS = (Opcode.CONVOLUTION, Opcode.DOT, Opcode.REDUCE_WINDOW)
SCHEDULED_KINDS = frozenset({"product", "attention", "loop-kernel"})
"""The kinds of nests that depend on a schedule: on its part for the template, or on the lanes and axis of a loop."""


def lower(
    fused: HloComputation, schedule: Schedule | None = None, tiles: bool = False, is_trial: bool = False
) -> lir.Kernel:
    """Return the loop nest of a fused computation, to which no schedule has been applied.

    Args:
        fused: the computation.
        schedule: the parameters of products, attention and loops, which are divided into blocks or tiles as they are
            lowered.
        tiles: whether products and attention are divided into tiles for the blocks of a GPU.
        is_trial: whether it is only asked if there is a kernel, so that none of several has to be the best.

    Raises:
        UnsupportedError: the computation cannot become one kernel.
    """
    with deep_recursion():
        return _Lowering(fused, schedule or Schedule(), tiles, is_trial).kernel()


def roots_of(fused: HloComputation) -> tuple[HloInstruction, ...]:
    """Return the outputs of a fused computation: its root, or the operands of a root tuple."""
    root = fused.root
    return tuple(root.operands) if root.opcode is Opcode.TUPLE else (root,)


class _Lowering:
    """Lowers one fused computation to the form of loop nest that suits its roots and reductions."""

    def __init__(self, fused: HloComputation, schedule: Schedule, tiles: bool, is_trial: bool) -> None:
        self.fused, self.schedule, self.tiles, self.is_trial = fused, schedule, tiles, is_trial
        self.roots = roots_of(fused)
        for r in self.roots:
            if not is_value_type(r.shape.element_type):
                raise UnsupportedError(f"%{r.name}: a kernel cannot produce the shape {r.shape}")
        graph = CallGraph.of(fused)
        if graph.calls > MAX_CALLS:
            raise UnsupportedError(f"calls nest {graph.calls} levels deep in %{fused.name}, more than {MAX_CALLS}")
        self.emitter = Emitter(
            fused, min(STATEMENT_LIMIT, BASE_STATEMENTS + STATEMENTS_PER_INSTRUCTION * graph.instructions)
        )
        self.outputs = [f"o{k}" for k in range(len(self.roots))]
        if self.tiles:  # a CPU runs along each piece
            use_regular_pieces(self.emitter, self.fused, self.roots)

    def kernel(self) -> lir.Kernel:
        """Return the kernel in the form that fits."""
        if not self.roots:
            raise UnsupportedError("nothing to compute")
        loop = packed_loop(self.fused)
        if loop is not None:
            return lower_packed_loop(self.fused, self.roots, loop, self.schedule)
        if self.roots[0].opcode is Opcode.SCATTER and len(self.roots) == 1:
            return lower_scatter(self.fused, self.roots[0], can_hold=not self.tiles)
        sort = sort_of(self.roots)
        if sort is not None:
            return lower_sort(self.fused, sort, combines=self.tiles)
        sort = inner_sort_of(self.fused, self.roots)
        if sort is not None:
            return lower_sort(self.fused, sort, self.roots[0], combines=self.tiles)
        running = running_of(self.roots)
        if running is not None and all(o.opcode is Opcode.PARAMETER for o in running.operands):
            return lower_running(self.fused, running)
        running = inner_running_of(self.fused)
        if running is not None:
            self._refuse_reductions(running)
            return lower_running(self.fused, running, self.roots)
        top = top_k_of(self.roots)
        if top is not None:
            return lower_top_k(self.fused, top, combines=self.tiles)
        if all(0 in r.shape.dimensions for r in self.roots):
            return self._finish("loop")
        attention = attention_of(self.fused)
        if attention is not None and self.tiles:
            return lower_tile_attention(self.fused, self.roots, attention, self.schedule.tile_attention)
        if attention is not None:
            return lower_attention(self.fused, self.roots, attention, self.schedule.attention)
        chain = chained_products(self.fused) if self.tiles else None
        if chain is not None:
            return lower_tile_chain(self.fused, self.roots, chain)
        convolution = convolution_of(self.fused)
        if convolution is not None:
            self._refuse_reductions(convolution)
            expanded = with_convolution_expanded(self.fused, convolution, self.tiles)
            return _Lowering(expanded, self.schedule, self.tiles, self.is_trial).kernel()
        dot = product_of(self.fused)
        if dot is not None:
            self._refuse_reductions(dot)
            summed = with_vector_product_as_sum(self.fused, dot)
            if summed is not None:
                return _Lowering(summed, self.schedule, self.tiles, self.is_trial).kernel()
            if self.tiles:
                return lower_tile_product(self.fused, self.roots, dot, self.schedule.tiles, self.is_trial)
            return lower_product(self.fused, self.roots, dot, self.schedule.product)
        pair = self._pair_sum() if self.tiles else None
        if pair is not None:
            return pair
        self.emitter.loops_once = True
        groups = nests_of(self.fused.post_order(), self.roots)
        if len(groups) > 1 and not self._updated_parameters():
            return self._one_after_the_other(groups)
        return self._nest(looped_reductions(self.fused.post_order()))

    def _pair_sum(self) -> lir.Kernel | None:
        """Return the kernel of a sum over pairs of rows by tiles, or None if the computation is no such sum."""
        pair = pair_sum_of(self.fused)
        if pair is None:
            return None
        try:
            return lower_tile_product(pair.fused, pair.roots, pair.dot, self.schedule.tiles, self.is_trial, pair)
        except UnsupportedError:
            return None

    def _nest(self, heroes: list[HloInstruction]) -> lir.Kernel:
        if all(0 in r.shape.dimensions for r in self.roots):
            return self._finish("loop")  # nothing to store
        if heroes:
            _check_domains(heroes)
            return self._with_reductions(heroes)
        updated = self._updated_parameters()
        return self._in_place_update(updated) if updated else self._loop()

    def _one_after_the_other(self, groups: list[list[int]]) -> lir.Kernel:
        """Emit a nest for each group of outputs."""
        heroes, roots, outputs = looped_reductions(self.fused.post_order()), self.roots, self.outputs
        first = len(self.fused.parameters)
        kernels: list[lir.Kernel] = []
        bodies: list[lir.Body] = []
        for group in groups:
            self.roots, self.outputs = tuple(roots[n] for n in group), [outputs[n] for n in group]
            known = self.emitter.frames[0].stmts = []
            kernels.append(self._nest([h for h in heroes if any(_needs(r, h) for r in self.roots)]))
            bodies.append(tuple(known))
        self.roots, self.outputs = roots, outputs
        self.emitter.frames[0].stmts = [s for body in bodies for s in body]
        read = [
            {s.value.buffer for s in walk(body) if isinstance(s, lir.Let) and isinstance(s.value, lir.Load)}
            for body in bodies
        ]
        pairs = tuple(
            (n, first + group[k - first])
            for g, (group, kernel) in enumerate(zip(groups, kernels, strict=True))
            for n, k in kernel.in_place
            if not any(f"p{n}" in r for h, r in enumerate(read) if h != g)
        )
        kind = next((k.kind for k in kernels if k.kind != "loop"), "loop")
        return replace(self._finish(kind, in_place=pairs), nests=len(groups))

    # ---- analysis

    def _refuse_reductions(self, product: HloInstruction) -> None:
        for i in self.fused.post_order():
            if i.opcode is Opcode.REDUCE and needs_loop(i):
                raise UnsupportedError(
                    f"%{product.name} is computed in blocks, in whose loops the reduction %{i.name} has no place"
                )
            if product.opcode is not Opcode.DOT and i is not product and i.opcode in _PRODUCTS:
                raise UnsupportedError(f"%{product.name} and %{i.name} each need a kernel with loops of their own")

    def _updated_parameters(self) -> dict[int, HloInstruction]:
        """Return the parameters that roots update in place and that nothing else reads, by position of the root."""
        found: dict[int, HloInstruction] = {}
        for k, r in enumerate(self.roots):
            updates = updates_of(r) if r.opcode is Opcode.DYNAMIC_UPDATE_SLICE else ()
            base = updates[0].operands[0] if updates else None
            if base is None or base.opcode is not Opcode.PARAMETER or len(base.users) != 1:
                continue
            elsewhere = base in updates[0].operands[1:] or any(u is not self.fused.root for u in r.users)
            if not elsewhere and self.roots.count(r) == 1:
                found[k] = base
        return found

    def _finish(
        self, kind: str, must_alias: tuple[tuple[int, int], ...] = (), in_place: tuple[tuple[int, int], ...] = ()
    ) -> lir.Kernel:
        arguments = kernel_arguments(self.fused.parameters, [r.shape for r in self.roots])
        return lir.Kernel(kind, arguments, tuple(self.emitter.frames[0].stmts), in_place, must_alias)

    # ---- loops

    def _vars(self, dims: Sequence[int], prefix: str) -> list[Var]:
        return [Var(self.emitter.fresh(prefix), n) for n in dims]

    def _loop(self) -> lir.Kernel:
        counts = {r.shape.num_elements for r in self.roots}
        if len(counts) != 1:
            raise UnsupportedError(
                f"outputs of different sizes in one loop: {', '.join(str(r.shape) for r in self.roots)}"
            )
        if len(self.roots) == 1 and self.roots[0].opcode is Opcode.CONCATENATE:
            return self._concatenate(self.roots[0])
        dims = self._loop_dimensions()
        e = self.emitter
        if self._has_written_rows():
            return self._written_rows()
        vars_ = self._vars(dims, "i")
        with e.loops(vars_):
            offset = ix.linearize([ix.of(v) for v in vars_], dims)
            self._store_all(self.roots, self.outputs, offset, tuple(ix.of(v) for v in vars_), tuple(dims))
        return self._finish("loop", in_place=in_place_pairs(self))

    def _has_written_rows(self) -> bool:
        """Check for many short rows that concatenations put together, so that a loop over their elements has branches.

        Branches that depend on the row are left to other loops: gcc 12 loads wrong elements where only some of the
        iterations of a vector loop load the rows of an array.
        """
        dims = self.roots[0].shape.dimensions
        if self.tiles or len(dims) < 2 or not 1 < dims[-1] <= MOST_SINGLE or math.prod(dims[:-1]) < FEWEST_ROWS:
            return False
        regions = [i for i in self.fused.post_order() if i.opcode in REGION_OPS]
        return (
            all(r.shape.dimensions == dims for r in self.roots)
            and all(i.opcode is Opcode.CONCATENATE and i.dimensions == (i.shape.rank - 1,) for i in regions)
            and any(i.shape.dimensions == dims and len(i.operands) > 2 for i in regions)
        )

    def _written_rows(self) -> lir.Kernel:
        """Emit a loop over rows without one over their elements, which are all computed before the first is stored."""
        e, (*outer, n) = self.emitter, self.roots[0].shape.dimensions
        vars_ = self._vars(outer, "i")
        with e.loops(vars_):
            stores = []
            for k in range(n):
                at = (*(ix.of(v) for v in vars_), ix.const(k))
                for r, out in zip(self.roots, self.outputs, strict=True):
                    stores.append(lir.Store(out, ix.linearize(at, r.shape.dimensions), e.value(r, at)))
            for s in stores:
                e.add(s)
        return self._finish("loop", in_place=in_place_pairs(self))

    def _loop_dimensions(self) -> tuple[int, ...]:
        """Return the dimensions of the loop nest: those of the first output."""
        return self.roots[0].shape.dimensions

    def _store_all(
        self,
        roots: Sequence[HloInstruction],
        outputs: Sequence[str],
        offset: ix.IndexExpr,
        index: Index,
        dims: tuple[int, ...],
    ) -> None:
        """Compute every root at one index, then store them: loads come before stores, so outputs may alias inputs."""
        e = self.emitter
        names = []
        for r in roots:
            at = index if r.shape.dimensions == dims else ix.delinearize(offset, r.shape.dimensions)
            names.append(e.value(r, at))
        for name, out in zip(names, outputs, strict=True):
            e.add(lir.Store(out, offset, name))

    def _concatenate(self, root: HloInstruction) -> lir.Kernel:
        """Emit loop nests for operands, so that no element needs a branch on the operand it comes from.

        Operands of equal shapes share a nest if they are computed from the same arrays, or if they alternate within a
        few elements: one after the other, they would each write parts of every cache line.
        """
        e = self.emitter
        dim = root.dimensions[0]
        sizes = [piece.shape.dimensions[dim] for piece in root.operands]
        starts = itertools.accumulate(sizes[:-1], initial=0)
        for group in _pieces(list(zip(root.operands, starts, strict=True)), dim):
            dims = group[0][0].shape.dimensions
            if 0 in dims:
                continue
            vars_ = self._vars(dims, "i")
            with e.loops(vars_):
                at = tuple(ix.of(v) for v in vars_)
                names = [e.value(piece, at) for piece, _ in group]
                for name, (_, start) in zip(names, group, strict=True):
                    to = (*at[:dim], at[dim] + start, *at[dim + 1 :])
                    e.add(lir.Store(self.outputs[0], ix.linearize(to, root.shape.dimensions), name))
        return self._finish("loop")

    def _in_place_update(self, updated: Mapping[int, HloInstruction]) -> lir.Kernel:
        """Emit one loop over the elements of the updates; other outputs have as many, such as the state of a loop.

        Several updates of one array are made one after the other in each iteration.
        """
        e = self.emitter
        made = [updates_of(r) if k in updated else (r,) for k, r in enumerate(self.roots)]
        sources = [u[-1].operands[1] if k in updated else u[-1] for k, u in enumerate(made)]
        counts = {s.shape.num_elements for s in sources}
        if len(counts) != 1:
            raise UnsupportedError(f"updates of different sizes: {', '.join(str(s.shape) for s in sources)}")
        starts = {u: update_starts(e, u) for k in updated for u in made[k]}
        dims = sources[0].shape.dimensions
        vars_ = self._vars(dims, "i")
        if 0 not in dims:
            with e.loops(vars_):
                at = tuple(ix.of(v) for v in vars_)
                offset, stores = ix.linearize(at, dims), []
                for k, (r, own_updates) in enumerate(zip(self.roots, made, strict=True)):
                    own = sources[k].shape.dimensions
                    index = at if own == dims else ix.delinearize(offset, own)
                    for u in own_updates:
                        value = e.value(u.operands[1] if k in updated else u, index)
                        to = tuple(a + s for a, s in zip(index, starts[u], strict=True)) if k in updated else index
                        stores.append(lir.Store(f"o{k}", ix.linearize(to, r.shape.dimensions), value))
                for store in stores:
                    e.add(store)
        first = len(self.fused.parameters)
        must = {p.parameter_number or 0: first + k for k, p in updated.items()}
        pairs = () if len(must) == len(self.roots) else in_place_pairs(self)
        shared = tuple((n, k) for n, k in pairs if n not in must and k not in must.values())
        return self._finish("in-place-update", must_alias=tuple(must.items()), in_place=shared)

    # ---- reductions

    def _with_reductions(self, heroes: list[HloInstruction]) -> lir.Kernel:
        domain = Domain.of(heroes[0])
        if 0 in domain.sizes:
            raise UnsupportedError("a reduction of zero elements has no kernel")
        kept, full = domain.kept, domain.sizes
        dims, others = (tuple(full[k] for k in of) for of in (kept, sorted(domain.reduced)))
        count, total = math.prod(dims), math.prod(full)
        for r in self.roots:
            if r.shape.num_elements not in (count, total):
                raise UnsupportedError(
                    f"%{r.name}: {r.shape} has neither one value for each result of the reduction nor the reduced "
                    f"shape {list(full)}"
                )
        outputs = list(zip(self.roots, self.outputs, strict=True))
        small = [(r, o) for r, o in outputs if r.shape.num_elements != total]
        big = [(r, o) for r, o in outputs if r.shape.num_elements == total]
        e = self.emitter
        e.groups = _groups(heroes, _phases(heroes, self.roots, full))
        vars_ = self._vars(dims, "i")
        index = tuple(ix.of(v) for v in vars_)
        with e.loops(vars_):
            if small:
                self._store_all([r for r, _ in small], [o for _, o in small], ix.linearize(index, dims), index, dims)
            if big:
                for h in heroes:  # outside the loops over what is reduced, where they are loop-invariant
                    e.values(h, result_index(h, index))
                inner = self._vars(others, "j")
                with e.loops(inner):
                    at = domain.position(index, [ix.of(v) for v in inner])
                    self._store_all([r for r, _ in big], [o for _, o in big], ix.linearize(at, full), at, full)
        simple = all(combiner_of(h.attributes["to_apply"]) for h in heroes)
        by_columns = not domain.is_by_rows and len(full) - 1 in kept and simple
        return self._finish("block" if big else "column-reduction" if by_columns else "reduction")


def in_place_pairs(lowering: _Lowering) -> tuple[tuple[int, int], ...]:
    """Return the (input, output) argument positions of a plain loop that may share one buffer.

    An input and an output may share a buffer if each iteration reads no element of the input but the one that it
    writes in the output. In a branch, such as that of a concatenation, it may also read none.
    """
    body = tuple(lowering.emitter.frames[0].stmts)
    loads: dict[str, set[ix.IndexExpr]] = {}
    stores: dict[str, ix.IndexExpr] = {}
    for s in walk(body):
        if isinstance(s, lir.Let) and isinstance(s.value, lir.Load):
            loads.setdefault(s.value.buffer, set()).add(s.value.offset)
        elif isinstance(s, lir.Store):
            stores[s.buffer] = s.offset
    pairs = []
    for n, p in enumerate(lowering.fused.parameters):
        for k, (out, r) in enumerate(zip(lowering.outputs, lowering.roots, strict=True)):
            same_size = p.shape.element_type.byte_size == r.shape.element_type.byte_size
            if same_size and loads.get(f"p{n}", {stores[out]}) == {stores[out]}:
                pairs.append((n, len(lowering.fused.parameters) + k))
    return tuple(pairs)


def _check_domains(heroes: Sequence[HloInstruction]) -> None:
    """Raise UnsupportedError unless all reductions have the same domain."""
    for i in heroes[1:]:
        a, b = heroes[0], i
        if Domain.of(a) != Domain.of(b):
            raise UnsupportedError(
                f"reductions over different domains: %{a.name} reduces {list(a.dimensions)} of "
                f"{a.operands[0].shape}, %{b.name} reduces {list(b.dimensions)} of {b.operands[0].shape}"
            )


def _pieces(operands: Sequence[tuple[HloInstruction, int]], dim: int) -> list[list[tuple[HloInstruction, int]]]:
    """Return the operands of a concatenation along a dimension and where they start, in groups that share a nest."""
    groups: list[tuple[list[tuple[HloInstruction, int]], set[HloInstruction]]] = []
    for piece, start in operands:
        arrays = _arrays(piece)
        for group, read in groups:
            same = group[0][0].shape.dimensions == piece.shape.dimensions
            together = math.prod(piece.shape.dimensions[dim:]) <= NEAR or not arrays.isdisjoint(read)
            most = MOST_SINGLE if math.prod(piece.shape.dimensions[dim:]) == 1 else MOST_JOINED
            if same and len(group) < most and together:
                group.append((piece, start))
                read |= arrays
                break
        else:
            groups.append(([(piece, start)], arrays))
    return [group for group, _ in groups]


def _arrays(i: HloInstruction) -> set[HloInstruction]:
    """Return the parameters of which an instruction reads many elements."""
    size = i.shape.num_elements
    return {x for x in ancestors((i,)) if x.opcode is Opcode.PARAMETER and 2 * x.shape.num_elements >= size}


def _needs(root: HloInstruction, i: HloInstruction) -> bool:
    return root is i or _depends_on(root, {i})


def _depends_on(i: HloInstruction, targets: set[HloInstruction]) -> bool:
    return not targets.isdisjoint(ancestors(i.operands))


def _phases(
    heroes: Sequence[HloInstruction], roots: Sequence[HloInstruction], full: tuple[int, ...]
) -> dict[HloInstruction, set[int]]:
    """Return the loops over the row in which each instruction is needed.

    Stage n (1, 2...) is the loop of the reductions that depend on those of stage n - 1; 0 is the loop of the outputs.
    """
    level: dict[HloInstruction, int] = {}
    for h in heroes:
        below = [level[g] for g in heroes if g in level and _depends_on(h, {g})]
        level[h] = max(below, default=0) + 1
    phases: dict[HloInstruction, set[int]] = {}
    total = math.prod(full)
    sinks = [(h.operands[k], level[h]) for h in heroes for k in range(len(h.operands) // 2)]
    sinks += [(r, 0) for r in roots if r.shape.num_elements == total]
    # Traverse the operands of what each loop computes, up to reductions, whose results are known when the loop starts.
    for sink, phase in sinks:
        work = [sink]
        while work:
            i = work.pop()
            found = phases.setdefault(i, set())
            if phase in found or i in level:
                continue
            found.add(phase)
            work.extend(i.operands)
    for h in heroes:
        phases[h] = {level[h]}
    return phases


def _groups(
    heroes: Sequence[HloInstruction], phases: dict[HloInstruction, set[int]]
) -> dict[HloInstruction, tuple[HloInstruction, ...]]:
    """Return the reductions that share a loop: those of one stage, since all heroes have the same domain."""
    by_stage: dict[int, list[HloInstruction]] = {}
    for h in heroes:
        if len(h.operands) == 2:
            by_stage.setdefault(min(phases[h]), []).append(h)
    return {h: tuple(group) for group in by_stage.values() for h in group}
