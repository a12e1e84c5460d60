"""The loop kernel: a whole `while` inside one kernel.

It is possible where each position along one axis of the carried state goes through the loop by itself: new values at a
position depend on old values at that position alone, on small arrays and scalars that all positions share, and on
values that the loop does not change. Then tiles of positions run the whole loop, their state in local arrays (registers
on a GPU), instead of every step walking memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from compiler.analysis.trip_count import trip_count_of
from compiler.codegen import index as ix
from compiler.codegen import loop_ir as lir
from compiler.codegen import scalar
from compiler.codegen.emit import Emitter
from compiler.codegen.index import Index, Int, Var
from compiler.codegen.kernel_spec import KernelSpec, build_spec, flops_of
from compiler.codegen.languages import default_schedule
from compiler.codegen.loop_ir import LoopKind
from compiler.codegen.schedule import LOCAL_BYTES, Schedule, optimize
from compiler.codegen.select_regions import update_starts
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType
from compiler.support.recursion import deep_recursion

SHARED_LIMIT = 16
"""Arrays of at most this many elements are shared state: each element a scalar of its own."""
ELEMENT_LIMIT = 64
"""Elements one position may carry in one array."""
CARRIED_LIMIT = 64
"""Elements one position may carry in all arrays: each is a local array, and gcc takes a time that grows with the cube
of their number (some 10 s for 64, 100 s for 120)."""


@dataclass(frozen=True)
class LoopKernel:
    """A kernel for a loop.

    Attributes:
        inputs: positions in the carried tuple that are read before the loop, in argument order.
        outputs: positions that the loop changes, in argument order after the inputs.
    """

    spec: KernelSpec
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def why_not(loop: HloInstruction) -> str | None:
    """Why this `while` cannot become one kernel, or None when it can."""
    try:
        make_loop_kernel(loop, "c")
    except UnsupportedError as e:
        return str(e)
    return None


def make_loop_kernel(loop: HloInstruction, language: str, schedule: Schedule | None = None) -> LoopKernel:
    """The kernel of a `while`; UnsupportedError says why there is none."""
    trips = trip_count_of(loop)
    if trips is None:
        raise UnsupportedError(f"%{loop.name}: the number of iterations does not follow from constants")
    state = _State(loop)
    axis, extent = state.axis()
    schedule = schedule or _fitting(default_schedule(language), state.bytes_per_lane(extent))
    with deep_recursion():
        kernel = _LoopLowering(state, axis, extent, trips, schedule).kernel()
    shapes = loop.shape.tuple_shapes
    inputs, outputs = tuple(range(len(shapes))), tuple(state.changed)
    body: HloComputation = loop.attributes["body"]
    flops = _deep_flops(body) * trips
    spec = build_spec(
        loop.name, optimize(kernel, schedule), language, schedule,
        tuple(shapes[k] for k in inputs), tuple(shapes[k] for k in outputs), flops,
    )  # fmt: skip
    return LoopKernel(spec, inputs, outputs)


def default_loop_schedule(loop: HloInstruction, language: str) -> Schedule:
    """The schedule of the kernel of a `while` when nobody chooses one; UnsupportedError when there is no kernel."""
    state = _State(loop)
    _, extent = state.axis()
    return _fitting(default_schedule(language), state.bytes_per_lane(extent))


def _fitting(schedule: Schedule, bytes_per_lane: int) -> Schedule:
    """With as many lanes as leave room for the state of a tile, and for that of the tile at the end."""
    lanes = schedule.lanes
    while lanes > 1 and 2 * lanes * bytes_per_lane > LOCAL_BYTES:
        lanes //= 2
    return replace(schedule, lanes=lanes)


def _deep_flops(computation: HloComputation) -> int:
    inner = sum(
        _deep_flops(c) for i in computation.instructions if i.opcode is Opcode.FUSION for c in i.called_computations()
    )
    return flops_of(computation) + inner


class _State:
    """What a loop carries, element by element of its tuple."""

    def __init__(self, loop: HloInstruction) -> None:
        self.body: HloComputation = loop.attributes["body"]
        root = self.body.root
        if not loop.shape.is_tuple or root.opcode is not Opcode.TUPLE:
            raise UnsupportedError(f"%{loop.name}: the loop must carry a flat tuple")
        self.parameter = self.body.parameters[0]
        self.shapes = loop.shape.tuple_shapes
        for s in self.shapes:
            if not s.is_array or not scalar.is_supported_type(s.element_type):
                raise UnsupportedError(f"%{loop.name}: a carried value of shape {s} has no kernel")
        self.new = root.operands
        self.changed = [k for k in range(len(self.shapes)) if not self._is_element(self.new[k], k)]
        self.written = {k for k in self.changed if self._is_written_through(k)}
        self.shared = {k for k in self.changed if k not in self.written and self.shapes[k].num_elements <= SHARED_LIMIT}
        self.along = [k for k in self.changed if k not in self.shared and k not in self.written]

    def _is_element(self, i: HloInstruction, k: int) -> bool:
        return i.opcode is Opcode.GET_TUPLE_ELEMENT and i.operands[0] is self.parameter and i.attributes["index"] == k

    def _is_written_through(self, k: int) -> bool:
        """An array that each iteration only writes a slice of (a scan's stacked outputs)."""
        new = self.new[k]
        if new.opcode is not Opcode.DYNAMIC_UPDATE_SLICE or not self._is_element(new.operands[0], k):
            return False
        reads = [i for i in self.parameter.users if i.attr("index") == k and i.opcode is Opcode.GET_TUPLE_ELEMENT]
        alone = all(o not in reads for o in new.operands[1:]) and len(new.users) == 1
        return alone and all(u is new for r in reads for u in r.users)

    def bytes_per_lane(self, extent: int) -> int:
        """Bytes of state that one position along an axis of `extent` positions carries in local arrays."""
        shapes = [self.shapes[k] for k in self.along]
        return sum(s.num_elements // max(1, extent) * scalar.COMPUTE_BYTES[s.element_type] for s in shapes)

    def axis(self) -> tuple[int, int]:
        """(0 for the first dimension or -1 for the last, its extent): what all arrays of the state have in common."""
        if not self.along:
            raise UnsupportedError("the loop carries no array large enough to run along")
        found = []
        for axis in (0, -1):
            extents = {self.shapes[k].dimensions[axis] for k in self.along}
            rest = max(self.shapes[k].num_elements // max(1, self.shapes[k].dimensions[axis]) for k in self.along)
            if len(extents) == 1 and rest <= ELEMENT_LIMIT and extents != {0}:
                found.append((axis, extents.pop()))
        if found:
            axis, extent = max(found, key=lambda pair: pair[1])
            carried = sum(self.shapes[k].num_elements // extent for k in self.along)
            if carried > CARRIED_LIMIT:
                raise UnsupportedError(f"each position would carry {carried} elements, more than {CARRIED_LIMIT}")
            return axis, extent
        shown = ", ".join(str(self.shapes[k]) for k in self.along)
        raise UnsupportedError(f"the carried arrays have no axis in common: {shown}")


class _LoopLowering:
    def __init__(self, state: _State, axis: int, extent: int, trips: int, schedule: Schedule) -> None:
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
        with e.loops([tiles], [LoopKind.PARALLEL]):
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
        in_place = tuple((k, position[k]) for k in state.along)
        must = tuple((k, position[k]) for k in sorted(state.written))
        return lir.Kernel("loop-kernel", tuple(arguments), tuple(self.emitter.frames[0].stmts), in_place, must)

    # ---- one tile of positions

    def _tile(self, base: Int, size: int, number: Int) -> None:
        e, state = self.emitter, self.state
        for k in state.along:
            for rest in self._rest(state.shapes[k]):
                name = self.arrays[k, rest] = e.fresh("s")
                e.add(lir.LocalArray(name, state.shapes[k].element_type, size))
        for k in sorted(state.shared):
            self._shared_init(k)
        self._walk_tile(base, size, self._load_state)
        step = Var(e.fresh("n"), self.trips)
        with e.loop(step, LoopKind.SERIAL):
            e.floor = len(e.frames) - 1
            new = {key: e.value(state.new[key[0]], self._constant_index(key[1])) for key in self.scalars}
            self._walk_tile(base, size, self._step)
            for key, name in new.items():
                e.add(lir.Assign(self.scalars[key], name))
            e.floor = 0
        self._walk_tile(base, size, self._store_state)
        self._store_shared(number)

    def _walk_tile(self, base: Int, size: int, visit: Callable[[], None]) -> None:
        e = self.emitter
        lane = Var(e.fresh("l"), size)
        # Spelled out, so that a lane of its own stays one and code for it stays inside.
        self.lane = Int(((lane, 1),))
        self.position = base + self.lane
        with e.loop(lane, LoopKind.LANE):
            visit()

    def _rest(self, shape: Shape) -> list[tuple[int, ...]]:
        """Positions in the dimensions besides the axis."""
        dims = shape.dimensions[1:] if self.axis == 0 else shape.dimensions[:-1]
        return list(itertools.product(*(range(n) for n in dims)))

    def _full_index(self, rest: tuple[int, ...]) -> Index:
        others = self._constant_index(rest)
        return (self.position, *others) if self.axis == 0 else (*others, self.position)

    @staticmethod
    def _constant_index(values: tuple[int, ...]) -> Index:
        return tuple(ix.const(v) for v in values)

    def _load_state(self) -> None:
        e = self.emitter
        for (k, rest), array in self.arrays.items():
            s = self.state.shapes[k]
            offset = ix.linearize(self._full_index(rest), s.dimensions)
            e.add(lir.LocalStore(array, self.lane, e.let(s.element_type, lir.Load(f"p{k}", offset))))

    def _step(self) -> None:
        """New values of one position: all computed before any is stored."""
        e, state = self.emitter, self.state
        new = {key: e.value(state.new[key[0]], self._full_index(key[1])) for key in self.arrays}
        for k in sorted(state.written):
            self._write_through(k)
        for key, name in new.items():
            e.add(lir.LocalStore(self.arrays[key], self.lane, name))

    def _write_through(self, k: int) -> None:
        """Store this position's share of the slice that one iteration writes."""
        e = self.emitter
        update_op = self.state.new[k]
        update = update_op.operands[1]
        dims = update.shape.dimensions
        at = next((d for d in range(len(dims)) if dims[d] == self.extent), None)
        if at is None or math.prod(dims) // self.extent > ELEMENT_LIMIT:
            raise UnsupportedError(f"%{update_op.name}: the written slice does not run along the loop's axis")
        starts = update_starts(e, update_op)
        for rest in itertools.product(*(range(n) for d, n in enumerate(dims) if d != at)):
            others = iter(rest)
            index = tuple(self.position if d == at else ix.const(next(others)) for d in range(len(dims)))
            name = e.value(update, index)
            to = tuple(i + s for i, s in zip(index, starts, strict=True))
            e.add(lir.Store(f"o{k}", ix.linearize(to, update_op.shape.dimensions), name))

    def _store_state(self) -> None:
        e = self.emitter
        for (k, rest), array in self.arrays.items():
            s = self.state.shapes[k]
            name = e.let(s.element_type, lir.LocalLoad(array, self.lane))
            e.add(lir.Store(f"o{k}", ix.linearize(self._full_index(rest), s.dimensions), name))

    # ---- state that all positions share

    def _shared_init(self, k: int) -> None:
        e, s = self.emitter, self.state.shapes[k]
        for at in itertools.product(*(range(n) for n in s.dimensions)):
            offset = ix.linearize(self._constant_index(at), s.dimensions)
            loaded = e.let(s.element_type, lir.Load(f"p{k}", offset))
            name = self.scalars[k, at] = e.fresh("u")
            e.add(lir.Accumulator(name, s.element_type, loaded))

    def _store_shared(self, number: Int) -> None:
        """One tile writes what all tiles computed alike."""
        e = self.emitter
        if not self.scalars or (number.is_const and number.const != 0):
            return
        first = e.apply(PrimitiveType.PRED, "({0} == 0)", e.index_name(number))
        stores = []
        for (k, at), name in self.scalars.items():
            s = self.state.shapes[k]
            value = e.let(s.element_type, lir.Current(name))
            stores.append(lir.Store(f"o{k}", ix.linearize(self._constant_index(at), s.dimensions), value))
        e.add(lir.If(first, tuple(stores)))

    def _reader(self, k: int) -> Callable[[Index], str]:
        """How elements of carried value `k` are read inside the body."""
        state, e = self.state, self.emitter
        s = state.shapes[k]

        def read(index: Index) -> str:
            if k in state.shared:
                if not all(i.is_const for i in index):
                    raise UnsupportedError(f"carried value {k} of shape {s} is read at a position that varies")
                return e.let(s.element_type, lir.Current(self.scalars[k, tuple(i.const for i in index)]))
            if k not in state.changed:
                return e.let(s.element_type, lir.Load(f"p{k}", ix.linearize(index, s.dimensions)))
            at, others = (index[0], index[1:]) if self.axis == 0 else (index[-1], index[:-1])
            if at != self.position or not all(i.is_const for i in others):
                raise UnsupportedError(f"carried value {k} of shape {s} is read at another position than its own")
            return e.let(s.element_type, lir.LocalLoad(self.arrays[k, tuple(i.const for i in others)], self.lane))

        return read
