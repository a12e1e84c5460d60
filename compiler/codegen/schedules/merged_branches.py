"""Branches whose sides compute the same of different elements: the elements are chosen, and the rest is computed once.

A row with its halves exchanged has `sin(x[i + 50])` for the first elements and `sin(x[i - 50])` for the others. A
vector computes both sides of a branch, and the C compiler makes no vectors of a branch with some functions.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Runtime
from compiler.codegen.nest.loop_ir import Body, For
from compiler.codegen.nest.traversal import has_compound, indices_in, map_bodies, names_defined, names_used
from compiler.codegen.schedules.loop_transforms import map_vector_loops
from compiler.ir.types import PrimitiveType as T

__all__ = ["merge_branches"]


def merge_branches(body: Body) -> Body:
    """Return bound statements with what both sides of branches of vector loops compute moved behind the branches."""
    return map_vector_loops(body, _loop)


def _loop(s: For) -> Body:
    body = _body(s.body)
    return (s if body is s.body else replace(s, body=body),)


def _body(body: Body) -> Body:
    if not has_compound(body):  # most bodies
        return body
    out: list[lir.Stmt] = []
    for s in body:
        inner = map_bodies(s, _body)
        out += _Merged(inner).statements() if isinstance(inner, lir.If) else (inner,)
    return tuple(out)


class _Merged:
    """The merged sides of one branch.

    Attributes:
        names: values of the second side that equal values of the first one behind the branch, by name.
    """

    def __init__(self, branch: lir.If) -> None:
        self._branch = branch
        self._inside = set(names_defined((*branch.then, *branch.otherwise)))
        self.names: dict[str, str] = {}

    def statements(self) -> Body:
        """Return the statements instead of the branch."""
        s, common, computed = self._branch, 0, 0
        found: list[lir.Stmt] = []
        for a, b in zip(s.then, s.otherwise, strict=False):
            merged = self._both(a, b)
            if merged is None or not isinstance(a, lir.Let) or not isinstance(b, lir.Let):
                break
            found += merged
            self.names[b.name] = a.name
            common += 1
            computed += isinstance(a.value, lir.Apply)
        rest = [self._renamed(x) for x in s.otherwise[common:]]
        if not computed or None in rest:
            return (s,)
        return *found, lir.If(s.condition, s.then[common:], tuple(x for x in rest if x is not None))

    def _both(self, a: lir.Stmt, b: lir.Stmt) -> Body | None:
        """Return what has the value of the first statement on the first side, and of the second one on the other."""
        if not isinstance(a, lir.Let) or not isinstance(b, lir.Let) or a.type is not b.type:
            return None
        v, w = a.value, b.value
        if isinstance(v, lir.Constant) and isinstance(w, lir.Constant):
            return (a,) if repr(v) == repr(w) else None
        if isinstance(v, lir.Load) and isinstance(w, lir.Load):
            return self._either(a, v, b, w)
        if isinstance(v, lir.Apply) and isinstance(w, lir.Apply) and v.op == w.op:
            same = all(
                self.names.get(y) == x if y in self._inside else x == y for x, y in zip(v.args, w.args, strict=True)
            )
            return (a,) if same else None
        return None

    def _either(self, a: lir.Let, v: lir.Load, b: lir.Let, w: lir.Load) -> Body | None:
        used = {x.name for i in indices_in((a, b)) for x in i.variables() if isinstance(x, Runtime)}
        if v.buffer != w.buffer or not self._inside.isdisjoint(used):
            return None
        if v == w:
            return (a,)
        none, chosen, first, second = (f"{a.name}_{part}" for part in ("none", "chosen", "then", "else"))
        return (
            lir.Let(none, a.type, lir.Constant(False if a.type is T.PRED else 0)),
            lir.Accumulator(chosen, a.type, none),
            lir.If(
                self._branch.condition,
                (lir.Let(first, a.type, v), lir.Assign(chosen, first)),
                (lir.Let(second, b.type, w), lir.Assign(chosen, second)),
            ),
            lir.Let(a.name, a.type, lir.Current(chosen)),
        )

    def _renamed(self, s: lir.Stmt) -> lir.Stmt | None:
        """Return a statement of the second side that reads the merged values; None if it is of another kind."""
        if self.names.keys().isdisjoint(names_used((s,))):
            return s
        if isinstance(s, lir.Assign):
            return replace(s, value=self.names[s.value])
        if isinstance(s, lir.Let) and isinstance(s.value, lir.Apply):
            return replace(s, value=replace(s.value, args=tuple(self.names.get(x, x) for x in s.value.args)))
        return None
