"""Sort simplification: trivial sorts, unused operands, and sorts of which only the first elements are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, PrimitiveType
from compiler.ir.attributes import SliceDim
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned, treatable


@register
@dataclass(frozen=True)
class SortSimplifier:
    """Simplify sorts.

    - A sort along a dimension of size 0 or 1 is replaced by its operands.
    - Operands that the comparator does not read and whose results are unused are dropped.
    - A sort of an operand that the same comparison has sorted is replaced by that operand.
    - A sort by a total order of which at most the first (or last) half is used becomes a topk along the last dimension,
      with the positions if the first elements are used. Of a sort that is not stable, any order of floats is total.
    """

    name: ClassVar[str] = "sort-simplifier"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        changed = False
        for computation in treatable(module):
            sorts = computation.of_opcode(Opcode.SORT)
            fixed = pinned(computation) if sorts else set()
            for i in sorts:
                if i in fixed or i.shape.is_dynamic or i.is_dead:
                    continue
                changed |= _trivial(i) or _drop_unread(i, module) or _sorted_already(i) or _top(i)
        if changed:
            module.remove_unreachable()
        return changed


def _results(sort: HloInstruction) -> list[list[HloInstruction]] | None:
    """Return the users of each sorted operand: instructions of its shape; None if the tuple is used as a whole."""
    if len(sort.operands) == 1:
        return [[sort]]
    if sort.is_root or any(u.opcode is not Opcode.GET_TUPLE_ELEMENT for u in sort.users):
        return None
    found: list[list[HloInstruction]] = [[] for _ in sort.operands]
    for user in sort.users:
        found[user.attributes["index"]].append(user)
    return found


def _trivial(sort: HloInstruction) -> bool:
    computation = sort.parent
    if computation is None or (sort.operand(0).shape.rank and sort.operand(0).shape.dimensions[sort.dimensions[0]] > 1):
        return False
    new = sort.operand(0) if len(sort.operands) == 1 else computation.add(Opcode.TUPLE, sort.operands)
    computation.replace(sort, new)
    return True


def _drop_unread(sort: HloInstruction, module: HloModule) -> bool:
    computation, results = sort.parent, _results(sort)
    if computation is None or results is None or len(sort.operands) == 1:
        return False
    comparator: HloComputation = sort.attributes["to_apply"]
    parameters = comparator.parameters
    kept = [
        n
        for n, readers in enumerate(results)
        if any(r.users or r.is_root for r in readers)
        or any(p.users or p.is_root for p in parameters[2 * n : 2 * n + 2])
    ]
    if len(kept) == len(sort.operands) or not kept:
        return False
    attributes = {**sort.attributes, "to_apply": module.add(_without(comparator, kept))}
    new = computation.add(Opcode.SORT, [sort.operand(n) for n in kept], attributes=attributes)
    for position, n in enumerate(kept):
        for reader in results[n]:
            value = new
            if len(kept) > 1:
                value = computation.add(Opcode.GET_TUPLE_ELEMENT, [new], index=position)
            computation.replace_uses(reader, value)
    computation.remove_dead([r for readers in results for r in readers])
    computation.remove_dead([sort])
    return True


def _without(comparator: HloComputation, kept: list[int]) -> HloComputation:
    """Return the comparator with only the parameters of the kept operands."""
    copy, mapping = comparator.clone_with_mapping()
    for n, p in enumerate(comparator.parameters):
        if n // 2 not in kept:
            copy.remove(mapping[p])
        else:
            mapping[p].set_parameter_number(2 * kept.index(n // 2) + n % 2)
    return copy


def _sorted_already(sort: HloInstruction) -> bool:
    computation, before = sort.parent, sort.operand(0)
    if computation is None or len(sort.operands) > 1 or before.opcode is not Opcode.SORT or len(before.operands) > 1:
        return False
    if sort.dimensions != before.dimensions or _direction(sort) is None or _direction(sort) != _direction(before):
        return False
    computation.replace(sort, before)
    return True


def _top(sort: HloInstruction) -> bool:
    """Replace a sort whose results are only sliced, within the first or last half, by a topk."""
    computation, results = sort.parent, _results(sort)
    values = sort.operand(0)
    direction = _direction(sort)
    if computation is None or results is None or sort.dimensions != (values.shape.rank - 1,):
        return False
    if len(sort.operands) > 2 or direction is None or sort.is_root:
        return False
    if len(sort.operands) == 2 and not _is_position(sort.operand(1)):
        return False
    readers = [u for group in results for r in group for u in r.users]
    if not readers or any(r.is_root for group in results for r in group):
        return False
    if any(r.opcode is not Opcode.SLICE for r in readers):
        return False
    n = values.shape.dimensions[-1]
    along: list[SliceDim] = [r.attributes["slice"][-1] for r in readers]
    first, last = max(d.limit for d in along), n - min(d.start for d in along)
    from_end = last < first and len(sort.operands) == 1
    # The last k elements are the topk in the opposite order, reversed. Positions would order ties differently.
    k = last if from_end else first
    if not 0 < k <= n // 2:
        return False
    b = Builder(computation)
    top = b.add(Opcode.TOPK, values, k=k, largest=(direction == "GT") != from_end)
    for position, group in enumerate(results):
        part = b.add(Opcode.GET_TUPLE_ELEMENT, top, index=position)
        part = b.convert(part, sort.operand(position).shape.element_type)
        if from_end:
            part = b.add(Opcode.REVERSE, part, dimensions=sort.dimensions)
        for user in [u for r in group for u in r.users]:
            spec: tuple[SliceDim, ...] = user.attributes["slice"]
            if from_end:
                spec = (*spec[:-1], SliceDim(spec[-1].start - (n - k), spec[-1].limit - (n - k), spec[-1].stride))
            computation.replace_uses(user, b.slice(part, spec))
            computation.remove_dead([user])
    computation.remove_dead([*b.made, sort])
    return True


def _is_position(i: HloInstruction) -> bool:
    if i.opcode is Opcode.BROADCAST:
        source = i.operand(0)
        return i.dimensions == (i.shape.rank - 1,) and source.opcode is Opcode.IOTA and _is_signed(i)
    return i.opcode is Opcode.IOTA and i.attributes["iota_dimension"] == i.shape.rank - 1 and _is_signed(i)


def _is_signed(i: HloInstruction) -> bool:
    return i.shape.element_type in (PrimitiveType.S32, PrimitiveType.S64)


def _direction(sort: HloInstruction) -> str | None:
    """Return GT if the largest element comes first, LT if the smallest, by a total order; None for others."""
    root = sort.attributes["to_apply"].root
    kind = sort.operand(0).shape.element_type
    if root.opcode is not Opcode.COMPARE or not (kind.is_integer or kind.is_float):
        return None
    # Any order of NaN, and of zeros of both signs, is a result of a sort that is not stable.
    if kind.is_float and root.attr("type") != "TOTALORDER" and sort.attr("is_stable"):
        return None
    numbers = [o.parameter_number for o in root.operands]
    direction: str = root.attributes["direction"]
    if direction not in _SWAPPED or numbers not in ([0, 1], [1, 0]):
        return None
    return direction if numbers == [0, 1] else _SWAPPED[direction]


_SWAPPED = {"GT": "LT", "LT": "GT"}
