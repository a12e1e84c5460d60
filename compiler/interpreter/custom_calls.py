"""Custom calls: a registry by target, and the targets that are neither linear algebra nor somebody's own."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from compiler.errors import UnsupportedError
from compiler.interpreter.machine import Machine, describe
from compiler.interpreter.random import threefry2x32
from compiler.interpreter.registry import Value, arrays, evaluator
from compiler.interpreter.sort import top_k
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode

CustomCall: TypeAlias = Callable[[HloInstruction, Sequence[Value]], Value]
"""The instruction (shapes, attributes) and its operand values -> its result, a tuple where the shape is one."""

CUSTOM_CALLS: dict[str, CustomCall] = {}


def register_custom_call(target: str, function: CustomCall) -> None:
    """Make `function` the meaning of a custom-call target; an earlier one is replaced."""
    CUSTOM_CALLS[target] = function


def options(instruction: HloInstruction) -> dict[str, int]:
    """Integers of a backend_config such as `{uplo = 76 : ui8}`."""
    text = str(instruction.attr("backend_config", ""))
    return {name: int(value) for name, value in re.findall(r"(\w+)\s*[=:]\s*(-?\d+)\b", text)}


@evaluator(Opcode.CUSTOM_CALL)
def _custom_call(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    target = instruction.attr("custom_call_target")
    function = CUSTOM_CALLS.get(target)
    if function is None:
        near = difflib.get_close_matches(target, CUSTOM_CALLS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UnsupportedError(
            f"{describe(instruction)}: unknown custom-call target {target!r}{hint}; give it a meaning with "
            f"compiler.interpreter.register_custom_call({target!r}, function), where function(instruction, operands) "
            "returns the result"
        )
    return function(instruction, values)


def _identity(instruction: HloInstruction, values: Sequence[Value]) -> Value:
    return values[0]


for _target in (
    "Sharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "LayoutConstraint",
    "annotate_device_placement",
    "xla.sdy.FuncResultSharding",
    "MoveToDevice",
    "MoveToHost",
    "ShardBarrierFrom",
    "ShardBarrierTo",
    "SetBound",
):
    register_custom_call(_target, _identity)


def _nothing(instruction: HloInstruction, values: Sequence[Value]) -> Value:
    """An order of other instructions; no value."""
    return ()


register_custom_call("control_dep", _nothing)


def _top_k(instruction: HloInstruction, values: Sequence[Value]) -> Value:
    k = instruction.shape.tuple_shapes[0].dimensions[-1]
    return top_k(arrays(values)[0], instruction.operands[0].shape.element_type, k, largest=True)


def _threefry(instruction: HloInstruction, values: Sequence[Value]) -> Value:
    key0, key1, x0, x1 = arrays(values)
    return threefry2x32(key0, key1, x0, x1)


register_custom_call("TopK", _top_k)
for _target in ("threefry2x32", "cu_threefry2x32", "cu_threefry2x32_ffi"):
    register_custom_call(_target, _threefry)


def _allocate(instruction: HloInstruction, values: Sequence[Value]) -> Value:
    """Memory whose contents nobody may rely on: zeros."""
    return np.zeros(instruction.shape.dimensions, instruction.shape.dtype)


register_custom_call("AllocateBuffer", _allocate)
