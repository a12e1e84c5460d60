"""Branches between two elements of one array become one load, whose offset is selected before the loop.

A roll along an outer dimension reads `x[i + 15, j]` in the first rows and `x[i - 1, j]` in the others. In a loop over j
the test is the same for all elements, but the loop has a branch, and the C compiler makes no vectors of a loop with
many of them. Where both sides read the same array at a distance that the loop does not change, the distance is selected
instead, once for all elements.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Runtime
from compiler.codegen.nest.loop_ir import Body, For
from compiler.codegen.nest.scalar_ops import binary
from compiler.codegen.nest.traversal import indices_in, names_defined, names_used
from compiler.codegen.schedules.loop_transforms import map_vector_loops
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T


def select_offsets(body: Body) -> Body:
    """Return bound statements whose vector loops select offsets instead of branches that they do not change."""
    return map_vector_loops(body, _loop)


def _loop(s: For) -> Body:
    if not any(isinstance(x, lir.If) for x in s.body):
        return (s,)
    return (replace(s, body=_Selection(s).body(s.body)),)


class _Selection:
    """The selected offsets of one loop; `changing` are the names whose values differ between its iterations."""

    def __init__(self, loop: For) -> None:
        self._loop = loop
        self._changing: set[str] = set()
        self._count = 0
        self._changes(loop.body)

    def _changes(self, body: Body) -> None:
        for s in body:
            if isinstance(s, lir.If):
                self._changes((*s.then, *s.otherwise))
            elif not isinstance(s, lir.Let) or not self._is_same(s):
                self._changing.update(names_defined((s,)))

    def _is_same(self, s: lir.Let) -> bool:
        if not isinstance(s.value, lir.Apply | lir.Constant | lir.IndexTest):
            return False
        indices = any(self._loop.var in set(i.variables()) for i in indices_in((s,)))
        return not indices and self._changing.isdisjoint(names_used((s,)))

    def _changes_with(self, distance: IndexExpr) -> bool:
        return any(v == self._loop.var or v.name in self._changing for v in distance.variables())

    def body(self, body: Body) -> Body:
        """Return the statements with selected offsets."""
        out: list[lir.Stmt] = []
        for s in body:
            found = self._selected(s) if isinstance(s, lir.If) else None
            if found is None:
                out.append(s)
            else:
                out += found
        return tuple(out)

    def _selected(self, s: lir.If) -> Body | None:
        """Return the statements instead of a branch; None if it stays."""
        if s.condition in self._changing:
            return None
        then, otherwise = self._read(s.then), self._read(s.otherwise)
        if then is None or otherwise is None:
            return None
        (before, name, load, result), (more, _, other, same) = then, otherwise
        distance = load.offset - other.offset
        if load.buffer != other.buffer or result != same or self._changes_with(distance):
            return None
        self._count += 1
        far, none, chosen = (f"{self._loop.var.name}_{part}{self._count}" for part in ("far", "near", "chosen"))
        low, high = distance.range
        offset = other.offset + ix.of(Runtime(chosen, min(0, low), max(0, high)))
        return (
            *before,
            *more,
            lir.Let(far, T.S64, lir.IndexValue(distance)),
            lir.Let(none, T.S64, lir.Constant(0)),
            lir.Let(chosen, T.S64, lir.Apply(binary(Opcode.SELECT, T.S64), (s.condition, far, none))),
            lir.Let(name, result[1], replace(load, offset=offset)),
            lir.Assign(result[0], name),
        )

    def _read(self, side: Body) -> tuple[Body, str, lir.Load, tuple[str, T]] | None:
        """Return what a side of a branch computes before its load, the name of the load, it, and where it is assigned.

        None if a side does anything else.
        """
        before: list[lir.Stmt] = []
        loads: dict[str, lir.Let] = {}
        values: dict[str, str] = {}  # what accumulators of this side, and names of their values, stand for
        *rest, last = self.body(side)
        for s in rest:
            if isinstance(s, lir.Let) and isinstance(s.value, lir.Load):
                loads[s.name] = s
            elif isinstance(s, lir.Let) and isinstance(s.value, lir.Current):
                values[s.name] = values.get(s.value.name, "")
            elif isinstance(s, lir.Accumulator):
                values[s.name] = ""
            elif isinstance(s, lir.Assign) and s.name in values:
                values[s.name] = values.get(s.value, s.value)
            elif _is_number(s):
                before.append(s)
            else:
                return None
        if not isinstance(last, lir.Assign) or len(loads) != 1:
            return None
        read = loads.get(values.get(last.value, last.value))
        if read is None or not isinstance(read.value, lir.Load):
            return None
        return tuple(before), read.name, read.value, (last.name, read.type)


def _is_number(s: lir.Stmt) -> bool:
    """Check whether a statement is a constant or computes an index or a test, which is possible on either side."""
    if not isinstance(s, lir.Let):
        return False
    if isinstance(s.value, lir.Apply):
        return s.type in (T.S32, T.S64, T.PRED) and s.value.op.opcode not in (Opcode.DIVIDE, Opcode.REMAINDER)
    return isinstance(s.value, lir.Constant | lir.IndexValue | lir.IndexTest)
