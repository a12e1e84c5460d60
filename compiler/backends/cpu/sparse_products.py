"""Products of matrices in compressed sparse rows and dense ones as kernels, as JAX calls them on a CPU."""

from __future__ import annotations

import math

from compiler.backends.cpu.matrix_kernels import by_kernels, matrix_kernel
from compiler.codegen.kernel_spec import KernelSpec
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T
from compiler.runtime.implementations import KernelImplementation

_TARGET = "cpu_csr_sparse_dense_ffi"
_TYPES = {T.F32: "float", T.F64: "double", T.S32: "int32_t", T.S64: "int64_t"}
# Elements after the end of the last row are padding; indices that are out of range count as such.
_PRODUCT = """\
  const number *const elements = (const number *)arguments[0], *const dense = (const number *)arguments[3];
  const int32_t *const ends = (const int32_t *)arguments[1], *const columns = (const int32_t *)arguments[2];
  number *const result = (number *)arguments[4];
  for (int64_t row = 0; row < ROWS; row++) {
    number *const sums = result + row * WIDTH;
    for (int64_t j = 0; j < WIDTH; j++) sums[j] = 0;
    for (int64_t k = ends[row] > 0 ? ends[row] : 0; k < ends[row + 1] && k < COUNT; k++) {
      const uint32_t from = (uint32_t)columns[k];
      const number factor = elements[k];
      if (from >= DEPTH) continue;
      #pragma omp simd
      for (int64_t j = 0; j < WIDTH; j++) sums[j] += factor * dense[from * (int64_t)WIDTH + j];
    }
  }
"""


def sparse_products_of(backend: str) -> KernelImplementation:
    """Return the implementation for one backend, given its name."""
    why = "it is no product with a matrix in compressed sparse rows"
    return by_kernels("sparse-product", backend, _kernel, _is_product, why)


def _is_product(i: HloInstruction) -> bool:
    if i.opcode is not Opcode.CUSTOM_CALL or i.attr("custom_call_target") != _TARGET or not i.shape.is_array:
        return False
    if any(o.shape.is_dynamic or o.shape.num_elements == 0 for o in (i, *i.operands)):
        return False
    types = [o.shape.element_type for o in i.operands]
    t = i.shape.element_type
    return t in _TYPES and types == [t, T.S32, T.S32, t]


def _kernel(i: HloInstruction) -> KernelSpec:
    depth, *rest = i.operand(3).shape.dimensions
    count, width = i.operand(0).shape.num_elements, math.prod(rest)
    macros: dict[str, str | int] = {
        "number": _TYPES[i.shape.element_type], "ROWS": i.shape.dimensions[0], "WIDTH": width, "DEPTH": depth,
        "COUNT": count,
    }  # fmt: skip
    return matrix_kernel(i, "sparse-product", _PRODUCT, macros, 2 * count * width, 1, None, 1)
