"""Programs for several devices: which instructions depend on other devices or on the number of their own."""

from __future__ import annotations

from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.ir.opcodes import Trait
from compiler.ir.verifier_collectives import group_size, replica_groups

PLACEMENTS = frozenset(
    {
        "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement",
        "xla.sdy.FuncResultSharding", "MoveToHost", "MoveToDevice",
    }
)  # fmt: skip
"""Custom calls that place a value. They return their operand unless they change its shape, which partitions it."""
_IN_GROUPS = frozenset(
    {
        Opcode.ALL_REDUCE, Opcode.ALL_GATHER, Opcode.ALL_TO_ALL, Opcode.REDUCE_SCATTER, Opcode.COLLECTIVE_BROADCAST,
        Opcode.ALL_REDUCE_START, Opcode.ALL_GATHER_START,
    }
)  # fmt: skip
_ENDS = frozenset({Opcode.ALL_REDUCE_DONE, Opcode.ALL_GATHER_DONE, Opcode.COLLECTIVE_PERMUTE_DONE})


def device_count(module: HloModule) -> int:
    """Return the number of devices that a program is written for."""
    return _count(module, "replica_count") * _count(module, "num_partitions")


def _count(module: HloModule, name: str) -> int:
    text = str(module.header.get(name, "1"))
    return int(text) if text.isdigit() else 1


def is_placement(i: HloInstruction) -> bool:
    """Check whether an instruction only places the value of its operand."""
    if i.opcode is not Opcode.CUSTOM_CALL or i.attributes["custom_call_target"] not in PLACEMENTS:
        return False
    return len(i.operands) == 1 and i.shape.compatible(i.operand(0).shape)


def needs_other_devices(i: HloInstruction, module: HloModule) -> bool:
    """Check whether the value of an instruction depends on other devices, or on which device runs the program."""
    if i.opcode is Opcode.CUSTOM_CALL:
        partitions = i.attributes["custom_call_target"] in PLACEMENTS and not is_placement(i)
        return partitions and device_count(module) > 1
    if not i.opcode.has(Trait.COLLECTIVE) or i.opcode in _ENDS:
        return False
    if i.opcode is Opcode.REPLICA_ID:
        return _count(module, "replica_count") > 1
    if i.opcode is Opcode.PARTITION_ID:
        return _count(module, "num_partitions") > 1
    if i.opcode in _IN_GROUPS:
        groups = i.attr("replica_groups")
        unknown = groups is not None and replica_groups(str(groups)) is None  # groups may name axes of a mesh
        return group_size(i) > 1 or (unknown and device_count(module) > 1)
    return device_count(module) > 1


def device_refusal(module: HloModule) -> str | None:
    """Return why a program cannot run on one device, or None if it can.

    A program for several partitions whose values are only annotated with shardings can: one device computes the whole
    arrays.
    """
    count = device_count(module)
    if count == 1:
        return None
    for computation in module.post_order():
        for i in computation.instructions:
            if needs_other_devices(i, module):
                name = i.attributes["custom_call_target"] if i.opcode is Opcode.CUSTOM_CALL else i.opcode.text
                return (
                    f"%{i.name} ({name} of shape {i.shape}) in computation %{computation.name} needs other devices: "
                    f"the program is for {count} devices, and it is compiled for one; take its HLO from before it is "
                    "partitioned"
                )
    return None
