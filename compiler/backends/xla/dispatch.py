"""Whether XLA:CPU runs a program in the thread that calls it, or in another one, which takes microseconds longer."""

from __future__ import annotations

from compiler.analysis.flops import instruction_flops
from compiler.backends.xla.flat_entry import with_flat_entry
from compiler.backends.xla.library import xla
from compiler.errors import BackendError
from compiler.ir import HloInstruction, HloModule, Opcode

CHEAP_FLOPS = 1000
"""Operations from which XLA:CPU hands a program to another thread. It counts each loop as one iteration."""

_SURELY_MORE = 4 * CHEAP_FLOPS
"""Our count from which XLA is not asked; XLA's differs where its fusions repeat ops or its passes remove some."""

_OTHERS_FLOPS = frozenset({Opcode.WHILE, Opcode.CONDITIONAL, Opcode.CALL, Opcode.FUSION})
"""Ops whose computations are counted by themselves, once."""


def is_cheap(module: HloModule) -> bool:
    """Check whether XLA:CPU runs a module in the calling thread, by compiling it if it is small; False elsewhere."""
    if xla().platform != "cpu" or _flops(module) > _SURELY_MORE:
        return False
    try:
        cost = xla().compile(str(with_flat_entry(module))).cost_analysis()
    except BackendError:
        return False
    return float(cost.get("flops", 0)) < CHEAP_FLOPS


def _flops(module: HloModule) -> int:
    """Count the operations of one iteration of each loop, without transcendental functions, as XLA does."""
    return sum(map(_own_flops, (i for c in module.control_flow_computations() for i in c.instructions)))


def _own_flops(i: HloInstruction) -> int:
    if i.opcode in _OTHERS_FLOPS or (i.opcode.is_elementwise and i.opcode.row.flops > 1):
        return 0
    return instruction_flops(i)
