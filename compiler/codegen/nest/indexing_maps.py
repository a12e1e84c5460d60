"""Indexing maps of data movement: from an index into the result to the index of the operand element it reads."""

from __future__ import annotations

from compiler.codegen.nest import index as ix
from compiler.codegen.nest.index import Index
from compiler.errors import UnsupportedError
from compiler.ir.attributes import SliceDim
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode


def _reshape(i: HloInstruction, index: Index) -> Index:
    if 0 in i.shape.dimensions:
        return tuple(ix.const(0) for _ in i.operands[0].shape.dimensions)
    return ix.reshaped(index, i.shape.dimensions, i.operands[0].shape.dimensions)


def _bitcast(i: HloInstruction, index: Index) -> Index:
    a, b = i.operands[0].shape, i.shape
    if a.element_type is not b.element_type or a.layout is not None or b.layout is not None:
        raise UnsupportedError(f"%{i.name}: a bitcast that changes type or layout has no kernel")
    return _reshape(i, index)


def _broadcast(i: HloInstruction, index: Index) -> Index:
    return tuple(index[d] for d in i.dimensions)


def _transpose(i: HloInstruction, index: Index) -> Index:
    out = [ix.const(0)] * len(index)
    for k, d in enumerate(i.dimensions):
        out[d] = index[k]
    return tuple(out)


def _slice(i: HloInstruction, index: Index) -> Index:
    spec: tuple[SliceDim, ...] = i.attributes["slice"]
    return tuple(at * d.stride + d.start for at, d in zip(index, spec, strict=True))


def _reverse(i: HloInstruction, index: Index) -> Index:
    sizes = i.shape.dimensions
    return tuple(at * -1 + (sizes[k] - 1) if k in i.dimensions else at for k, at in enumerate(index))


INDEXING_MAPS = {
    Opcode.RESHAPE: _reshape,
    Opcode.BITCAST: _bitcast,
    Opcode.BROADCAST: _broadcast,
    Opcode.TRANSPOSE: _transpose,
    Opcode.SLICE: _slice,
    Opcode.REVERSE: _reverse,
}
"""The indexing maps of the unary ops that move elements by a rule known at compile time."""
