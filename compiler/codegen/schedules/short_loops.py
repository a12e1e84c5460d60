"""Loops of a few iterations are unrolled inside longer ones, which then run in vectors.

A vector loop over the three coordinates of each point leaves most lanes idle. With its iterations written out, the loop
over the points runs in vectors, and the reductions of adjacent columns become one loop with an accumulator for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Runtime, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.traversal import map_bodies, map_indices
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules import accumulators
from compiler.codegen.schedules.few_elements import MOST_LEFT, MOST_SHARED, MOST_WORK, has_few_elements, is_free
from compiler.codegen.schedules.index_tests import outcomes_of, tests_of
from compiler.codegen.schedules.known_tests import copy_with
from compiler.codegen.schedules.lanes import is_column_loop

LEAST_WORK = 6
"""Minimum number of statements of an iteration: what separates adjacent elements takes as long as a few."""


def unroll_short_loops(body: Body, short: int) -> Body:
    """Return a nest, before it is bound, in which loops over single elements contain no short loops if possible.

    Args:
        body: the statements.
        short: maximum number of iterations of a loop that is unrolled.
    """
    return tuple(_unrolled(map_bodies(s, lambda inner: unroll_short_loops(inner, short)), short) for s in body)


def _unrolled(s: lir.Stmt, short: int) -> lir.Stmt:
    if not isinstance(s, For) or not has_few_elements(s, short, MOST_SHARED):
        return s
    if not all(_is_short(x) if isinstance(x, For) else isinstance(x, lir.Let | lir.Store) for x in s.body):
        return s
    if all(work_of(x.body) < LEAST_WORK for x in s.body if isinstance(x, For)):
        return s
    out: list[lir.Stmt] = []
    for x in s.body:
        out += [x] if not isinstance(x, For) else Copies(x.var).of(x.body)
    return replace(s, body=tuple(out)) if work_of(tuple(out)) <= MOST_LEFT else s


def unroll_short_reductions(body: Body, most: int) -> Body:
    """Return the statements outside of all loops with reductions over 1 to `most` elements written out."""
    out: list[lir.Stmt] = []
    for s in body:
        is_short = isinstance(s, lir.Reduce) and len(s.vars) == 1 and 0 < s.vars[0].extent <= most
        out += _written_out(s) if isinstance(s, lir.Reduce) and is_short else [s]
    return tuple(out)


def _written_out(s: lir.Reduce) -> list[lir.Stmt]:
    (v,) = s.vars
    copies = Copies(v)
    out = copies.of(s.body)
    for r in s.reductions:
        before = copies.names[0].get(r.value, r.value)
        for n, names in enumerate(copies.names[1:], 1):
            after = r.name if n + 1 == v.extent else f"{r.name}_e{n}"
            out.append(accumulators.combination(replace(r, value=names.get(r.value, r.value)), before, after))
            before = after
    return out


def _is_short(s: For) -> bool:
    """Check whether the iterations of a loop can be written out without branches."""
    return all(isinstance(x, lir.Let | lir.Store) for n in range(s.var.extent) for x in _iteration(s.body, s.var, n))


def _iteration(body: Body, var: Var, n: int) -> Body:
    """Return the statements for one value of a variable, without the branches that it decides."""
    if all(isinstance(x, lir.Let | lir.Store | lir.LocalStore) for x in body):
        return body
    tests = tests_of(For(var, LoopKind.INDEPENDENT, body))
    facts = dict(zip(tests, outcomes_of(tests, np.array([n]))[:, 0].tolist(), strict=True))
    return copy_with(body, facts, {var: ix.const(n)}, "")


def merge_narrow_columns(body: Body, short: int) -> Body:
    """Return a nest, before columns are tiled, in which a few adjacent columns are reduced by one loop.

    Args:
        body: the statements.
        short: maximum number of columns.
    """
    return tuple(y for s in body for y in _merged(map_bodies(s, lambda b: merge_narrow_columns(b, short)), short))


def _merged(s: lir.Stmt, short: int) -> Sequence[lir.Stmt]:
    if not isinstance(s, For) or not is_free(s):
        return [s]
    if len(s.body) == 1 and isinstance(s.body[0], For) and s.body[0].var.extent == 1:
        return [_around_merged(s, s.body[0])]
    if not 1 < s.var.extent <= short or not is_column_loop(s):
        return [s]
    if not all(isinstance(x, lir.Let | lir.Store | lir.LocalStore | lir.Reduce) for x in s.body):
        return [s]
    reductions = [x for x in s.body if isinstance(x, lir.Reduce)]
    if len(reductions) != 1 or not all(isinstance(x, lir.Let) for x in reductions[0].body):
        return [s]
    if s.var.extent * work_of(reductions[0].body) > MOST_WORK:
        return [s]
    (reduce,) = reductions
    at = s.body.index(reduce)
    outside, inside = Copies(s.var), Copies(s.var)
    before = outside.of(s.body[:at])
    inside.names = [dict(n) for n in outside.names]
    values = inside.of(reduce.body)
    merged = [
        replace(r, name=f"{r.name}_e{n}", value=names.get(r.value, r.value))
        for n, names in enumerate(inside.names)
        for r in reduce.reductions
    ]
    for n, names in enumerate(outside.names):
        names.update((r.name, f"{r.name}_e{n}") for r in reduce.reductions)
    after = outside.of(s.body[at + 1 :])
    # A loop of one iteration is a scope for the names.
    whole = (*before, replace(reduce, reductions=tuple(merged), body=tuple(values)), *after)
    return [For(Var(f"{s.var.name}u", 1), LoopKind.INDEPENDENT, whole)]


def _around_merged(s: For, merged: For) -> For:
    """Return a loop around columns that were merged, as a loop over columns itself if the reduction reads along it.

    So do the forces on each point, of three coordinates each, as sums over the other points.
    """
    columns = replace(s, body=merged.body)
    return columns if is_column_loop(columns) else s


@dataclass
class Copies:
    """Copies of statements for each value of a variable; those that do not depend on it are shared.

    Attributes:
        var: the variable.
        names: for each of its values, the names of the copy by those of the original.
    """

    var: Var
    names: list[dict[str, str]] = field(default_factory=list)
    _known: dict[tuple[object, ...], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = self.names or [{} for _ in range(self.var.extent)]

    def of(self, body: Body) -> list[lir.Stmt]:
        """Return the copies of definitions and stores, among which are branches only if the variable decides them."""
        out: list[lir.Stmt] = []
        for n, names in enumerate(self.names):
            for s in _iteration(body, self.var, n):
                (copy,) = map_indices((s,), lambda i, n=n, names=names: self._index(i, n, names))  # type: ignore[misc]
                if isinstance(copy, lir.Store | lir.LocalStore):
                    out.append(replace(copy, value=names.get(copy.value, copy.value)))
                elif isinstance(copy, lir.Let):
                    let = lir.Let(f"{copy.name}_e{n}", copy.type, _renamed(copy.value, names))
                    # Zeros of both signs are equal as numbers.
                    key = (let.type, repr(let.value) if isinstance(let.value, lir.Constant) else let.value)
                    if key not in self._known:
                        self._known[key] = let.name
                        out.append(let)
                    names[copy.name] = self._known[key]
        return out

    def _index(self, i: IndexExpr, n: int, names: dict[str, str]) -> IndexExpr:
        at: dict[IndexSymbol, IndexExpr] = {self.var: ix.const(n)}
        for v in i.variables():
            if isinstance(v, Runtime) and v.name in names:
                at[v] = IndexExpr(((replace(v, name=names[v.name]), 1),))
        return i.substitute(at)


def _renamed(value: lir.Expr, names: dict[str, str]) -> lir.Expr:
    if isinstance(value, lir.Apply):
        return replace(value, args=tuple(names.get(a, a) for a in value.args))
    return value
