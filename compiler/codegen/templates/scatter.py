"""Lowering of scatter: updates are combined into the operand in place, and those out of bounds are dropped.

The semantics are those of Scatter in XLA's operation semantics, which `interpreter.gather_scatter` implements.
"""

from __future__ import annotations

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


def lower_scatter(fused: HloComputation, scatter: HloInstruction) -> lir.Kernel:
    """Return the kernel of a computation whose root is a scatter.

    A parameter that nothing else reads is updated in place. Any other operand is first computed into the output.

    Raises:
        UnsupportedError: the scatter has several operands, or its combiner is not one associative op.
    """
    refusal = scatter_refusal(scatter)
    if refusal is not None:
        raise UnsupportedError(refusal)
    operand, indices, updates = scatter.operands
    alone = len(operand.users) == 1 and scatter.operands.count(operand) == 1
    in_place = operand.opcode is Opcode.PARAMETER and alone
    combiner = _combiner(scatter)
    e = Emitter(fused)
    if not in_place:
        _fill(e, operand)
    window = tuple(sorted(scatter.attributes["update_window_dims"]))
    dims = updates.shape.dimensions
    if 0 not in dims:
        vars_ = [Var(e.fresh("i"), n) for n in dims]
        batch = [v for d, v in enumerate(vars_) if d not in window]
        inner = [v for d, v in enumerate(vars_) if d in window]
        with e.loops(batch, LoopKind.ATOMIC):
            starts, conditions = _starts(e, scatter, indices, [ix.of(v) for v in batch], dims)
            with e.guard() as guard, e.loops(inner, LoopKind.SERIAL):
                index = tuple(ix.of(v) for v in vars_)
                target = _target(scatter, index, starts, window)
                value = e.value(updates, index)
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


def _starts(
    e: Emitter, scatter: HloInstruction, indices: HloInstruction, batch: list[IndexExpr], update_dims: tuple[int, ...]
) -> tuple[dict[int, IndexExpr], list[str]]:
    """Emit the window's start in each operand dimension; return it and the conditions under which the window fits."""
    attr = scatter.attr
    dims = scatter.operands[0].shape.dimensions
    vector_dim = attr("index_vector_dim")
    batching, paired = attr("input_batching_dims", ()), attr("scatter_indices_batching_dims", ())
    absent = {*attr("inserted_window_dims"), *batching}
    kept = [d for d in range(len(dims)) if d not in absent]
    spans = dict(zip(kept, (update_dims[d] for d in sorted(attr("update_window_dims"))), strict=True))
    index_dims = [d for d in range(indices.shape.rank) if d != vector_dim]
    starts: dict[int, IndexExpr] = {d: batch[index_dims.index(p)] for d, p in zip(batching, paired, strict=True)}
    conditions = []
    for k, d in enumerate(attr("scatter_dims_to_operand_dims")):
        at: Index = tuple(batch)
        if vector_dim < indices.shape.rank:
            at = (*batch[:vector_dim], ix.const(k), *batch[vector_dim:])
        name = e.apply(conversion(indices.shape.element_type, T.S64), e.value(indices, at))
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
