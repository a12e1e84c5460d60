"""Binding of scatters to a CPU: windows in vectors, and by choice the rows of the output in parts for threads.

Each part goes through all updates in order and applies those of its own rows, so that an element of the output
receives its updates in the order of the program whatever the number of parts. The default is one part: updates that are
only loaded are limited by memory, and parts are worth it where updates take time to compute.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Runtime, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import binary
from compiler.codegen.nest.traversal import map_bodies, walk
from compiler.codegen.schedules.loop_transforms import has_loop
from compiler.codegen.schedules.scatter_blocks import block_updates
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T


def split_scatters(body: Body, schedule: Schedule) -> Body:
    """Return the statements of a kernel with the windows of scatters in vectors and their outputs in parts."""
    return tuple(_in_parts(s, schedule) if isinstance(s, For) and s.kind is LoopKind.ATOMIC else s for s in body)


def _in_parts(s: For, schedule: Schedule) -> For:
    (s,) = (x for x in _vectors((s,)) if isinstance(x, For))
    if s.owner is None or schedule.splits <= 1:
        return block_updates(s) if schedule.vector and schedule.stages else s
    start, rows = s.owner
    size = -(-rows // min(schedule.splits, rows))
    part = Var(f"{s.var.name}p", -(-rows // size))
    within = ix.of(Runtime(start, 0, rows - 1)) - ix.of(part) * size
    mine = lir.Let(f"{start}_mine", T.PRED, lir.IndexTest(within, 0, size - 1))
    return For(part, LoopKind.INDEPENDENT, _only(mine, (replace(s, owner=None),)))


def _vectors(body: Body) -> Body:
    """Return the statements with the innermost loops of windows as independent ones: their targets are distinct."""
    out: list[lir.Stmt] = []
    for s in body:
        if isinstance(s, For) and s.kind is LoopKind.SERIAL and not has_loop(s.body):
            out.append(replace(s, kind=LoopKind.INDEPENDENT))
        else:
            out.append(map_bodies(s, _vectors))
    return tuple(out)


def _only(mine: lir.Let, body: Body) -> Body:
    """Return the statements with a further condition on the branch around each window.

    Indices may be computed in branches, too, which write no output.
    """
    out: list[lir.Stmt] = []
    for s in body:
        if isinstance(s, lir.If) and any(isinstance(x, lir.Store | lir.Update) for x in walk(s.then)):
            both = f"{mine.name}_too"
            out.append(mine)
            out.append(lir.Let(both, T.PRED, lir.Apply(binary(Opcode.AND, T.PRED), (s.condition, mine.name))))
            out.append(replace(s, condition=both))
        else:
            out.append(map_bodies(s, lambda inner: _only(mine, inner)))
    return tuple(out)
