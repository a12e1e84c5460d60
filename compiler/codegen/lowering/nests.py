"""Which outputs of a fused computation are computed in one loop nest; each group gets a nest of its own.

Outputs share a nest if they have as many elements, or if they are what is reduced and reduced values of reductions over
one domain. Outputs that have nothing in common may also differ in these: they then follow each other in one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence

from compiler.codegen.lowering.reductions import UNROLL_LIMIT, Domain
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode


def looped_reductions(inside: Iterable[HloInstruction]) -> list[HloInstruction]:
    """Return those of some instructions that are reductions which need a loop, in the same order."""
    found = []
    for i in inside:
        if i.opcode is Opcode.REDUCE:
            full = i.operands[0].shape.dimensions
            if math.prod(full[d] for d in i.dimensions) > UNROLL_LIMIT:
                found.append(i)
    return found


def nests_of(inside: Sequence[HloInstruction], roots: Sequence[HloInstruction]) -> list[list[int]]:
    """Return the positions of the outputs that share a loop nest, in order of the first of each.

    Outputs without reductions join those of a reduction if they have their elements.

    Args:
        inside: what the kernel computes, operands first; the operands of these that are not among them are read.
        roots: the outputs.
    """
    everything = [list(range(len(roots)))]
    if len(roots) == 1:
        return everything
    reductions = looped_reductions(inside)
    if not reductions and len({_long(r) for r in roots}) == 1:
        return everything
    domains = dict.fromkeys([Domain.of(h) for h in reductions])
    if len(domains) == 1:
        sizes = _sizes(next(iter(domains)))
        if all(r.shape.num_elements in sizes for r in roots):
            return everything  # whatever they need of the reductions
    computed = frozenset(inside)
    cones = [_cone(r, computed) for r in roots]
    needs = [next((Domain.of(h) for h in reductions if h in cone), None) for cone in cones]
    if len(domains) == 1:
        (domain,) = domains
        sizes, needed = _sizes(domain), domain.result_and_operand
        if all(r.shape.num_elements in (needed if n else sizes) for r, n in zip(roots, needs, strict=True)):
            return everything
    keys: list[Hashable] = []
    for r, own in zip(roots, needs, strict=True):
        if own is None:
            own = next((d for d in domains if r.shape.num_elements in _sizes(d)), None)
        keys.append(_long(r) if own is None else own)
    for n, (r, key) in enumerate(zip(roots, keys, strict=True)):
        for m in range(n):  # of equal size and with something in common: one loop computes both
            same_size = not isinstance(key, Domain) and roots[m].shape.num_elements == r.shape.num_elements
            if same_size and not isinstance(keys[m], Domain) and not cones[m].isdisjoint(cones[n]):
                keys[n] = keys[m]
                break
    groups: dict[Hashable, list[int]] = {}
    for n, key in enumerate(keys):
        groups.setdefault(key, []).append(n)
    return list(groups.values())


def _long(root: HloInstruction) -> tuple[int, ...]:
    return tuple(n for n in root.shape.dimensions if n != 1)


def _sizes(domain: Domain) -> tuple[int, ...]:
    """Return the numbers of elements that outputs without reductions may have in the nest of a reduction.

    A loop over all that is reduced along columns is as fast in a nest of its own, where it runs along rows.
    """
    return domain.result_and_operand if domain.is_by_rows else domain.result_and_operand[:1]


def _cone(root: HloInstruction, inside: frozenset[HloInstruction]) -> set[HloInstruction]:
    """Return what an output is computed from, without parameters and constants."""
    found: set[HloInstruction] = set()
    work = [root]
    while work:
        i = work.pop()
        if i in inside and i not in found and i.opcode not in (Opcode.PARAMETER, Opcode.CONSTANT):
            found.add(i)
            work += i.operands
    return found
