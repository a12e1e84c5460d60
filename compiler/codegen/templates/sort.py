"""Lowering of sort and topk.

A sort whose comparator compares one function of its left and its right elements, as in `key(a) < key(b)`, sorts by that
key. In any other sort, the element numbers of each row are sorted by the comparator. Then all operands are reordered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from compiler.codegen.lowering.emit import Emitter
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.scalar_ops import is_supported_type, scalar_op_of
from compiler.codegen.printing.print_order import check_sortable
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode, Trait
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType as T


def sort_of(roots: tuple[HloInstruction, ...]) -> HloInstruction | None:
    """Return the sort whose results, in order, are these outputs, or None if they are anything else."""
    if len(roots) == 1 and roots[0].opcode is Opcode.SORT:
        return roots[0]
    whole = tuple_of(roots, Opcode.SORT)
    return whole if whole is not None and len(roots) == len(whole.operands) else None


def top_k_of(roots: tuple[HloInstruction, ...]) -> HloInstruction | None:
    """Return the topk whose values and indices, in order, are these outputs, or None if they are anything else."""
    whole = tuple_of(roots, Opcode.TOPK)
    return whole if len(roots) == 2 else None


def tuple_of(roots: tuple[HloInstruction, ...], opcode: Opcode) -> HloInstruction | None:
    """Return the instruction of an opcode whose first results, in order, are these outputs, or None."""
    if any(r.opcode is not Opcode.GET_TUPLE_ELEMENT or r.operands[0].opcode is not opcode for r in roots):
        return None
    whole = roots[0].operands[0]
    in_order = [(r.operands[0], r.attributes["index"]) for r in roots] == [(whole, n) for n in range(len(roots))]
    return whole if in_order else None


def lower_top_k(fused: HloComputation, top: HloInstruction) -> lir.Kernel:
    """Return the kernel of a computation that selects the largest or smallest elements of a parameter.

    Raises:
        UnsupportedError: the operand is not a parameter of a supported type.
    """
    (x,) = top.operands
    check_parameters(top)
    *batch, n = x.shape.dimensions
    k, t, e = top.attributes["k"], x.shape.element_type, Emitter(fused)
    if 0 not in batch and k > 0:
        check_sortable(n)
        row, element, position = Var(e.fresh("r"), math.prod(batch)), Var(e.fresh("e"), n), Var(e.fresh("k"), k)
        source = ix.of(row) * n + ix.of(element)
        with e.guard() as reading:
            key = e.let(t, lir.Load(e.input_name(x), source))
        with e.guard() as writing:
            value = e.let(t, lir.Load(e.input_name(x), source))
            number = e.let(T.S32, lir.IndexValue(ix.of(element)))
            for out, name in (("o0", value), ("o1", number)):
                e.add(lir.Store(out, ix.of(row) * k + ix.of(position), name))
        read, body, descending = tuple(reading.stmts), tuple(writing.stmts), top.attr("largest", True)
        e.add(lir.SortByKey(row, element, read, key, t, descending, position, body))
    return finish(e, "top-k", top.shape.tuple_shapes)


def lower_sort(fused: HloComputation, sort: HloInstruction) -> lir.Kernel:
    """Return the kernel of a computation that sorts its parameters; the sort is stable.

    Raises:
        UnsupportedError: an operand is not a parameter of a supported type, or the comparator cannot be emitted.
    """
    operands = sort.operands
    check_parameters(sort)
    dims = operands[0].shape.dimensions
    axis = sort.attributes["dimensions"][0]
    e, n, stride = Emitter(fused), dims[axis], math.prod(dims[axis + 1 :])
    if 0 not in dims:
        by_key = _sorted_by_key(e, sort, n, stride)
        if by_key is not None:
            e.add(by_key)
        else:
            _sort_by_comparator(e, sort, n, stride)
    return finish(e, "sort", [o.shape for o in operands])


def check_parameters(i: HloInstruction) -> None:
    """Raise UnsupportedError unless every operand is a parameter of a supported type."""
    for o in i.operands:
        if o.opcode is not Opcode.PARAMETER or not is_supported_type(o.shape.element_type):
            raise UnsupportedError(f"%{i.name}: %{o.name} is not a parameter of a supported type")


def finish(e: Emitter, kind: str, outputs: Sequence[Shape]) -> lir.Kernel:
    """Return the kernel of what has been emitted, with array arguments for the parameters and the outputs."""
    arguments = [
        lir.Argument(f"p{k}", p.shape.element_type, p.shape.num_elements, False)
        for k, p in enumerate(e.fused.parameters)
    ]
    arguments += [lir.Argument(f"o{k}", s.element_type, s.num_elements, True) for k, s in enumerate(outputs)]
    return lir.Kernel(kind, tuple(arguments), tuple(e.frames[0].stmts))


# ---- sorts by a key


def _sorted_by_key(e: Emitter, sort: HloInstruction, n: int, stride: int) -> lir.SortByKey | None:
    """Return the sort of all rows by the key that the comparator compares, or None if it compares anything else."""
    root = sort.attributes["to_apply"].root
    if root.opcode is not Opcode.COMPARE or root.attributes["direction"] not in ("LT", "GT"):
        return None
    left, right = root.operands
    t, descending = left.shape.element_type, root.attributes["direction"] == "GT"
    if _is_mirrored(right, left):
        left, right, descending = right, left, not descending
    elif not _is_mirrored(left, right):
        return None
    # NaN is unordered in other comparisons of floats, so that they have no key.
    if not is_supported_type(t) or (t.is_float and root.attr("type") != "TOTALORDER"):
        return None
    check_sortable(n)
    rows = math.prod(sort.operands[0].shape.dimensions) // n
    row, element, position = Var(e.fresh("r"), rows), Var(e.fresh("e"), n), Var(e.fresh("k"), n)
    base = ix.of(row).floordiv(stride) * (n * stride) + ix.of(row).mod(stride)

    def load(operand: HloInstruction) -> str:
        at = base + ix.of(element) * stride
        return e.let(operand.shape.element_type, lir.Load(e.input_name(operand), at))

    with e.guard() as reading:
        key = _key(e, left, lambda number: load(sort.operands[number // 2]), {})
    with e.guard() as moving:
        values = [load(o) for o in sort.operands]
        for k, value in enumerate(values):
            e.add(lir.Store(f"o{k}", base + ix.of(position) * stride, value))
    return lir.SortByKey(row, element, tuple(reading.stmts), key, t, descending, position, tuple(moving.stmts))


def _key(e: Emitter, i: HloInstruction, load: Callable[[int], str], names: dict[HloInstruction, str]) -> str:
    """Emit the scalars that an instruction of a comparator depends on; `load` emits a parameter."""
    if i not in names:
        if i.opcode is Opcode.PARAMETER:
            names[i] = load(i.parameter_number or 0)
        elif i.opcode is Opcode.CONSTANT:
            names[i] = e.constant(i.value.value.flat[0], i.shape.element_type)
        else:
            arguments = [_key(e, o, load, names) for o in i.operands]
            names[i] = e.apply(scalar_op_of(i), *arguments)
    return names[i]


def _is_mirrored(left: HloInstruction, right: HloInstruction) -> bool:
    """Check whether `right` is `left` with each parameter 2k replaced by 2k + 1, and `left` has only such ones."""
    if left.opcode is not right.opcode or left.shape != right.shape:
        return False
    if left.opcode is Opcode.PARAMETER:
        first, second = left.parameter_number or 0, right.parameter_number or 0
        return first % 2 == 0 and second == first + 1
    if left.opcode is Opcode.CONSTANT:
        return left.value.same_value(right.value)
    if not left.opcode.has(Trait.ELEMENTWISE) or left.attributes != right.attributes:
        return False
    return all(_is_mirrored(a, b) for a, b in zip(left.operands, right.operands, strict=True))


# ---- sorts by any comparator


def _sort_by_comparator(e: Emitter, sort: HloInstruction, n: int, stride: int) -> None:
    """Emit a loop over rows with a sort of each."""
    rows = math.prod(sort.operands[0].shape.dimensions) // (n * stride)
    outer, inner = Var(e.fresh("i"), rows), Var(e.fresh("i"), stride)
    left, right, position = (Var(e.fresh(p), n) for p in "lrk")
    base = ix.of(outer) * (n * stride) + ix.of(inner)
    if outer.extent == 1:
        base = ix.of(inner) if inner.extent != 1 else ix.const(0)
    elif inner.extent == 1:
        base = ix.of(outer) * (n * stride)
    with e.loops([outer, inner]):
        e.add(_sorted_row(e, sort, base, stride, left, right, position))


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
