"""Lowering of scatter: updates are combined into the operand in place, and those out of bounds are dropped.

The semantics are those of Scatter in XLA's operation semantics, which `interpreter.gather_scatter` implements.
"""

from __future__ import annotations

import math
from dataclasses import replace

from compiler.codegen.lowering.emit import Emitter
from compiler.codegen.lowering.outputs import kernel_arguments
from compiler.codegen.lowering.reductions import combiner_of
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Index, IndexExpr, Runtime, Var
from compiler.codegen.nest.loop_ir import LoopKind
from compiler.codegen.nest.scalar_ops import conversion, is_supported_type
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

MOST_HELD, HELD_PART = 4096, 4
"""Most updates that are held in local arrays, and the part of the elements of the operand that they are at most."""


def lower_scatter(fused: HloComputation, scatter: HloInstruction, can_hold: bool = False) -> lir.Kernel:
    """Return the kernel of a computation whose root is a scatter.

    A parameter that nothing else reads is updated in place. So is one that few updates are computed of, if these can be
    held in local arrays until the last is computed. Any other operand is first computed into the output.

    Args:
        fused: the computation.
        scatter: its root.
        can_hold: whether one thread at a time runs the kernel outside of its loops, so that there are local arrays.

    Raises:
        UnsupportedError: the scatter has several operands, or its combiner is not one associative op.
    """
    refusal = scatter_refusal(scatter)
    if refusal is not None:
        raise UnsupportedError(refusal)
    operand, _, updates = scatter.operands
    dims = updates.shape.dimensions
    is_alone = len(operand.users) == 1
    is_held = can_hold and not is_alone and math.prod(dims) <= min(MOST_HELD, operand.shape.num_elements // HELD_PART)
    in_place = operand.opcode is Opcode.PARAMETER and scatter.operands.count(operand) == 1 and (is_alone or is_held)
    combiner = _combiner(scatter)
    e = Emitter(fused)
    if not in_place:
        _fill(e, operand)
    window = tuple(sorted(scatter.attributes["update_window_dims"]))
    held = _Held(e, scatter, window) if in_place and is_held else None
    if 0 not in dims:
        vars_ = [Var(e.fresh("i"), n) for n in dims]
        batch = [v for d, v in enumerate(vars_) if d not in window]
        inner = [v for d, v in enumerate(vars_) if d in window]
        with e.loops(batch, LoopKind.ATOMIC):
            names = held.start_names(batch) if held is not None else _start_names(e, scatter, [ix.of(v) for v in batch])
            starts, conditions = _starts(e, scatter, names, [ix.of(v) for v in batch], dims)
            with e.guard() as guard, e.loops(inner, LoopKind.SERIAL):
                index = tuple(ix.of(v) for v in vars_)
                target = _target(scatter, index, starts, window)
                value = held.value(index) if held is not None else e.value(updates, index)
                offset = ix.linearize(target, operand.shape.dimensions)
                e.add(lir.Store("o0", offset, value) if combiner is None else lir.Update("o0", offset, combiner, value))
            e.add(lir.If(e.all_of(conditions), tuple(guard.stmts)))
        outermost = e.frames[-1].stmts[-1]
        if isinstance(outermost, lir.For):
            e.frames[-1].stmts[-1] = replace(outermost, owner=_owner(scatter, starts))
    must_alias = ((operand.parameter_number or 0, len(fused.parameters)),) if in_place else ()
    arguments = kernel_arguments(fused.parameters, [scatter.shape])
    return lir.Kernel("scatter", arguments, tuple(e.frames[0].stmts), must_alias=must_alias)


def _fill(e: Emitter, operand: HloInstruction) -> None:
    """Emit loops that compute every element of the operand into the output, before the updates."""
    dims = operand.shape.dimensions
    if 0 in dims:
        return
    vars_ = [Var(e.fresh("i"), n) for n in dims]
    with e.loops(vars_):
        at = tuple(ix.of(v) for v in vars_)
        value = e.value(operand, at)
        e.add(lir.Store("o0", ix.linearize(at, dims), value))


def scatter_refusal(scatter: HloInstruction) -> str | None:
    """Return why a scatter has no kernel, whatever its operand is, or None."""
    if len(scatter.operands) != 3:
        return f"%{scatter.name}: a scatter of several operands has no kernel"
    computation: HloComputation = scatter.attributes["to_apply"]
    if _replaces(computation):
        return None
    if combiner_of(computation) is None or not is_supported_type(scatter.shape.element_type):
        return f"%{scatter.name}: combining {scatter.shape.element_type.text} by %{computation.name} has no kernel"
    return None


def _replaces(computation: HloComputation) -> bool:
    return computation.root.opcode is Opcode.PARAMETER and computation.root.parameter_number == 1


def _combiner(scatter: HloInstruction) -> Opcode | None:
    """Return the combiner, or None if the update replaces the element."""
    computation: HloComputation = scatter.attributes["to_apply"]
    return None if _replaces(computation) else combiner_of(computation)


def _start_names(e: Emitter, scatter: HloInstruction, batch: list[IndexExpr]) -> list[str]:
    """Emit the numbers that the indices give for one window and return their names."""
    indices, names = scatter.operands[1], []
    vector_dim = scatter.attr("index_vector_dim")
    for k, _ in enumerate(scatter.attr("scatter_dims_to_operand_dims")):
        at: Index = tuple(batch)
        if vector_dim < indices.shape.rank:
            at = (*batch[:vector_dim], ix.const(k), *batch[vector_dim:])
        names.append(e.apply(conversion(indices.shape.element_type, T.S64), e.value(indices, at)))
    return names


class _Held:
    """Local arrays with the updates and the numbers of their windows, which are computed before the first update."""

    def __init__(self, e: Emitter, scatter: HloInstruction, window: tuple[int, ...]) -> None:
        self.e = e
        self.dims = scatter.operands[2].shape.dimensions
        self._kept = [n for d, n in enumerate(self.dims) if d not in window]
        self._type = scatter.shape.element_type
        self._updates = e.fresh("h")
        count = len(scatter.attr("scatter_dims_to_operand_dims"))
        self._starts = [e.fresh("h") for _ in range(count)]
        e.add(lir.LocalArray(self._updates, self._type, math.prod(self.dims)))
        for name in self._starts:
            e.add(lir.LocalArray(name, T.S64, math.prod(self._kept)))
        vars_ = [Var(e.fresh("i"), n) for n in self.dims]
        batch = [v for d, v in enumerate(vars_) if d not in window]
        with e.loops(batch):
            at = [ix.of(v) for v in batch]
            for array, name in zip(self._starts, _start_names(e, scatter, at), strict=True):
                e.add(lir.LocalStore(array, ix.linearize(at, self._kept), name))
            with e.loops([v for d, v in enumerate(vars_) if d in window]):
                index = tuple(ix.of(v) for v in vars_)
                value = e.value(scatter.operands[2], index)
                e.add(lir.LocalStore(self._updates, ix.linearize(index, self.dims), value))

    def start_names(self, batch: list[Var]) -> list[str]:
        """Emit loads of the numbers of a window and return their names."""
        at = ix.linearize([ix.of(v) for v in batch], self._kept)
        return [self.e.let(T.S64, lir.LocalLoad(array, at)) for array in self._starts]

    def value(self, index: Index) -> str:
        """Emit the load of an update and return its name."""
        return self.e.let(self._type, lir.LocalLoad(self._updates, ix.linearize(index, self.dims)))


def _starts(
    e: Emitter, scatter: HloInstruction, names: list[str], batch: list[IndexExpr], update_dims: tuple[int, ...]
) -> tuple[dict[int, IndexExpr], list[str]]:
    """Return the window's start in each operand dimension, and emit the conditions under which the window fits."""
    attr = scatter.attr
    dims, indices = scatter.operands[0].shape.dimensions, scatter.operands[1]
    batching, paired = attr("input_batching_dims", ()), attr("scatter_indices_batching_dims", ())
    absent = {*attr("inserted_window_dims"), *batching}
    kept = [d for d in range(len(dims)) if d not in absent]
    spans = dict(zip(kept, (update_dims[d] for d in sorted(attr("update_window_dims"))), strict=True))
    index_dims = [d for d in range(indices.shape.rank) if d != attr("index_vector_dim")]
    starts: dict[int, IndexExpr] = {d: batch[index_dims.index(p)] for d, p in zip(batching, paired, strict=True)}
    conditions = []
    for name, d in zip(names, attr("scatter_dims_to_operand_dims"), strict=True):
        high = dims[d] - spans.get(d, 1)
        start = ix.of(e.runtime(name, 0, max(0, high)))
        conditions.append(e.index_test(start, 0, high))
        starts[d] = start
    return starts, conditions


def _owner(scatter: HloInstruction, starts: dict[int, IndexExpr]) -> tuple[str, int] | None:
    """Return the start in the longest dimension in which windows have one element, and the dimension's size."""
    dims = scatter.operands[0].shape.dimensions
    absent = scatter.attr("inserted_window_dims")
    names = {d: v.name for d, start in starts.items() if d in absent for v in start.variables() if type(v) is Runtime}
    longest = max(names, key=lambda d: dims[d], default=None)
    return None if longest is None else (names[longest], dims[longest])


def _target(scatter: HloInstruction, index: Index, starts: dict[int, IndexExpr], window: tuple[int, ...]) -> Index:
    """Return the index of the operand element that an element of the updates is combined into."""
    absent = {*scatter.attr("inserted_window_dims"), *scatter.attr("input_batching_dims", ())}
    offsets = iter([index[d] for d in window])
    out = []
    for d in range(scatter.operands[0].shape.rank):
        within = ix.const(0) if d in absent else next(offsets)
        out.append(within + starts.get(d, ix.const(0)))
    return tuple(out)
