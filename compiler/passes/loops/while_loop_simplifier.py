"""While loop simplification: carries fewer elements, and removes loops that run at most once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.analysis.while_loop import LoopView, induction, invariant_elements, view_loop
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.ir.computation import has_side_effect
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import caller_counts, pinned
from compiler.passes.loops.loop_editing import (
    Loops,
    carry_as_tuple,
    copy_iteration,
    keep_elements,
    make_explicit,
    refreshed_view,
)


@register
@dataclass(frozen=True)
class WhileLoopSimplifier:
    """Drop unnecessary carried elements, and loops that run zero times or once.

    - Elements that nothing needs, also not through other elements, are not carried.
    - The result of an invariant element is replaced by its initial value.
    - Elements with equal initial values and equal updates are merged.
    - A loop that runs zero times is replaced by its initial value, one that runs once by its body.
    - A loop whose tuples are not only used by element is brought into explicit form, and so is one that carries an
      array and no tuple.
    """

    name: ClassVar[str] = "while-loop-simplifier"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        loops = Loops(module)
        changed = _make_all_explicit(module)
        for view in loops.views():
            changed |= _simplify(view, loops)
        if changed:
            module.remove_unreachable()
        return changed


def _make_all_explicit(module: HloModule) -> bool:
    loops = [i for c in module.control_flow_computations() for i in c.notable if i.opcode is Opcode.WHILE]
    arrays = [i for i in loops if i.shape.is_array and not i.attributes.keys() & {"sharding", "origin"}]
    counts = caller_counts(module) if arrays else {}
    arrays = [i for i in arrays if all(counts[c] == 1 for c in (i.attributes["body"], i.attributes["condition"]))]
    fixed = {i for c in {i.parent for i in arrays} if c is not None for i in pinned(c)}
    arrays = [i for i in arrays if i not in fixed and i.operand(0) not in fixed]
    for i in arrays:
        carry_as_tuple(i)
    implicit = [i for i in loops if i.shape.is_tuple and view_loop(i) is None]
    return sum(make_explicit(i) for i in implicit) > 0 or bool(arrays)


def _simplify(view: LoopView, loops: Loops) -> bool:
    counter = induction(view)
    if counter is not None and counter.trip_count <= 1 and not _effects(view.condition):
        return _flatten(view, counter.trip_count, loops)
    changed = _forward_invariants(view)
    if changed:
        view = refreshed_view(view)
    merged = _duplicates(view)
    if merged:
        view = _merge(loops.owned(view), merged)
    kept = _needed(view)
    if len(kept) == view.size:
        return changed
    keep_elements(loops.owned(view), kept)
    return True


def _flatten(view: LoopView, trip_count: int, loops: Loops) -> bool:
    computation = view.instruction.parent
    if computation is None or (trip_count == 0 and _effects(view.body)):
        return False
    values = list(view.init)
    if trip_count == 1:
        values = copy_iteration(view, computation, values, {}, loops)
    replace_loop(view, values)
    computation.remove_dead(values)
    return True


def replace_loop(view: LoopView, values: list[HloInstruction]) -> None:
    """Replace the results of a loop by `values`, and remove it."""
    loop = view.instruction
    computation = loop.parent
    if computation is None:
        raise ValueError(f"%{loop.name} has been removed already")
    for gtes, value in zip(view.results, values, strict=True):
        for gte in gtes:
            computation.replace_uses(gte, value)
            computation.remove(gte)
    start = loop.operand(0)
    computation.remove(loop)
    computation.remove_dead([start])


def _effects(computation: HloComputation) -> bool:
    return computation.has_side_effect


def _forward_invariants(view: LoopView) -> bool:
    computation = view.instruction.parent
    changed = False
    if computation is None:
        return False
    for n in sorted(invariant_elements(view)):
        for gte in view.results[n]:
            if gte.users or gte.is_root:
                computation.replace_uses(gte, view.init[n])
                computation.remove(gte)
                changed = True
    return changed


def _duplicates(view: LoopView) -> dict[int, int]:
    """Map elements that always equal an earlier element to that one."""
    first: dict[object, int] = {}
    found: dict[int, int] = {}
    for n in range(view.size):
        update = _update_key(view, n)
        if update is None:
            continue
        key = (_value_key(view.init[n]), update)
        if key in first:
            found[n] = first[key]
        else:
            first[key] = n
    return found


def _update_key(view: LoopView, n: int) -> object:
    """Return a key of the update of element `n`, if that is one op of the element and invariants, else None."""
    out = view.outputs[n]
    if view.index_of(out) == n:
        return "same"
    if out.opcode is Opcode.GET_TUPLE_ELEMENT or out.called_computations() or has_side_effect(out):
        return None
    operands = []
    for o in out.operands:
        index = view.index_of(o)
        if index is not None and index != n:
            return None
        operands.append("self" if index == n else _value_key(o))
    attributes = tuple(sorted((k, str(v)) for k, v in out.attributes.items() if k != "metadata"))
    return (out.opcode, out.shape.without_layout(), attributes, *operands) if "self" in operands else None


def _value_key(instruction: HloInstruction) -> object:
    if instruction.opcode is Opcode.CONSTANT and instruction.shape.is_scalar:
        return (instruction.shape.without_layout(), instruction.value.value.tobytes())
    return instruction


def _merge(view: LoopView, merged: dict[int, int]) -> LoopView:
    """Redirect all reads of merged elements to the elements that replace them."""
    outside = view.instruction.parent
    assert outside is not None  # noqa: S101 - the loop was found in it
    for old, kept in merged.items():
        for computation, reads in (
            (view.body, view.body_reads),
            (view.condition, view.condition_reads),
            (outside, view.results),
        ):
            if not reads[old]:
                continue
            source = reads[old][0].operand(0)
            instead = reads[kept][0] if reads[kept] else None
            if instead is None:
                instead = computation.add(Opcode.GET_TUPLE_ELEMENT, [source], index=kept)
            for gte in reads[old]:
                computation.replace_uses(gte, instead)
                computation.remove(gte)
    return refreshed_view(view)


def _needed(view: LoopView) -> list[int]:
    """Return the elements that the result, the condition or a side effect needs, directly or through other elements."""
    needed = {n for n, gtes in enumerate(view.results) if any(g.users or g.is_root for g in gtes)}
    needed |= _reads_behind(view, [view.condition.root, *_with_effects(view.condition)], set())
    seen: set[HloInstruction] = set()
    needed |= _reads_behind(view, _with_effects(view.body), seen)
    work = list(needed)
    while work:
        more = _reads_behind(view, [view.outputs[work.pop()]], seen) - needed
        needed |= more
        work.extend(more)
    return sorted(needed) or [0][: view.size]


def _with_effects(computation: HloComputation) -> list[HloInstruction]:
    return [i for i in computation.notable if has_side_effect(i)]


def _reads_behind(view: LoopView, roots: list[HloInstruction], seen: set[HloInstruction]) -> set[int]:
    """Return the elements that `roots` depend on; instructions in `seen` are not visited again."""
    found: set[int] = set()
    work = [r for r in roots if r not in seen]
    seen.update(work)
    while work:
        i = work.pop()
        index = view.index_of(i)
        if index is not None:
            found.add(index)
        fresh = [o for o in i.operands if o not in seen]
        seen.update(fresh)
        work.extend(fresh)
    return found
