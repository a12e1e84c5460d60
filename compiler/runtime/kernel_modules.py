"""A module that computes one instruction alone, to identify, measure and store its kernel."""

from __future__ import annotations

from compiler.ir import HloComputation, HloInstruction, HloModule
from compiler.ir.callgraph import callees_first


def kernel_module(instruction: HloInstruction) -> HloModule:
    """Return a module whose entry applies an instruction to parameters, one per distinct operand.

    The instruction keeps its name, and so do the computations that it calls as far as their names are free.
    """
    module = HloModule("kernel")
    entry = module.add(HloComputation("main"), entry=True)
    operands = {o: entry.add_parameter(n, o.shape) for n, o in enumerate(dict.fromkeys(instruction.operands))}
    clone = entry.clone_instruction(instruction, [operands[o] for o in instruction.operands])
    entry.root = clone
    copies: dict[HloComputation, HloComputation] = {}
    for called in callees_first(list(instruction.called_computations())):
        copies[called] = module.add(called.clone())
        for i in copies[called].notable:
            i.replace_called_computations(copies)
    clone.replace_called_computations(copies)
    return module
