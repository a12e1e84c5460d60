"""Products of few rows and columns with a long sum: parts of the sum are products of a batch, which are added up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.ir.attributes import SliceDim
from compiler.ir.types import PrimitiveType as T
from compiler.passes.dots.dot_properties import DotDims, is_uniform_dot, make_dot
from compiler.passes.dots.outlining import is_fused
from compiler.passes.infrastructure.base import InstructionPass, number_option
from compiler.passes.infrastructure.builder import Builder

_TYPES = frozenset({T.F32, T.F64})


@dataclass(frozen=True)
class DeepProducts(InstructionPass):
    """Rewrite f32[10,10] dot(f32[40000,10], f32[40000,10]) along rows -> f32[40,10,10] dot, sum of 40 results.

    Covariances and gradients of weights of a few features are such products. A library packs both matrices, which takes
    longer than the product; kernels of short products read them as they are, and threads share the batch.

    Attributes:
        depth: maximum number of rows of a part; longer products are divided.
        max_size: maximum number of rows and of columns of the result.
    """

    name: ClassVar[str] = "deep-products"
    opcodes: ClassVar[frozenset[Opcode] | None] = frozenset({Opcode.DOT})
    depth: int = number_option(1024, 1, 1 << 20)
    max_size: int = number_option(32, 1, 1 << 20)

    def visit(self, instruction: HloInstruction) -> bool:
        """Rewrite a dot; return whether anything changed."""
        i, computation = instruction, instruction.parent
        if computation is None or i.control_predecessors or not self._is_deep(i) or is_fused(computation):
            return False
        b, k = Builder(computation), i.operand(0).shape.dimensions[0]
        size = next((n for n in range(self.depth, self.depth // 4, -1) if k % n == 0), self.depth)
        whole = k - k % size
        result = self._summed(i, whole, size, b)
        if whole < k:
            rest = [b.slice(o, [SliceDim(whole, k), SliceDim(0, o.shape.dimensions[1])]) for o in i.operands]
            result = b.add(Opcode.ADD, result, b.with_operands(i, rest))
        computation.replace(i, result)
        return True

    def _is_deep(self, i: HloInstruction) -> bool:
        if not is_uniform_dot(i) or i.shape.element_type not in _TYPES:
            return False
        dims, shapes = DotDims.of(i), [o.shape.dimensions for o in i.operands]
        if (
            any(len(s) != 2 for s in shapes)
            or tuple(dims.lhs_contracting) != (0,)
            or tuple(dims.rhs_contracting) != (0,)
        ):
            return False
        return shapes[0][0] > 2 * self.depth and all(1 < s[1] <= self.max_size for s in shapes)

    @staticmethod
    def _summed(i: HloInstruction, whole: int, size: int, b: Builder) -> HloInstruction:
        """Return the sum of the products of parts of the first `whole` rows, `size` rows each."""
        parts = []
        for o in i.operands:
            columns = o.shape.dimensions[1]
            rows = b.slice(o, [SliceDim(0, whole), SliceDim(0, columns)])
            parts.append(b.reshape(rows, (whole // size, size, columns)))
        lhs, rhs = parts
        return b.sum(make_dot(b, i, lhs, rhs, DotDims((1,), (1,), (0,), (0,))), (0,))
