"""Edges of reductions: a reduction over rolled or padded rows becomes one without tests, and the elements at its ends.

Where the index tests in a reduction depend on its last variable alone, there are few different outcomes, as in a loop
over single elements (`edges`). Each range of equal outcomes is reduced by itself, without tests, and the results are
combined. A few elements are written out instead of a loop over them. So is a reduction over pieces that are joined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind, Reduce
from compiler.codegen.nest.traversal import map_bodies
from compiler.codegen.schedules import accumulators, edges
from compiler.codegen.schedules.index_tests import tests_of
from compiler.codegen.schedules.known_tests import COPYABLE, Facts, copy_with_names
from compiler.codegen.schedules.lanes import is_column_loop
from compiler.codegen.schedules.loop_transforms import has_loop

MAX_SINGLE = 8
"""Maximum number of elements that are written out."""
MOST_LOOPS, LEAST_LONG = 4, 64
"""Maximum number of loops over pieces of a row, and least number of elements of each: every loop ends with the
combination of its lanes."""


def split_reduction_edges(body: Body, in_loop: bool = False) -> Body:
    """Return the statements with the edges of reductions along rows split where it is worthwhile.

    Args:
        body: the statements.
        in_loop: whether they are inside of a loop, which may be divided between threads.
    """
    out: list[lir.Stmt] = []
    for s in body:
        if isinstance(s, For) and is_column_loop(s):
            out.append(s)
        elif isinstance(s, Reduce):
            out += _split(s, in_loop)
        else:
            out.append(map_bodies(s, partial(split_reduction_edges, in_loop=in_loop or isinstance(s, For))))
    return tuple(out)


def _split(s: Reduce, in_loop: bool) -> list[lir.Stmt]:
    if has_loop(s.body) or not all(isinstance(x, COPYABLE) for x in s.body):
        return [s]
    loop = For(s.vars[-1], LoopKind.INDEPENDENT, s.body)
    tests = tests_of(loop)
    ranges = edges.worthwhile_ranges(loop, tests, priced=True)
    if ranges is None or any(len(r.outcomes) > 1 for r in ranges):
        return [s]
    ordered = sorted(ranges, key=lambda r: r.last - r.first)
    long = [r for r in ordered if r.last - r.first >= LEAST_LONG] if in_loop and len(s.vars) == 1 else []
    loops = long or ordered[-1:]
    rest = [r for r in ordered if r not in loops]
    if len(ranges) < 2 or len(loops) > MOST_LOOPS or sum(r.last - r.first for r in rest) > MAX_SINGLE:
        return [s]
    parts = _Parts(s)
    for r in ranges:
        facts = dict(zip(tests, r.outcomes[0], strict=True))
        if r in rest:
            for n in range(r.first, r.last):
                parts.add(facts, None, ix.const(n))
        else:
            var = Var(f"{s.vars[-1].name}_inner", r.last - r.first)
            parts.add(facts, var, ix.of(var) + r.first)
    return parts.statements()


class _Parts:
    """The parts of a reduction: loops over a range, and single elements, which come after the loops."""

    def __init__(self, reduce: Reduce) -> None:
        self.reduce = reduce
        self.count = 0
        self.loops: list[lir.Stmt] = []
        self.single: list[lir.Stmt] = []
        self.results: list[dict[str, str]] = []

    def add(self, facts: Facts, var: Var | None, at: IndexExpr) -> None:
        """Add the part for one range, or for one element if there is no variable."""
        suffix = f"_part{self.count}"
        self.count += 1
        outer = tuple(Var(v.name + suffix, v.extent) for v in self.reduce.vars[:-1])
        to: Mapping[IndexSymbol, IndexExpr] = {
            self.reduce.vars[-1]: at,
            **{v: ix.of(w) for v, w in zip(self.reduce.vars[:-1], outer, strict=True)},
        }
        body, name_of = copy_with_names(self.reduce.body, facts, to, suffix)
        names = {r.name: r.name + suffix for r in self.reduce.reductions}
        vars_ = (*outer, *((var,) if var is not None else ()))
        values = {r.name: name_of(r.value) for r in self.reduce.reductions}
        if vars_:
            reductions = tuple(replace(r, name=names[r.name], value=values[r.name]) for r in self.reduce.reductions)
            (self.loops if var is not None else self.single).append(Reduce(vars_, reductions, body))
            self.results.append(names)
        else:
            self.single += body
            self.results.append(values)

    def statements(self) -> list[lir.Stmt]:
        """Return all parts and the combinations of their results."""
        out = [*self.loops, *self.single]
        for r in self.reduce.reductions:
            before = self.results[0][r.name]
            for n, names in enumerate(self.results[1:], 1):
                after = r.name if n == len(self.results) - 1 else f"{r.name}_to{n}"
                out.append(accumulators.combination(replace(r, value=names[r.name]), before, after))
                before = after
        return out
