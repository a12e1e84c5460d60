"""Lowering of sort: the element numbers of each row are sorted by the comparator, then all operands are reordered."""

from __future__ import annotations

import math

from compiler.codegen import index as ix
from compiler.codegen import loop_ir as lir
from compiler.codegen.emit import Emitter
from compiler.codegen.index import IndexExpr, Var
from compiler.codegen.scalar_ops import is_supported_type
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode


def sort_of(roots: tuple[HloInstruction, ...]) -> HloInstruction | None:
    """Return the sort whose results, in order, are these outputs, or None if they are anything else."""
    if len(roots) == 1 and roots[0].opcode is Opcode.SORT:
        return roots[0]
    if any(r.opcode is not Opcode.GET_TUPLE_ELEMENT or r.operands[0].opcode is not Opcode.SORT for r in roots):
        return None
    whole = roots[0].operands[0]
    in_order = [(r.operands[0], r.attributes["index"]) for r in roots] == [(whole, n) for n in range(len(roots))]
    return whole if in_order and len(roots) == len(whole.operands) else None


def lower_sort(fused: HloComputation, sort: HloInstruction) -> lir.Kernel:
    """Return the kernel of a computation that sorts its parameters; the sort is stable.

    Raises:
        UnsupportedError: an operand is not a parameter of a supported type, or the comparator cannot be emitted.
    """
    operands = sort.operands
    for o in operands:
        if o.opcode is not Opcode.PARAMETER or not is_supported_type(o.shape.element_type):
            raise UnsupportedError(f"%{sort.name}: %{o.name} is not a parameter of a supported type")
    dims = operands[0].shape.dimensions
    axis = sort.attributes["dimensions"][0]
    e, n, stride = Emitter(fused), dims[axis], math.prod(dims[axis + 1 :])
    if 0 not in dims:
        outer, inner = Var(e.fresh("i"), math.prod(dims[:axis])), Var(e.fresh("i"), stride)
        left, right, position = (Var(e.fresh(p), n) for p in "lrk")
        base = ix.of(outer) * (n * stride) + ix.of(inner)
        if outer.extent == 1:
            base = ix.of(inner) if inner.extent != 1 else ix.const(0)
        elif inner.extent == 1:
            base = ix.of(outer) * (n * stride)
        with e.loops([outer, inner]):
            e.add(_sorted_row(e, sort, base, stride, left, right, position))
    arguments = [
        lir.Argument(f"p{k}", p.shape.element_type, p.shape.num_elements, False) for k, p in enumerate(fused.parameters)
    ]
    arguments += [
        lir.Argument(f"o{k}", o.shape.element_type, o.shape.num_elements, True) for k, o in enumerate(operands)
    ]
    return lir.Kernel("sort", tuple(arguments), tuple(e.frames[0].stmts))


def _sorted_row(
    e: Emitter, sort: HloInstruction, base: IndexExpr, stride: int, left: Var, right: Var, position: Var
) -> lir.Sort:
    """Return the sort of one row, whose element v is at offset `base + v * stride` in every operand."""

    def load(operand: HloInstruction, v: Var) -> str:
        return e.let(operand.shape.element_type, lir.Load(e.input_name(operand), base + ix.of(v) * stride))

    with e.guard() as comparing:
        # For stability, a later element precedes an earlier one only if the comparator says so.
        elements = [load(o, v) for o in sort.operands for v in (right, left)]
        (before,) = e.inline(sort.attributes["to_apply"], elements)
    with e.guard() as moving:
        values = [load(o, left) for o in sort.operands]
        for k, value in enumerate(values):
            e.add(lir.Store(f"o{k}", base + ix.of(position) * stride, value))
    return lir.Sort(left, right, tuple(comparing.stmts), before, position, tuple(moving.stmts))
