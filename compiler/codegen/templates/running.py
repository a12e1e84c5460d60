"""Lowering of cumulative reductions: a reduce-window in which the window of each element ends, or begins, at it."""

from __future__ import annotations

import math

from compiler.analysis.reducers import combines_in_any_order
from compiler.codegen.lowering.emit import Emitter
from compiler.codegen.lowering.reductions import combiner_of
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.templates.sort import check_parameters, finish, tuple_of
from compiler.errors import UnsupportedError
from compiler.ir.attributes import Window, WindowDim
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode


def running_of(roots: tuple[HloInstruction, ...]) -> HloInstruction | None:
    """Return the reduce-window whose results, in order, are these outputs, or None if they are anything else."""
    if len(roots) == 1 and roots[0].opcode is Opcode.REDUCE_WINDOW:
        return roots[0]
    whole = tuple_of(roots, Opcode.REDUCE_WINDOW)
    return whole if whole is not None and len(roots) == len(whole.operands) // 2 else None


def running_axis(i: HloInstruction) -> tuple[int, bool] | None:
    """Return the dimension of a cumulative reduction and whether it is in reverse; None for other windows."""
    dims = i.operands[0].shape.dimensions
    window: Window = i.attr("window", Window())
    moving = [d for d, w in enumerate(window.dims) if w != WindowDim(1)]
    if len(moving) != 1:
        return None
    (axis,) = moving
    n = dims[axis]
    forms = (WindowDim(n, pad_low=n - 1), WindowDim(n, pad_high=n - 1))
    return (axis, window.dims[axis] == forms[1]) if window.dims[axis] in forms else None


def lower_running(fused: HloComputation, i: HloInstruction) -> lir.Kernel:
    """Return the kernel of a computation that is a cumulative reduction of parameters.

    Raises:
        UnsupportedError: the windows are others, or an operand is not a parameter of a supported type.
    """
    found = running_axis(i)
    if found is None:
        raise UnsupportedError(f"%{i.name}: only cumulative windows have a kernel")
    axis, reverse = found
    check_parameters(i)
    count = len(i.operands) // 2
    combiner = combiner_of(i.attributes["to_apply"]) if count == 1 else None
    if reverse and combiner is None and not (count == 1 and combines_in_any_order(i.attributes["to_apply"])):
        raise UnsupportedError(f"%{i.name}: its function depends on the order, which a scan in reverse would change")
    inputs, inits = i.operands[:count], i.operands[count:]
    dims = inputs[0].shape.dimensions
    e, n, stride = Emitter(fused), dims[axis], math.prod(dims[axis + 1 :])
    if 0 not in dims:
        starts = [e.let(o.shape.element_type, lir.Load(e.input_name(o), ix.const(0))) for o in inits]
        rows = Var(e.fresh("i"), math.prod(dims[:axis])), Var(e.fresh("i"), stride)
        step = Var(e.fresh("j"), n)
        along = ix.of(step) * -1 + (n - 1) if reverse else ix.of(step)
        at = ix.of(rows[0]) * (n * stride) + along * stride + ix.of(rows[1])
        carried = [e.fresh("c") for _ in inputs]
        with e.guard() as body:
            values = [e.let(o.shape.element_type, lir.Load(e.input_name(o), at)) for o in inputs]
            results = e.inline(i.attributes["to_apply"], [*carried, *values])
            for k, result in enumerate(results):
                e.add(lir.Store(f"o{k}", at, result))
        carries = tuple(
            lir.Carry(c, o.shape.element_type, start, result)
            for c, o, start, result in zip(carried, inputs, starts, results, strict=True)
        )
        e.add(lir.Scan(rows, step, carries, tuple(body.stmts), combiner, values[0] if combiner else ""))
    return finish(e, "scan", [o.shape for o in inputs])
