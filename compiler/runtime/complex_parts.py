"""The implementation of the parts of c128: kernels of pairs of f64, which are the same memory.

A kernel holds no value of 16 bytes. Passes compute on the parts, so that c128 remains in arguments, results and what
libraries take.
"""

from __future__ import annotations

from typing import Any

from compiler.codegen.kernel_spec import make_kernel
from compiler.codegen.schedules.kernel_choice import BoundKernel
from compiler.ir.attributes import SliceDim
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType as T
from compiler.runtime.implementations import KernelImplementation, register_implementation

_PARTS = {Opcode.REAL: 0, Opcode.IMAG: 1}


def _is_part(i: HloInstruction, backend: str) -> bool:
    """Check for an op between c128 and its parts on a backend with kernels."""
    if backend not in ("cpu", "cuda") or i.opcode not in (*_PARTS, Opcode.COMPLEX):
        return False
    types = (i.shape.element_type, i.operand(0).shape.element_type)
    return T.C128 in types and not i.shape.is_dynamic and i.shape.num_elements > 0


def _refusal(i: HloInstruction, backend: str) -> str | None:
    return None if _is_part(i, backend) else f"%{i.name} has no part of a c128"


def _emit(
    emitter: Any, i: HloInstruction, operands: list[Any], thunks: list[Any], runs: float, bound: BoundKernel
) -> Any:
    dims = i.shape.dimensions
    alone = HloComputation("parts")
    if i.opcode is Opcode.COMPLEX:
        inputs = [emitter.as_shape(o, Shape(T.F64, (*dims, 1))) for o in operands]
        parts = [alone.add_parameter(n, b.shape) for n, b in enumerate(inputs)]
        made = alone.add(Opcode.CONCATENATE, parts, name=i.name, dimensions=(len(dims),))
        result = i.shape.without_layout()
    else:
        inputs = [emitter.as_shape(operands[0], Shape(T.F64, (*dims, 2)))]
        part = _PARTS[i.opcode]
        spec = (*(SliceDim(0, n) for n in dims), SliceDim(part, part + 1))
        made = alone.add(Opcode.SLICE, [alone.add_parameter(0, inputs[0].shape)], name=i.name, slice=spec)
        result = Shape(T.F64, dims)
    alone.root = made
    kernel = make_kernel(made, emitter.language, bound.schedule)
    return emitter.as_shape(emitter.launch(kernel, made.shape, inputs, thunks, runs), result)


COMPLEX_PARTS = register_implementation(KernelImplementation("parts", _refusal, _emit, prefers=_is_part))
