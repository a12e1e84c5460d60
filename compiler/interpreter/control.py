"""Evaluators of control flow, tuples and tokens."""

from __future__ import annotations

import numpy as np

from compiler.interpreter.machine import Machine
from compiler.interpreter.registry import TOKEN, Value, as_array, evaluator
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode


@evaluator(Opcode.CALL)
def _call(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    return machine.run(instruction.attr("to_apply"), values, consumed=values)


@evaluator(Opcode.FUSION)
def _fusion(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    return machine.run(instruction.attr("calls"), values, consumed=values)


@evaluator(Opcode.WHILE)
def _while(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    condition, body = instruction.attr("condition"), instruction.attr("body")
    while as_array(machine.run(condition, values)):
        machine.context.iterate()
        values.append(machine.run(body, values, consumed=values))
    return values[0]


@evaluator(Opcode.CONDITIONAL)
def _conditional(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    """Run the selected branch; an index out of range selects the last one."""
    which = as_array(values[0])
    branches = instruction.called_computations()
    if "branch_computations" not in instruction.attributes:
        branches = (instruction.attr("true_computation"), instruction.attr("false_computation"))
    if which.dtype == np.bool_:
        index = 0 if which else 1
    else:
        index = int(which) if 0 <= int(which) < len(branches) else len(branches) - 1
    chosen = [values[index + 1]]
    values.clear()
    return machine.run(branches[index], chosen, consumed=chosen)


@evaluator(Opcode.TUPLE)
def _tuple(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    return tuple(values)


@evaluator(Opcode.GET_TUPLE_ELEMENT)
def _get_tuple_element(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    element: Value = values[0][instruction.attributes["index"]]
    return element


@evaluator(Opcode.AFTER_ALL)
def _after_all(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    return TOKEN


@evaluator(Opcode.ADD_DEPENDENCY, Opcode.OPTIMIZATION_BARRIER, Opcode.DOMAIN)
def _first(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    return values[0]
