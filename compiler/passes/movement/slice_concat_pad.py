"""Slices, concatenates and pads: drops those without effect, and merges adjacent ones.

slice-movement moves slices through other ops; here they only meet each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode
from compiler.ir.attributes import PadDim, SliceDim
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import is_op, single_use, splat_value
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class SliceConcatPad(RewritePass):
    """Simplify complete slices, slices of slices, nested and adjacent concatenates, pads of pads, and splat padding."""

    name: ClassVar[str] = "slice-concat-pad"
    rules: ClassVar[RuleSet] = RULES


# ---- slice


@RULES.on(Opcode.SLICE)
def _slice(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x = i.operands[0]
    spec: tuple[SliceDim, ...] = i.attributes["slice"]
    if x.shape.dimensions == i.shape.dimensions:
        return x
    if is_op(x, Opcode.SLICE):
        inner: tuple[SliceDim, ...] = x.attributes["slice"]
        return b.slice(x.operands[0], [_compose(p, q) for p, q in zip(inner, spec, strict=True)])
    return None


def _compose(first: SliceDim, second: SliceDim) -> SliceDim:
    start = first.start + second.start * first.stride
    stride = first.stride * second.stride
    size = second.size
    return (
        SliceDim(start, start + (size - 1) * stride + 1, stride if size > 1 else 1) if size else SliceDim(start, start)
    )


# ---- concatenate


@RULES.on(Opcode.CONCATENATE)
def _concatenate(i: HloInstruction, b: Builder) -> HloInstruction | None:
    (dim,) = i.dimensions
    parts = [o for o in i.operands if o.shape.dimensions[dim] > 0]
    if not parts:
        return i.operands[0]
    if len(parts) == 1:
        return parts[0]
    flat: list[HloInstruction] = []
    for p in parts:
        flat.extend(p.operands if is_op(p, Opcode.CONCATENATE) and p.dimensions == (dim,) and single_use(p) else (p,))
    merged = _merge_slices(flat, dim, b)
    return None if len(merged) == len(i.operands) else b.concatenate(merged, dim)


def _merge_slices(parts: list[HloInstruction], dim: int, b: Builder) -> list[HloInstruction]:
    """Merge neighboring parts that are adjacent slices of the same array."""
    out: list[HloInstruction] = []
    for p in parts:
        joined = _join(out[-1], p, dim) if out else None
        if joined is None:
            out.append(p)
        else:
            out[-1] = b.slice(p.operands[0], joined)
    return out


def _join(x: HloInstruction, y: HloInstruction, dim: int) -> list[SliceDim] | None:
    if not (is_op(x, Opcode.SLICE) and is_op(y, Opcode.SLICE)) or x.operands[0] is not y.operands[0]:
        return None
    spec: list[SliceDim] = []
    for d, (p, q) in enumerate(zip(x.attributes["slice"], y.attributes["slice"], strict=True)):
        if d != dim:
            if p != q:
                return None
            spec.append(p)
            continue
        if p.stride != 1 or q.stride != 1 or p.limit != q.start:
            return None
        spec.append(SliceDim(p.start, q.limit))
    return spec


@RULES.on(Opcode.CONCATENATE)
def _concatenate_constants(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite one part among equal splats -> pad, and nothing but equal splats -> broadcast."""
    (dim,) = i.dimensions
    values = [splat_value(o) for o in i.operands]
    known = [v for v in values if v is not None]
    if not known or any(v.tobytes() != known[0].tobytes() for v in known):
        return None
    if len(known) == len(values):
        return b.splat(known[0], i.shape)
    if len(known) < len(values) - 1:
        return None
    at = values.index(None)
    low = sum(o.shape.dimensions[dim] for o in i.operands[:at])
    high = sum(o.shape.dimensions[dim] for o in i.operands[at + 1 :])
    spec = [PadDim(low, high) if d == dim else PadDim(0, 0) for d in range(i.shape.rank)]
    return b.pad(i.operands[at], b.scalar(known[0], i.shape.element_type), spec)


@RULES.on(Opcode.CONCATENATE)
def _concatenate_broadcasts(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite parts that broadcast one array along the concatenated dimension -> one broadcast."""
    (dim,) = i.dimensions
    first = i.operands[0]
    if not is_op(first, Opcode.BROADCAST) or dim in first.dimensions:
        return None
    for o in i.operands[1:]:
        if not is_op(o, Opcode.BROADCAST) or o.operands[0] is not first.operands[0] or o.dimensions != first.dimensions:
            return None
    return b.broadcast(first.operands[0], i.shape.dimensions, first.dimensions)


# ---- pad


@RULES.on(Opcode.PAD)
def _pad(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, value = i.operands
    spec: tuple[PadDim, ...] = i.attributes["padding"]
    if all(
        p.low == 0 and p.high == 0 and (p.interior == 0 or n <= 1)
        for p, n in zip(spec, x.shape.dimensions, strict=True)
    ):
        return x
    if x.shape.num_elements == 0:
        return b.broadcast(value, i.shape.dimensions, ())
    fill, inside = splat_value(value), splat_value(x)
    if fill is not None and inside is not None and fill.tobytes() == inside.tobytes():
        return b.broadcast(value, i.shape.dimensions, ())
    if all(p.low <= 0 and p.high <= 0 and p.interior == 0 for p in spec):
        return b.slice(x, [SliceDim(-p.low, n + p.high) for p, n in zip(spec, x.shape.dimensions, strict=True)])
    return None


@RULES.on(Opcode.PAD)
def _pad_of_pad(i: HloInstruction, b: Builder) -> HloInstruction | None:
    x, value = i.operands
    if not is_op(x, Opcode.PAD) or not single_use(x):
        return None
    fill, inner_fill = splat_value(value), splat_value(x.operands[1])
    same = value is x.operands[1] or (
        fill is not None and inner_fill is not None and fill.tobytes() == inner_fill.tobytes()
    )
    outer, inner = i.attributes["padding"], x.attributes["padding"]
    if not same or any(min(p.low, p.high) < 0 or p.interior for p in (*outer, *inner)):
        return None
    spec = [PadDim(p.low + q.low, p.high + q.high) for p, q in zip(inner, outer, strict=True)]
    return b.pad(x.operands[0], value, spec)
