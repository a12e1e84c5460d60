"""Rules that express a slice of an op's result by slices of its operands, one function per opcode.

A rule returns the slice built from the operands, or None if that takes more work than the slice saves. The slices of
operands that it creates are plain slices, which are pushed further in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from compiler.ir import HloInstruction, Opcode
from compiler.ir.attributes import PadDim, SliceDim
from compiler.passes.infrastructure.builder import Builder

Spec: TypeAlias = tuple[SliceDim, ...]
Push: TypeAlias = Callable[[HloInstruction, Spec, Builder], HloInstruction | None]


def spec_sizes(spec: Spec) -> tuple[int, ...]:
    """Return the dimensions of a slice's result."""
    return tuple(d.size for d in spec)


def spec_elements(spec: Spec) -> int:
    """Return the number of elements of a slice's result."""
    return math.prod(spec_sizes(spec))


def push_slice(op: HloInstruction, spec: Spec, b: Builder) -> HloInstruction | None:
    """Return the slice `spec` of the result of `op`, built from its operands; None if no rule applies."""
    if op.opcode.is_elementwise or _same_width_bitcast(op):
        return _elementwise(op, spec, b)
    rule = PUSHES.get(op.opcode)
    return None if rule is None else rule(op, spec, b)


def is_computing(op: HloInstruction) -> bool:
    """Check whether the op does work per element, so that overlapping slices of it cost more than the whole."""
    return op.opcode in (Opcode.REDUCE, Opcode.REVERSE) or op.opcode.is_elementwise or _same_width_bitcast(op)


def _same_width_bitcast(op: HloInstruction) -> bool:
    return op.opcode is Opcode.BITCAST_CONVERT and op.shape.rank == op.operand(0).shape.rank


def _elementwise(op: HloInstruction, spec: Spec, b: Builder) -> HloInstruction:
    cut = {o: o if o.shape.rank == 0 else b.slice(o, spec) for o in dict.fromkeys(op.operands)}
    return b.with_operands(op, [cut[o] for o in op.operands], op.shape.with_dimensions(spec_sizes(spec)))


def _broadcast(op: HloInstruction, spec: Spec, b: Builder) -> HloInstruction:
    inner = b.slice(op.operand(0), [spec[d] for d in op.dimensions])
    return b.broadcast(inner, spec_sizes(spec), op.dimensions)


def _iota(op: HloInstruction, spec: Spec, b: Builder) -> HloInstruction | None:
    at: int = op.attributes["iota_dimension"]
    cut = spec[at]
    shape = op.shape.with_dimensions(spec_sizes(spec))
    if cut.size == 1:
        return b.splat(_as_type(cut.start, op), shape)
    if not op.shape.element_type.is_integer and (cut.start or cut.stride != 1):
        return None
    counts = b.add(Opcode.IOTA, shape=shape, iota_dimension=at)
    if cut.stride != 1:
        counts = b.add(Opcode.MULTIPLY, counts, b.splat(_as_type(cut.stride, op), shape))
    if cut.start:
        counts = b.add(Opcode.ADD, counts, b.splat(_as_type(cut.start, op), shape))
    return counts


def _as_type(value: int, op: HloInstruction) -> Any:
    return np.asarray(value).astype(op.shape.dtype)[()]


def _transpose(op: HloInstruction, spec: Spec, b: Builder) -> HloInstruction:
    inner: list[SliceDim] = [SliceDim(0, 0)] * len(spec)
    for position, d in enumerate(op.dimensions):
        inner[d] = spec[position]
    return b.transpose(b.slice(op.operand(0), inner), op.dimensions)


def _reshape(op: HloInstruction, spec: Spec, b: Builder) -> HloInstruction | None:
    source = op.operand(0)
    if op.shape.num_elements == 0 or spec_elements(spec) == 0:
        return None
    # Split both shapes into the finest blocks of dimensions of equal size, and push the slice through each block.
    inner: list[SliceDim] = []
    for out_dims, in_dims in _blocks(op.shape.dimensions, source.shape.dimensions):
        found = _reshape_block(
            [op.shape.dimensions[d] for d in out_dims],
            [spec[d] for d in out_dims],
            [source.shape.dimensions[d] for d in in_dims],
        )
        if found is None:
            return None
        inner.extend(found)
    return b.reshape(b.slice(source, inner), spec_sizes(spec))


