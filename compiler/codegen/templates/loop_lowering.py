"""Lowering of a whole `while` loop to one nest: see `loop_kernel`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

from compiler.codegen.languages import default_schedule, find_language
from compiler.codegen.lowering.emit import Emitter
from compiler.codegen.lowering.select_regions import update_starts
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Index, IndexExpr, Var
from compiler.codegen.nest.loop_ir import LoopKind
from compiler.codegen.nest.scalar_ops import COMPUTE_BYTES, is_supported_type
from compiler.codegen.schedules.schedule import LOCAL_BYTES, Schedule
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape

SHARED_LIMIT = 16
"""Carried arrays of at most this many elements are shared by all positions; each element becomes a scalar."""
ELEMENT_LIMIT = 64
"""Maximum number of elements that one position carries in one array."""
CARRIED_LIMIT = 64
"""Maximum number of elements that one position carries in all arrays.

Each of them is a local array, and the compile time of gcc grows with the cube of their number (about 10 s for 64 and
100 s for 120).
"""
MAX_LANES, LANE_STEP = 1024, 64
"""Maximum number of lanes of a tile by default, and the number of which it is a multiple."""
TILE_BYTES = 48 * 1024
"""Maximum size of the state of a tile by default, so that it stays in the first-level cache."""


def default_loop_schedule(loop: HloInstruction, language: str) -> Schedule:
    """Return the default schedule of the kernel of a `while`; raise UnsupportedError if it cannot have a kernel."""
    state = LoopState(loop)
    _, extent = state.axis()
    return fitted_schedule(language, extent, state.bytes_per_lane(extent))


def fitted_schedule(language: str, extent: int, bytes_per_lane: int) -> Schedule:
    """Return the language's default schedule with tiles that all threads share and whose state fits.

    Every tile computes the shared state for itself, so there should be no more tiles than threads.
    """
    preset, threads = default_schedule(language), find_language(language).threads
    lanes = preset.lanes
    if threads is not None:
        preset = replace(preset, rare=MAX_LANES)
        lanes = min(MAX_LANES, max(LANE_STEP, -(-extent // (threads() * LANE_STEP)) * LANE_STEP))
        lanes = min(lanes, max(LANE_STEP, TILE_BYTES // max(1, bytes_per_lane) // LANE_STEP * LANE_STEP))
    # The local arrays of a full tile and of the remainder tile must fit.
    while lanes > 1 and 2 * lanes * bytes_per_lane > LOCAL_BYTES:
        lanes //= 2
    return replace(preset, lanes=lanes)


class LoopState:
    """The carried state of a loop, classified by how the kernel stores each element of the tuple.

    Attributes:
        changed: elements that the loop changes; the others are read from the arguments in every iteration.
        stacked: changed arrays of which each iteration writes one slice and reads nothing, such as a scan's outputs.
            They are stored to memory directly.
        shared: other changed arrays of at most SHARED_LIMIT elements, which every tile computes for itself.
        per_position: all other changed arrays. They are split along the axis and kept in local arrays.
    """

    def __init__(self, loop: HloInstruction) -> None:
        self.body: HloComputation = loop.attributes["body"]
        root = self.body.root
        if not loop.shape.is_tuple or root.opcode is not Opcode.TUPLE:
            raise UnsupportedError(f"%{loop.name}: the loop must carry a flat tuple")
        self.parameter = self.body.parameters[0]
        self.shapes = loop.shape.tuple_shapes
        for s in self.shapes:
            if not s.is_array or not is_supported_type(s.element_type):
                raise UnsupportedError(f"%{loop.name}: a carried value of shape {s} has no kernel")
        self.new = root.operands
        self.changed = [k for k in range(len(self.shapes)) if not self._is_element(self.new[k], k)]
        self.stacked = {k for k in self.changed if self._is_stacked(k)}
        self.shared = {k for k in self.changed if k not in self.stacked and self.shapes[k].num_elements <= SHARED_LIMIT}
        self.per_position = [k for k in self.changed if k not in self.shared and k not in self.stacked]

    def _is_element(self, i: HloInstruction, k: int) -> bool:
        return i.opcode is Opcode.GET_TUPLE_ELEMENT and i.operands[0] is self.parameter and i.attributes["index"] == k

    def _is_stacked(self, k: int) -> bool:
        """Check whether iterations only write slices of carried array `k`, so that no iteration reads it."""
        new = self.new[k]
        if new.opcode is not Opcode.DYNAMIC_UPDATE_SLICE or not self._is_element(new.operands[0], k):
            return False
        reads = [i for i in self.parameter.users if i.attr("index") == k and i.opcode is Opcode.GET_TUPLE_ELEMENT]
        alone = all(o not in reads for o in new.operands[1:]) and len(new.users) == 1
        return alone and all(u is new for r in reads for u in r.users)

    def bytes_per_lane(self, extent: int) -> int:
        """Return the bytes of local arrays that one position along an axis of `extent` positions needs."""
        shapes = [self.shapes[k] for k in self.per_position]
        return sum(s.num_elements // max(1, extent) * COMPUTE_BYTES[s.element_type] for s in shapes)

    def axis(self, wanted: int = 0) -> tuple[int, int]:
        """Return the axis along which iterations are split and its extent: 0 for the first dimension, -1 for the last.

        Args:
            wanted: the field `axis` of a `Schedule`.

        Raises:
            UnsupportedError: no such dimension has one extent in all `per_position` arrays, or a position would carry
                too many elements.
        """
        if not self.per_position:
            raise UnsupportedError("the loop carries no array large enough to split into positions")
        found = []
        for axis in ((0, -1), (0,), (-1,))[wanted]:
            extents = {self.shapes[k].dimensions[axis] for k in self.per_position}
            rest = max(
                self.shapes[k].num_elements // max(1, self.shapes[k].dimensions[axis]) for k in self.per_position
            )
            if len(extents) == 1 and rest <= ELEMENT_LIMIT and extents != {0}:
                found.append((axis, extents.pop()))
        if found:
            axis, extent = max(found, key=lambda pair: pair[1])
            carried = sum(self.shapes[k].num_elements // extent for k in self.per_position)
            if carried > CARRIED_LIMIT:
                raise UnsupportedError(f"each position would carry {carried} elements, more than {CARRIED_LIMIT}")
            return axis, extent
        shown = ", ".join(str(self.shapes[k]) for k in self.per_position)
        raise UnsupportedError(f"the carried arrays have no axis in common: {shown}")


class LoopLowering:
    """Lowers a loop: for each tile of positions load the state, run all iterations, and store the state.

    Attributes:
        arrays: local array of each (tuple element, index in the dimensions besides the axis); one element per lane.
        scalars: accumulator of each (tuple element, index) of the shared state.
        position: index along the axis of the current lane.
        lane: number of the current lane within the tile.
    """

    def __init__(self, state: LoopState, axis: int, extent: int, trips: int, schedule: Schedule) -> None:
        self.state, self.axis, self.extent, self.trips = state, axis, extent, trips
        self.tile = schedule.lane_tile(extent)
        self.emitter = Emitter(state.body)
        self.arrays: dict[tuple[int, tuple[int, ...]], str] = {}
        self.scalars: dict[tuple[int, tuple[int, ...]], str] = {}
        self.position = ix.const(0)
        self.lane = ix.const(0)

    def kernel(self) -> lir.Kernel:
        state, e = self.state, self.emitter
        for i in state.parameter.users:
            if i.opcode is not Opcode.GET_TUPLE_ELEMENT:
                raise UnsupportedError(f"%{i.name} uses the carried tuple as a whole")
            e.sources[i] = self._reader(i.attributes["index"])
        tiles = Var(e.fresh("t"), self.extent // self.tile)
        with e.loops([tiles]):
            self._tile(ix.of(tiles) * self.tile, self.tile, ix.of(tiles))
        rest = self.extent % self.tile
        if rest:
            self.arrays.clear()
            self.scalars.clear()
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
        e, state = self.emitter, self.state
        for k in state.per_position:
            for rest in self._other_indices(state.shapes[k]):
                name = self.arrays[k, rest] = e.fresh("s")
                e.add(lir.LocalArray(name, state.shapes[k].element_type, size))
        for k in sorted(state.shared):
            self._shared_init(k)
        self._for_each_lane(base, size, self._load_state)
        step = Var(e.fresh("n"), self.trips)
        with e.loop(step, LoopKind.SERIAL):
            # The state changes from one iteration to the next, so code that reads it must not be hoisted out, although
            # its index does not depend on the variable of this loop.
            e.hoist_limit = len(e.frames) - 1
            new = {key: e.value(state.new[key[0]], self._constant_index(key[1])) for key in self.scalars}
            self._for_each_lane(base, size, self._step)
            # Shared scalars are assigned last, because the lanes still read their old values.
            for key, name in new.items():
                e.add(lir.Assign(self.scalars[key], name))
            e.hoist_limit = 0
        e.hoist_limit = len(e.frames) - 1  # what is stored may be computed from the state of this tile
        self._for_each_lane(base, size, self._store_state)
        e.hoist_limit = 0
        self._store_shared(number)

    def _for_each_lane(self, base: IndexExpr, size: int, visit: Callable[[], None]) -> None:
        e = self.emitter
        lane = Var(e.fresh("l"), size)
        # `ix.of` would replace a variable of extent 1 by 0, and code for the lane could be hoisted out of its loop.
        self.lane = IndexExpr(((lane, 1),))
        self.position = base + self.lane
        with e.loop(lane, LoopKind.INDEPENDENT):
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

    def _load_state(self) -> None:
        e = self.emitter
        for (k, rest), array in self.arrays.items():
            e.add(lir.LocalStore(array, self.lane, self._initial(k, self._full_index(rest))))

    def _step(self) -> None:
        """Emit one iteration at one position; all new values are computed before any is stored."""
        e, state = self.emitter, self.state
        new = {key: e.value(state.new[key[0]], self._full_index(key[1])) for key in self.arrays}
        for k in sorted(state.stacked):
            self._store_slice(k)
        for key, name in new.items():
            e.add(lir.LocalStore(self.arrays[key], self.lane, name))

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
        for (k, rest), array in self.arrays.items():
            s = self.state.shapes[k]
            name = e.let(s.element_type, lir.LocalLoad(array, self.lane))
            e.add(lir.Store(f"o{k}", ix.linearize(self._full_index(rest), s.dimensions), name))

    # ---- state shared by all positions

    def _shared_init(self, k: int) -> None:
        e, s = self.emitter, self.state.shapes[k]
        for at in itertools.product(*(range(n) for n in s.dimensions)):
            initial = self._initial(k, self._constant_index(at))
            name = self.scalars[k, at] = e.fresh("u")
            e.add(lir.Accumulator(name, s.element_type, initial))

    def _store_shared(self, number: IndexExpr) -> None:
        """Store the shared state from the first tile alone; all tiles have computed the same values."""
        e = self.emitter
        if not self.scalars or (number.is_const and number.const != 0):
            return
        first = e.index_test(number, 0, 0)
        stores = []
        for (k, at), name in self.scalars.items():
            s = self.state.shapes[k]
            value = e.let(s.element_type, lir.Current(name))
            stores.append(lir.Store(f"o{k}", ix.linearize(self._constant_index(at), s.dimensions), value))
        e.add(lir.If(first, tuple(stores)))

    def _reader(self, k: int) -> Callable[[Index], str]:
        """Return the function that emits reads of carried value `k` inside the body."""

        def read(index: Index) -> str:
            return self._read_changed(k, index) if k in self.state.changed else self._initial(k, index)

        return read

    def _read_changed(self, k: int, index: Index) -> str:
        """Emit the read of an element of carried value `k`, which the loop changes, as it is now."""
        e, s = self.emitter, self.state.shapes[k]
        if k in self.state.shared:
            if not all(i.is_const for i in index):
                raise UnsupportedError(f"carried value {k} of shape {s} is read at an index that varies")
            return e.let(s.element_type, lir.Current(self.scalars[k, tuple(i.const for i in index)]))
        at, others = (index[0], index[1:]) if self.axis == 0 else (index[-1], index[:-1])
        if at != self.position or not all(i.is_const for i in others):
            raise UnsupportedError(f"carried value {k} of shape {s} is read at a position other than the current one")
        return e.let(s.element_type, lir.LocalLoad(self.arrays[k, tuple(i.const for i in others)], self.lane))
