"""Lowering of sort and topk; a sort of one array with what is computed before it and, element by element, after it.

A sort whose comparator has a key (`sort_keys`) sorts by it. In any other sort, the element numbers of each row are
sorted by the comparator. Then all operands are reordered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compiler.codegen.lowering.emit import Emitter
from compiler.codegen.lowering.outputs import forward_index, kernel_arguments
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Index, IndexExpr, Var
from compiler.codegen.nest.scalar_ops import is_supported_type, scalar_op_of
from compiler.codegen.nest.traversal import walk
from compiler.codegen.printing.print_order import check_sortable
from compiler.codegen.templates.sort_keys import SortKey, sort_key_of, sort_parts_of
from compiler.codegen.templates.sort_network import LANES, NetworkKey, ordered_bits, sort_elements, suits_network
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType as T

COMBINED_ROW = 256
"""Elements of a row from which on C sorts by a key of several values faster than by its comparator."""


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


def lower_top_k(fused: HloComputation, top: HloInstruction, combines: bool = False) -> lir.Kernel:
    """Return the kernel of a computation that selects the largest or smallest elements of a parameter.

    Args:
        fused: the computation.
        top: the topk.
        combines: as for `lower_sort`.

    Raises:
        UnsupportedError: the operand is not a parameter of a supported type.
    """
    (x,) = top.operands
    check_parameters(top)
    *batch, n = x.shape.dimensions
    k, t, e = top.attributes["k"], x.shape.element_type, Emitter(fused)
    if not combines and 0 not in batch and k > 0 and suits_network(n, 1, math.prod(batch), k, 3, 1):
        _select_by_network(e, top)
    elif 0 not in batch and k > 0:
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


def inner_sort_of(fused: HloComputation, roots: tuple[HloInstruction, ...]) -> HloInstruction | None:
    """Return the only sort of one array in a computation with one output, or None."""
    sorts = [i for i in fused.post_order() if i.opcode is Opcode.SORT and i.shape.is_array]
    return sorts[0] if len(sorts) == len(roots) == 1 else None


def lower_sort(
    fused: HloComputation, sort: HloInstruction, root: HloInstruction | None = None, combines: bool = False
) -> lir.Kernel:
    """Return the kernel of a computation that sorts; the sort is stable.

    Args:
        fused: the computation.
        sort: sorts parameters, or one array that is computed.
        root: the output, which is computed element by element from the sorted array; None: the sort itself.
        combines: whether a key of several values is used for rows of any length, as on a GPU.

    Raises:
        UnsupportedError: an operand is not of a supported type, the comparator cannot be emitted, or the output is not
            computed element by element.
    """
    operands = sort.operands
    if len(operands) > 1:
        check_parameters(sort)
    _check_types(sort)
    dims = operands[0].shape.dimensions
    outputs = [o.shape for o in operands] if root is None else [root.shape]
    axis = sort.attributes["dimensions"][0]
    e, n, stride = Emitter(fused), dims[axis], math.prod(dims[axis + 1 :])
    if 0 not in dims:
        row = _Row(e, sort, sort if root is None else root, axis)
        if not combines and _sort_by_network(row, n, stride):
            return finish(e, "sort", outputs)
        by_key = _sorted_by_key(row, n, stride, 1 if combines else COMBINED_ROW)
        if by_key is not None:
            e.add(by_key)
        else:
            _sort_by_comparator(row, n, stride)
    return finish(e, "sort", outputs)


def check_parameters(i: HloInstruction) -> None:
    """Raise UnsupportedError unless every operand is a parameter of a supported type."""
    for o in i.operands:
        if o.opcode is not Opcode.PARAMETER or not is_supported_type(o.shape.element_type):
            raise UnsupportedError(f"%{i.name}: %{o.name} is not a parameter of a supported type")


def _check_types(i: HloInstruction) -> None:
    for o in i.operands:
        if not is_supported_type(o.shape.element_type):
            raise UnsupportedError(f"%{i.name}: element type {o.shape.element_type.text} has no kernel")


def finish(e: Emitter, kind: str, outputs: Sequence[Shape]) -> lir.Kernel:
    """Return the kernel of what has been emitted, with array arguments for the parameters and the outputs."""
    return lir.Kernel(kind, kernel_arguments(e.fused.parameters, outputs), tuple(e.frames[0].stmts))


@dataclass(frozen=True)
class _Row:
    """Reads and writes the elements of the rows of a sort.

    Attributes:
        e: the emitter.
        sort: the sort.
        root: the output.
        axis: the dimension along which rows run.
    """

    e: Emitter
    sort: HloInstruction
    root: HloInstruction
    axis: int

    def load(self, operand: HloInstruction, outer: IndexExpr, inner: IndexExpr, v: IndexExpr) -> str:
        """Emit the element v of an operand in the row with these positions in the dimensions around the axis."""
        e = self.e
        if operand.opcode is Opcode.PARAMETER:
            return e.let(operand.shape.element_type, lir.Load(e.input_name(operand), self._offset(outer, inner, v)))
        return e.value(operand, self._index(outer, inner, v))

    def store(self, values: Sequence[str], outer: IndexExpr, inner: IndexExpr, v: IndexExpr) -> None:
        """Emit the output at position v of a row, given the elements of the operands that come there."""
        e, sort, root = self.e, self.sort, self.root
        if root is sort:
            for k, value in enumerate(values):
                e.add(lir.Store(f"o{k}", self._offset(outer, inner, v), value))
            return
        at = self._index(outer, inner, v)

        def element(index: Index) -> str:
            if index != at:
                raise UnsupportedError(f"%{sort.name}: its result is read at other places")
            return values[0]

        e.sources[sort] = element
        to = forward_index(sort, root, at)
        value = e.value(root, to)
        e.add(lir.Store("o0", ix.linearize(to, root.shape.dimensions), value))

    def _offset(self, outer: IndexExpr, inner: IndexExpr, v: IndexExpr) -> IndexExpr:
        dims = self.sort.operands[0].shape.dimensions
        stride = math.prod(dims[self.axis + 1 :])
        return outer * (dims[self.axis] * stride) + inner + v * stride

    def _index(self, outer: IndexExpr, inner: IndexExpr, v: IndexExpr) -> Index:
        dims, axis = self.sort.operands[0].shape.dimensions, self.axis
        return (*ix.delinearize(outer, dims[:axis]), v, *ix.delinearize(inner, dims[axis + 1 :]))


# ---- sorts by a key


def _sorted_by_key(rows_of: _Row, n: int, stride: int, least: int) -> lir.SortByKey | None:
    """Return the sort of all rows by the key of the comparator, or None if it has no key.

    A key of several values is for rows of at least so many elements.
    """
    e, sort = rows_of.e, rows_of.sort
    found = sort_key_of(sort.attributes["to_apply"])
    if found is None or (found.computation is not None and n < least):
        return None
    check_sortable(n)
    rows = math.prod(sort.operands[0].shape.dimensions) // n
    row, element, position = Var(e.fresh("r"), rows), Var(e.fresh("e"), n), Var(e.fresh("k"), n)
    around = ix.of(row).floordiv(stride), ix.of(row).mod(stride)
    with e.apart() as reading:
        key = _key(e, found.value, lambda number: rows_of.load(sort.operands[number // 2], *around, ix.of(element)), {})
    with e.apart() as moving:
        values = [rows_of.load(o, *around, ix.of(element)) for o in sort.operands]
        rows_of.store(values, *around, ix.of(position))
    t, read, body = found.value.shape.element_type, tuple(reading.stmts), tuple(moving.stmts)
    return lir.SortByKey(row, element, read, key, t, found.descending, position, body)


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


# ---- sorts of short rows by a network


def _sort_by_network(rows_of: _Row, n: int, stride: int) -> bool:
    """Emit a loop over rows whose elements are scalars that a network sorts; return False if none suits the rows."""
    e, operands = rows_of.e, rows_of.sort.operands
    parts = sort_parts_of(rows_of.sort.attributes["to_apply"])
    rows = math.prod(operands[0].shape.dimensions) // n
    if parts is None or not suits_network(n, stride, rows, n, len(operands) + len(parts), len(parts)):
        return False
    outer, inner = Var(e.fresh("i"), rows // stride), Var(e.fresh("i"), stride if stride >= LANES else 1)
    first, last = (ix.of(v) if v.extent != 1 else ix.const(0) for v in (outer, inner))
    with e.loops([outer, inner]):
        for inside in [last] if stride >= LANES else map(ix.const, range(stride)):
            types, keys = [o.shape.element_type for o in operands], list[NetworkKey]()
            elements = [[rows_of.load(o, first, inside, ix.const(k)) for o in operands] for k in range(n)]
            for part in parts:
                found = [_ordered_key(e, part, x) for x in elements]
                for x, (name, _) in zip(elements, found, strict=True):
                    x.append(name)
                keys.append(NetworkKey(len(types), found[0][1], part.descending))
                types.append(found[0][1])
            for k, values in enumerate(sort_elements(e, elements, types, keys, n)):
                rows_of.store(values[: len(operands)], first, inside, ix.const(k))
    # Of an array of which only some rows of a vector are loaded, gcc 12 loads wrong elements if they are not adjacent.
    stmts = e.frames[-1].stmts
    if stride < LANES and any(isinstance(s, lir.If) for s in walk(tuple(stmts[-1:]))):
        del stmts[-1]
        return False
    return True


def _ordered_key(e: Emitter, part: SortKey, values: Sequence[str]) -> tuple[str, T]:
    """Emit the key of an element with these values, as a type whose comparisons are in order; return that, too."""
    key = _key(e, part.value, lambda number: values[number // 2], {})
    return ordered_bits(e, key, part.value.shape.element_type)


def _select_by_network(e: Emitter, top: HloInstruction) -> None:
    """Emit a loop over rows whose elements are scalars, of which a network selects the largest or smallest."""
    (x,) = top.operands
    *batch, n = x.shape.dimensions
    k, t, row = top.attributes["k"], x.shape.element_type, Var(e.fresh("r"), math.prod(batch))
    with e.loops([row]):
        elements, types = list[list[str]](), [t, T.S32]
        for element in range(n):
            value = e.let(t, lir.Load(e.input_name(x), ix.of(row) * n + element))
            bits, key_type = ordered_bits(e, value, t)
            elements.append([value, e.constant(element, T.S32), bits])
        types.append(key_type)
        keys = [NetworkKey(2, key_type, top.attr("largest", True))]
        for at, (value, number, _) in enumerate(sort_elements(e, elements, types, keys, k)):
            e.add(lir.Store("o0", ix.of(row) * k + at, value))
            e.add(lir.Store("o1", ix.of(row) * k + at, number))


# ---- sorts by any comparator


def _sort_by_comparator(rows_of: _Row, n: int, stride: int) -> None:
    """Emit a loop over rows with a sort of each."""
    e, sort = rows_of.e, rows_of.sort
    rows = math.prod(sort.operands[0].shape.dimensions) // (n * stride)
    outer, inner = Var(e.fresh("i"), rows), Var(e.fresh("i"), stride)
    left, right, position = (Var(e.fresh(p), n) for p in "lrk")
    around = [ix.of(v) if v.extent != 1 else ix.const(0) for v in (outer, inner)]
    with e.loops([outer, inner]):
        e.add(_sorted_row(rows_of, around[0], around[1], left, right, position))


def _sorted_row(rows_of: _Row, outer: IndexExpr, inner: IndexExpr, left: Var, right: Var, position: Var) -> lir.Sort:
    """Return the sort of one row."""
    e, sort = rows_of.e, rows_of.sort
    with e.guard() as comparing:
        # For stability, a later element precedes an earlier one only if the comparator says so.
        elements = [rows_of.load(o, outer, inner, ix.of(v)) for o in sort.operands for v in (right, left)]
        (before,) = e.inline(sort.attributes["to_apply"], elements)
    with e.guard() as moving:
        values = [rows_of.load(o, outer, inner, ix.of(left)) for o in sort.operands]
        rows_of.store(values, outer, inner, ix.of(position))
    return lir.Sort(left, right, tuple(comparing.stmts), before, position, tuple(moving.stmts))
