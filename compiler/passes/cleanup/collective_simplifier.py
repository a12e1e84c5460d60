"""Collective simplification: removes placements of values, and collectives from modules for a single device."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from compiler.analysis.devices import is_placement, needs_other_devices
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned, treatable

_IDENTITIES = frozenset(
    {
        Opcode.ALL_REDUCE, Opcode.ALL_GATHER, Opcode.ALL_TO_ALL, Opcode.REDUCE_SCATTER, Opcode.COLLECTIVE_BROADCAST,
        Opcode.COLLECTIVE_PERMUTE,
    }
)  # fmt: skip
_NUMBERS = (Opcode.REPLICA_ID, Opcode.PARTITION_ID)
_SIMPLIFIED = (*_IDENTITIES, *_NUMBERS, Opcode.CUSTOM_CALL)


@register
@dataclass(frozen=True)
class CollectiveSimplifier:
    """Replace custom calls that place a value, and collectives whose groups are single devices, by their operands.

    A device id is replaced by 0 if there is one device. A collective-permute that sends nothing to device 0 yields
    zeros there.
    """

    name: ClassVar[str] = "collective-simplifier"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        changed = False
        for computation in treatable(module):
            found = [i for i in computation.of_opcode(*_SIMPLIFIED) if _is_trivial(i, module)]
            fixed = pinned(computation) if found else set()
            for i in found:
                changed |= i not in fixed and _simplify(i)
        if changed:
            module.remove_unreachable()
        return changed


def _is_trivial(i: HloInstruction, module: HloModule) -> bool:
    if i.opcode in _NUMBERS or i.opcode in _IDENTITIES:
        return not needs_other_devices(i, module)
    return is_placement(i)


def _simplify(i: HloInstruction) -> bool:
    computation = i.parent
    if computation is None:
        return False
    b = Builder(computation)
    new = _value(i, b)
    if new is None or not new.shape.compatible(i.shape):
        computation.remove_dead(b.made)
        return False
    computation.replace_uses(i, new)
    computation.remove(i)
    return True


def _value(i: HloInstruction, b: Builder) -> HloInstruction | None:
    if i.opcode in _NUMBERS:
        return b.splat(0, i.shape)
    if i.opcode is Opcode.COLLECTIVE_PERMUTE:
        pairs = re.findall(r"\{\s*(\d+)\s*,\s*(\d+)\s*\}", str(i.attributes["source_target_pairs"]))
        if len(i.operands) != 1 or any(p != ("0", "0") for p in pairs):
            return None
        return i.operand(0) if pairs else b.splat(0, i.shape)
    return b.add(Opcode.TUPLE, *i.operands) if i.shape.is_tuple else i.operand(0)
