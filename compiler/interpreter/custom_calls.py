"""Evaluators of custom calls: a registry by target, with the targets that are not linear algebra."""

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
"""Maps the instruction and its operand values to its result, a tuple if its shape is one."""

CUSTOM_CALLS: dict[str, CustomCall] = {}


def register_custom_call(target: str, function: CustomCall) -> None:
    """Register the implementation of a custom-call target; it replaces an earlier one."""
    CUSTOM_CALLS[target] = function


def options(instruction: HloInstruction) -> dict[str, int]:
    """Return the integers and booleans of a backend_config such as `{uplo = 76 : ui8, left = true}`."""
    text = str(instruction.attr("backend_config", ""))
    found = re.findall(r"(\w+)\s*[=:]\s*(-?\d+|true|false)\b", text)
    return {name: int(value == "true") if value in ("true", "false") else int(value) for name, value in found}


_GPU_LIBRARIES = {
    "__cublas$": "cuBLAS", "__cudnn$": "cuDNN", "__cub$": "CUB", "cusolver_": "cuSOLVER", "hipblas": "hipBLAS",
    "hipsolver_": "hipSOLVER", "miopen": "MIOpen", "te_": "Transformer Engine", "__gpu$xla.gpu.triton": "Triton",
    "triton_kernel_call": "Triton",
}  # fmt: skip
"""Libraries and compilers for GPUs by the prefixes of their targets."""


def custom_call_refusal(instruction: HloInstruction) -> str | None:
    """Return why a custom call cannot be evaluated, or None if its target is registered."""
    target = str(instruction.attr("custom_call_target"))
    if target in CUSTOM_CALLS:
        return None
    where = f"{describe(instruction)}: unknown custom-call target {target!r}"
    register = (
        f"register an implementation with compiler.interpreter.register_custom_call({target!r}, function), where "
        "function(instruction, operands) returns the result"
    )
    library = next((name for prefix, name in _GPU_LIBRARIES.items() if target.startswith(prefix)), None)
    if library is not None:
        return f"{where}, a call of {library} for GPUs; take the HLO from before XLA's optimizations, or {register}"
    near = difflib.get_close_matches(target, CUSTOM_CALLS, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"{where}{hint}; {register}"


@evaluator(Opcode.CUSTOM_CALL)
def _custom_call(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    refusal = custom_call_refusal(instruction)
    if refusal is not None:
        raise UnsupportedError(refusal)
    return CUSTOM_CALLS[str(instruction.attr("custom_call_target"))](instruction, values)


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
    """Return no value; the call only orders other instructions."""
    return ()


register_custom_call("control_dep", _nothing)


def _top_k(instruction: HloInstruction, values: Sequence[Value]) -> Value:
    k = instruction.shape.tuple_shapes[0].dimensions[-1]
    return top_k(arrays(values)[0], instruction.operands[0].shape.element_type, k, largest=True)


THREEFRY_TARGETS = (
    "threefry2x32", "cu_threefry2x32", "cu_threefry2x32_ffi", "hip_threefry2x32", "hip_threefry2x32_ffi"
)  # fmt: skip
"""The names under which JAX calls its Threefry kernel, by platform."""


def _threefry(instruction: HloInstruction, values: Sequence[Value]) -> Value:
    key0, key1, x0, x1 = arrays(values)
    return threefry2x32(key0, key1, x0, x1)


register_custom_call("TopK", _top_k)
for _target in THREEFRY_TARGETS:
    register_custom_call(_target, _threefry)


def _allocate(instruction: HloInstruction, values: Sequence[Value]) -> Value:
    """Return zeros; programs must not rely on the contents."""
    return np.zeros(instruction.shape.dimensions, instruction.shape.dtype)


register_custom_call("AllocateBuffer", _allocate)


def _sparse_times_dense(instruction: HloInstruction, values: Sequence[Value]) -> Value:
    """Return the product of a matrix in compressed sparse rows and a dense matrix or vector."""
    elements, ends, columns, dense = arrays(values)
    count = ends[-1]  # the elements after it are padding
    products = elements[:count].reshape(-1, *[1] * (dense.ndim - 1)) * dense[columns[:count]]
    result = np.zeros(instruction.shape.dimensions, instruction.shape.dtype)
    np.add.at(result, np.repeat(np.arange(len(ends) - 1), np.diff(ends)), products)
    return result


register_custom_call("cpu_csr_sparse_dense_ffi", _sparse_times_dense)
