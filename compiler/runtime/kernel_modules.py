"""A module that computes one instruction alone, to identify and measure its kernel."""

from __future__ import annotations

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.ir.callgraph import callees_first


def kernel_module(instruction: HloInstruction) -> HloModule:
    """Return a module whose entry applies an instruction to parameters, one per distinct operand.

    A tuple that a loop starts from is taken over element by element with its constants, because the number of
    iterations may follow from them.
    """
    module = HloModule("kernel")
    entry = module.add(HloComputation("main"), entry=True)
    copies: dict[HloInstruction, HloInstruction] = {}
    for operand in instruction.operands:
        _copy_operand(entry, operand, copies)
    entry.root = entry.clone_instruction(instruction, [copies[o] for o in instruction.operands])
    called: dict[HloComputation, HloComputation] = {}
    for computation in callees_first(list(instruction.called_computations())):
        called[computation] = module.add(computation.clone())
        for i in called[computation].notable:
            i.replace_called_computations(called)
    entry.root.replace_called_computations(called)
    return module


def _copy_operand(entry: HloComputation, operand: HloInstruction, copies: dict[HloInstruction, HloInstruction]) -> None:
    """Add the value of an operand to the entry unless it is there."""
    if operand in copies:
        return
    if operand.opcode is not Opcode.TUPLE:
        copies[operand] = entry.add_parameter(len(entry.parameters), operand.shape)
        return
    for element in dict.fromkeys(operand.operands):
        if element.opcode is Opcode.CONSTANT and element.shape.num_elements == 1:
            copies.setdefault(element, entry.clone_instruction(element, []))
        else:
            _copy_operand(entry, element, copies)
    copies[operand] = entry.clone_instruction(operand, [copies[o] for o in operand.operands])