def _blocks(left: Sequence[int], right: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the finest runs of dimensions on both sides with equal products of sizes."""
    found: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(left) or j < len(right):
        block: tuple[list[int], list[int]] = ([], [])
        a = b = 1
        if i < len(left):
            block[0].append(i)
            a, i = left[i], i + 1
        while a != b or not block[1]:
            if a > b or not block[1]:
                if j == len(right):
                    break
                block[1].append(j)
                b, j = b * right[j], j + 1
            else:
                block[0].append(i)
                a, i = a * left[i], i + 1
        if not block[1] and found:  # trailing dimensions of size 1
            found[-1][0].extend(block[0])
        else:
            found.append(block)
    return found


def _reshape_block(out: Sequence[int], cut: Sequence[SliceDim], source: Sequence[int]) -> list[SliceDim] | None:
    """Push a slice through one block: possible if it is complete, in one real dimension only, or contiguous."""
    if all(c == SliceDim(0, n) for c, n in zip(cut, out, strict=True)):
        return [SliceDim(0, n) for n in source]
    strided = _only_real_dimension(out, cut, source)
    if strided is not None:
        return strided
    run = _contiguous(out, cut)
    return None if run is None else _range_of(source, *run)


def _only_real_dimension(out: Sequence[int], cut: Sequence[SliceDim], source: Sequence[int]) -> list[SliceDim] | None:
    real = [c for c, n in zip(cut, out, strict=True) if n != 1]
    if len(real) != 1 or sum(n != 1 for n in source) != 1:
        return None
    return [real[0] if n != 1 else SliceDim(0, 1) for n in source]


def _contiguous(sizes: Sequence[int], cut: Sequence[SliceDim]) -> tuple[int, int] | None:
    """Return the row-major positions [first, last) of a slice if they are contiguous, else None."""
    first, last, inner, open_ended = 0, 0, 1, True
    # From the minor dimension outwards there may be complete dimensions, then one range, then single elements.
    for n, c in zip(reversed(sizes), reversed(cut), strict=True):
        full = c.start == 0 and c.limit == n and c.stride == 1
        if not open_ended and c.size != 1:
            return None
        if open_ended and not full:
            if c.stride != 1 and c.size != 1:
                return None
            open_ended = False
        first += c.start * inner
        last += (c.start + c.size - 1) * inner if c.size else 0
        inner *= n
    return first, last + 1


def _range_of(sizes: Sequence[int], first: int, last: int) -> list[SliceDim] | None:
    """Return the slice with the row-major positions [first, last), or None if there is none."""
    found: list[SliceDim] = []
    for position in range(len(sizes)):
        inner = math.prod(sizes[position + 1 :])
        row, end = first // inner, (last - 1) // inner
        if row == end:
            found.append(SliceDim(row, row + 1))
            first, last = first - row * inner, last - row * inner
            continue
        if first % inner or last % inner:
            return None
        found.append(SliceDim(row, end + 1))
        return found + [SliceDim(0, m) for m in sizes[position + 1 :]]
    return found


def _concatenate(op: HloInstruction, spec: Spec, b: Builder) -> HloInstruction | None:
    (at,) = op.dimensions
    cut, offset = spec[at], 0
    if cut.size == 0:
        return None
    last = cut.start + (cut.size - 1) * cut.stride
    parts: list[HloInstruction] = []
    for o in op.operands:
        end = offset + o.shape.dimensions[at]
        if cut.start >= offset and last < end:
            return b.slice(o, _with(spec, at, SliceDim(cut.start - offset, last + 1 - offset, cut.stride)))
        if cut.start <= offset and end <= cut.limit:
            parts.append(o)
        offset = end
    # Several operands only if each is used completely, so that no new slices replace the removed one.
    rest_whole = all(
        c == SliceDim(0, n) for d, (c, n) in enumerate(zip(spec, op.shape.dimensions, strict=True)) if d != at
    )
    covered = sum(p.shape.dimensions[at] for p in parts) == cut.size
    return b.concatenate(parts, at) if rest_whole and covered and cut.stride == 1 else None


def _with(spec: Spec, at: int, new: SliceDim) -> Spec:
    return (*spec[:at], new, *spec[at + 1 :])


def _pad(op: HloInstruction, spec: Spec, b: Builder) -> HloInstruction | None:
    padding: tuple[PadDim, ...] = op.attributes["padding"]
    source, value = op.operands
    inner: list[SliceDim] = []
    for c, p, n in zip(spec, padding, source.shape.dimensions, strict=True):
        end = p.low + n
        if not p.interior and (c.start >= end or c.start + (c.size - 1) * c.stride < p.low):
            return b.broadcast(value, spec_sizes(spec), ())
        inside = c.start >= p.low and c.limit <= end
        if p.interior or p.low < 0 or p.high < 0 or not inside:
            return None
        inner.append(SliceDim(c.start - p.low, c.limit - p.low, c.stride))
    return b.slice(source, inner)


def _slice(op: HloInstruction, spec: Spec, b: Builder) -> HloInstruction:
    outer: Spec = op.attributes["slice"]
    inner = []
    for o, c in zip(outer, spec, strict=True):
        start, stride = o.start + c.start * o.stride, o.stride * c.stride
        last = start + max(0, c.size - 1) * stride
        inner.append(SliceDim(start, last + 1 if c.size else start, stride if c.size > 1 else 1))
    return b.slice(op.operand(0), inner)


def _reverse(op: HloInstruction, spec: Spec, b: Builder) -> HloInstruction:
    inner = list(spec)
    for d in op.dimensions:
        n, c = op.shape.dimensions[d], spec[d]
        if c.size:
            last = c.start + (c.size - 1) * c.stride
            inner[d] = SliceDim(n - 1 - last, n - c.start, c.stride)
    return b.add(Opcode.REVERSE, b.slice(op.operand(0), inner), dimensions=op.dimensions)


def _reduce(op: HloInstruction, spec: Spec, b: Builder) -> HloInstruction | None:
    if len(op.operands) != 2:
        return None
    source, init = op.operands
    kept = iter(spec)
    inner = [SliceDim(0, n) if d in op.dimensions else next(kept) for d, n in enumerate(source.shape.dimensions)]
    return b.with_operands(op, [b.slice(source, inner), init], op.shape.with_dimensions(spec_sizes(spec)))


def _dynamic_update_slice(op: HloInstruction, spec: Spec, b: Builder) -> HloInstruction | None:
    base, update, *starts = op.operands
    if any(s.opcode is not Opcode.CONSTANT or not s.shape.is_scalar for s in starts):
        return None
    at = [
        min(max(0, int(s.value.value)), n - u)
        for s, n, u in zip(starts, base.shape.dimensions, update.shape.dimensions, strict=True)
    ]
    sizes = update.shape.dimensions
    if any(c.limit <= s or c.start >= s + u for c, s, u in zip(spec, at, sizes, strict=True)):
        return b.slice(base, spec)
    if all(s <= c.start and c.limit <= s + u for c, s, u in zip(spec, at, sizes, strict=True)):
        return b.slice(update, [SliceDim(c.start - s, c.limit - s, c.stride) for c, s in zip(spec, at, strict=True)])
    return None


PUSHES: dict[Opcode, Push] = {
    Opcode.BROADCAST: _broadcast,
    Opcode.IOTA: _iota,
    Opcode.TRANSPOSE: _transpose,
    Opcode.RESHAPE: _reshape,
    Opcode.CONCATENATE: _concatenate,
    Opcode.PAD: _pad,
    Opcode.SLICE: _slice,
    Opcode.REVERSE: _reverse,
    Opcode.REDUCE: _reduce,
    Opcode.DYNAMIC_UPDATE_SLICE: _dynamic_update_slice,
}
"""Rules of opcodes that are not elementwise."""
