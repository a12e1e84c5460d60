"""Lowering of cumulative reductions: a reduce-window in which the window of each element ends, or begins, at it.

A reduction of one array may compute its input, and what follows element by element from its result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.analysis.reducers import combines_in_any_order
from compiler.codegen.lowering.emit import Emitter
from compiler.codegen.lowering.outputs import set_source, store_outputs
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


def inner_running_of(fused: HloComputation) -> HloInstruction | None:
    """Return the windowed reduction of one array in a fused computation that has one, or None."""
    found = (i for i in fused.post_order() if i.opcode is Opcode.REDUCE_WINDOW and i.shape.is_array)
    return next(found, None)


def running_refusal(i: HloInstruction) -> str | None:
    """Return why no kernel computes a windowed reduction with other ops before and after it, or None."""
    if not i.shape.is_array:
        return f"%{i.name}: a cumulative reduction of several arrays has a kernel that computes nothing else"
    if running_axis(i) is None:
        return (
            f"%{i.name}: only cumulative windows have a kernel; a library or the expansion 'prefix-sums' computes "
            "others, or the expansion 'slices', whose ops can be fused"
        )
    if 0 in i.shape.dimensions:
        return f"%{i.name}: an empty cumulative reduction has no kernel that computes other ops too"
    return None


def lower_running(
    fused: HloComputation, i: HloInstruction, roots: Sequence[HloInstruction] | None = None
) -> lir.Kernel:
    """Return the kernel of a computation with a cumulative reduction.

    Args:
        fused: the computation.
        i: the reduction, of one array or of several parameters.
        roots: the outputs of the computation if these are computed element by element from the only result; None for
            the results themselves.

    Raises:
        UnsupportedError: the windows are others, an operand of a reduction of several arrays is not a parameter of a
            supported type, or what is before or after the reduction needs branches or loops.
    """
    found = running_axis(i)
    if found is None:
        raise UnsupportedError(f"%{i.name}: only cumulative windows have a kernel")
    axis, reverse = found
    count = len(i.operands) // 2
    if count > 1 or roots is None:
        check_parameters(i)
    combiner = combiner_of(i.attributes["to_apply"]) if count == 1 else None
    if reverse and combiner is None and not (count == 1 and combines_in_any_order(i.attributes["to_apply"])):
        raise UnsupportedError(f"%{i.name}: its function depends on the order, which a scan in reverse would change")
    inputs, inits = i.operands[:count], i.operands[count:]
    dims = inputs[0].shape.dimensions
    e, n, stride = Emitter(fused), dims[axis], math.prod(dims[axis + 1 :])
    if 0 not in dims:
        starts = [e.value(o, ()) for o in inits]
        rows = Var(e.fresh("i"), math.prod(dims[:axis])), Var(e.fresh("i"), stride)
        step = Var(e.fresh("j"), n)
        along = ix.of(step) * -1 + (n - 1) if reverse else ix.of(step)
        index = (*ix.delinearize(ix.of(rows[0]), dims[:axis]), along, *ix.delinearize(ix.of(rows[1]), dims[axis + 1 :]))
        carried = [e.fresh("c") for _ in inputs]
        with e.guard() as body:
            values = [e.value(o, index) for o in inputs]
            results = e.inline(i.attributes["to_apply"], [*carried, *values])
            if roots is None:
                at = ix.linearize(index, dims)
                body.stmts += [lir.Store(f"o{k}", at, result) for k, result in enumerate(results)]
            else:
                set_source(e, i, index, i.shape.element_type, lambda: results[0])
                body.stmts += store_outputs(e, i, index, roots)
        _check_straight(i, body.stmts)
        carries = tuple(
            lir.Carry(c, o.shape.element_type, start, result)
            for c, o, start, result in zip(carried, inputs, starts, results, strict=True)
        )
        e.add(lir.Scan(rows, step, carries, tuple(body.stmts), combiner, values[0] if combiner else ""))
    return finish(e, "scan", [o.shape for o in (inputs if roots is None else roots)])


def _check_straight(i: HloInstruction, body: Sequence[lir.Stmt]) -> None:
    """Raise UnsupportedError unless the statements of a step are values and stores, which can be done row by row."""
    if not all(isinstance(s, lir.Let | lir.Store) for s in body):
        raise UnsupportedError(f"%{i.name}: what is computed before or after it needs branches or loops")
