"""What actions do to a sequence: they fuse two nodes, merge them, split a fusion, or move a value to another kernel.

Each function changes the module through the `Edits` of the present step and tells the sequence what has changed, so
that the step can be taken back and only what depends on it is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from compiler.analysis.order import TopologicalOrder
from compiler.fusion.anatomy import Anatomy
from compiler.fusion.edits import Edits
from compiler.fusion.moving import Moving, peel_fusion
from compiler.fusion.rewriting import (
    FusionResult,
    consumers_of,
    fuse_into,
    fuse_multi_output,
    fuse_side_by_side,
    has_other_use,
    is_inlined_constant,
    is_multi_output,
    producers_of,
    source_of,
)
from compiler.fusion.splitting import Split, split_fusion
from compiler.ir import HloInstruction, Opcode

if TYPE_CHECKING:
    from compiler.fusion.sequence import SequenceState

Rewrite: TypeAlias = Callable[[HloInstruction, HloInstruction, Edits], FusionResult]
"""Makes two nodes one that yields the outputs of the second and then of the first."""
_KIND_OF_REWRITE: Mapping[Rewrite, str] = {fuse_multi_output: "multi-output", fuse_side_by_side: "sibling"}
"""The kinds of trials whose fused computation a rewrite makes."""
FEW = 8
"""A constant that more instructions read is not counted among those that a fusion makes superfluous."""


def fuse(s: SequenceState, producer: HloInstruction, consumer: HloInstruction) -> HloInstruction:
    """Compute the producer within the consumer and return the fusion."""
    step = s.noting()
    around = [*producers_of(producer), *producers_of(consumer)]
    ranks = s.order.rank(producer), s.order.rank(consumer)
    values, own = s.nodes.values[consumer], s.nodes.values[producer]
    bits = _bits(s, producer, consumer)
    several, constants = is_multi_output(producer), _constants_of(producer, consumer)
    trials = s.legality.trials
    pair = trials.pair("producer-consumer", producer, consumer)
    content = trials.content("producer-consumer", producer, consumer)
    left = trials.inside(producer)
    revisions = s.nodes.revision(producer), s.nodes.revision(consumer)
    result = fuse_into(producer, consumer, step.edits)
    if result.fusion is not consumer:
        s.order.replace(consumer, result.fusion)
    made = {result.fusion: values}
    if several and producer.parent is not None:  # it may have lost outputs
        made[producer] = own if result.kept is None else tuple(own[k] for k in result.kept)
    origins: dict[HloInstruction, Hashable] = {result.fusion: ("producer-consumer", *revisions)}
    if producer in made:
        origins[producer] = "kept", revisions[0], result.kept
    _update(s, result, made, [*around, producer], ranks, origins, _few_readers(constants))
    if s.reach is not None:
        s.reach.set_bits(result.fusion, bits[1] if producer in s.nodes else bits[0] | bits[1])
    trials.note_origin(result.fusion, pair, None)
    trials.note_content(result.fusion, None if content is None else content.inside, has_lost=False)
    if several and producer in s.nodes:
        trials.note_content(producer, left)
    return result.fusion


def merge(s: SequenceState, first: HloInstruction, second: HloInstruction, rewrite: Rewrite) -> HloInstruction:
    """Make two nodes one that yields the outputs of the second and then of the first; return it."""
    step = s.noting()
    around = [*producers_of(first), *producers_of(second)]
    # Who reads a constant has its own copy of it, but now reads a value that a kernel makes.
    readers = [u for i in (first, second) if is_inlined_constant(i) for u in i.users]
    before, after = s.order.sorted([first, second])
    ranks = s.order.rank(before), s.order.rank(after)
    s.order.make_adjacent(before, after)
    values = (*s.nodes.values[second], *s.nodes.values[first])
    constants, bits = _constants_of(first, second), _bits(s, first, second)
    kind = _KIND_OF_REWRITE.get(rewrite)
    trials = s.legality.trials
    pair = None if kind is None else trials.pair(kind, first, second)
    content = None if kind is None else trials.content(kind, first, second)
    origin = None if kind is None else (kind, s.nodes.revision(first), s.nodes.revision(second))
    result = rewrite(first, second, step.edits)
    if result.kept is not None:
        values = tuple(values[k] for k in result.kept)
    s.order.move(after, result.fusion)
    made = {
        result.fusion: values,
        **{u: s.nodes.values[u] for u in readers if u in s.nodes and u.parent is not None and u is not result.fusion},
    }
    origins = {} if origin is None else {result.fusion: (*origin, result.kept)}
    _update(s, result, made, around, ranks, origins, _few_readers(constants))
    if s.reach is not None:
        s.reach.set_bits(result.fusion, bits[0] | bits[1])
    if pair is not None:
        trials.note_origin(result.fusion, pair, result.kept)
        trials.note_content(result.fusion, None if content is None else content.inside, result.kept is not None)
    return result.fusion


def _bits(s: SequenceState, first: HloInstruction, second: HloInstruction) -> tuple[int, int]:
    return (0, 0) if s.reach is None else (s.reach.bits(first), s.reach.bits(second))


def split(s: SequenceState, fusion: HloInstruction, cut: int) -> HloInstruction:
    """Compute a value of a fusion elsewhere; return the node that yields it."""
    step, order = s.noting(), s.order
    around = [*producers_of(fusion), *consumers_of(fusion)]
    ranks = [order.rank(fusion)]
    yields = s.nodes.yields(cut)
    moves = yields is not None and yields is not fusion and order.rank(yields) > order.rank(fusion)
    if yields is not None and yields is not fusion:
        around.append(yields)
        if moves:
            order.make_adjacent(fusion, yields)
            ranks.append(order.rank(yields))
    done = split_fusion(fusion, cut, s.nodes, step.edits)
    own, rest = done.own, done.rest
    step.renumbered |= _place_constants(order, fusion, done)
    if rest is None and own not in done.constants and yields is fusion:
        if own in order:  # a constant that was there
            order.remove(fusion)
        else:
            order.replace(fusion, own)
    elif own in done.made and own not in order:
        step.renumbered |= order.place(own, own.operands, [fusion])
    if rest is not None and rest is not fusion:
        order.replace(fusion, rest)
    if rest is not None and moves:
        step.renumbered |= order.place(rest, rest.operands, consumers_of(rest))
    made = done.made
    around += [p for i in made for p in producers_of(i)]
    readers = _few_readers(_constants_of(*made))
    if rest is not None and is_multi_output(rest):
        _move_outputs(order, rest)
    fusible = [i for i in (own, rest) if i is not None and i in made]
    ranks += [order.rank(i) for i in made]
    s.note(made, done.removed, around, ranks, fusible, readers=readers)
    return source_of(own)


def peel(s: SequenceState, fusion: HloInstruction, value: int) -> HloInstruction:
    """Compute an output of a fusion, which one node reads, by an instruction of its own; return that.

    The fusion yields what the instruction reads.
    """
    step, order = s.noting(), s.order
    around = [*producers_of(fusion), *consumers_of(fusion)]
    ranks = [order.rank(fusion)]
    left = Moving(Anatomy(fusion, s.nodes), value, fusion).left()
    done = peel_fusion(fusion, value, s.nodes, step.edits)
    own, rest = done.own, done.rest
    assert rest is not None  # noqa: S101 - `Move` refuses it
    step.renumbered |= _place_constants(order, fusion, done)
    if rest is not fusion:
        order.replace(fusion, rest)
    if len(left) > 1:
        _move_outputs(order, rest)
    step.renumbered |= order.place(own, own.operands, own.users)
    made = done.made
    around += [p for i in made for p in producers_of(i)]
    readers = _few_readers(_constants_of(*made))
    ranks += [order.rank(i) for i in made]
    s.note(made, done.removed, around, ranks, [own, rest], readers=readers)
    return own


def move(s: SequenceState, fusion: HloInstruction, value: int, target: HloInstruction) -> list[HloInstruction]:
    """Compute a value of a fusion in a neighbor; return what remains of the fusion, and the neighbor."""
    downstream = target in consumers_of(fusion)
    left = Moving(Anatomy(fusion, s.nodes), value, target).left()
    if downstream:
        taken = fuse(s, peel(s, fusion, value), target)
    else:
        own = split(s, fusion, value)
        merges = has_other_use(target)
        taken = merge(s, target, own, fuse_multi_output) if merges else fuse(s, target, own)
    rest = s.nodes.yields(left[0])
    assert rest is not None  # noqa: S101 - it is left
    return [rest, taken]


def _update(
    s: SequenceState,
    result: FusionResult,
    made: Mapping[HloInstruction, tuple[int, ...]],
    around: Iterable[HloInstruction],
    ranks: tuple[int, int],
    origins: Mapping[HloInstruction, Hashable],
    readers: Sequence[HloInstruction],
) -> None:
    """Tell a sequence what a fusion has changed.

    Args:
        s: the sequence.
        result: what was done.
        made: the nodes that were made or changed, with the values that they yield now.
        around: nodes whose consumers changed.
        ranks: of the two nodes that were fused.
        origins: how nodes were made, see `Nodes.change`.
        readers: see `SequenceState.note`.
    """
    _move_outputs(s.order, result.fusion)
    s.note(made, result.removed, around, ranks, [result.fusion], origins, readers)


def _place_constants(order: TopologicalOrder, fusion: HloInstruction, done: Split) -> bool:
    """Give the constants that parts of a fusion read ranks before it; return whether all ranks were changed.

    The fusion had copies of them, so those that other instructions read may come after it.
    """
    renumbered = False
    put_back = [c for i in done.constants for c in (*i.operands, i)]
    for c in dict.fromkeys((*put_back, *_read_constants(done.own, done.rest))):
        if c not in order or order.rank(c) > order.rank(fusion):
            renumbered |= order.place(c, c.operands, [fusion])
    return renumbered


def _read_constants(*nodes: HloInstruction | None) -> list[HloInstruction]:
    """Return the constants that these nodes read, operands first."""
    found = [o for i in nodes if i is not None for o in i.operands if is_inlined_constant(o)]
    return [c for o in found for c in (*o.operands, o)]


def _move_outputs(order: TopologicalOrder, fusion: HloInstruction) -> None:
    """Give the outputs of a multi-output fusion its rank."""
    for g in fusion.users:
        if g.opcode is Opcode.GET_TUPLE_ELEMENT:
            order.move(fusion, g)


def _constants_of(*nodes: HloInstruction) -> list[HloInstruction]:
    """Return the broadcasts of constants that these nodes read."""
    return [o for i in nodes for o in i.operands if o.opcode is Opcode.BROADCAST and is_inlined_constant(o)]


def _few_readers(constants: Iterable[HloInstruction]) -> list[HloInstruction]:
    """Return what reads constants of which so few readers are left that `Estimates.unused_constants` counts them."""
    return [u for o in constants if o.parent is not None and len(o.users) <= FEW for u in o.users]
