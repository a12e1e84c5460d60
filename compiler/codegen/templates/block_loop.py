"""Loops whose iterations the threads of one block of a GPU run together: see `block_stages` and `loop_kernel`.

Where the elements of the state depend on each other, as in a product of the state with a matrix, single threads cannot
run a loop. If the state is small, a block can: it is in shared memory, each iteration computes stages and then the new
state, and threads wait for each other in between. There are two copies of the state, which an iteration reads and
writes in turn. If all arrays have an axis in common along which nothing is mixed, there is a block for each position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from compiler.codegen.lowering.emit import Emitter
from compiler.codegen.lowering.reductions import UNROLL_LIMIT, combiner_of, reduce_values
from compiler.codegen.lowering.select_regions import update_starts
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest import scalar_ops
from compiler.codegen.nest.index import Index, IndexExpr, Var
from compiler.codegen.nest.loop_ir import LoopKind
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES, is_supported_type
from compiler.codegen.nest.teams import Team
from compiler.codegen.nest.traversal import walk
from compiler.codegen.templates.block_stages import SHARED_BYTES, WARP, BlockStages, numbers_of
from compiler.codegen.templates.dots import contracted_sizes, operand_indices
from compiler.codegen.templates.shared_pitches import SharedRead, best_pitch
from compiler.errors import UnsupportedError
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType as T

__all__ = ["BLOCK_LOOP", "lower_for_blocks"]

BLOCK_LOOP = "block-loop"
"""The kind of these kernels."""
Owner: TypeAlias = int | HloInstruction
"""What an array in shared memory has: a carried array, by its number, or a value."""


def lower_for_blocks(stages: BlockStages) -> lir.Kernel:
    """Return the nest of a loop that blocks run, with room between rows where it avoids conflicts of banks.

    Raises:
        UnsupportedError: it has none.
    """
    lowering = BlockLoopLowering(stages)
    plain, pitches = lowering.kernel(), lowering.best_pitches()
    if not pitches:
        return plain
    spaced = BlockLoopLowering(stages, pitches).kernel()
    held = sum(s.size * SCALAR_BYTES[s.type] for s in walk(spaced.body) if isinstance(s, lir.LocalArray))
    return spaced if held <= SHARED_BYTES else plain


class BlockLoopLowering:
    """Lowers a loop to the nest of one block.

    Attributes:
        stages: what an iteration computes.
        arrays: the local array of each carried array: two copies of those that change, one of those that are read.
        scalars: the accumulator of each carried scalar.
        kept: the local array of each stage.
        pitches: the distances of the rows of arrays, by carried array or instruction, where it is not their length.
        reads: the reads of arrays with rows.
        position: the position of the block along the axis that blocks divide.
        threads: number of threads that compute the present element together.
        thread: the number of this one among them.
        early: whether what follows the stages reads what the next iteration writes before it has waited.
        is_inside: whether a loop over elements is open, whose iterations threads run.
        lane: the variable of this loop.
    """

    def __init__(self, stages: BlockStages, pitches: Mapping[Owner, int] | None = None) -> None:
        self.stages, self.state = stages, stages.state
        self.pitches, self.reads = dict(pitches or {}), dict[Owner, list[SharedRead]]()
        self.emitter = Emitter(self.state.body)
        self.arrays: dict[int, str] = {}
        self.scalars: dict[int, str] = {}
        self.kept: dict[HloInstruction, str] = {}
        self.position = self.thread = ix.const(0)
        self.threads = 1
        self.early = self.is_inside = False
        self.lane = Var("", 1)

    def kernel(self) -> lir.Kernel:
        """Return the nest: a loop over blocks, in which INDEPENDENT loops are for the threads of a block."""
        e, state = self.emitter, self.state
        block = Var(e.fresh("b"), self.stages.blocks)
        self.position = ix.of(block)
        with e.loop(block, LoopKind.INDEPENDENT):
            e.hoist_limit = 1
            self._start()
            with self._iterations():
                self._iteration()
            self._finish()
        arguments = [lir.Argument(f"p{k}", s.element_type, s.num_elements, False) for k, s in enumerate(state.shapes)]
        arguments += [
            lir.Argument(f"o{k}", state.shapes[k].element_type, state.shapes[k].num_elements, True)
            for k in state.changed
        ]
        output = {k: len(state.shapes) + n for n, k in enumerate(state.changed)}
        in_place = tuple((k, output[k]) for k in self.stages.arrays)
        must = tuple((k, output[k]) for k in sorted(state.stacked))
        return lir.Kernel(BLOCK_LOOP, tuple(arguments), tuple(e.frames[0].stmts), in_place, must)

    # ---- before and after the iterations

    def _start(self) -> None:
        """Emit the reads of the initial state, and of what the iterations read often."""
        e, state, stages = self.emitter, self.state, self.stages
        for k in stages.arrays:
            self.arrays[k] = self._array(k, state.shapes[k], 2)
        for k in stages.copied():
            self.arrays[k] = self._array(k, state.shapes[k])
        for k in stages.scalars:
            name = self.scalars[k] = e.fresh("u")
            e.add(lir.Accumulator(name, state.shapes[k].element_type, self._load(k, self._first(state.shapes[k]))))
        self.parity = e.fresh("u")
        e.add(lir.Accumulator(self.parity, T.S32, e.constant(0, T.S32)))
        for stage in (s for phase in stages.phases for s in phase):
            i, own = stage.value, stages.renamed.get(stage.value)
            self.kept[i] = self._array(i, i.shape) if own is None else self.arrays[own]
        for i in stages.constants:
            self._constant(i)
        for k, name in self.arrays.items():
            with self._elements(state.shapes[k], self._axis_of(k)) as (index, _):
                e.add(lir.LocalStore(name, self._place(k, state.shapes[k], index), self._load(k, index)))
        e.add(lir.Barrier())

    def _constant(self, i: HloInstruction) -> None:
        """Emit an array of constants, which the body then reads from shared memory."""
        e, (usual, others) = self.emitter, numbers_of(i)
        t, name = i.shape.element_type, self._array(i, i.shape)
        with self._elements(i.shape, None) as (index, at):
            value, select = e.constant(usual, t), scalar_ops.ScalarOp(Opcode.SELECT, t, t)
            for n, other in others.items():
                value = e.apply(select, e.index_test(at, n, n), e.constant(other, t), value)
            e.add(lir.LocalStore(name, self._place(i, i.shape, index), value))
        e.sources[i] = lambda index: e.let(t, lir.LocalLoad(name, self._place(i, i.shape, index)))

    def _finish(self) -> None:
        """Emit the stores of the final state."""
        e, state, stages = self.emitter, self.state, self.stages
        now = self._current_parity()
        for k in stages.arrays:
            shape = state.shapes[k]
            with self._elements(shape, self._axis_of(k)) as (index, _):
                value = e.let(shape.element_type, lir.LocalLoad(self.arrays[k], self._place(k, shape, index, now)))
                e.add(lir.Store(f"o{k}", ix.linearize(index, shape.dimensions), value))
        stores: list[lir.Stmt] = []
        for k in stages.scalars:
            value = e.let(state.shapes[k].element_type, lir.Current(self.scalars[k]))
            stores.append(lir.Store(f"o{k}", ix.const(0), value))
        self._in_first_block(stores)
        if stages.blocks > 1:
            e.add(lir.Barrier())  # before a block of a smaller launch begins with its next position

    def _in_first_block(self, stores: list[lir.Stmt]) -> None:
        """Emit stores of what all blocks compute, which one of them stores."""
        if stores and self.stages.blocks > 1:
            stores = [lir.If(self.emitter.index_test(self.position, 0, 0), tuple(stores))]
        for s in stores:
            self.emitter.add(s)

    def _array(self, owner: Owner, shape: Shape, copies: int = 1) -> str:
        name = self.emitter.fresh("s")
        self.emitter.add(lir.LocalArray(name, shape.element_type, copies * self._size(owner, shape)))
        return name

    def _load(self, k: int, index: Index) -> str:
        """Emit the read of an element of an argument."""
        s = self.state.shapes[k]
        return self.emitter.let(s.element_type, lir.Load(f"p{k}", ix.linearize(index, s.dimensions)))

    @staticmethod
    def _first(shape: Shape) -> Index:
        return tuple(ix.const(0) for _ in shape.dimensions)

    # ---- iterations

    @contextmanager
    def _iterations(self) -> Iterator[None]:
        """Open the loop over the iterations; no code that reads the state is hoisted out of it."""
        e, before, trips = self.emitter, self.emitter.hoist_limit, self.state.trips
        if trips is not None:
            with e.loop(Var(e.fresh("n"), trips), LoopKind.SERIAL):
                e.hoist_limit, e.runs_from = len(e.frames) - 1, len(e.frames)
                self._bind(self.state.parameter)
                yield
        else:
            with e.while_loop() as test:
                e.hoist_limit, e.runs_from = len(e.frames) - 1, len(e.frames)
                self._bind(self.state.condition.parameters[0])
                self._add_sums(self.state.condition.post_order())
                test(e.value(self.state.condition.root, ()))
                self._bind(self.state.parameter)
                yield
        e.hoist_limit = before

    def _iteration(self) -> None:
        """Emit an iteration: its stages, the new arrays, and the new scalars, which are assigned last."""
        e, state, stages = self.emitter, self.state, self.stages
        self._add_sums(stages.order)
        renamed = stages.renamed
        for phase in stages.phases:
            for stage in phase:
                i = stage.value
                k = renamed.get(i)
                with self._elements(i.shape, self._axis_of(i), stage.threads) as (index, at):
                    place = self._place(i, i.shape, index) if k is None else self._place(k, i.shape, index, self.next)
                    self._store(lir.LocalStore(self.kept[i], place, e.value(i, index)), at, stages.count(i))
            e.add(lir.Barrier())
            e.sources.update({s.value: self._stage_reader(s.value, renamed.get(s.value)) for s in phase})
        self.early = False
        others = [k for k in stages.arrays if renamed.get(state.new[k]) != k]
        for k in others:
            self._new_array(k)
        for k in sorted(state.stacked):
            self._store_slice(k)
        new = {k: e.value(state.new[k], self._first(state.shapes[k])) for k in stages.scalars}
        if others or self.early or not stages.phases:
            e.add(lir.Barrier())
        for k, value in new.items():
            e.add(lir.Assign(self.scalars[k], value))
        e.add(lir.Assign(self.parity, e.let(T.S32, lir.IndexValue(self.next))))

    def _new_array(self, k: int) -> None:
        """Emit the computation of a new array that is no stage."""
        e, new, shape = self.emitter, self.state.new[k], self.state.shapes[k]
        with self._elements(shape, self._axis_of(k), self.stages.threads_of(new)) as (index, at):
            place = self._place(k, shape, index, self.next)
            store = lir.LocalStore(self.arrays[k], place, e.value(new, index))
            self._store(store, at, self.stages.elements(k))

    def _store_slice(self, k: int) -> None:
        """Emit the stores of the slice that an iteration writes to a stacked array."""
        e, op = self.emitter, self.state.new[k]
        update = op.operands[1]
        axis = self.stages.axis.get(update)
        with self._elements(update.shape, axis, self.stages.threads_of(update)) as (index, at):
            value = e.value(update, index)
            starts = update_starts(e, op)
            to = tuple(i + s for i, s in zip(index, starts, strict=True))
            stored: lir.Stmt = lir.Store(f"o{k}", ix.linearize(to, op.shape.dimensions), value)
            if axis is None and self.stages.blocks > 1:
                stored = lir.If(e.index_test(self.position, 0, 0), (stored,))
            self._store(stored, at, self.stages.count(update))

    # ---- loops over elements

    @contextmanager
    def _elements(self, shape: Shape, axis: int | None, threads: int = 1) -> Iterator[tuple[Index, IndexExpr]]:
        """Open a loop over the elements of an array, yielding an index into it and its offset among them.

        Args:
            shape: of the array.
            axis: the dimension of which a block has one position.
            threads: number of threads that compute an element together; the last warp has whole elements.
        """
        e = self.emitter
        dims = [n for d, n in enumerate(shape.dimensions) if d != axis]
        count = math.prod(dims)
        extent = count * threads
        lane = Var(e.fresh("l"), extent if threads == 1 else -(-extent // WARP) * WARP)
        with e.loop(lane, LoopKind.INDEPENDENT):
            before, e.hoist_limit = e.hoist_limit, len(e.frames) - 1
            at = ix.of(lane).floordiv(threads)
            self.is_inside, self.lane = True, lane
            self.threads, self.thread = threads, ix.of(lane).mod(threads)
            inside = iter(ix.delinearize(at.mod(count), dims))
            index = tuple(self.position if d == axis else next(inside) for d in range(shape.rank))
            yield index, at
            self.is_inside, self.threads, self.thread = False, 1, ix.const(0)
            e.hoist_limit = before

    def _store(self, store: lir.Stmt, at: IndexExpr, count: int) -> None:
        """Emit the store of an element that some threads have computed, by the first of them."""
        e = self.emitter
        if self.threads == 1:
            e.add(store)
            return
        tests = [e.index_test(self.thread, 0, 0)]
        if at.range[1] >= count:
            tests.append(e.index_test(at, None, count - 1))
        e.add(lir.If(e.all_of(tests), (store,)))

    # ---- reads of carried values and stages

    def _bind(self, whole: HloInstruction) -> None:
        """Make the elements of a parameter read the state as it is at the start of an iteration."""
        e = self.emitter
        self.now = self._current_parity()
        self.next = self.now * -1 + 1
        for i in whole.users:
            e.sources[i] = self._reader(i.attributes["index"])

    def _current_parity(self) -> IndexExpr:
        e = self.emitter
        return ix.of(e.runtime(e.let(T.S32, lir.Current(self.parity)), 0, 1))

    def _reader(self, k: int) -> Callable[[Index], str]:
        e, shape, now = self.emitter, self.state.shapes[k], self.now
        if k in self.scalars:
            return lambda index: e.let(shape.element_type, lir.Current(self.scalars[k]))
        if k in self.stages.arrays:

            def read(index: Index) -> str:
                self.early = True
                place = self._place(k, shape, index, now)
                return e.let(shape.element_type, lir.LocalLoad(self.arrays[k], place))

            return read
        if k in self.arrays:
            return lambda index: e.let(shape.element_type, lir.LocalLoad(self.arrays[k], self._place(k, shape, index)))
        return lambda index: self._load(k, index)

    def _stage_reader(self, i: HloInstruction, k: int | None) -> Callable[[Index], str]:
        e, following, name = self.emitter, self.next, self.kept[i]
        is_early = k is None and any(s.value is i for s in self.stages.phases[0])

        def read(index: Index) -> str:
            self.early |= is_early
            place = self._place(i, i.shape, index) if k is None else self._place(k, i.shape, index, following)
            return e.let(i.shape.element_type, lir.LocalLoad(name, place))

        return read

    def _axis_of(self, owner: Owner) -> int | None:
        """Return the dimension of an array of which a block has one position, if there is one."""
        if isinstance(owner, int):
            return 0 if owner in self.stages.arrays and self.stages.blocks > 1 else None
        return self.stages.axis.get(owner)

    def _dims(self, owner: Owner, shape: Shape) -> list[int]:
        axis = self._axis_of(owner)
        return [n for d, n in enumerate(shape.dimensions) if d != axis]

    def _size(self, owner: Owner, shape: Shape) -> int:
        """Return the number of elements of an array in shared memory, of one copy."""
        dims = self._dims(owner, shape)
        return math.prod(dims[:-1]) * self.pitches.get(owner, dims[-1]) if dims else 1

    def _place(self, owner: Owner, shape: Shape, index: Index, parity: IndexExpr | None = None) -> IndexExpr:
        """Return the offset of an element of an array in shared memory.

        Args:
            owner: what the array has.
            shape: its shape over all blocks.
            index: the index into it.
            parity: which of two copies is meant; None if there is only one.
        """
        axis, dims = self._axis_of(owner), self._dims(owner, shape)
        if axis is not None and index[axis] != self.position:
            raise UnsupportedError(f"%{self.state.loop.name}: {shape} is read at the position of another block")
        at = [i for d, i in enumerate(index) if d != axis]
        if len(dims) < 2:
            place = ix.linearize(at, dims)
        else:
            row = ix.linearize(at[:-1], dims[:-1])
            if self.is_inside:
                self.reads.setdefault(owner, []).append(SharedRead(row, at[-1], self.lane))
            place = row * self.pitches.get(owner, dims[-1]) + at[-1]
        return place if parity is None else parity * self._size(owner, shape) + place

    def best_pitches(self) -> dict[Owner, int]:
        """Return the distances of rows by which the threads of a warp read different banks, where others are better.

        The nest must have been made.
        """
        found = {}
        for owner, reads in self.reads.items():
            columns = self._dims(owner, self.state.shapes[owner] if isinstance(owner, int) else owner.shape)[-1]
            pitch = best_pitch(columns, reads)
            if pitch != columns:
                found[owner] = pitch
        return found

    # ---- sums

    def _add_sums(self, instructions: list[HloInstruction]) -> None:
        """Make the sums and products among some instructions computed by as many threads as their stage has."""
        for i in instructions:
            if i.opcode is Opcode.DOT:
                self.emitter.sources[i] = self._product_reader(i)
            elif i.opcode is Opcode.REDUCE and i.shape.is_array:
                self.emitter.sources[i] = self._sum_reader(i)

    def _product_reader(self, dot: HloInstruction) -> Callable[[Index], str]:
        e, t = self.emitter, dot.shape.element_type

        def element(o: HloInstruction, index: Index) -> str:
            value, own = e.value(o, index), o.shape.element_type
            return value if own is t else e.apply(scalar_ops.conversion(own, t), value)

        def read(index: Index) -> str:
            def product(inner: Index) -> str:
                lhs, rhs = operand_indices(dot, index, inner)
                x, y = element(dot.operands[0], lhs), element(dot.operands[1], rhs)
                return e.apply(scalar_ops.binary(Opcode.MULTIPLY, t), x, y)

            return self._summed(t, Opcode.ADD, contracted_sizes(dot), product)

        return read

    def _sum_reader(self, reduce: HloInstruction) -> Callable[[Index], str]:
        e, t = self.emitter, reduce.shape.element_type
        combiner = combiner_of(reduce.attributes["to_apply"])
        source, start = reduce.operands
        dims = sorted(reduce.dimensions)

        def read(index: Index) -> str:
            if combiner is None or not is_supported_type(t):  # it is not divided
                return reduce_values(e, reduce, index)[0]

            def element(inner: Index) -> str:
                kept, at = iter(index), dict(zip(dims, inner, strict=True))
                return e.value(source, tuple(at[d] if d in at else next(kept) for d in range(source.shape.rank)))

            found = self._summed(t, combiner, [source.shape.dimensions[d] for d in dims], element)
            return e.inline(reduce.attributes["to_apply"], [e.value(start, ()), found])[0]

        return read

    def _summed(self, t: T, combiner: Opcode, sizes: list[int], element: Callable[[Index], str]) -> str:
        """Emit the combination of elements by the threads that share this one, and return its name.

        Args:
            t: type of the elements.
            combiner: how they are combined.
            sizes: of the dimensions along which they lie.
            element: emits the element at an index along these dimensions.
        """
        e, count = self.emitter, math.prod(sizes)
        if not self.is_inside and count > WARP:
            return self._summed_by_block(t, combiner, sizes, count, element)
        threads, thread = self.threads, self.thread
        if any(f.is_guard for f in e.frames):  # threads of a warp may be in other branches
            threads, thread = 1, ix.const(0)
        identity = e.constant(scalar_ops.identity_of(combiner, t), t)
        name = e.fresh("a")
        e.add(lir.Accumulator(name, t, identity))
        step = Var(e.fresh("r"), -(-count // threads))
        at = ix.of(step) * threads + thread
        with e.loop(step, LoopKind.UNROLLED if step.extent <= UNROLL_LIMIT else LoopKind.SERIAL):
            self.threads, before = 1, self.threads
            value = element(ix.delinearize(at.mod(count), sizes))
            self.threads = before
            if count % threads:
                select = scalar_ops.ScalarOp(Opcode.SELECT, t, t)
                value = e.apply(select, e.index_test(at, None, count - 1), value, identity)
            now = e.let(t, lir.Current(name))
            e.add(lir.Assign(name, e.apply(scalar_ops.binary(combiner, t), now, value)))
        if threads > 1:
            e.add(lir.CombineThreads((lir.Combined(name, t, combiner),), Team(threads, 1)))
        return e.let(t, lir.Current(name))

    def _summed_by_block(
        self, t: T, combiner: Opcode, sizes: list[int], count: int, element: Callable[[Index], str]
    ) -> str:
        """Emit the combination of elements that every thread needs, as in a condition, by all of them."""
        e, name, lane = self.emitter, self.emitter.fresh("a"), Var(self.emitter.fresh("l"), count)
        e.add(lir.Accumulator(name, t, e.constant(scalar_ops.identity_of(combiner, t), t)))
        with e.loop(lane, LoopKind.INDEPENDENT):
            self.is_inside, self.lane, before, e.hoist_limit = True, lane, e.hoist_limit, len(e.frames) - 1
            value = element(ix.delinearize(ix.of(lane), sizes))
            now = e.let(t, lir.Current(name))
            e.add(lir.Assign(name, e.apply(scalar_ops.binary(combiner, t), now, value)))
            self.is_inside, e.hoist_limit = False, before
        e.add(lir.CombineThreads((lir.Combined(name, t, combiner),)))
        return e.let(t, lir.Current(name))
