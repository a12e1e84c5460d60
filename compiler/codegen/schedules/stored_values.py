"""Values that a reduction computes and the kernel also stores, or needs for what it stores: one loop computes both.

The outputs of a fusion are loops of their own. Where one is a sum over columns and another one its summands, such as
the exponentials of a column softmax, each summand would be computed twice. So would all that the sum of a loss has in
common with its gradient.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import Body, For
from compiler.codegen.nest.traversal import map_bodies, map_indices, names_defined, names_of, same_body, walk
from compiler.codegen.nest.work import is_expensive, work_of
from compiler.codegen.schedules.lanes import is_column_loop
from compiler.codegen.schedules.loop_transforms import flat_nest

STORED = lir.Let | lir.Store
"""The statements of a loop that a reduction may take over."""
VALUES = lir.Let | lir.Accumulator | lir.Assign | lir.If
"""Those that compute a value, such as an element of a concatenation."""
MIN_COLUMNS = 16
"""Minimum number of columns; a few columns are reduced by one loop, which stores nothing."""
PLANE = 2
"""Number of loops of a reduction over planes."""
MIN_WORK = 8
"""Minimum work of a summand without long functions: a loop that stores it, too, does so by tiles of columns."""


def store_in_reductions(kernel: lir.Kernel, body: Body) -> tuple[lir.Kernel, Body]:
    """Return a kernel and its unbound statements with stores moved into the column reductions of the same values.

    The stored array may no longer share the buffer of an input, unless the kernel reads each element of that input
    only to compute the element of the array at the same place.
    """
    must_alias = {kernel.arguments[n].name for _, n in kernel.must_alias}
    kept = _merged_planes(_merged_loops(body, must_alias), must_alias, ())
    if kept == body:
        return kernel, body
    moved = {s.buffer: s.offset for s in _stores_in_reductions(kept)}
    in_place = tuple(p for p in kernel.in_place if _may_share(kernel, kept, moved, *p))
    return replace(kernel, in_place=in_place), kept


def _merged_loops(body: Body, must_alias: set[str]) -> Body:
    """Return the statements outside of all loops with stores moved into reductions."""
    out = list(body)
    loops = [n for n, s in enumerate(out) if isinstance(s, For)]  # most other statements are scalars
    done: set[int] = set()
    for first, s in enumerate(body):
        if first in done or not (isinstance(s, lir.Reduce) or _reduces_columns(s)):
            continue
        for second in loops[bisect_right(loops, first) :]:
            merged = None if second in done else _merged(out, first, second, must_alias)
            if merged is not None:
                out[first] = merged
                done.add(second)
    return tuple(s for n, s in enumerate(out) if n not in done) if done else body


def _merged_planes(body: Body, must_alias: set[str], outside: Sequence[lir.Stmt | Var]) -> Body:
    """Return statements in which reductions over planes inside of loops take over stores of the same values.

    Those over rows keep these values in local arrays (`row_cache`).

    Args:
        body: the statements.
        must_alias: the outputs that an input has to share.
        outside: the values and the variables that the loops around them define.
    """
    out = list(body)
    done: set[int] = set()
    known = [*outside, *(s for s in body if isinstance(s, lir.Let))]
    for n, s in enumerate(body):
        if isinstance(s, For) and n not in done and not is_column_loop(s):
            out[n] = map_bodies(s, lambda inner, v=s.var: _merged_planes(inner, must_alias, [*known, v]))  # type: ignore[misc]
        if not outside or not isinstance(s, lir.Reduce) or len(s.vars) < PLANE:
            continue
        for second in range(n + 1, len(body)):
            merged = _merged_total(out, n, second, must_alias, outside) if second not in done else None
            if merged is not None:
                out[n] = merged
                done.add(second)
    return same_body(body, [s for n, s in enumerate(out) if n not in done])


def _reduces_columns(s: lir.Stmt) -> bool:
    return isinstance(s, For) and s.var.extent >= MIN_COLUMNS and is_column_loop(s)


def _merged(body: Sequence[lir.Stmt], first: int, second: int, must_alias: set[str]) -> lir.Stmt | None:
    """Return a statement that also does what a later one does; None if one loop cannot do both, or need not."""
    if isinstance(body[first], lir.Reduce):
        return _merged_total(body, first, second, must_alias)
    return _merged_columns(body, first, second, must_alias)


def _merged_total(
    body: Sequence[lir.Stmt], first: int, second: int, must_alias: set[str], outside: Sequence[lir.Stmt | Var] = ()
) -> lir.Reduce | None:
    """Return a reduction to a single value that also stores what loops over the same elements store."""
    reduce, loop = body[first], body[second]
    nest = flat_nest(loop) if isinstance(loop, For) else None
    if not isinstance(reduce, lir.Reduce) or nest is None:
        return None
    vars_, inside = nest
    found = _over_loops(reduce, [v.extent for v in vars_])
    if found is None:
        return None
    reduce = found
    if not all(isinstance(s, lir.Let) for s in reduce.body) or not all(isinstance(s, STORED) for s in inside):
        return None
    if any(isinstance(s, lir.Store) and s.buffer in must_alias for s in inside):
        return None
    at: dict[ix.IndexSymbol, ix.IndexExpr] = {v: ix.of(r) for v, r in zip(vars_, reduce.vars, strict=True)}
    moved = map_indices(inside, lambda i: i.substitute(at))
    before = [s for s in (*outside, *body[:first]) if isinstance(s, lir.Let)]
    names = _same_values(moved, [*before, *reduce.body])
    if not any(isinstance(s, lir.Let) and s.name in names.values() and _is_expensive_or_load(s) for s in reduce.body):
        return None
    constants = {s.name: s for s in body[first:second] if isinstance(s, lir.Let) and isinstance(s.value, lir.Constant)}
    variables = [*reduce.vars, *(v for v in outside if isinstance(v, Var))]
    known = {*names_defined((*before, *reduce.body)), *(v.name for v in variables)}
    known |= {s.name for s in body[:first] if isinstance(s, lir.LocalArray)}
    added: list[lir.Stmt] = []
    for s in moved:
        if isinstance(s, lir.Let) and s.name in names:
            continue
        for name in names_of(s):
            if name in constants and name not in names:
                names[name] = f"{name}_here"
                known.add(names[name])
                added.append(replace(constants[name], name=names[name]))
        s = _renamed(s, names)
        if not known.issuperset(names_of(s)):
            return None  # it needs the result of the reduction
        added.append(s)
        known.update(names_defined((s,)))
    return replace(reduce, body=(*reduce.body, *added))


def _over_loops(reduce: lir.Reduce, extents: Sequence[int]) -> lir.Reduce | None:
    """Return a reduction with loops of these extents; None if its own differ, unless they are one loop over all."""
    if [v.extent for v in reduce.vars] == list(extents):
        return reduce
    if len(reduce.vars) != 1 or reduce.vars[0].extent != math.prod(extents):
        return None
    (whole,) = reduce.vars
    vars_ = tuple(Var(f"{whole.name}s{n}", extent) for n, extent in enumerate(extents))
    at = ix.linearize([ix.of(v) for v in vars_], extents)
    return replace(reduce, vars=vars_, body=map_indices(reduce.body, lambda i: i.substitute({whole: at})))


def _renamed(s: lir.Stmt, names: Mapping[str, str]) -> lir.Stmt:
    """Return a value or a store with the names of what it uses replaced."""
    if isinstance(s, lir.Store):
        return replace(s, value=names.get(s.value, s.value))
    if isinstance(s, lir.Let) and isinstance(s.value, lir.Apply):
        return replace(s, value=replace(s.value, args=tuple(names.get(a, a) for a in s.value.args)))
    return s


def _merged_columns(body: Sequence[lir.Stmt], first: int, second: int, must_alias: set[str]) -> For | None:
    """Return a loop over columns that also does what a nest that follows does; None if they differ too much."""
    columns, stores = body[first], body[second]
    if not isinstance(columns, For) or not _reduces_columns(columns):
        return None
    reductions = [s for s in columns.body if isinstance(s, lir.Reduce)]
    nest = flat_nest(stores) if isinstance(stores, For) else None
    if nest is None or len(reductions) != 1 or len(reductions[0].vars) != 1:
        return None
    vars_, inside = nest
    (reduce,) = reductions
    at = _elements(vars_, reduce.vars[0], columns.var)
    if columns.base is not None or at is None:
        return None
    *values, store = inside
    if not isinstance(store, lir.Store) or store.buffer in must_alias or not all(isinstance(s, VALUES) for s in values):
        return None
    moved = map_indices(inside, lambda i: i.substitute(at))
    before = columns.body[: columns.body.index(reduce)]
    names = _same_values(moved, [*body[:first], *before, *reduce.body], body[first:second])
    (last,) = moved[-1:]
    assert isinstance(last, lir.Store)  # noqa: S101 - it was one before its index changed
    needed = {names.get(s.name) for s in moved if isinstance(s, lir.Let)}
    shared = [s for s in reduce.body if isinstance(s, lir.If) or (isinstance(s, lir.Let) and s.name in needed)]
    if last.value not in names or not (any(map(is_expensive, shared)) or work_of(tuple(shared)) >= MIN_WORK):
        return None
    both = replace(reduce, body=(*reduce.body, replace(last, value=names[last.value])))
    return replace(columns, body=tuple(both if s is reduce else s for s in columns.body))


def _elements(vars_: Sequence[Var], row: Var, column: Var) -> dict[ix.IndexSymbol, ix.IndexExpr] | None:
    """Return what the variables of loops over the elements of a matrix are in terms of its row and its column.

    None for other loops. One loop may run over all elements in order.
    """
    extents = [v.extent for v in vars_]
    if extents == [row.extent, column.extent]:
        return dict(zip(vars_, (ix.of(row), ix.of(column)), strict=True))
    if extents == [row.extent * column.extent]:
        return {vars_[0]: ix.linearize([ix.of(row), ix.of(column)], [row.extent, column.extent])}
    return None


def _is_expensive_or_load(s: lir.Let) -> bool:
    return isinstance(s.value, lir.Load | lir.LocalLoad) or is_expensive(s)


def _same_values(
    moved: Sequence[lir.Stmt], known: Sequence[lir.Stmt], between: Sequence[lir.Stmt] = ()
) -> dict[str, str]:
    """Return the known names of the values that the moved statements define, by their own names.

    Args:
        moved: the statements.
        known: those before the place to which they are moved.
        between: those between that place and theirs, which define values that the moved ones use.
    """
    numbering = _Numbering()
    numbering.add(known)
    names: dict[int, str] = {}
    for s in known:
        if isinstance(s, lir.Let) and s.name in numbering.numbers:
            names.setdefault(numbering.numbers[s.name], s.name)
    numbering.add(between)
    numbering.add(moved)
    found = {s.name: numbering.numbers[s.name] for s in moved if isinstance(s, lir.Let)}
    return {name: names[n] for name, n in found.items() if n in names}


class _Numbering:
    """Numbers of values, equal for those that are computed in the same way, branches included.

    Attributes:
        numbers: by the names of values, and of accumulators for their current value.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self._of: dict[tuple[object, ...], int] = {}

    def add(self, body: Sequence[lir.Stmt]) -> None:
        """Add the values that statements define, but for those of loops."""
        for s in body:
            if isinstance(s, lir.Let):
                self.numbers[s.name] = self._value(s)
            elif isinstance(s, lir.Accumulator):
                self.numbers[s.name] = self._name(s.init)
            elif isinstance(s, lir.Assign):
                self.numbers[s.name] = self._name(s.value)
            elif isinstance(s, lir.If):
                self._branch(s)

    def _value(self, s: lir.Let) -> int:
        value = s.value
        if isinstance(value, lir.Current):
            return self._name(value.name)
        if isinstance(value, lir.Apply):
            return self._number((s.type, value.op, *map(self._name, value.args)))
        # Zeros of both signs are equal as numbers.
        return self._number((s.type, repr(value) if isinstance(value, lir.Constant) else value))

    def _branch(self, s: lir.If) -> None:
        before = self.numbers
        sides: list[dict[str, int]] = []
        for side in (s.then, s.otherwise):
            self.numbers = dict(before)
            self.add(side)
            sides.append(self.numbers)
        self.numbers = before
        condition = self._name(s.condition)
        for name, old in list(before.items()):
            then, otherwise = (numbers[name] for numbers in sides)
            if (then, otherwise) != (old, old):
                self.numbers[name] = self._number((lir.If, condition, then, otherwise))

    def _name(self, name: str) -> int:
        found = self.numbers.get(name)
        return self._number((name,)) if found is None else found

    def _number(self, key: tuple[object, ...]) -> int:
        return self._of.setdefault(key, len(self._of))


def _stores_in_reductions(body: Body) -> list[lir.Store]:
    reductions = [s for s in walk(body) if isinstance(s, lir.Reduce)]
    return [s for r in reductions for s in r.body if isinstance(s, lir.Store)]


def _may_share(kernel: lir.Kernel, body: Body, moved: dict[str, ix.IndexExpr], read: int, written: int) -> bool:
    """Check whether an output may share the buffer of an input."""
    source, target = kernel.arguments[read].name, kernel.arguments[written].name
    if target not in moved:
        return True
    loads = [s.value for s in walk(body) if isinstance(s, lir.Let) and isinstance(s.value, lir.Load)]
    offsets = [load.offset for load in loads if load.buffer == source]
    return len(offsets) == 1 and offsets[0] == moved[target]
