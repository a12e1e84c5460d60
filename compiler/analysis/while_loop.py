"""A structured view of while loops: carried elements, invariants, induction variable and trip count."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir import HloComputation, HloInstruction, Opcode, PrimitiveType

SHARED_ELEMENTS = 16
"""Carried arrays of at most this many elements are shared by all positions of a loop; larger ones are divided."""
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}


@dataclass(frozen=True)
class LoopView:
    """A `while` whose operand and whose body's root are tuples, and whose tuples are only read element by element.

    Attributes:
        instruction: the while instruction.
        init: the initial value of each carried element, in the computation of the while.
        body_reads, condition_reads: the get-tuple-elements of each carried element.
        outputs: the next value of each element, in the body.
        results: the get-tuple-elements of the while's result, by element.
    """

    instruction: HloInstruction
    init: tuple[HloInstruction, ...]
    body_reads: tuple[tuple[HloInstruction, ...], ...]
    condition_reads: tuple[tuple[HloInstruction, ...], ...]
    outputs: tuple[HloInstruction, ...]
    results: tuple[tuple[HloInstruction, ...], ...]

    @property
    def body(self) -> HloComputation:
        """The computation of an iteration."""
        found: HloComputation = self.instruction.attributes["body"]
        return found

    @property
    def condition(self) -> HloComputation:
        """The computation that decides whether another iteration runs."""
        found: HloComputation = self.instruction.attributes["condition"]
        return found

    @property
    def size(self) -> int:
        """Number of carried elements."""
        return len(self.init)

    def index_of(self, instruction: HloInstruction) -> int | None:
        """Return which element of the body's or condition's parameter this instruction reads, or None."""
        if instruction.opcode is not Opcode.GET_TUPLE_ELEMENT:
            return None
        if instruction.operand(0).opcode is not Opcode.PARAMETER:
            return None
        index: int = instruction.attributes["index"]
        return index


@dataclass(frozen=True)
class Induction:
    """An induction variable: a counter with a constant start and a constant step.

    Attributes:
        index: its position among the carried elements.
        start, step: its initial value and its increment per iteration.
        trip_count: number of iterations of the loop.
    """

    index: int
    start: int
    step: int
    trip_count: int

    @property
    def last(self) -> int:
        """Its value in the last iteration; meaningless if the loop never runs."""
        return self.start + (self.trip_count - 1) * self.step


def view_loop(instruction: HloInstruction) -> LoopView | None:
    """Return the structured view of a loop, or None if the instruction is not a while in that form."""
    if instruction.opcode is not Opcode.WHILE:
        return None
    start = instruction.operand(0)
    body: HloComputation = instruction.attributes["body"]
    condition: HloComputation = instruction.attributes["condition"]
    if start.opcode is not Opcode.TUPLE or body.root.opcode is not Opcode.TUPLE or instruction.is_root:
        return None
    size = len(start.operands)
    body_reads = reads_of(body.parameters[0], size)
    condition_reads = reads_of(condition.parameters[0], size)
    results = reads_of(instruction, size)
    if body_reads is None or condition_reads is None or results is None:
        return None
    return LoopView(instruction, start.operands, body_reads, condition_reads, body.root.operands, results)


def reads_of(tuple_value: HloInstruction, size: int) -> tuple[tuple[HloInstruction, ...], ...] | None:
    """Return the get-tuple-elements of a tuple by element, or None if it is used in any other way."""
    found: list[list[HloInstruction]] = [[] for _ in range(size)]
    if tuple_value.is_root:
        return None
    for user in tuple_value.users:
        if user.opcode is not Opcode.GET_TUPLE_ELEMENT:
            return None
        found[user.attributes["index"]].append(user)
    return tuple(tuple(reads) for reads in found)


def invariant_elements(view: LoopView) -> set[int]:
    """Return the elements that the body returns unchanged."""
    return {n for n, out in enumerate(view.outputs) if view.index_of(out) == n}


def integer_constant(instruction: HloInstruction) -> int | None:
    """Return the value of an integer scalar constant, or None for any other instruction."""
    if instruction.opcode is not Opcode.CONSTANT or not instruction.shape.is_scalar:
        return None
    if not instruction.shape.element_type.is_integer:
        return None
    return int(instruction.value.value)


def step_of(view: LoopView, index: int) -> int | None:
    """Return the increment of an integer element per iteration if the body only adds constants to it, else None."""
    # Follow the chain of additions from the element's next value back to the element.
    node, total = view.outputs[index], 0
    if not node.shape.is_scalar or not node.shape.element_type.is_integer:
        return None
    while view.index_of(node) != index:
        if node.opcode not in (Opcode.ADD, Opcode.SUBTRACT):
            return None
        left, right = node.operands
        known, rest = integer_constant(right), left
        if known is None and node.opcode is Opcode.ADD:
            known, rest = integer_constant(left), right
        if known is None:
            return None
        total += known if node.opcode is Opcode.ADD else -known
        node = rest
    return total


def affine_in(view: LoopView, node: HloInstruction, index: int) -> tuple[int, int] | None:
    """Return slope (1 or -1) and offset if `node` is an element plus or minus constants, else None."""
    slope, offset = 1, 0
    while view.index_of(node) != index:
        if node.opcode not in (Opcode.ADD, Opcode.SUBTRACT):
            return None
        left, right = node.operands
        first, second = integer_constant(left), integer_constant(right)
        if second is not None:
            offset += slope * (second if node.opcode is Opcode.ADD else -second)
            node = left
        elif first is not None:
            offset += slope * first
            slope = slope if node.opcode is Opcode.ADD else -slope
            node = right
        else:
            return None
    return slope, offset


def induction(view: LoopView) -> Induction | None:
    """Return the induction variable that controls the loop, with the trip count; None if it cannot be determined.

    Supported are conditions that compare one counter with a constant, or with an invariant element that is initialized
    by a constant. Counters that would wrap around before the loop ends are not supported.
    """
    root = view.condition.root
    if root.opcode is not Opcode.COMPARE:
        return None
    direction: str = root.attributes["direction"]
    left, right = root.operands
    for counter, bound, way in ((left, right, direction), (right, left, _MIRRORED.get(direction, ""))):
        index, limit = view.index_of(counter), _bound(view, bound)
        if index is None or limit is None or way not in _MIRRORED:
            continue
        start, step = integer_constant(view.init[index]), step_of(view, index)
        if start is None or step is None:
            continue
        count = trip_count(start, step, limit, way, counter.shape.element_type)
        if count is not None:
            return Induction(index, start, step, count)
    return None


def _bound(view: LoopView, bound: HloInstruction) -> int | None:
    index = view.index_of(bound)
    if index is None:
        return integer_constant(bound)
    if view.index_of(view.outputs[index]) != index:
        return None
    return integer_constant(view.init[index])


def trip_count(start: int, step: int, limit: int, direction: str, element_type: PrimitiveType) -> int | None:
    """Return how many of `start`, `start + step`, ... satisfy the comparison with `limit` before one does not.

    Return None if that is infinite, or finite only because the counter wraps around.
    """
    if direction == "NE":
        if start == limit:
            return 0
        if step == 0 or (limit - start) % step:
            return None
        count = (limit - start) // step
        return count if count > 0 else None
    if direction in ("LE", "GE"):
        limit += 1 if direction == "LE" else -1
    upwards = direction in ("LT", "LE")
    distance = limit - start if upwards else start - limit
    stride = step if upwards else -step
    if distance <= 0:
        return 0
    if stride <= 0:
        return None
    count = -(-distance // stride)
    low, high = _range(element_type)
    return count if low <= start + count * step <= high else None


def _range(element_type: PrimitiveType) -> tuple[int, int]:
    bits = element_type.bits
    if element_type.is_unsigned:
        return 0, (1 << bits) - 1
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
