"""Collective simplification: removes collectives and device placements from modules for a single device."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

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
_PLACEMENTS = frozenset(
    {
        "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement",
        "xla.sdy.FuncResultSharding", "MoveToHost", "MoveToDevice",
    }
)  # fmt: skip
"""Custom calls that place a value; without effect on one device with one memory."""


@register
@dataclass(frozen=True)
class CollectiveSimplifier:
    """Replace collectives by their operands and device ids by 0 in a module for a single device.

    A collective-permute that sends nothing to device 0 yields zeros there. Placement custom calls are replaced by their
    operands, too.
    """

    name: ClassVar[str] = "collective-simplifier"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        if not _single_device(module):
            return False
        changed = False
        for computation in treatable(module):
            found = [i for i in computation.instructions if _concerns_devices(i)]
            fixed = pinned(computation) if found else set()
            for i in found:
                changed |= i not in fixed and _simplify(i)
        if changed:
            module.remove_unreachable()
        return changed


def _single_device(module: HloModule) -> bool:
    return all(str(module.header.get(k, "1")) == "1" for k in ("replica_count", "num_partitions"))


def _concerns_devices(i: HloInstruction) -> bool:
    if i.opcode is Opcode.CUSTOM_CALL:
        placed = i.attributes["custom_call_target"] in _PLACEMENTS and len(i.operands) == 1
        return placed and i.shape == i.operand(0).shape
    return i.opcode in _NUMBERS or i.opcode in _IDENTITIES


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
