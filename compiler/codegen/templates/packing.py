"""Operands of products as they can be read: in place, or from a block of them that is computed into a local array."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.codegen.lowering.emission import Frame
from compiler.codegen.lowering.emit import Emitter
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Index, IndexExpr, IndexSymbol, Var
from compiler.codegen.nest.loop_ir import LoopKind
from compiler.codegen.nest.traversal import map_indices
from compiler.ir.instruction import HloInstruction
from compiler.ir.types import PrimitiveType as T

__all__ = ["Operand", "divided_variables", "operand_in_place", "pack", "pack_transposed", "placed", "rest_of"]


@dataclass(frozen=True)
class Operand:
    """A matrix operand as it can be read: in place, or after a block of it has been computed into a local array.

    Attributes:
        buffer: the array argument that holds it, or None if it must be packed.
        offset: of the element at the given index, for an operand that is read in place.
    """

    buffer: str | None
    offset: IndexExpr


def divided_variables(indices: Iterable[IndexExpr]) -> set[Var | ix.Runtime]:
    """Return the variables of which index expressions have quotients or remainders."""
    return ix.variables_of(IndexExpr(((s, 1),)) for i in indices for s, _ in i.terms if not isinstance(s, Var))


def operand_in_place(e: Emitter, operand: HloInstruction, index: Index, t: T, variables: Sequence[Var]) -> Operand:
    """Return how to read an operand whose element at `index` depends on some loop variables."""
    with e.guard() as scratch:
        e.value(operand, index)
    lets = [s for s in scratch.stmts if isinstance(s, lir.Let)]
    if len(lets) == len(scratch.stmts) == 1 and isinstance(lets[0].value, lir.Load) and lets[0].type is t:
        load = lets[0].value
        if divided_variables([load.offset]).isdisjoint(variables):
            return Operand(load.buffer, load.offset)
    return Operand(None, ix.const(0))


def pack_transposed(e: Emitter, array: str, found: Operand, k: Var, column: Var, span: lir.Span, pitch: int) -> bool:
    """Emit the transposition of a block of an operand in registers; return False if the block is not a transpose.

    Args:
        e: the emitter.
        array: the local array, of depth x pitch elements.
        found: the operand, read at the index of the block.
        k: the position along the depth, along which the elements of the operand are adjacent.
        column: the position in the block.
        span: the number of columns.
        pitch: distance of the rows in the array.
    """
    if found.buffer is None:
        return False
    stride = found.offset.coefficient(column)
    origin = found.offset.substitute({k: ix.const(0), column: ix.const(0)})
    if stride <= 1 or found.offset != origin + ix.of(k) + ix.of(column) * stride:
        return False
    e.add(lir.TransposeTile(array, found.buffer, origin, stride, pitch, columns=rest_of(span), height=k.extent))
    return True


def placed(body: Sequence[lir.Stmt], mapping: Mapping[IndexSymbol, IndexExpr]) -> lir.Body:
    """Return statements with the variables of a whole array replaced by positions in a block.

    Code is emitted for the variables of the array first: the range of a position exceeds the array in the last block,
    so that quotients and remainders by its size would remain.
    """
    return map_indices(tuple(body), lambda x: x.substitute(mapping))


def pack(
    e: Emitter,
    array: str,
    loops: Sequence[lir.For],
    operand: HloInstruction,
    index: Index,
    to: IndexExpr,
    mapping: Mapping[IndexSymbol, IndexExpr],
    steps: Sequence[Var] = (),
    along: Var | None = None,
) -> None:
    """Emit loops, of which the last is the innermost, that compute elements of an operand into a local array.

    Args:
        e: the emitter.
        array: the local array.
        loops: the loops, without bodies.
        operand: the operand.
        index: of an element.
        to: where it is stored.
        mapping: the positions in the block that the variables in `index` stand for.
        steps: variables with a loop each around the last of `loops`.
        along: the variable of `index` that the last of `loops` stands for, so that what does not depend on it is
            computed outside of that loop; None: nothing is.
    """
    *outer, last = loops
    with e.guard() as body, e.loops(steps, LoopKind.SERIAL):
        inner = Frame(() if along is None else (along,), is_guard=along is None)
        e.frames.append(inner)
        name = e.value(operand, index)
        e.add(lir.LocalStore(array, to, name))
        e.frames.pop()
        e.add(replace(last, body=tuple(inner.stmts)))
    nest = placed(body.stmts, mapping)
    for loop in reversed(outer):
        nest = (lir.For(loop.var, loop.kind, nest, base=loop.base, limit=loop.limit),)
    e.frames[-1].stmts += nest


def rest_of(span: lir.Span) -> IndexExpr:
    """Return the number of positions of a block that the array has; it may exceed the extent of the block."""
    return ix.const(span.extent) if span.base is None else ix.const(span.limit) - span.base
