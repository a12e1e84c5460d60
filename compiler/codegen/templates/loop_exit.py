"""When a loop ends whose number of iterations is known only at run time.

The condition of such a loop is computed before each iteration, by every tile of positions for itself. That is right in
two cases:

- It depends on the shared state alone, so that all tiles compute the same value.
- Besides, it asks whether any position is still active, as a `while_loop` under `jax.vmap` does, and an iteration
  leaves the state of an inactive position as it is. A tile whose positions are all inactive then has its final state,
  however many iterations other tiles need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compiler.codegen.lowering.reductions import combiner_of
from compiler.codegen.templates.loop_state import LoopState
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType

MAX_COMPARED = 2000
"""Maximum number of instructions of the condition that are compared with those of the body."""
_MOVED = frozenset({Opcode.RESHAPE, Opcode.BITCAST, Opcode.COPY, Opcode.BROADCAST})


@dataclass(frozen=True)
class LoopExit:
    """The condition under which a loop runs another iteration: all of `uniform`, and for some position any of `active`.

    Attributes:
        uniform: pred scalars of the condition, with the values that they must have.
        active: pred arrays of the condition, with what their elements are at an active position; at most one.
    """

    uniform: tuple[tuple[HloInstruction, bool], ...]
    active: tuple[tuple[HloInstruction, bool], ...]


def exit_of(state: LoopState, axis: int, extent: int) -> LoopExit:
    """Return the condition of a loop whose number of iterations is known only at run time.

    Args:
        state: the loop.
        axis: the axis of the positions: 0 for the first dimension, -1 for the last.
        extent: the number of positions.

    Raises:
        UnsupportedError: tiles cannot compute the condition on their own.
    """
    uniform: list[tuple[HloInstruction, bool]] = []
    active: list[tuple[HloInstruction, bool]] = []
    for part, wanted in _parts(state.condition.root):
        found = _any_position(part, wanted)
        if found is not None and _reads(found[0]) & {*state.per_position, *state.stacked}:
            active.append(found)
        elif _reads(part) & {*state.per_position, *state.stacked}:
            raise UnsupportedError(
                f"%{state.loop.name}: its condition computes %{part.name} from positions of different tiles"
            )
        else:
            uniform.append((part, wanted))
    if len(active) > 1:
        raise UnsupportedError(f"%{state.loop.name}: its condition tests the positions twice")
    for i, wanted in active:
        _check_positions(state, i, wanted, axis, extent)
    return LoopExit(tuple(uniform), tuple(active))


def _parts(root: HloInstruction) -> Iterator[tuple[HloInstruction, bool]]:
    """Yield the pred scalars that must all hold for the loop to continue, each with the value it must have."""
    work = [(root, True)]
    while work:
        i, wanted = work.pop()
        if i.opcode is Opcode.AND and wanted:
            work += [(o, True) for o in reversed(i.operands)]
        elif i.opcode is Opcode.OR and not wanted:
            work += [(o, False) for o in reversed(i.operands)]
        elif i.opcode is Opcode.NOT:
            work.append((i.operands[0], not wanted))
        elif i.opcode in (Opcode.RESHAPE, Opcode.BITCAST, Opcode.COPY) and i.operands[0].shape.is_scalar:
            work.append((i.operands[0], wanted))
        else:
            yield i, wanted


def _any_position(i: HloInstruction, wanted: bool) -> tuple[HloInstruction, bool] | None:
    """Return the array of which some element must have a value, and the value; None for any other scalar."""
    while i.opcode in (Opcode.RESHAPE, Opcode.BITCAST, Opcode.COPY):
        i = i.operands[0]
    if i.opcode is not Opcode.REDUCE or len(i.operands) != 2 or i.shape.num_elements != 1:
        return None
    combiner, init = combiner_of(i.attributes["to_apply"]), i.operands[1]
    if combiner is not (Opcode.OR if wanted else Opcode.AND) or init.opcode is not Opcode.CONSTANT:
        return None
    return (i.operands[0], wanted) if bool(init.value.value) is not wanted else None


def _reads(i: HloInstruction) -> set[int]:
    """Return the carried elements from which an instruction of a condition is computed."""
    found, seen, work = set[int](), {i}, [i]
    while work:
        i = work.pop()
        if i.opcode is Opcode.GET_TUPLE_ELEMENT and i.operands[0].opcode is Opcode.PARAMETER:
            found.add(i.attributes["index"])
        new = [o for o in i.operands if o not in seen]
        seen.update(new)
        work += new
    return found


def _check_positions(state: LoopState, active: HloInstruction, wanted: bool, axis: int, extent: int) -> None:
    """Raise UnsupportedError unless a tile without active positions has its final state."""
    name, dims = state.loop.name, active.shape.dimensions
    if not dims or dims[axis] != extent:
        raise UnsupportedError(f"%{name}: its condition tests {active.shape}, which does not have the loop's axis")
    varying = sorted(_reads(active) & state.shared)
    if varying:
        raise UnsupportedError(
            f"%{name}: positions may become active again, because the condition compares them with carried value "
            f"{varying[0]}, which changes"
        )
    body = _Inactive(state, active, wanted, axis, extent)
    for k in (*state.per_position, *sorted(state.stacked)):
        if k in state.stacked or not body.is_unchanged(state.new[k], k):
            raise UnsupportedError(
                f"%{name}: iterations may change carried value {k} of positions that its condition no longer tests; "
                "the number of iterations is not known before it runs"
            )
    for user in state.loop.users:
        if user.opcode is not Opcode.GET_TUPLE_ELEMENT or (user.attributes["index"] in state.shared and _is_used(user)):
            raise UnsupportedError(
                f"%{name}: the number of iterations differs between positions, and %{user.name} depends on it"
            )


def _is_used(i: HloInstruction) -> bool:
    return i.is_root or bool(i.users)


class _Inactive:
    """What the body computes at a position that is not active."""

    def __init__(self, state: LoopState, active: HloInstruction, wanted: bool, axis: int, extent: int) -> None:
        self.state, self.axis, self.extent = state, axis, extent
        self.known: dict[HloInstruction, bool | None] = {}
        self.facts = dict(_consequences(active, not wanted))  # by instruction of the condition
        self.same: dict[tuple[HloInstruction, HloInstruction], bool] = {}
        self.bound: dict[HloInstruction, HloInstruction] = {}  # the operand of each parameter of a fusion

    def is_unchanged(self, i: HloInstruction, k: int) -> bool:
        """Check whether `i` is carried value `k` at every position that is not active."""
        if i.opcode is Opcode.GET_TUPLE_ELEMENT:
            return i.operands[0] is self.state.parameter and i.attributes["index"] == k
        if i.shape.element_type is PrimitiveType.PRED and self._stays(i, k):  # such as a flag of active positions
            return True
        if i.opcode is Opcode.SELECT:
            value = self.value(i.operands[0])
            sides = i.operands[1:] if value is None else (i.operands[1 if value else 2],)
            return all(self.is_unchanged(o, k) for o in sides)
        if i.opcode is Opcode.COPY or (i.opcode in _MOVED and i.shape.dimensions == i.operands[0].shape.dimensions):
            return self.is_unchanged(i.operands[0], k)
        if i.opcode is Opcode.ADD and not i.shape.element_type.is_float:
            a, b = i.operands
            return any(self.is_zero(x) and self.is_unchanged(y, k) for x, y in ((a, b), (b, a)))
        return False

    def _stays(self, i: HloInstruction, k: int) -> bool:
        """Check whether a pred and carried value `k` are both known and equal."""
        before = next((u for u in self.state.parameter.users if u.attr("index") == k), None)
        value = self.value(i)
        return before is not None and value is not None and self.value(before) is value

    def is_zero(self, i: HloInstruction) -> bool:
        """Check whether an integer is zero at every position that is not active."""
        if i.opcode is Opcode.CONSTANT:
            return i.value.is_all(0)
        if i.opcode is Opcode.BROADCAST and i.operands[0].opcode is Opcode.CONSTANT:
            return self.is_zero(i.operands[0])
        if i.opcode is Opcode.CONVERT:
            return self.value(i.operands[0]) is False
        if i.opcode is Opcode.SELECT:
            value = self.value(i.operands[0])
            sides = i.operands[1:] if value is None else (i.operands[1 if value else 2],)
            return all(map(self.is_zero, sides))
        return False

    def value(self, i: HloInstruction) -> bool | None:
        """Return what a pred of the body is at every position that is not active; None if that is not known."""
        if i not in self.known:
            self.known[i] = None
            self.known[i] = self._value(i)
        return self.known[i]

    def _value(self, i: HloInstruction) -> bool | None:
        for fact, holds in self.facts.items():
            if fact.shape.dimensions == i.shape.dimensions and self.is_same(fact, i):
                return holds
            if fact.opcode is Opcode.COMPARE and self._is_complement(fact, i):
                return not holds
        if i.opcode is Opcode.NOT:
            value = self.value(i.operands[0])
            return None if value is None else not value
        if i.opcode in (Opcode.AND, Opcode.OR):
            values = [self.value(o) for o in i.operands]
            absorbing = i.opcode is Opcode.OR
            if absorbing in values:
                return absorbing
            return not absorbing if values == [not absorbing] * 2 else None
        if i.opcode in _MOVED and self._keeps_positions(i):
            return self.value(i.operands[0])
        return None

    def _is_complement(self, fact: HloInstruction, i: HloInstruction) -> bool:
        """Check whether `i` is true exactly where the comparison `fact` is not, which NaN rules out for floats."""
        if i.opcode is not Opcode.COMPARE or i.operands[0].shape != fact.operands[0].shape:
            return False
        direction, t = fact.attributes["direction"], fact.operands[0].shape.element_type
        exact = not t.is_float or direction in ("EQ", "NE")
        opposite = {"LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT", "EQ": "NE", "NE": "EQ"}[direction]
        pairs = zip(fact.operands, i.operands, strict=True)
        return exact and i.attributes["direction"] == opposite and all(self.is_same(a, b) for a, b in pairs)

    def _keeps_positions(self, i: HloInstruction) -> bool:
        """Check whether each element is one of the operand at the same position."""
        operand = i.operands[0].shape.dimensions
        if not operand or operand[self.axis] != self.extent or i.shape.dimensions[self.axis] != self.extent:
            return False
        if i.opcode is Opcode.BROADCAST:
            return bool(i.dimensions[self.axis] == (0 if self.axis == 0 else i.shape.rank - 1))
        return True

    def is_same(self, a: HloInstruction, b: HloInstruction) -> bool:
        """Check whether `a` of the condition and `b` of the body compute the same from the carried values."""
        key = a, b = self._origin(a), self._origin(b)
        if a is b:
            return True
        found = self.same.get(key)
        if found is None:
            if len(self.same) >= MAX_COMPARED:
                return False
            found = self.same[key] = self._is_same(a, b)
        return found

    def _origin(self, i: HloInstruction) -> HloInstruction:
        """Return what computes an instruction, past fusions, copies, and carried values that no iteration changes."""
        while True:
            found = self._source(i)
            if found is i:
                return i
            i = found

    def _source(self, i: HloInstruction) -> HloInstruction:
        if i.opcode is Opcode.COPY:
            return i.operands[0]
        if i.opcode is Opcode.PARAMETER:
            return self.bound.get(i, i)
        if i.opcode is Opcode.FUSION:
            fused: HloComputation = i.attributes["calls"]
            self.bound.update(zip(fused.parameters, i.operands, strict=True))
            return i if fused.root.opcode is Opcode.TUPLE else fused.root
        if i.opcode is not Opcode.GET_TUPLE_ELEMENT:
            return i
        k, whole, start = i.attributes["index"], i.operands[0], self.state.loop.operands[0]
        if whole.opcode is Opcode.FUSION and self._source(whole) is whole:
            element: HloInstruction = whole.attributes["calls"].root.operands[k]
            return element
        is_carried = whole in (self.state.parameter, self.state.condition.parameters[0])
        is_fixed = is_carried and k not in self.state.changed and start.opcode is Opcode.TUPLE
        return start.operands[k] if is_fixed else i

    def _is_same(self, a: HloInstruction, b: HloInstruction) -> bool:
        if a.opcode is not b.opcode or not a.shape.compatible(b.shape) or len(a.operands) != len(b.operands):
            return False
        if a.opcode is Opcode.PARAMETER:
            return a is self.state.condition.parameters[0] and b is self.state.parameter
        if a.opcode is Opcode.CONSTANT:
            x, y = a.value.array, b.value.array
            return x is not None and y is not None and x.tobytes() == y.tobytes()
        if any(isinstance(v, HloComputation) for v in (*a.attributes.values(), *b.attributes.values())):
            return False
        ours, theirs = ({k: v for k, v in i.attributes.items() if k not in _LABELS} for i in (a, b))
        return ours == theirs and all(map(self.is_same, a.operands, b.operands))


_LABELS = frozenset({"metadata", "backend_config", "sharding", "frontend_attributes"})


def _consequences(i: HloInstruction, holds: bool) -> Iterator[tuple[HloInstruction, bool]]:
    """Yield what follows from a pred of the condition being `holds` at a position."""
    yield i, holds
    if i.opcode is Opcode.NOT:
        yield from _consequences(i.operands[0], not holds)
    elif i.opcode is (Opcode.AND if holds else Opcode.OR):
        for o in i.operands:
            yield from _consequences(o, holds)
    elif i.opcode is Opcode.COPY:
        yield from _consequences(i.operands[0], holds)
