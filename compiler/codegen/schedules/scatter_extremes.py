"""Scatters by maximum or minimum on a CPU: where an element receives many updates, only what changes it is stored.

An update that follows another one with the same target waits for its store. Of many updates in any order, few are
larger than all before them, so the branch around the store is predicted, and the others wait for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import ScalarOp, comparison
from compiler.codegen.nest.traversal import map_bodies
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

LEAST_UPDATES = 128
"""Updates per element from which on few of them change it: of so many in random order, one in 24."""
_UNCHANGED = {Opcode.MAXIMUM: "LE", Opcode.MINIMUM: "GE"}
"""How an update that leaves the element as it is compares with it; NaN never does."""


def store_changes(kernel: lir.Kernel) -> lir.Kernel:
    """Return a scatter with branches around the stores of its updates where these rarely change an element."""
    outputs = {a.name: a for a in kernel.arguments}
    return replace(kernel, body=_with_branches(kernel.body, outputs, 1)) if kernel.kind == "scatter" else kernel


def _with_branches(body: Body, outputs: Mapping[str, lir.Argument], updates: int) -> Body:
    """Return the statements, which run for that many updates; parts for threads share them."""
    out: list[lir.Stmt] = []
    for s in body:
        if isinstance(s, lir.Update) and _is_rare(s, outputs[s.buffer], updates):
            out += _branch(s, outputs[s.buffer].type)
        elif isinstance(s, For):
            shared = s.kind is LoopKind.INDEPENDENT
            is_window = shared and updates > 1
            count = updates * (1 if shared else s.var.extent)
            out.append(s if is_window else replace(s, body=_with_branches(s.body, outputs, count)))
        else:
            out.append(map_bodies(s, lambda inner: _with_branches(inner, outputs, updates)))
    return tuple(out)


def _is_rare(s: lir.Update, output: lir.Argument, updates: int) -> bool:
    return s.combiner in _UNCHANGED and updates >= LEAST_UPDATES * output.elements


def _branch(s: lir.Update, t: T) -> list[lir.Stmt]:
    current, same, changes = (f"{s.value}_{x}" for x in ("current", "same", "changes"))
    return [
        lir.Let(current, t, lir.Load(s.buffer, s.offset)),
        lir.Let(same, T.PRED, lir.Apply(comparison(_UNCHANGED[s.combiner], t), (s.value, current))),
        lir.Let(changes, T.PRED, lir.Apply(ScalarOp(Opcode.NOT, T.PRED, T.PRED), (same,))),
        lir.If(changes, (s,)),
    ]
