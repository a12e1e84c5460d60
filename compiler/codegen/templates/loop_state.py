"""The carried state of a loop that becomes one kernel, and the tiles in which its positions run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from compiler.analysis.flops import instruction_flops
from compiler.analysis.trip_count import trip_count_of
from compiler.analysis.while_loop import SHARED_ELEMENTS
from compiler.codegen.languages import default_schedule, find_language
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES, is_supported_type
from compiler.codegen.schedules.schedule import LANES, LOCAL_BYTES, UNROLLED_VECTORS, Schedule
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode, Trait
from compiler.ir.shape import Shape
from compiler.support.processor import VectorUnit

LEAST_POSITIONS = 3
"""Elements of a short array from which on threads of a GPU divide it."""
ELEMENT_LIMIT = 64
"""Maximum number of elements that one position carries in one array."""
CARRIED_LIMIT = 64
"""Maximum number of elements that one position carries in all arrays.

Each of them is a local array, and the compile time of gcc grows with the cube of their number (about 10 s for 64 and
100 s for 120).
"""
ENOUGH_THREADS = 1 << 18
"""Number of threads that fill a GPU; with more positions, each thread runs several, which share the shared state."""
MAX_THREAD_LANES = 8
"""Maximum number of positions of a thread of a GPU by default; their state should stay in registers."""
MAX_LANES, LANE_STEP = 1024, 64
"""Maximum number of lanes of a tile by default, and the number of which it is a multiple."""
LIGHT_OPS = 16
"""Elementwise ops of an iteration up to which a tile has UNROLLED_VECTORS vectors of each array by default. The C
compiler then unrolls the loop over the lanes, and the state stays in registers from one iteration to the next."""
TILE_BYTES = 48 * 1024
"""Maximum size of the state of a tile by default, so that it stays in the first-level cache."""
CROWDED, CROWDED_ELEMENTS = 32, 2048
"""Elements that a position carries in one array, and elements of the array, from which on kernels of the body are at
least as fast if it computes functions: the kernel of the loop is then a body of hundreds of statements."""
MIXED, MIXED_FUNCTIONS = 32, 64
"""Elements that a position computes and reduces in an iteration, as of all pairs of its states, from which on kernels
of the body are faster, and the same for CROWDED_ELEMENTS and more if it computes functions: each is a statement of the
kernel of the loop."""
SEQUENTIAL_WORK = 1024
"""Flops of an iteration of a loop of few values up to which one thread of a GPU runs it: they take about as long as it
takes to launch a kernel, whose threads would divide an iteration among them."""
LOAD_WORK = 8
"""Flops in the time in which a thread loads an element near to the one before."""
RARE = 64
"""A value of the field `rare` by which a GPU branches around work that few positions need."""
WORD = 4
"""Least size of an element of a local array in C, where a pred takes a word; see `print_c`."""
_CHEAP = frozenset({Opcode.PARAMETER, Opcode.CONSTANT, Opcode.IOTA, Opcode.GET_TUPLE_ELEMENT})
"""What an inner loop reads again in every iteration, instead of keeping it in a local array."""
_FREE = _CHEAP | {Opcode.TUPLE, Opcode.BROADCAST, Opcode.RESHAPE, Opcode.BITCAST}
"""What takes no statement of the loop over the lanes."""
_VIEWS = frozenset({Opcode.BROADCAST, Opcode.RESHAPE, Opcode.BITCAST, Opcode.SLICE, Opcode.TRANSPOSE, Opcode.COPY})
"""What is as cheap as its operand."""


def default_loop_schedule(loop: HloInstruction, language: str) -> Schedule:
    """Return the default schedule of the kernel of a `while`; raise UnsupportedError if it cannot have a kernel."""
    state = LoopState(loop)
    axis, extent = positions_of(state, language)
    return fitted_schedule(state, language, axis, extent)


def states_of(loop: HloInstruction, on_gpu: bool) -> tuple[LoopState, ...]:
    """Return the states with which the kernel of a loop may be lowered, the preferred one first.

    On a GPU, short arrays are divided among threads rather than computed by one, if no thread needs the elements of
    another, which lowering finds out.
    """
    state = LoopState(loop)
    if on_gpu and state.is_sequential():
        longest = max((state.shapes[k].num_elements for k in state.shared), default=0)
        if longest >= LEAST_POSITIONS:
            return LoopState(loop, shared_limit=1), state
    return (state,)


def positions_of(state: LoopState, language: str, wanted: int = 0) -> tuple[int, int]:
    """Return the axis along which the kernel of a loop is split in a language, and its extent: see `LoopState.axis`.

    On a GPU, a loop that carries few values and does little in an iteration has one position, which one thread runs.
    """
    if find_language(language).threads is None and state.is_sequential():
        return 0, 1
    return state.axis(wanted)


def is_crowded(loop: HloInstruction) -> bool:
    """Check whether the positions of a loop carry so many elements that kernels of its body are at least as fast.

    Functions of the elements, such as exponentials, then take longer than to launch the kernels of an iteration. So do
    reductions of what a position computes of its elements, which are written out in the kernel of the loop.

    Raises:
        UnsupportedError: the loop cannot have a kernel.
    """
    state = LoopState(loop)
    if not state.per_position:  # one thread of a GPU runs it
        return False
    _, extent = state.axis()
    levels = state.levels()
    return any(_mixes(s, extent) or any(_is_crowded(s, k, extent) for k in s.per_position) for s in levels)


def _mixes(state: LoopState, extent: int) -> bool:
    """Check whether positions reduce many elements that they compute in an iteration."""
    has_functions = _has_function(state, 1)
    limit = max(MIXED_FUNCTIONS * extent, CROWDED_ELEMENTS) if has_functions else MIXED * extent
    reduced = [i.operands[0] for i in state.body.instructions if i.opcode is Opcode.REDUCE]
    return any(x.shape.num_elements >= limit for x in reduced if x.opcode not in _CHEAP)


def has_axis(loop: HloInstruction) -> bool:
    """Check whether the arrays of a loop can be split into positions; see `LoopState.axis`."""
    try:
        LoopState(loop).axis()
    except UnsupportedError:
        return False
    return True


def computes_functions(loop: HloInstruction) -> bool:
    """Check whether iterations compute functions, such as exponentials, of so many elements that launches cost little.

    Raises:
        UnsupportedError: the loop cannot have a kernel.
    """
    return any(_has_function(s, CROWDED_ELEMENTS) for s in LoopState(loop).levels())


def _is_crowded(state: LoopState, k: int, extent: int) -> bool:
    elements = state.shapes[k].num_elements
    return elements >= max(CROWDED_ELEMENTS, CROWDED * extent) and _has_function(state, elements)


def _has_function(state: LoopState, elements: int) -> bool:
    """Check whether the body computes a function of so many elements."""
    functions = (
        i for i in state.body.instructions if i.opcode.has(Trait.EXPENSIVE) and i.opcode.has(Trait.ELEMENTWISE)
    )
    return any(i.shape.num_elements >= elements for i in functions)


def fitted_schedule(state: LoopState, language: str, axis: int, extent: int) -> Schedule:
    """Return the language's default schedule with tiles that all threads share and whose state fits.

    Every tile computes the shared state for itself, so there should be no more tiles than threads.

    Args:
        state: of the loop.
        language: of the kernel.
        axis: that of the positions.
        extent: number of positions.
    """
    preset, threads = default_schedule(language), find_language(language).threads
    bytes_per_lane = state.bytes_per_lane(axis, extent)
    if threads is None and preset.lanes < LANES:
        return _on_threads(preset, extent)
    lanes = preset.lanes
    if threads is not None:
        preset = replace(preset, rare=MAX_LANES)
        lanes = min(state.most_lanes(preset.unit), max(LANE_STEP, -(-extent // (threads() * LANE_STEP)) * LANE_STEP))
        lanes = min(lanes, max(LANE_STEP, TILE_BYTES // max(1, bytes_per_lane) // LANE_STEP * LANE_STEP))
    # The local arrays of a full tile and of the remainder tile must fit.
    while lanes > 1 and 2 * lanes * bytes_per_lane > LOCAL_BYTES:
        lanes //= 2
    return replace(preset, lanes=lanes)


def _on_threads(preset: Schedule, extent: int) -> Schedule:
    """Return the schedule by which a GPU has enough threads for all of its schedulers, and no more than it can hold."""
    lanes = min(MAX_THREAD_LANES, max(preset.lanes, extent // ENOUGH_THREADS))
    return replace(preset, lanes=lanes, rare=RARE)


class LoopState:
    """The carried state of a loop, classified by how the kernel stores each element of the tuple.

    Attributes:
        loop: the `while`.
        trips: number of iterations; None if it is known only at run time.
        changed: elements that the loop changes; the others are read from the arguments in every iteration.
        stacked: changed arrays of which each iteration writes one slice and reads nothing, such as a scan's outputs.
            They are stored to memory directly. An inner loop has none.
        shared: other changed arrays of at most `shared_limit` elements, which every tile computes for itself.
        per_position: all other changed arrays. They are split along the axis and kept in local arrays.
        inner: the states of the loops in the body, in the order in which they run.
    """

    def __init__(self, loop: HloInstruction, *, is_inner: bool = False, shared_limit: int = SHARED_ELEMENTS) -> None:
        self.loop = loop
        self.body: HloComputation = loop.attributes["body"]
        self.condition: HloComputation = loop.attributes["condition"]
        self.trips = trip_count_of(loop)
        root = self.body.root
        if not loop.shape.is_tuple or root.opcode is not Opcode.TUPLE:
            raise UnsupportedError(f"%{loop.name}: the loop must carry a flat tuple")
        if is_inner and loop.operands[0].opcode is not Opcode.TUPLE:
            raise UnsupportedError(f"%{loop.name}: the initial values of an inner loop must be a tuple")
        self.parameter = self.body.parameters[0]
        self.shapes = loop.shape.tuple_shapes
        for s in self.shapes:
            if not s.is_array or not is_supported_type(s.element_type):
                raise UnsupportedError(f"%{loop.name}: a carried value of shape {s} has no kernel")
        self.new = root.operands
        self.changed = [k for k in range(len(self.shapes)) if not self._is_element(self.new[k], k)]
        self.stacked = set() if is_inner else {k for k in self.changed if self._is_stacked(k)}
        self.shared = {k for k in self.changed if k not in self.stacked and self.shapes[k].num_elements <= shared_limit}
        self.per_position = [k for k in self.changed if k not in self.shared and k not in self.stacked]
        loops = [i for i in self.body.post_order() if i.opcode is Opcode.WHILE]
        self.inner = [LoopState(i, is_inner=True, shared_limit=shared_limit) for i in loops]

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

    def most_lanes(self, unit: VectorUnit) -> int:
        """Return the maximum number of lanes of a tile by default: fewer where iterations do little, see LIGHT_OPS."""
        work = [i for i in self.body.instructions if i.opcode not in _FREE and i.shape.is_array]
        work = [i for i in work if i.shape.num_elements > SHARED_ELEMENTS]
        is_light = len(work) <= LIGHT_OPS and all(
            i.opcode.has(Trait.ELEMENTWISE) and not i.opcode.has(Trait.EXPENSIVE) for i in work
        )
        largest = max((i.shape.element_type.byte_size for i in work), default=WORD)
        return UNROLLED_VECTORS * unit.size // max(largest, WORD) if work and is_light else MAX_LANES

    def levels(self) -> Iterator[LoopState]:
        """Yield this state and those of all inner loops."""
        yield self
        for s in self.inner:
            yield from s.levels()

    def kept(self, axis: int, extent: int) -> list[int]:
        """Return the elements that this inner loop does not change but keeps in local arrays.

        They are arrays along the axis whose initial values would take work to compute again in every iteration.
        """
        start = self.loop.operands[0]
        if start.opcode is not Opcode.TUPLE:
            return []
        others = (k for k in range(len(self.shapes)) if k not in self.changed)
        return [k for k in others if _has_axis(self.shapes[k], axis, extent) and not _is_cheap(start.operands[k])]

    def passed(self, axis: int, extent: int) -> list[list[HloInstruction]]:
        """Return which values to compute before each inner loop and to keep for what follows it.

        These are the results of expensive ops along the axis that are needed both before and after an inner loop.
        """
        found: list[list[HloInstruction]] = [[] for _ in self.inner]
        before: dict[HloInstruction, int] = {}  # the first inner loop for which an expensive op is computed
        stages = [[*s.loop.operands] for s in self.inner] + ([[self.body.root]] if self.inner else [])
        for n, roots in enumerate(stages):
            seen, work = set[HloInstruction](), list(roots)
            while work:
                i = work.pop()
                if i in seen or i.opcode is Opcode.WHILE:
                    continue
                seen.add(i)
                if before.get(i, n) < n:
                    if i not in found[before[i]]:
                        found[before[i]].append(i)
                    continue
                if i.opcode.has(Trait.EXPENSIVE) and _has_axis(i.shape, axis, extent):
                    before[i] = n
                work += i.operands
        return found

    def _arrays(self, axis: int, extent: int) -> list[Shape]:
        """Return the shapes of everything that is kept in local arrays."""
        kept = [s.shapes[k] for s in self.levels() if s is not self for k in s.kept(axis, extent)]
        kept += [i.shape for s in self.levels() for of_loop in s.passed(axis, extent) for i in of_loop]
        return kept + [s.shapes[k] for s in self.levels() for k in s.per_position]

    def bytes_per_lane(self, axis: int, extent: int) -> int:
        """Return the bytes of local arrays that one position along an axis of `extent` positions needs."""
        shapes = self._arrays(axis, extent)
        return sum(s.num_elements // max(1, extent) * max(SCALAR_BYTES[s.element_type], WORD) for s in shapes)

    def is_sequential(self) -> bool:
        """Check whether this loop and those inside it carry shared state alone, and an iteration does little work."""
        return all(not s.per_position and _work(s.body) <= SEQUENTIAL_WORK for s in self.levels())

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
        shapes = [s.shapes[k] for s in self.levels() for k in s.per_position]
        found = []
        for axis in ((0, -1), (0,), (-1,))[wanted]:
            extents = {s.dimensions[axis] for s in shapes}
            rest = max(s.num_elements // max(1, s.dimensions[axis]) for s in shapes)
            if len(extents) == 1 and rest <= ELEMENT_LIMIT and extents != {0}:
                found.append((axis, extents.pop()))
        if found:
            axis, extent = max(found, key=lambda pair: pair[1])
            carried = sum(s.num_elements // extent for s in self._arrays(axis, extent))
            if carried > CARRIED_LIMIT:
                raise UnsupportedError(f"each position would carry {carried} elements, more than {CARRIED_LIMIT}")
            return axis, extent
        raise UnsupportedError(f"the carried arrays have no axis in common: {', '.join(map(str, shapes))}")


def _has_axis(shape: Shape, axis: int, extent: int) -> bool:
    dims = shape.dimensions
    return bool(dims) and dims[axis] == extent and shape.num_elements // extent <= ELEMENT_LIMIT


def _is_cheap(i: HloInstruction) -> bool:
    while i.opcode in _VIEWS:
        i = i.operands[0]
    return i.opcode in _CHEAP


def _work(body: HloComputation) -> int:
    """Return the flops of a run of a computation without those of loops inside it; elements to reduce count more."""
    inside = [i for i in body.instructions if i.opcode is not Opcode.WHILE]
    reduced = sum(i.operands[0].shape.num_elements for i in inside if i.opcode is Opcode.REDUCE)
    return sum(map(instruction_flops, inside)) + LOAD_WORK * reduced
