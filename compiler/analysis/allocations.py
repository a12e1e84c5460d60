"""Arrays without a value: the custom call that allocates an array whose contents are undefined."""

from __future__ import annotations

from compiler.ir import HloInstruction, Opcode

ALLOCATION = "AllocateBuffer"
"""The target of the custom call, as in XLA."""


def is_allocation(i: HloInstruction) -> bool:
    """Check whether an instruction only allocates an array."""
    return i.opcode is Opcode.CUSTOM_CALL and i.attr("custom_call_target") == ALLOCATION and not i.operands
