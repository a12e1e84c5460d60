"""Lowering of a whole `while` loop to one nest: see `loop_kernel`.

A loop inside the body is lowered in the same way. Its state is kept in local arrays of its own, which are filled from
what the body has computed before it. An iteration of the outer loop is then several loops over lanes: one before each
inner loop, the inner loop itself around loops over lanes, and one that computes the new state.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from compiler.codegen.lowering.emit import Emitter
from compiler.codegen.lowering.select_regions import update_starts
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest import scalar_ops
from compiler.codegen.nest.index import Index, IndexExpr, Var
from compiler.codegen.nest.loop_ir import LoopKind
from compiler.codegen.schedules.schedule import LANES, Schedule
from compiler.codegen.templates.loop_exit import LoopExit, exit_of
from compiler.codegen.templates.loop_state import ELEMENT_LIMIT, LoopState
from compiler.errors import UnsupportedError
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType as T


@dataclass
class Level:
    """A loop that is being lowered for one tile: the outermost one or one inside it.

    Attributes:
        state: its state.
        exit: when it ends; None if its number of iterations is known.
        initial: emits the read of an element of a carried value as it is before the loop, and returns its name.
        arrays: local array of each (tuple element, index in the dimensions besides the axis); one element per lane.
        scalars: accumulator of each (tuple element, index) of the shared state.
    """

    state: LoopState
    exit: LoopExit | None
    initial: Callable[[int, Index], str]
    arrays: dict[tuple[int, tuple[int, ...]], str] = field(default_factory=dict)
    scalars: dict[tuple[int, tuple[int, ...]], str] = field(default_factory=dict)


class LoopLowering:
    """Lowers a loop: for each tile of positions load the state, run all iterations, and store the state.

    Attributes:
        level: the loop.
        apart: distance of the positions of adjacent lanes of a tile.
        position: index along the axis of the current lane.
        lane: number of the current lane within the tile.
    """

    def __init__(self, state: LoopState, axis: int, extent: int, schedule: Schedule) -> None:
        self.state, self.axis, self.extent = state, axis, extent
        self.tile = schedule.lane_tile(extent)
        # Positions of short tiles are far apart, so that adjacent tiles, which adjacent threads run, are adjacent in
        # memory at every step.
        self.apart = extent // self.tile if 1 < self.tile < LANES else 1
        self.emitter = Emitter(state.body)
        self.level = Level(state, self._exit(state), self._initial)
        self.position = ix.const(0)
        self.lane = ix.const(0)

    def kernel(self) -> lir.Kernel:
        e = self.emitter
        tiles = Var(e.fresh("t"), self.extent // self.tile)
        with e.loops([tiles]):
            self._tile(ix.of(tiles) * (1 if self.apart > 1 else self.tile), self.tile, ix.of(tiles))
        rest = self.extent % self.tile
        if rest:
            self._tile(ix.const(self.extent - rest), rest, ix.const(1))
        return self._finish()

    def _finish(self) -> lir.Kernel:
        state = self.state
        arguments = [lir.Argument(f"p{k}", s.element_type, s.num_elements, False) for k, s in enumerate(state.shapes)]
        arguments += [
            lir.Argument(f"o{k}", state.shapes[k].element_type, state.shapes[k].num_elements, True)
            for k in state.changed
        ]
        position = {k: len(state.shapes) + n for n, k in enumerate(state.changed)}
        in_place = tuple((k, position[k]) for k in state.per_position)
        must = tuple((k, position[k]) for k in sorted(state.stacked))
        return lir.Kernel("loop-kernel", tuple(arguments), tuple(self.emitter.frames[0].stmts), in_place, must)

    # ---- one tile of positions

    def _tile(self, base: IndexExpr, size: int, number: IndexExpr) -> None:
        e, level = self.emitter, self.level
        level.arrays.clear()
        level.scalars.clear()
        self._start(level, base, size)
        self._run(level, base, size)
        e.hoist_limit = len(e.frames) - 1  # what is stored may be computed from the state of this tile
        self._for_each_lane(base, size, self._store_state)
        e.hoist_limit = 0
        self._store_shared(number)

    def _start(self, level: Level, base: IndexExpr, size: int, passed: Sequence[HloInstruction] = ()) -> None:
        """Emit the initial state of a loop.

        Args:
            level: the loop.
            base: the first position of the tile.
            size: the number of its positions.
            passed: values that are computed here and kept in local arrays for what follows the loop.
        """
        e, state = self.emitter, level.state
        kept = self._kept(level)
        for k in (*state.per_position, *kept):
            for rest in self._other_indices(state.shapes[k]):
                name = level.arrays[k, rest] = e.fresh("s")
                e.add(lir.LocalArray(name, state.shapes[k].element_type, size))
        kept_values = {i: {rest: e.fresh("s") for rest in self._other_indices(i.shape)} for i in passed}
        for i, arrays in kept_values.items():
            for name in arrays.values():
                e.add(lir.LocalArray(name, i.shape.element_type, size))
        for k in sorted(state.shared):
            for at in itertools.product(*(range(n) for n in state.shapes[k].dimensions)):
                initial = level.initial(k, self._constant_index(at))
                name = level.scalars[k, at] = e.fresh("u")
                e.add(lir.Accumulator(name, state.shapes[k].element_type, initial))

        def load() -> None:
            names = {level.arrays[k, rest]: level.initial(k, self._full_index(rest)) for k, rest in level.arrays}
            names |= {
                arrays[rest]: e.value(i, self._full_index(rest)) for i, arrays in kept_values.items() for rest in arrays
            }
            for array, name in names.items():
                e.add(lir.LocalStore(array, self.lane, name))

        if level.arrays or passed:
            self._for_each_lane(base, size, load)
        for i, arrays in kept_values.items():
            e.sources[i] = self._passed_reader(i, arrays)

    def _run(self, level: Level, base: IndexExpr, size: int) -> None:
        """Emit all iterations of a loop."""
        e, state = self.emitter, level.state
        self._bind(state.parameter, level)
        with self._iterations(level, base, size):
            for inner, passed in zip(state.inner, state.passed(self.axis, self.extent), strict=True):
                inside = Level(inner, self._exit(inner), self._initial_of(inner.loop.operands[0]))
                self._start(inside, base, size, passed)
                self._run(inside, base, size)
                self._bind(inner.loop, inside)
            new = {key: e.value(state.new[key[0]], self._constant_index(key[1])) for key in level.scalars}
            if any(k in state.changed for k, _ in level.arrays) or state.stacked:
                self._for_each_lane(base, size, lambda: self._step(level))
            # Shared scalars are assigned last, because the lanes still read their old values.
            for key, name in new.items():
                e.add(lir.Assign(level.scalars[key], name))
        for i in itertools.chain(*state.passed(self.axis, self.extent)):
            del e.sources[i]

    def _kept(self, level: Level) -> list[int]:
        """Return the carried values that a loop does not change but keeps in local arrays."""
        return [] if level is self.level else level.state.kept(self.axis, self.extent)

    def _initial_of(self, start: HloInstruction) -> Callable[[int, Index], str]:
        """Return the function that emits an element of the tuple with which an inner loop starts."""
        return lambda k, index: self.emitter.value(start.operands[k], index)

    def _exit(self, state: LoopState) -> LoopExit | None:
        return exit_of(state, self.axis, self.extent) if state.trips is None else None

    @contextmanager
    def _iterations(self, level: Level, base: IndexExpr, size: int) -> Iterator[None]:
        """Open the loop over the iterations of a level.

        The state changes from one iteration to the next, so code that reads it must not be hoisted out, although its
        index does not depend on the variable of this loop.
        """
        e, before, trips = self.emitter, self.emitter.hoist_limit, level.state.trips
        if trips is not None:
            with e.loop(Var(e.fresh("n"), trips), LoopKind.SERIAL):
                e.hoist_limit = len(e.frames) - 1
                yield
                e.hoist_limit = before
            return
        with e.while_loop() as test:
            e.hoist_limit = len(e.frames) - 1
            test(self._goes_on(level, base, size))
            yield
            e.hoist_limit = before

    def _goes_on(self, level: Level, base: IndexExpr, size: int) -> str:
        """Emit whether a loop runs another iteration for this tile and return the name of the pred."""
        e, state = self.emitter, level.state
        if level.exit is None:
            raise UnsupportedError(f"%{state.loop.name} has no condition")
        self._bind(state.condition.parameters[0], level)
        tests = [self._pred(e.value(i, ()), wanted) for i, wanted in level.exit.uniform]
        for active, wanted in level.exit.active:
            lane = Var(e.fresh("l"), size)
            reductions: list[lir.Reduction] = []
            with e.reduction([lane], reductions), self._at(base, lane):
                elements = [e.value(active, self._full_index(rest)) for rest in self._other_indices(active.shape)]
                elements = [self._pred(x, wanted) for x in elements]
                some = elements[0]
                for x in elements[1:]:
                    some = e.apply(scalar_ops.binary(Opcode.OR, T.PRED), some, x)
                number = e.apply(scalar_ops.conversion(T.PRED, T.S32), some)
                reductions.append(lir.Reduction(e.fresh("a"), T.S32, Opcode.OR, number))
            zero = e.constant(0, T.S32)
            tests.append(e.apply(scalar_ops.comparison("NE", T.S32), reductions[0].name, zero))
        return e.all_of(tests)

    def _pred(self, name: str, wanted: bool) -> str:
        """Emit whether a pred has a value and return the name."""
        return name if wanted else self.emitter.apply(scalar_ops.ScalarOp(Opcode.NOT, T.PRED, T.PRED), name)

    @contextmanager
    def _at(self, base: IndexExpr, lane: Var) -> Iterator[None]:
        """Make a variable the current lane."""
        # `ix.of` would replace a variable of extent 1 by 0, and code for the lane could be hoisted out of its loop.
        self.lane = IndexExpr(((lane, 1),))
        self.position = base + self.lane * self.apart
        yield

    def _for_each_lane(self, base: IndexExpr, size: int, visit: Callable[[], None]) -> None:
        e = self.emitter
        lane = Var(e.fresh("l"), size)
        with e.loop(lane, LoopKind.INDEPENDENT), self._at(base, lane):
            visit()

    def _other_indices(self, shape: Shape) -> list[tuple[int, ...]]:
        """Return all indices in the dimensions besides the axis."""
        dims = shape.dimensions[1:] if self.axis == 0 else shape.dimensions[:-1]
        return list(itertools.product(*(range(n) for n in dims)))

    def _full_index(self, rest: tuple[int, ...]) -> Index:
        others = self._constant_index(rest)
        return (self.position, *others) if self.axis == 0 else (*others, self.position)

    @staticmethod
    def _constant_index(values: tuple[int, ...]) -> Index:
        return tuple(ix.const(v) for v in values)

    def _initial(self, k: int, index: Index) -> str:
        """Emit the read of an element of carried value `k` as it is before the loop; return its name."""
        s = self.state.shapes[k]
        return self.emitter.let(s.element_type, lir.Load(f"p{k}", ix.linearize(index, s.dimensions)))

    def _stack_name(self, k: int) -> str:
        """Return the name of the argument to which stacked array `k` is written."""
        return f"o{k}"

    def _step(self, level: Level) -> None:
        """Emit one iteration at one position; all new values are computed before any is stored."""
        e, state = self.emitter, level.state
        changed = [key for key in level.arrays if key[0] in state.changed]
        new = {key: e.value(state.new[key[0]], self._full_index(key[1])) for key in changed}
        for k in sorted(state.stacked):
            self._store_slice(k)
        for key, name in new.items():
            e.add(lir.LocalStore(level.arrays[key], self.lane, name))

    def _store_slice(self, k: int) -> None:
        """Store this position's part of the slice that an iteration writes to a stacked array."""
        e = self.emitter
        update_op = self.state.new[k]
        update = update_op.operands[1]
        dims = update.shape.dimensions
        at = next((d for d in range(len(dims)) if dims[d] == self.extent), None)
        if at is None or math.prod(dims) // self.extent > ELEMENT_LIMIT:
            raise UnsupportedError(f"%{update_op.name}: the written slice does not have the loop's axis")
        starts = update_starts(e, update_op)
        for rest in itertools.product(*(range(n) for d, n in enumerate(dims) if d != at)):
            others = iter(rest)
            index = tuple(self.position if d == at else ix.const(next(others)) for d in range(len(dims)))
            name = e.value(update, index)
            to = tuple(i + s for i, s in zip(index, starts, strict=True))
            e.add(lir.Store(self._stack_name(k), ix.linearize(to, update_op.shape.dimensions), name))

    def _store_state(self) -> None:
        e = self.emitter
        for (k, rest), array in self.level.arrays.items():
            s = self.state.shapes[k]
            name = e.let(s.element_type, lir.LocalLoad(array, self.lane))
            e.add(lir.Store(f"o{k}", ix.linearize(self._full_index(rest), s.dimensions), name))

    def _store_shared(self, number: IndexExpr) -> None:
        """Store the shared state from the first tile alone; all tiles have computed the same values."""
        e, scalars = self.emitter, self.level.scalars
        if not scalars or (number.is_const and number.const != 0):
            return
        first = e.index_test(number, 0, 0)
        stores = []
        for (k, at), name in scalars.items():
            s = self.state.shapes[k]
            value = e.let(s.element_type, lir.Current(name))
            stores.append(lir.Store(f"o{k}", ix.linearize(self._constant_index(at), s.dimensions), value))
        e.add(lir.If(first, tuple(stores)))

    # ---- reads of carried values

    def _bind(self, whole: HloInstruction, level: Level) -> None:
        """Make the elements of a carried tuple read the state of a loop: the parameter of its body, or its result."""
        for i in whole.users:
            if i.opcode is not Opcode.GET_TUPLE_ELEMENT:
                raise UnsupportedError(f"%{i.name} uses the carried tuple as a whole")
            self.emitter.sources[i] = self._reader(level, i.attributes["index"])

    def _reader(self, level: Level, k: int) -> Callable[[Index], str]:
        """Return the function that emits reads of carried value `k` of a loop as it is now."""

        def read(index: Index) -> str:
            if k in level.state.changed or self._is_kept(level, k, index):
                return self._read_changed(level, k, index)
            return level.initial(k, index)

        return read

    def _passed_reader(self, i: HloInstruction, arrays: dict[tuple[int, ...], str]) -> Callable[[Index], str]:
        """Return the function that emits reads of a value that was computed before an inner loop."""

        def read(index: Index) -> str:
            e, others = self.emitter, self._others(index)
            if index[0 if self.axis == 0 else -1] == self.position and others in arrays:
                return e.let(i.shape.element_type, lir.LocalLoad(arrays[others], self.lane))
            del e.sources[i]  # at another position it is computed again
            name = e.value(i, index)
            e.sources[i] = read
            return name

        return read

    def _is_kept(self, level: Level, k: int, index: Index) -> bool:
        """Check whether an element of a carried value that does not change is in a local array."""
        found = (k, self._others(index)) in level.arrays
        return found and index[0 if self.axis == 0 else -1] == self.position

    def _others(self, index: Index) -> tuple[int, ...]:
        """Return a constant index in the dimensions besides the axis."""
        others = index[1:] if self.axis == 0 else index[:-1]
        return tuple(i.const for i in others) if all(i.is_const for i in others) else (-1,)

    def _read_changed(self, level: Level, k: int, index: Index) -> str:
        """Emit the read of an element of carried value `k`, which the loop changes, as it is now."""
        e, s = self.emitter, level.state.shapes[k]
        if k in level.state.shared:
            if not all(i.is_const for i in index):
                raise UnsupportedError(f"carried value {k} of shape {s} is read at an index that varies")
            return e.let(s.element_type, lir.Current(level.scalars[k, tuple(i.const for i in index)]))
        at, others = index[0 if self.axis == 0 else -1], self._others(index)
        if at != self.position or (k, others) not in level.arrays:
            raise UnsupportedError(f"carried value {k} of shape {s} is read at a position other than the current one")
        return e.let(s.element_type, lir.LocalLoad(level.arrays[k, others], self.lane))
