"""Loop flattening: neighbouring dimensions whose positions are independent become one dimension of positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import takewhile
from typing import ClassVar

from compiler.analysis.while_loop import SHARED_ELEMENTS, LoopView, invariant_elements, view_loop
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, PrimitiveType, Shape
from compiler.ir.computation import has_side_effect
from compiler.ir.shape import tuple_shape
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned
from compiler.passes.loops.loop_editing import Loops, copy_with_operands
from compiler.passes.loops.position_blocks import Block, BlockError, Placed, flat_shape, has_block, place


@register
@dataclass(frozen=True)
class WhileLoopFlattening:
    """Carry `f32[4096]` instead of `f32[64,64]` if each iteration computes all elements independently of each other.

    A kernel runs a whole loop for one position after another, along one dimension; each position carries what lies in
    the other dimensions. With one dimension for all that are independent there are more positions, which carry less.
    Dimensions at the start or at the end of the carried arrays are joined; the others keep their places. Arrays that
    are the same in all iterations, such as a row that is added to all rows, are expanded before the loop.
    """

    name: ClassVar[str] = "while-loop-flattening"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        loops = Loops(module)
        changed = [flatten(view, loops) for view in loops.views()]
        if any(changed):
            module.remove_unreachable()
        return any(changed)


def flatten(view: LoopView, loops: Loops) -> bool:
    """Join dimensions of a loop where that is possible; return whether it was. The loop keeps its name."""
    found = _find(view)
    if found is None:
        return False
    owned = loops.owned(view)
    if owned is not view:
        found = _find(owned)
    assert found is not None  # noqa: S101 - a clone of the body is like the body
    found.apply(loops)
    return True


def is_flattened(view: LoopView) -> bool:
    """Check whether dimensions of a loop can be joined."""
    return _find(view) is not None


def flattened_copy(view: LoopView) -> HloInstruction | None:
    """Return a copy of a loop, in a module of its own, whose dimensions are joined; None if none can be."""
    if not is_flattened(view):
        return None
    module, old = HloModule("loop"), view.instruction
    entry = module.add(HloComputation("entry"), entry=True)
    init = []
    for n, i in enumerate(view.init):
        init.append(entry.clone_instruction(i, []) if i.opcode is Opcode.CONSTANT else entry.add_parameter(n, i.shape))
    for n, p in enumerate(i for i in init if i.opcode is Opcode.PARAMETER):
        p.parameter_number = n
    callees = {name: module.add(old.attributes[name].clone()) for name in ("body", "condition")}
    loop = entry.clone_instruction(old, [entry.add(Opcode.TUPLE, init)])
    for name, callee in callees.items():
        loop.set_attribute(name, callee)
    reads = [entry.add(Opcode.GET_TUPLE_ELEMENT, [loop], index=n) for n, gtes in enumerate(view.results) if gtes]
    entry.root = entry.add(Opcode.TUPLE, reads)
    copy = view_loop(loop)
    found = None if copy is None else _find(copy)
    assert found is not None  # noqa: S101 - as above
    found.apply(Loops(module))
    return loop


def _find(view: LoopView) -> _Flattening | None:
    """Return how to join most dimensions of a loop; None if there is no way to join any."""
    fixed = invariant_elements(view)
    state = [view.init[n].shape for n in range(view.size) if n not in fixed and not _is_stacked(view, n)]
    if "sharding" in view.instruction.attributes or not all(s.is_array and not s.is_dynamic for s in state):
        return None
    positions = [s.dimensions for s in state if s.num_elements > SHARED_ELEMENTS]
    for block, is_first in _blocks(positions):
        for skipped in (frozenset[int](), fixed):
            try:
                return _Flattening.of(view, block, is_first, skipped)
            except BlockError:
                continue
    return None


def _is_stacked(view: LoopView, n: int) -> bool:
    """Check whether iterations only write slices of an element."""
    out = view.outputs[n]
    return out.opcode is Opcode.DYNAMIC_UPDATE_SLICE and view.index_of(out.operand(0)) == n


def _blocks(positions: Sequence[tuple[int, ...]]) -> Iterator[tuple[Block, bool]]:
    """Yield the sizes that all arrays have in common at the start (True) and at the end, the most dimensions first."""
    if not positions:
        return
    starts = list(takewhile(lambda sizes: len(set(sizes)) == 1, zip(*positions, strict=False)))
    ends = list(takewhile(lambda sizes: len(set(sizes)) == 1, zip(*(p[::-1] for p in positions), strict=False)))
    for count in range(max(len(starts), len(ends)), 1, -1):
        for common, is_first in ((starts, True), (ends, False)):
            if count <= len(common):
                block = tuple(sizes[0] for sizes in common[:count])
                yield (block if is_first else block[::-1]), is_first


@dataclass(frozen=True)
class _Flattening:
    """A loop, the sizes of the dimensions to join, and where its values have them.

    Attributes:
        view: the loop.
        block: the sizes.
        carried: the first dimension of the block in carried arrays, by element.
        body, condition: the ops on the block.
        hoisted: arrays to be carried as well, because they are the same in all iterations: instructions of the body,
            each with the first dimension of its block.
    """

    view: LoopView
    block: Block
    carried: Mapping[int, int]
    body: Mapping[HloInstruction, Placed]
    condition: Mapping[HloInstruction, Placed]
    hoisted: Sequence[tuple[HloInstruction, int]]

    @staticmethod
    def of(view: LoopView, block: Block, is_first: bool, skipped: Set[int]) -> _Flattening:
        """Return the flattening of a loop.

        Args:
            view: the loop.
            block: the sizes of the dimensions to join.
            is_first: whether they are the first dimensions of an array with several such blocks, or the last.
            skipped: elements that are no arrays of positions.

        Raises:
            BlockError: the body does more than to compute all positions alike.
        """
        carried = _carried(view, block, is_first, skipped)
        fixed = _fixed(view)
        body = _placed(view.body, view.body_reads, carried, block, fixed, is_first)
        condition = _placed(view.condition, view.condition_reads, carried, block, set(), is_first)
        if view.condition.root in condition and condition[view.condition.root].at is not None:
            raise BlockError("a condition for each position")
        needs = [(o, n) for i, found in body.items() for o, n in zip(i.operands, found.needs, strict=True)]
        for n, (out, at) in enumerate(zip(view.outputs, _at(body, view.outputs), strict=True)):
            if at is not None and at != carried.get(n):
                raise BlockError(f"%{out.name}: the block moves to other dimensions")
            needs.append((out, carried.get(n)))
        lifts = dict.fromkeys((o, n) for o, n in needs if n is not None and _at(body, [o]) == [None])
        hoisted = [(o, n) for o, n in lifts if _lift_of(o, n, block) is None and not _is_repeated(o, n, block, fixed)]
        for o, n in hoisted:
            if o not in fixed or not has_block(o.shape, n, block):
                raise BlockError(f"%{o.name}: it differs between iterations")
        if any(
            n is not None and _at(condition, [o]) == [None] and _lift_of(o, n, block) is None
            for i, found in condition.items()
            for o, n in zip(i.operands, found.needs, strict=True)
        ):
            raise BlockError("a condition on arrays without positions")
        return _Flattening(view, block, carried, body, condition, hoisted)

    def apply(self, loops: Loops) -> None:
        """Change the loop."""
        view, loop = self.view, self.view.instruction
        computation = loop.parent
        assert computation is not None  # noqa: S101 - the loop was found in it
        outside = Builder(computation)
        shapes = [self._carried_shape(n) for n in range(view.size)]
        init = [outside.reshape(x, s.dimensions) if s.is_array else x for x, s in zip(view.init, shapes, strict=True)]
        known = {g: view.init[n] for n, gtes in enumerate(view.body_reads) for g in gtes}
        for x, at in self.hoisted:
            value = copy_with_operands(x, computation, known)
            init.append(outside.reshape(value, flat_shape(x.shape, at, self.block).dimensions))
        loops.note_copies([i for i in known.values() if i.called_computations()])
        carried = tuple_shape(*(i.shape for i in init))
        body = self._rewritten(view.body, self.body, carried, self.hoisted)
        condition = self._rewritten(view.condition, self.condition, carried, ())
        for name, callee in (("body", body), ("condition", condition)):
            loops.module.exchange(loop.attributes[name], callee)
            loop.set_attribute(name, callee)
        before = loop.operand(0)
        loop.set_shape(carried)
        loop.replace_operand(0, outside.add(Opcode.TUPLE, *init))
        for n in self.carried:
            if not view.results[n]:
                continue
            end = outside.add(Opcode.GET_TUPLE_ELEMENT, loop, index=n)
            result = outside.reshape(end, view.init[n].shape.dimensions)
            for gte in view.results[n]:
                computation.replace_uses(gte, result)
                computation.remove(gte)
        computation.remove_dead([before])

    def _carried_shape(self, n: int) -> Shape:
        shape = self.view.init[n].shape
        return flat_shape(shape, self.carried[n], self.block) if n in self.carried else shape

    def _rewritten(
        self,
        old: HloComputation,
        places: Mapping[HloInstruction, Placed],
        carried: Shape,
        hoisted: Sequence[tuple[HloInstruction, int]],
    ) -> HloComputation:
        """Return a computation that does what another one does, with one dimension instead of the block."""
        new = HloComputation(old.name)
        b, parameter = Builder(new), new.add_parameter(0, carried, old.parameters[0].name)
        done = {old.parameters[0]: parameter}
        reads = [b.add(Opcode.GET_TUPLE_ELEMENT, parameter, index=self.view.size + n) for n in range(len(hoisted))]
        lifted = dict(zip(hoisted, reads, strict=True))

        def operand(x: HloInstruction, at: int | None) -> HloInstruction:
            """Return the value of an operand, with one dimension instead of the block if it has one at `at`."""
            if at is None or _at(places, [x]) != [None]:
                return done[x]
            if (x, at) not in lifted:
                source = _lift_of(x, at, self.block)
                flat = flat_shape(x.shape, at, self.block)
                if source is None:  # `of` has checked that it may be reshaped
                    lifted[x, at] = b.reshape(done[x], flat.dimensions)
                    return lifted[x, at]
                lifted[x, at] = done[source] if source.shape.rank else b.broadcast(done[source], flat.dimensions, ())
            return lifted[x, at]

        for i in old.post_order():
            if i in done:
                continue
            found = places.get(i)
            if i is old.root and i.opcode is Opcode.TUPLE:
                values = [operand(o, self.carried.get(n)) for n, o in enumerate(i.operands)]
                done[i] = b.add(Opcode.TUPLE, *values, *reads)
            elif i.operands == (old.parameters[0],):
                done[i] = b.add(Opcode.GET_TUPLE_ELEMENT, parameter, index=i.attributes["index"])
            elif found is None:
                done[i] = new.clone_instruction(i, [done[o] for o in i.operands])
            elif i.opcode in _RESHAPES and found.at is None:
                done[i] = done[i.operand(0)]
            else:
                values = [operand(o, n) for o, n in zip(i.operands, found.needs, strict=True)]
                kept = [x for n, x in enumerate(values) if n not in found.dropped]
                shape = i.shape if found.at is None else flat_shape(i.shape, found.at, self.block)
                done[i] = copy = new.clone_instruction(i, kept, shape)
                for name, value in found.attributes.items():
                    copy.set_attribute(name, value)
        new.root = done[old.root]
        new.remove_dead()
        return new


_RESHAPES = (Opcode.RESHAPE, Opcode.BITCAST)
_MOVES = (*_RESHAPES, Opcode.BROADCAST, Opcode.SLICE, Opcode.TRANSPOSE)
_SLICES = (Opcode.DYNAMIC_SLICE, Opcode.DYNAMIC_UPDATE_SLICE)


def _carried(view: LoopView, block: Block, is_first: bool, skipped: Set[int]) -> dict[int, int]:
    """Return the first dimension of the block in carried arrays, by element."""
    found = {}
    for n in range(view.size):
        shape = view.init[n].shape
        if n in skipped or not shape.is_array or shape.is_dynamic:
            continue
        sliced = [u for g in view.body_reads[n] for u in g.users if u.opcode in _SLICES and u.operand(0) is g]
        places = [d for d in _places(shape, block) if all(_is_whole(u, d, block) for u in sliced)]
        if places:
            found[n] = places[0 if is_first else -1]
    return found


def _places(shape: Shape, block: Block) -> list[int]:
    return [d for d in range(shape.rank - len(block) + 1) if has_block(shape, d, block)]


def _is_whole(i: HloInstruction, at: int, block: Block) -> bool:
    """Check whether a slice has all elements of the block."""
    part = i.shape if i.opcode is Opcode.DYNAMIC_SLICE else i.operand(1).shape
    return has_block(part, at, block)


def _fixed(view: LoopView) -> set[HloInstruction]:
    """Return what is the same in all iterations."""
    found = {g for n in invariant_elements(view) for g in view.body_reads[n]}
    for i in view.body.post_order():
        if i.opcode is Opcode.PARAMETER or has_side_effect(i) or i.opcode in _STATEFUL or not i.shape.is_array:
            continue
        if i not in found and all(o in found for o in i.operands) and view.index_of(i) is None:
            found.add(i)
    return found


_STATEFUL = (Opcode.RNG, Opcode.RNG_BIT_GENERATOR, Opcode.RNG_GET_AND_UPDATE_STATE, Opcode.CUSTOM_CALL)


def _placed(
    computation: HloComputation,
    reads: Sequence[Sequence[HloInstruction]],
    carried: Mapping[int, int],
    block: Block,
    fixed: Set[HloInstruction],
    is_first: bool,
) -> dict[HloInstruction, Placed]:
    """Return the ops on the block in the body or the condition of a loop; raise BlockError if one does not keep it."""
    found = {g: Placed(at, (None,)) for n, at in carried.items() for g in reads[n]}
    held = pinned(computation)
    for i in computation.post_order():
        at = _at(found, i.operands)
        if i in found or i in fixed or (i is computation.root and i.opcode is Opcode.TUPLE):
            continue
        if all(o is None for o in at):
            # Random numbers, for example: what each iteration computes from the numbers of the positions.
            places = _places(i.shape, block) if i.opcode.is_elementwise and i.shape.is_array else []
            if not places:
                continue
            at = [places[0 if is_first else -1] if o.shape.rank else None for o in i.operands]
        if i in held:
            raise BlockError(f"%{i.name}: control dependencies")
        if i.opcode in _RESHAPES and _is_flat(i, at[0], block):
            found[i] = Placed(None, (at[0],))
            continue
        found[i] = place(i, at, block)
        if found[i].at is None and i.shape.element_type is not PrimitiveType.PRED:
            raise BlockError(f"%{i.name}: all positions together")
    return found


def _at(places: Mapping[HloInstruction, Placed], values: Sequence[HloInstruction]) -> list[int | None]:
    return [places[x].at if x in places else None for x in values]


def _is_flat(i: HloInstruction, at: int | None, block: Block) -> bool:
    """Check whether a reshape joins the dimensions of the block, as a flattened loop inside the body has them."""
    return at is not None and i.shape.dimensions == flat_shape(i.operand(0).shape, at, block).dimensions


def _is_repeated(x: HloInstruction, at: int, block: Block, fixed: Set[HloInstruction]) -> bool:
    """Check for a part of an array for each iteration, broadcast along dimensions to join or read in another order."""
    if x in fixed or not has_block(x.shape, at, block):
        return False
    while x.opcode in _MOVES:
        x = x.operand(0)
    return x.opcode is Opcode.DYNAMIC_SLICE and x.operand(0) in fixed


def _lift_of(x: HloInstruction, at: int, block: Block) -> HloInstruction | None:
    """Return what an array without positions is made of, a scalar or an array in which the block is one dimension."""
    if x.opcode is Opcode.BROADCAST and not x.operand(0).shape.rank:
        return x.operand(0)
    is_joined = x.opcode in _RESHAPES and x.operand(0).shape.dimensions == flat_shape(x.shape, at, block).dimensions
    return x.operand(0) if is_joined else None
