"""What threads compute together in an iteration of a loop that one block of a GPU runs: see `block_loop`.

An element of the new state is computed by one thread, and with it what it alone needs. Other values are *stages*: sums
and products whose results several elements need, and what would be long to compute for each of them. The threads
compute a stage together, keep it in shared memory and wait for each other before they read it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from compiler.codegen.lowering.reductions import combiner_of
from compiler.codegen.lowering.select_regions import REGION_OPS
from compiler.codegen.nest.indexing_maps import INDEXING_MAPS
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES, is_supported_type
from compiler.codegen.templates.dots import contracted_sizes, free_dimensions
from compiler.codegen.templates.loop_state import LoopState
from compiler.errors import UnsupportedError
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode, Trait
from compiler.passes.dots.dot_properties import DotDims, is_plain_dot
from compiler.passes.loops.position_blocks import BlockError, place

SHARED_BYTES = 96 * 1024
"""Shared memory of a block for the state, the stages and what the loop only reads; every GPU has a little more."""
RECOMPUTED = 8
"""Flops up to which an element is computed again by each thread that needs it."""
EVERY_THREAD = 1024
"""How often a scalar is computed that no stage has: by every thread."""
THREADS = 1024
"""Threads of a block, at most."""
BARRIER, SHARED_LOAD, FAR_LOAD, ELEMENT = 3e-8, 1.3e-8, 8e-8, 6e-8
"""Seconds that a block waits at a barrier, that a thread needs for each of several loads from shared memory and from an
argument, and for an element besides sums: round figures of the model of an H100."""
SHARED_ITERATIONS = 4
"""Iterations of a loop without sums that share kernels once it is unrolled."""
CONSTANTS, CONSTANT_ELEMENTS = 64, 4096
"""Numbers other than the most common one in a constant array of a kernel, and its elements, at most."""
WARP = 32

_LEAVES = frozenset({Opcode.PARAMETER, Opcode.CONSTANT, Opcode.IOTA, Opcode.GET_TUPLE_ELEMENT})
_VIEWS = frozenset({*INDEXING_MAPS, *REGION_OPS, Opcode.DYNAMIC_SLICE, Opcode.GATHER, Opcode.COPY})
"""What moves elements, which is never a stage."""
_SUMS = frozenset({Opcode.DOT, Opcode.REDUCE})


@dataclass(frozen=True)
class Stage:
    """A value that the threads compute together, one or more of them for each element.

    Attributes:
        value: the instruction.
        threads: number of threads that compute an element, a power of two of at most a warp.
    """

    value: HloInstruction
    threads: int


class BlockStages:
    """The stages of a loop whose iterations are run by one block, or by one block for each position of an axis.

    Attributes:
        state: the carried state.
        arrays: numbers of the changed elements with several elements, which are kept in shared memory.
        scalars: numbers of the other changed elements but the stacked ones, which every thread computes.
        blocks: number of blocks; the first dimension of `arrays` if there are several.
        axis: by instruction of the body, the dimension whose positions the blocks divide.
        constants: arrays of different numbers in the body, which are kept in shared memory.
        phases: the stages in the order in which they run; those of a phase do not depend on each other.
    """

    def __init__(self, state: LoopState, *, divided: bool) -> None:
        """Find the stages of a loop.

        Args:
            state: the loop.
            divided: whether several blocks divide it.

        Raises:
            UnsupportedError: a block cannot run it, or several cannot.
        """
        self.state = state
        carried = [k for k in state.changed if k not in state.stacked]
        self.arrays = [k for k in carried if state.shapes[k].num_elements > 1]
        self.scalars = [k for k in carried if state.shapes[k].num_elements <= 1]
        if state.inner or any(0 in s.dimensions for s in state.shapes):
            raise UnsupportedError(f"%{state.loop.name}: no block of threads runs it")
        self.order = [i for i in state.body.post_order() if i is not state.body.root and i is not state.parameter]
        for i in (*self.order, *state.condition.post_order()):
            _check(i)
        self.constants = [i for i in self.order if i.opcode is Opcode.CONSTANT and i.shape.num_elements > 1]
        self.constants = [i for i in self.constants if numbers_of(i)[1]]
        self.axis: Mapping[HloInstruction, int | None] = {}
        self.blocks = 1
        if divided:
            self._divide()
        self._uses = self._count_uses()
        chosen = [i for i in self.order if self._is_stage(i)]
        self.depth = self._depths(set(chosen))
        levels = self._levels(set(chosen))
        self.phases: list[list[Stage]] = [[] for _ in range(max(levels.values(), default=0))]
        for i in chosen:
            self.phases[levels[i] - 1].append(Stage(i, self.threads_of(i)))
        if self.shared_bytes() > SHARED_BYTES:
            raise UnsupportedError(f"%{state.loop.name}: its state and stages exceed the shared memory of a block")

    # ---- the axis that blocks divide

    def _divide(self) -> None:
        state = self.state
        extents = {state.shapes[k].dimensions[0] for k in self.arrays}
        if len(extents) != 1 or extents == {1}:
            raise UnsupportedError(f"%{state.loop.name}: its arrays have no axis in common")
        (self.blocks,) = extents
        found: dict[HloInstruction, int | None] = {}
        try:
            for i in self.order:
                found[i] = self._axis_of(i, found)
        except BlockError as e:
            raise UnsupportedError(f"%{state.loop.name}: {e}") from e
        for k in state.changed:
            at = found[state.new[k]]
            wrong = at not in (None, 0) if k in self.arrays else k in self.scalars and at is not None
            if wrong:
                raise UnsupportedError(f"%{state.loop.name}: element {k} mixes positions")
        if state.trips is None:
            read = {i.attr("index") for i in state.condition.parameters[0].users}
            if not read.isdisjoint(self.arrays):
                raise UnsupportedError(f"%{state.loop.name}: its condition depends on all positions")
        self.axis = found

    def _axis_of(self, i: HloInstruction, known: Mapping[HloInstruction, int | None]) -> int | None:
        if i.opcode is Opcode.GET_TUPLE_ELEMENT and i.operands[0] is self.state.parameter:
            return 0 if i.attributes["index"] in self.arrays else None
        at = [known[o] for o in i.operands]
        if all(a is None for a in at) or i.opcode is Opcode.GET_TUPLE_ELEMENT:
            return at[0] if at else None
        found = _dot_axis(i, at) if i.opcode is Opcode.DOT else place(i, at, (self.blocks,)).at
        if found is None:
            raise BlockError(f"%{i.name}: all positions together")
        return found

    # ---- which values are stages

    def _count_uses(self) -> dict[HloInstruction, float]:
        """Return how often each element of a value is computed if the values that need it are stages or results."""
        state = self.state
        uses: dict[HloInstruction, float] = dict.fromkeys(self.order, 0.0)
        self._cost = _costs(self.order)
        for k in state.changed:
            if k in state.stacked:
                update, *starts = state.new[k].operands[1:]
                uses[update] += 1
                for i in starts:
                    uses[i] += EVERY_THREAD
            else:
                uses[state.new[k]] += 1 if k in self.arrays else EVERY_THREAD
        self._branched = {o for i in self.order if i.opcode in REGION_OPS for o in i.operands}
        stacked = {state.new[k] for k in state.stacked}
        for i in reversed(self.order):
            if i in stacked:
                continue
            own = 1.0 if self._is_chosen(i, uses[i]) else uses[i]
            for n, o in enumerate(i.operands):
                if o in uses and own:
                    uses[o] += own * _reads(i, n)
        return uses

    def _is_stage(self, i: HloInstruction) -> bool:
        return self._is_chosen(i, self._uses[i])

    def _is_chosen(self, i: HloInstruction, uses: float) -> bool:
        """Check whether a value is a stage if each of its elements is needed so often."""
        if not uses or i.opcode in _VIEWS or (i.opcode in _LEAVES and not _is_of_sum(i)) or i.shape.is_tuple:
            return False
        if i.opcode in _SUMS or _is_of_sum(i):
            return uses > 1 or i.shape.num_elements == 1 or i in self._branched
        if i.shape.num_elements == 1:
            return False
        return uses > 1 and self._cost[i] > RECOMPUTED

    def _depths(self, chosen: set[HloInstruction]) -> dict[HloInstruction, int]:
        """Return the most elements that are summed for an element of each value, without those of other stages.

        Values of which one thread computes an element, because a sum in it is not divided, are noted as well.
        """
        found: dict[HloInstruction, int] = {}
        self._whole = set[HloInstruction]()
        for i in self.order:
            own = [o for o in i.operands if o not in chosen]
            inside = max((found.get(o, 0) for o in own), default=0)
            found[i] = _length(i) * max(1, inside) if i.opcode in _SUMS else inside
            if not self._whole.isdisjoint(own) or not _is_divisible(i):
                self._whole.add(i)
        return found

    def _levels(self, chosen: set[HloInstruction]) -> dict[HloInstruction, int]:
        """Return the number of each stage's phase, from 1 on."""
        levels: dict[HloInstruction, int] = {}
        for i in self.order:
            before = max((levels.get(o, 0) for o in i.operands), default=0)
            levels[i] = before + (i in chosen)
        return {i: levels[i] for i in chosen}

    def count(self, i: HloInstruction) -> int:
        """Return the number of elements of a value that one block computes."""
        return math.prod(n for d, n in enumerate(i.shape.dimensions) if d != self.axis.get(i))

    def threads_of(self, i: HloInstruction) -> int:
        """Return the number of threads that share the sums of an element of a value."""
        depth, count = self.depth[i], self.count(i)
        if depth < 2 or i in self._whole:
            return 1
        best = 1
        for size in (2, 4, 8, 16, 32):
            if count * size <= THREADS and _rounds(depth, size) < _rounds(depth, best):
                best = size
        return best

    # ---- time

    def iteration_seconds(self) -> float:
        """Return the estimated seconds of an iteration."""
        state = self.state
        results = [state.new[k].operands[1] if k in state.stacked else state.new[k] for k in state.changed]
        chosen = {s.value for phase in self.phases for s in phase}
        last = [Stage(i, self.threads_of(i)) for i in dict.fromkeys(results) if i not in chosen]
        sums = sum(i.opcode in _SUMS for i in state.condition.post_order())
        phases = sum(BARRIER + self._phase_seconds(phase) for phase in (*self.phases, last))
        return phases + sums * (ELEMENT + 3 * BARRIER)

    def _phase_seconds(self, phase: list[Stage]) -> float:
        rounds = -(-sum(self.count(s.value) * s.threads for s in phase) // THREADS)
        return rounds * max((self._element_seconds(s) for s in phase), default=0.0)

    def _element_seconds(self, stage: Stage) -> float:
        steps, exchanges = -(-self.depth[stage.value] // stage.threads), stage.threads.bit_length() - 1
        load = SHARED_LOAD + (FAR_LOAD if stage.value in self._far else SHARED_LOAD)
        return ELEMENT + steps * load + exchanges * SHARED_LOAD

    @cached_property
    def _far(self) -> set[HloInstruction]:
        """The values whose sums read arguments that are not in shared memory."""
        near = {*self.arrays, *self.scalars, *self.copied()}
        chosen = {s.value for phase in self.phases for s in phase}
        reads: set[HloInstruction] = set()  # what reads such an argument
        found: set[HloInstruction] = set()
        for i in self.order:
            if i.opcode is Opcode.GET_TUPLE_ELEMENT and i.operands[0] is self.state.parameter:
                far = i.attributes["index"] not in near
            else:
                far = any(o in reads and o not in chosen for o in i.operands)
            if far:
                reads.add(i)
            if (far and i.opcode in _SUMS) or any(o in found and o not in chosen for o in i.operands):
                found.add(i)
        return found

    def launches(self) -> float:
        """Return the number of kernels that would compute an iteration, at least.

        Without sums, several iterations of the unrolled loop share one.
        """
        sums = sum(any(self.depth[s.value] for s in phase) for phase in self.phases)
        has_sums = any(i.opcode in _SUMS for i in self.order)
        return sums + 1.0 if has_sums else 1 / SHARED_ITERATIONS

    # ---- shared memory

    @property
    def renamed(self) -> dict[HloInstruction, int]:
        """The stages that are new values of arrays, with the number of the array."""
        chosen = {s.value for phase in self.phases for s in phase}
        return {self.state.new[k]: k for k in reversed(self.arrays) if self.state.new[k] in chosen}

    def shared_bytes(self) -> int:
        """Return the bytes of the state, the stages and the constants."""
        state = self.state
        own = sum(2 * self.elements(k) * SCALAR_BYTES[state.shapes[k].element_type] for k in self.arrays)
        renamed = self.renamed
        values = [s.value for phase in self.phases for s in phase if s.value not in renamed] + self.constants
        return own + sum(self.count(i) * SCALAR_BYTES[i.shape.element_type] for i in values)

    def elements(self, k: int) -> int:
        """Return the number of elements of a carried array that one block keeps."""
        return self.state.shapes[k].num_elements // self.blocks

    def copied(self) -> list[int]:
        """Return the arrays that iterations read as a whole and do not change, as far as there is room for them."""
        state, room, found = self.state, SHARED_BYTES - self.shared_bytes(), []
        whole = {k for k in range(len(state.shapes)) if k not in state.changed}
        for i in state.parameter.users:
            sliced = any(u.opcode in (Opcode.DYNAMIC_SLICE, Opcode.GATHER) and u.operands[0] is i for u in i.users)
            if sliced:
                whole.discard(i.attributes["index"])
        read = {i.attributes["index"] for i in state.parameter.users if any(u is not state.body.root for u in i.users)}
        for k in sorted(whole & read, key=lambda k: state.shapes[k].byte_size):
            size = state.shapes[k].num_elements * SCALAR_BYTES[state.shapes[k].element_type]
            if state.shapes[k].num_elements > 1 and size <= room:
                found.append(k)
                room -= size
        return sorted(found)


def _check(i: HloInstruction) -> None:
    """Raise UnsupportedError if the threads of a block cannot compute an instruction."""
    known = i.opcode in _LEAVES or i.opcode in _VIEWS or i.opcode.has(Trait.ELEMENTWISE) or i.opcode in _SUMS
    if not known and i.opcode not in (Opcode.TUPLE, Opcode.BITCAST_CONVERT, Opcode.OPTIMIZATION_BARRIER):
        raise UnsupportedError(f"%{i.name}: no block of threads computes {i.opcode.text} in a loop")
    if i.opcode is Opcode.DOT:
        types = (i.shape.element_type, *(o.shape.element_type for o in i.operands))
        if not is_plain_dot(i) or not all(map(is_supported_type, types)):
            raise UnsupportedError(f"%{i.name}: no block of threads computes a dot of these types")
    if i.opcode is Opcode.GET_TUPLE_ELEMENT and i.operands[0].opcode not in (Opcode.PARAMETER, Opcode.REDUCE):
        raise UnsupportedError(f"%{i.name}: no block of threads computes a part of %{i.operands[0].name}")


def numbers_of(constant: HloInstruction) -> tuple[Any, dict[int, Any]]:
    """Return the number that most elements of a constant are, and the others by their offsets.

    Raises:
        UnsupportedError: there are too many others, which must stay outside the kernel.
    """
    array = constant.value.array
    if array is None or array.size > CONSTANT_ELEMENTS:
        raise UnsupportedError(f"%{constant.name}: a large constant must stay outside the kernel")
    numbers = list(array.reshape(-1))
    (usual, _), *_ = Counter(x.tobytes() for x in numbers).most_common(1)
    first = next(x for x in numbers if x.tobytes() == usual)
    others = {n: x for n, x in enumerate(numbers) if x.tobytes() != usual}
    if len(others) > CONSTANTS:
        raise UnsupportedError(f"%{constant.name}: {len(others)} numbers must stay outside the kernel")
    return first, others


def _is_of_sum(i: HloInstruction) -> bool:
    """Check whether an instruction is one of several results of a reduction."""
    return i.opcode is Opcode.GET_TUPLE_ELEMENT and i.operands[0].opcode is Opcode.REDUCE


def _is_divisible(i: HloInstruction) -> bool:
    """Check whether several threads may compute parts of an instruction's sums and combine them, if it has any."""
    return i.opcode is not Opcode.REDUCE or (
        i.shape.is_array
        and is_supported_type(i.shape.element_type)
        and combiner_of(i.attributes["to_apply"]) is not None
    )


def _length(i: HloInstruction) -> int:
    """Return the number of elements that a sum or a product adds for each of its own."""
    if i.opcode is Opcode.DOT:
        return math.prod(contracted_sizes(i))
    dims = i.operands[0].shape.dimensions
    return math.prod(dims[d] for d in i.dimensions)


def _costs(order: list[HloInstruction]) -> dict[HloInstruction, float]:
    """Return the flops to compute one element of each value from what the body reads."""
    costs: dict[HloInstruction, float] = {}
    for i in order:
        inside = sum(costs.get(o, 0.0) for o in i.operands)
        own = 0.0 if i.opcode in _LEAVES or i.opcode in _VIEWS else float(max(1, i.opcode.row.flops))
        costs[i] = _length(i) * (2.0 + inside) if i.opcode in _SUMS else own + inside
    return costs


def _reads(i: HloInstruction, n: int) -> float:
    """Return how often an instruction reads each element of operand `n`, at most, if its own are computed once."""
    o = i.operands[n]
    if i.opcode is Opcode.DOT:
        return math.prod(i.operands[1 - n].shape.dimensions[d] for d in free_dimensions(i)[1 - n])
    if i.opcode is Opcode.REDUCE:
        return 1.0 if n < len(i.operands) // 2 else float(i.shape.num_elements if i.shape.is_array else EVERY_THREAD)
    if i.opcode is Opcode.GET_TUPLE_ELEMENT:
        return 1.0
    return max(1.0, i.shape.num_elements / max(1, o.shape.num_elements))


def _rounds(depth: int, threads: int) -> int:
    """Return the steps in which so many threads sum up so many elements: two loads each, and an exchange of sums."""
    return 2 * -(-depth // threads) + 2 * (threads.bit_length() - 1)


def _dot_axis(dot: HloInstruction, at: list[int | None]) -> int:
    """Return the dimension of a product with the positions of its operands; raise BlockError if it mixes them."""
    dims, (left, right) = DotDims.of(dot), free_dimensions(dot)
    batch = len(dims.lhs_batch)
    found = set[int]()
    sides = (dims.lhs_batch, left, batch), (dims.rhs_batch, right, batch + len(left))
    for a, (own, free, first) in zip(at, sides, strict=True):
        if a is None:
            continue
        if a in own:
            found.add(own.index(a))
        elif a in free:
            found.add(first + free.index(a))
        else:
            raise BlockError(f"%{dot.name}: a sum over positions")
    if len(found) != 1:
        raise BlockError(f"%{dot.name}: pairs of positions")
    return found.pop()
