"""Sorts of long rows by CuPy, whose radix sorts are those of CUB.

A sort by a key becomes three steps: a kernel that computes the keys as integers in the order of the sort, a stable
sort of positions by these integers in the library, and a kernel that moves the elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from compiler.codegen.kernel_spec import KernelSpec, LoweredKernel, flops_of
from compiler.codegen.languages import find_language
from compiler.codegen.lowering.lower import lower, roots_of
from compiler.codegen.schedules.kernel_choice import BoundKernel
from compiler.codegen.schedules.thread_sorts import LONGEST_SORT
from compiler.codegen.templates.sort_keys import sort_key_of
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.literal import Literal
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape, tuple_shape
from compiler.ir.types import PrimitiveType as T
from compiler.runtime.buffers import Buffer
from compiler.runtime.implementations import KernelImplementation
from compiler.runtime.thunk_emitter import ThunkEmitter, leaves
from compiler.runtime.thunks import LibraryThunk
from compiler.text import parse

__all__ = ["ARGSORT", "cub_sort_of", "sort_refusal"]

ARGSORT = "argsort"
"""The operation of a thunk that sorts positions by integer keys."""
_SIGNED = {1: T.S8, 2: T.S16, 4: T.S32, 8: T.S64}
_FLOATS = frozenset({T.F16, T.BF16, T.F32, T.F64})
_INTEGERS = frozenset({T.S8, T.S16, T.S32, T.S64, T.U8, T.U16, T.U32, T.U64})


def sort_refusal(i: HloInstruction) -> str | None:
    """Return why the library cannot sort, or None if it can."""
    if i.opcode is not Opcode.SORT:
        return f"CUB sorts no {i.opcode.text}"
    dims = i.operands[0].shape.dimensions
    if not dims or 0 in dims or i.attributes["dimensions"][0] != len(dims) - 1:
        return f"%{i.name} does not sort rows"
    key = sort_key_of(i.attributes["to_apply"])
    if key is None:
        return f"the comparator of %{i.name} has no key"
    if key.value.shape.element_type not in _FLOATS | _INTEGERS:
        return f"CUB sorts no keys of {key.value.shape.element_type.text}"
    return None


def cub_sort_of(backend: str) -> KernelImplementation:
    """Return the implementation of sorts by CuPy on the backend with this name."""

    def refusal(i: HloInstruction, name: str) -> str | None:
        return sort_refusal(i) if name == backend else f"CuPy is a library of the backend {backend!r}"

    def prefers(i: HloInstruction, name: str) -> bool:
        return name == backend and sort_refusal(i) is None and i.operands[0].shape.dimensions[-1] > LONGEST_SORT

    return KernelImplementation("cub-sort", refusal, _emit, prefers=prefers)


def _emit(
    emitter: ThunkEmitter, i: HloInstruction, operands: list[Any], thunks: list[Any], runs: float, bound: BoundKernel
) -> Any:
    del bound
    dims = i.operands[0].shape.dimensions
    keys = _kernel(emitter, i.name, _keys(i))
    key_buffers = tuple(leaves(emitter.launch(keys, keys.outputs[0], list(operands), thunks, runs)))
    order = Buffer(Shape(T.S64, dims))
    thunks.append(LibraryThunk(i.name, {"name": ARGSORT}, key_buffers, order, None, 0, executions=runs))
    shapes = [_moved_as(o.shape) for o in i.operands]
    moved = _kernel(emitter, i.name, _moves(shapes))
    out = emitter.launch(moved, tuple_shape(*shapes), [*operands, order], thunks, runs)
    values = [_seen_as(b, o.shape) for b, o in zip(leaves(out), i.operands, strict=True)]
    return values[0] if len(values) == 1 else tuple(values)


def _moved_as(shape: Shape) -> Shape:
    """Return the shape as which elements are moved: halves as integers, so that the signs of NaN stay."""
    t = shape.element_type
    return Shape(T.S16 if t.is_half else t, shape.dimensions)


def _seen_as(b: Buffer, shape: Shape) -> Buffer:
    """Return an alias of a buffer with the type of its elements."""
    alias = Buffer(shape.without_layout(), b.kind, b.index)
    alias.forward = b
    return alias


def _kernel(emitter: ThunkEmitter, name: str, fused: HloComputation) -> KernelSpec:
    outputs = tuple(r.shape for r in roots_of(fused))
    language = find_language(emitter.language)
    nest = lower(fused, None, language.tiles)
    lowered = LoweredKernel(name, fused, nest, language.name, fused.parameter_shapes, outputs, flops_of(fused))
    return lowered.bind(emitter.default_schedule)


def _keys(i: HloInstruction) -> HloComputation:
    """Return a computation of all keys of a sort: integers whose ascending order is that of the sort."""
    found = sort_key_of(i.attributes["to_apply"])
    assert found is not None  # noqa: S101 - checked by `sort_refusal`
    dims = i.operands[0].shape.dimensions
    c = HloComputation("keys")
    parameters = [c.add_parameter(k, o.shape.without_layout()) for k, o in enumerate(i.operands)]
    made: dict[HloInstruction, HloInstruction] = {}

    def whole(x: HloInstruction) -> HloInstruction:
        """Return the scalar of the comparator for all elements."""
        if x not in made:
            if x.opcode is Opcode.PARAMETER:
                made[x] = parameters[(x.parameter_number or 0) // 2]
            elif x.opcode is Opcode.CONSTANT:
                made[x] = _everywhere(c, x.value, dims)
            else:
                shape = Shape(x.shape.element_type, dims)
                made[x] = c.add(x.opcode, [whole(o) for o in x.operands], shape, attributes=x.attributes)
        return made[x]

    key = whole(found.value)
    if key.shape.element_type in _FLOATS:
        key = _ordered_bits(c, key)
    c.root = c.add(Opcode.NOT, [key]) if found.descending else key
    return c


def _ordered_bits(c: HloComputation, x: HloInstruction) -> HloInstruction:
    """Return the bits of floats as signed integers in the total order: the other bits of negative ones are inverted."""
    t, dims = _SIGNED[x.shape.element_type.byte_size], x.shape.dimensions
    most = (1 << (8 * t.byte_size - 1)) - 1
    bits = c.add(Opcode.BITCAST_CONVERT, [x], Shape(t, dims))
    sign = c.add(
        Opcode.SHIFT_RIGHT_ARITHMETIC,
        [bits, _everywhere(c, Literal.from_array(t.dtype.type(8 * t.byte_size - 1)), dims)],
    )
    mask = c.add(Opcode.AND, [sign, _everywhere(c, Literal.from_array(t.dtype.type(most)), dims)])
    return c.add(Opcode.XOR, [bits, mask])


def _everywhere(c: HloComputation, value: Literal, dims: tuple[int, ...]) -> HloInstruction:
    scalar = c.add_constant(value)
    return c.add(Opcode.BROADCAST, [scalar], Shape(scalar.shape.element_type, dims), dimensions=())


def _moves(shapes: Sequence[Shape]) -> HloComputation:
    """Return a computation that moves the elements of rows to the order of positions, its last parameter."""
    dims = shapes[0].dimensions
    total, n = math.prod(dims), dims[-1]
    rows = total // n
    lines = [f"order = s64[{_text(dims)}] parameter({len(shapes)})"]
    lines += [
        f"flat = s64[{rows},{n}] reshape(order)", f"row = s64[{rows},{n}] iota(), iota_dimension=0",
        f"n = s64[] constant({n})", f"ns = s64[{rows},{n}] broadcast(n), dimensions={{}}",
        f"start = s64[{rows},{n}] multiply(row, ns)", f"from = s64[{rows},{n}] add(start, flat)",
        f"index = s64[{total},1] reshape(from)",
    ]  # fmt: skip
    for k, s in enumerate(shapes):
        t = s.element_type.text
        lines += [
            f"p{k} = {t}[{_text(dims)}] parameter({k})",
            f"f{k} = {t}[{total}] reshape(p{k})",
            f"g{k} = {t}[{total}] gather(f{k}, index), offset_dims={{}}, collapsed_slice_dims={{0}}, "
            f"start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1}}",
            f"r{k} = {t}[{_text(dims)}] reshape(g{k})",
        ]
    all_of = ", ".join(f"{s.element_type.text}[{_text(dims)}]" for s in shapes)
    if len(shapes) == 1:
        lines[-1] = f"ROOT {lines[-1]}"
    else:
        lines.append(f"ROOT t = ({all_of}) tuple({', '.join(f'r{k}' for k in range(len(shapes)))})")
    body = "\n  ".join(lines)
    return parse(f"HloModule moves\nENTRY moves {{\n  {body}\n}}\n").entry


def _text(dims: Sequence[int]) -> str:
    return ",".join(map(str, dims))
