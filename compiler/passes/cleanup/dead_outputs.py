"""Dead output elimination: removes unused elements of results, and what only they depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.ir.computation import has_side_effect
from compiler.ir.shape import tuple_shape
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned
from compiler.passes.loops.scans import view_scan


@register
@dataclass(frozen=True)
class DeadOutputElimination:
    """Remove unused results of multi-output reductions, scans and fusions.

    Operands that only those results depend on are removed, too. Loops, conditionals and sorts have their own passes.
    """

    name: ClassVar[str] = "dead-output-elimination"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        return trim_each(module, reversed(module.post_order()), frozenset(_TRIMMED), _trim)


def trim_each(
    module: HloModule,
    computations: Iterable[HloComputation],
    opcodes: frozenset[Opcode],
    trim: Callable[[HloInstruction, HloComputation, HloModule], bool],
) -> bool:
    """Call `trim` for instructions whose tuple result is only used by element; return whether any changed.

    Args:
        module: the module to change.
        computations: callers first, so that callees see which results their callers no longer use.
        opcodes: opcodes to trim, all of them notable; instructions with control edges are skipped.
        trim: returns whether it changed the instruction.
    """
    changed = False
    for computation in computations:
        found = [i for i in computation.notable if i.opcode in opcodes and i.shape.is_tuple]
        fixed = pinned(computation) if found else set()
        for i in found:
            if i not in fixed and i.users and not i.is_root and all(map(_is_element, i.users)):
                changed |= trim(i, computation, module)
    if changed:
        module.remove_unreachable()
    return changed


def _is_element(i: HloInstruction) -> bool:
    return i.opcode is Opcode.GET_TUPLE_ELEMENT


def _trim(i: HloInstruction, computation: HloComputation, module: HloModule) -> bool:
    if any(s.is_dynamic or not s.is_array for s in i.shape.tuple_shapes) or has_side_effect(i):
        return False
    read = {u.attributes["index"] for u in i.users if u.users or u.is_root}
    new = _TRIMMED[i.opcode](i, read, module) if read and _function(i).root.opcode is Opcode.TUPLE else None
    if new is None:
        return False
    kept, made = new
    for user in list(i.users):
        index = user.attributes["index"]
        if index in kept:
            value = made
            if made.shape.is_tuple:
                value = computation.add(Opcode.GET_TUPLE_ELEMENT, [made], index=kept.index(index), name=user.name)
            computation.replace_uses(user, value)
        computation.remove(user)
    operands = i.operands
    computation.remove(i)
    computation.remove_dead([*made.users, *operands])
    return True


def _function(i: HloInstruction) -> HloComputation:
    return i.called_computations()[0]


def _reached(roots: Iterable[HloInstruction]) -> set[HloInstruction]:
    """Return the parameters that `roots` depend on."""
    seen = set(roots)
    work = list(seen)
    while work:
        for o in work.pop().operands:
            if o not in seen:
                seen.add(o)
                work.append(o)
    return {i for i in seen if i.opcode is Opcode.PARAMETER}


def _closure(start: Iterable[int], needs: Callable[[int], set[int]]) -> list[int]:
    """Return `start` and everything it transitively needs, sorted."""
    found = set(start)
    work = list(found)
    while work:
        fresh = needs(work.pop()) - found
        found |= fresh
        work.extend(fresh)
    return sorted(found)


def _trimmed_function(
    function: HloComputation, parameters: Sequence[int], outputs: Sequence[int], module: HloModule, as_tuple: bool
) -> HloComputation:
    """Add a copy of `function` that has these parameters, renumbered, and these elements of the root."""
    copy, mapping = function.clone_with_mapping()
    root = mapping[function.root]
    parts = [root.operand(n) for n in outputs]
    copy.root = copy.add(Opcode.TUPLE, parts, name=root.name) if as_tuple or len(parts) > 1 else parts[0]
    copy.remove_dead()
    numbers = {old: new for new, old in enumerate(parameters)}
    for p in copy.parameters:
        number = p.parameter_number or 0
        if number in numbers:
            p.set_parameter_number(numbers[number])
        else:
            copy.remove(p)
    return module.add(copy)


def _trimmed_op(
    i: HloInstruction, operands: Sequence[HloInstruction], outputs: Sequence[int], function: HloComputation, **more: int
) -> HloInstruction:
    """Add the op with fewer operands and results."""
    computation = i.parent
    assert computation is not None  # noqa: S101 - the pass found it in a computation
    named = next(k for k, v in i.attributes.items() if v is _function(i))
    attributes = {k: v for k, v in i.attributes.items() if k != "sharding"} | {named: function, **more}
    shapes = [i.shape.tuple_shapes[n] for n in outputs]
    single = len(shapes) == 1 and not function.root.shape.is_tuple
    shape = shapes[0] if single else tuple_shape(*shapes)
    return computation.add(i.opcode, operands, shape, name=i.name, attributes=attributes)


def _reduction(i: HloInstruction, read: set[int], module: HloModule) -> tuple[list[int], HloInstruction] | None:
    """Trim a reduction: result k depends on accumulator k, element k, and what else part k of the reducer reads."""
    function, count = _function(i), len(i.shape.tuple_shapes)
    root = function.root

    def needs(k: int) -> set[int]:
        return {(p.parameter_number or 0) % count for p in _reached([root.operand(k)])}

    kept = _closure(read, needs)
    if len(kept) == count:
        return None
    numbers = [*kept, *(count + k for k in kept)]
    shorter = _trimmed_function(function, numbers, kept, module, as_tuple=False)
    return kept, _trimmed_op(i, [i.operand(n) for n in numbers], kept, shorter)


def _fusion(i: HloInstruction, read: set[int], module: HloModule) -> tuple[list[int], HloInstruction] | None:
    if len(read) == len(i.shape.tuple_shapes) or i.attr("output_to_operand_aliasing"):
        return None
    function, kept = _function(i), sorted(read)
    reached = _reached([function.root.operand(k) for k in kept])
    numbers = [n for n, p in enumerate(function.parameters) if p in reached]
    shorter = _trimmed_function(function, numbers, kept, module, as_tuple=False)
    return kept, _trimmed_op(i, [i.operand(n) for n in numbers], kept, shorter)


def _scan(i: HloInstruction, read: set[int], module: HloModule) -> tuple[list[int], HloInstruction] | None:
    """Trim a scan: a carry is needed if its last value is used, or if a needed result depends on it."""
    view = view_scan(i)
    if view is None or not view.inputs:
        return None
    outputs, inputs = len(view.outputs), len(view.inputs)
    returned = view.returned

    def needs(k: int) -> set[int]:
        numbers = ((p.parameter_number or 0) - inputs for p in _reached([returned[k]]))
        return {outputs + n for n in numbers if n >= 0}

    kept = _closure(read, needs)
    if len(kept) == len(returned):
        return None
    reached = {p.parameter_number or 0 for p in _reached([returned[k] for k in kept])}
    # The first input is kept if no other is, because a scan infers its length from an input.
    taken = [n for n in range(inputs) if n in reached] or [0]
    carries = [k - outputs for k in kept if k >= outputs]
    numbers = [*taken, *(inputs + n for n in carries)]
    shorter = _trimmed_function(view.function, numbers, kept, module, as_tuple=True)
    return kept, _trimmed_op(i, [i.operand(n) for n in numbers], kept, shorter, num_carries=len(carries))


_Trim = Callable[[HloInstruction, set[int], HloModule], "tuple[list[int], HloInstruction] | None"]
_TRIMMED: dict[Opcode, _Trim] = {
    Opcode.REDUCE: _reduction,
    Opcode.REDUCE_WINDOW: _reduction,
    Opcode.FUSION: _fusion,
    Opcode.SCAN: _scan,
}
