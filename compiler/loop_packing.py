"""Packing of loop kernels: what splits and stacks the state of a loop becomes part of its kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compiler.analysis.index_moves import long_dimensions
from compiler.analysis.loop_marks import is_kernel_loop
from compiler.codegen.build_target import BuildTarget
from compiler.codegen.buildability import is_emittable, kernel_refusal
from compiler.codegen.templates.loop_state import LoopState, default_loop_schedule
from compiler.errors import UnsupportedError
from compiler.fusion.digests import Digests
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.loops import KnownLoops
from compiler.passes.dots.outlining import Outline
from compiler.passes.infrastructure.rewrite_limits import pinned

__all__ = ["pack_loops"]

_MOVES = frozenset(
    {
        Opcode.RESHAPE, Opcode.BITCAST, Opcode.SLICE, Opcode.BROADCAST, Opcode.TRANSPOSE, Opcode.CONCATENATE,
        Opcode.PAD, Opcode.REVERSE, Opcode.IOTA,
    }
)  # fmt: skip
_RESHAPES = frozenset({Opcode.RESHAPE, Opcode.BITCAST})
_COPIED = frozenset({Opcode.BROADCAST, Opcode.IOTA, Opcode.CONSTANT})
"""Opcodes that `outline` copies into a fusion, so that they may have other users."""
_MOST_READS = 1.5
"""How often the kernel of a loop may compute each element of what it includes, on average."""


def pack_loops(module: HloModule, target: BuildTarget, known: KnownLoops) -> bool:
    """Make a fusion of each kernel loop with the packing and unpacking of its state; return whether any was made.

    A loop whose kernel cannot compute them is left alone.

    Args:
        module: the module to change, after its loops were decided.
        target: what kernels are built for.
        known: which of these kernels are known to exist; what is found is added.
    """
    changed = False
    inside = inside_kernel_loops(module)
    for computation in [c for c in module.control_flow_computations() if c not in inside]:
        for loop in [i for i in computation.instructions if i.opcode is Opcode.WHILE and is_kernel_loop(i)]:
            changed |= _pack(computation, loop, target, known)
    return changed


def inside_kernel_loops(module: HloModule) -> set[HloComputation]:
    """Return the computations that run inside kernel loops, whose own loops have no kernels."""
    found: set[HloComputation] = set()
    for computation in reversed(module.control_flow_computations()):  # callers first
        for i in computation.notable:
            if computation in found or (i.opcode is Opcode.WHILE and is_kernel_loop(i)):
                found.update(i.called_computations())
    return found


def _pack(computation: HloComputation, loop: HloInstruction, target: BuildTarget, known: KnownLoops) -> bool:
    start, fixed = loop.operands[0], pinned(computation)
    if start.opcode is not Opcode.TUPLE or list(start.users) != [loop] or loop.is_root or loop in fixed:
        return False
    if start in fixed or any(i.opcode is not Opcode.GET_TUPLE_ELEMENT or i in fixed for i in loop.users):
        return False
    state = LoopState(loop)
    changed = False
    for element in list(loop.users):
        if (k := element.attributes["index"]) not in state.changed:
            computation.replace_uses(element, start.operands[k])
            computation.remove_dead([element])
            changed = True
    carried = {*state.per_position, *state.shared}
    before = _packing(start, fixed, carried)
    more = _packing(start, fixed, carried | _read_by_positions(state))
    after = _unpacking(computation, state, loop, fixed)
    constants = [o for k, o in enumerate(start.operands) if k in state.per_position and o.opcode in _COPIED]
    if not more and not after and not constants:
        return changed
    try:
        target = replace(target, schedule=default_loop_schedule(loop, target.language))
    except UnsupportedError:  # blocks of threads run it, which compute nothing before and after
        return changed
    for around in ({*more, *after}, {*before, *after}, before, after):
        region = {start, loop, *loop.users, *around}
        outline = Outline.of([i for i in computation.post_order() if i in region], "loop")
        key = Digests().computation(outline.body), target
        found = known.get(key)
        if found is None:
            found = known[key] = kernel_refusal(outline.body, target) is None
        if found:
            outline.apply(computation, "loop")
            return True
    return changed


def _read_by_positions(state: LoopState) -> set[int]:
    """Return the values that the loop only reads and that its kernel would keep in local arrays if it computed them."""
    try:
        axis, extent = state.axis()
    except UnsupportedError:
        return set()
    return set(state.kept(axis, extent))


def _packing(start: HloInstruction, fixed: set[HloInstruction], carried: set[int]) -> set[HloInstruction]:
    """Return what computes some of the initial values of a loop and nothing else, element by element."""
    inside = {start}
    work = [start.operands[k] for k in sorted(carried)]
    kept = {o for k, o in enumerate(start.operands) if k not in carried}
    reads: dict[HloInstruction, dict[tuple[HloInstruction, ...], float]] = {start: {(): 1.0}}
    while work:
        i = work.pop()
        if i in inside or i in kept or i in fixed or not _is_pointwise(i) or any(u not in inside for u in i.users):
            continue
        reads[i] = _reads(i, reads)
        if sum(reads[i].values()) > _MOST_READS or (_moves_elements(i) and any(any(map(_joins, w)) for w in reads[i])):
            continue
        inside.add(i)
        work.extend(i.operands)
    return inside - {start}


def _reads(
    i: HloInstruction, of_users: Mapping[HloInstruction, Mapping[tuple[HloInstruction, ...], float]]
) -> dict[tuple[HloInstruction, ...], float]:
    """Return the ways in which the kernel of a loop reads a value, with the share of its elements that each reads.

    A way is the sequence of moves between the value and the state of the loop. Uses that differ in it compute the value
    again, as each step of a running sum by doubling does.
    """
    found: dict[tuple[HloInstruction, ...], float] = {}
    for user in i.users:
        for way, share in of_users[user].items():
            if user.opcode in _MOVES:
                way, share = (user, *way), share * min(1.0, user.shape.num_elements / max(1, i.shape.num_elements))
            found[way] = max(found.get(way, 0.0), share)
    return found


def _unpacking(
    computation: HloComputation, state: LoopState, loop: HloInstruction, fixed: set[HloInstruction]
) -> set[HloInstruction]:
    """Return what is computed from the final state of positions alone, element by element, and not computed with."""
    elements = {i for i in loop.users if i.attributes["index"] in (*state.per_position, *state.shared)}
    inside = set(elements)
    joined: set[HloInstruction] = set()  # what is behind a reshape that divides or joins dimensions
    for i in computation.post_order():
        from_state = any(o in inside for o in i.operands) and all(o in inside or _is_copied(o) for o in i.operands)
        is_joined = any(o in joined for o in i.operands)
        if from_state and i not in fixed and _is_pointwise(i) and not (is_joined and _moves_elements(i)):
            inside.add(i)
            joined |= {i} if is_joined or _joins(i) else set()
    found = inside - elements
    while True:
        # What other kernels read is left to fusion, and so is what is computed from it.
        left = {
            i
            for i in found
            if any(u not in found and u.opcode is not Opcode.TUPLE for u in i.users)
            or any(o not in found and o not in elements and not _is_copied(o) for o in i.operands)
        }
        if not left:
            return found
        found -= left


def _is_copied(i: HloInstruction) -> bool:
    return i.opcode in _COPIED and all(_is_copied(o) for o in i.operands) and is_emittable(i)


def _moves_elements(i: HloInstruction) -> bool:
    """Check for an op by which positions read other elements than those with their numbers."""
    is_splat = i.opcode is Opcode.BROADCAST and not i.operand(0).shape.rank
    return i.opcode in _MOVES and i.opcode not in _RESHAPES and not is_splat


def _joins(i: HloInstruction) -> bool:
    """Check for a reshape that joins or divides dimensions.

    Where positions read moved elements through it, each element takes divisions and a load of its own.
    """
    before, after = i.operand(0).shape.dimensions if i.operands else (), i.shape.dimensions
    return i.opcode in _RESHAPES and long_dimensions(before) != long_dimensions(after)


def _is_pointwise(i: HloInstruction) -> bool:
    return (i.opcode in _MOVES or i.opcode.is_elementwise) and is_emittable(i)
