"""Walks over the statements of the loop IR, and rewriting of their bodies and index expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter, is_
from typing import Any, cast

from compiler.codegen.nest.expressions import IndexTest, IndexValue, Load, LocalLoad, PairLoad, index_of, names_in
from compiler.codegen.nest.index import IndexExpr
from compiler.codegen.nest.loop_ir import Accumulator, Assign, Body, For, If, Let, Reduce, Stmt, While
from compiler.codegen.nest.matrix_product import MatrixProduct
from compiler.codegen.nest.memory import (
    CopyElements,
    LocalArray,
    LocalStore,
    NarrowHalves,
    RepeatElements,
    Store,
    StorePair,
    StoreTransposed,
    StreamStore,
    TransposeTile,
    Update,
    WideLoad,
    WidenHalves,
    WideStore,
)
from compiler.codegen.nest.orders import ForFlagged, Scan, Sort, SortByKey
from compiler.codegen.nest.teams import ForFound, OrderCompared, OrderRow, ScanWarp, ScanWarps
from compiler.codegen.nest.tile_attention import TileAttention
from compiler.codegen.nest.tile_chain import TileChain
from compiler.codegen.nest.tiles import TileProduct


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Body, ...]]:
    """Return what reads these fields of a statement, as a tuple also of one."""
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda s: (get(s),)


_BODY_FIELDS: dict[type, tuple[str, ...]] = {
    For: ("body",),
    Reduce: ("body",),
    Scan: ("body",),
    If: ("then", "otherwise"),
    While: ("test", "body"),
    ForFound: ("test", "gather", "body"),
    SortByKey: ("read", "body"),
    OrderRow: ("read",),
    OrderCompared: ("compare",),
    ForFlagged: ("body", "ordered"),
    Sort: ("compare", "body"),
}
_BODIES: dict[type, Callable[[Any], tuple[Body, ...]]] = {
    **{t: _getter(names) for t, names in _BODY_FIELDS.items()},
    TileProduct: lambda s: s.bodies,
    TileAttention: lambda s: s.bodies,
    TileChain: lambda s: s.bodies,
}


def bodies_of(s: Stmt) -> tuple[Body, ...]:
    """Return the statement lists nested in a statement."""
    found = _BODIES.get(type(s))
    return () if found is None else found(s)


def map_bodies(s: Stmt, f: Callable[[Body], Body]) -> Stmt:
    """Return a statement with `f` applied to each statement list nested in it; itself if `f` returns them all."""
    bodies = _BODIES.get(type(s))
    if bodies is None:  # most statements
        return s
    if isinstance(s, TileProduct | TileAttention | TileChain):
        return s.map_bodies(f)
    before = bodies(s)
    after = tuple(map(f, before))
    if all(map(is_, after, before)):
        return s
    made: Stmt = replace(cast("Any", s), **dict(zip(_BODY_FIELDS[type(s)], after, strict=True)))
    return made


def map_compound(body: Body, f: Callable[[Stmt], Body]) -> Body:
    """Return statements with what `f` makes of each that contains others; the same tuple if `f` changes none."""
    if not has_compound(body):  # most bodies
        return body
    out: list[Stmt] = []
    for s in body:
        out += f(s) if type(s) in _BODIES else (s,)
    return same_body(body, out)


def same_body(before: Body, after: Sequence[Stmt]) -> Body:
    """Return the statements after a rewrite; the tuple before it if it changed none of them."""
    return before if len(after) == len(before) and all(map(is_, after, before)) else tuple(after)


def has_compound(body: Body) -> bool:
    """Check whether some of the statements contain others."""
    return not _BODIES.keys().isdisjoint(map(type, body))


def walk(body: Body) -> Iterator[Stmt]:
    """Yield every statement, outer before inner."""
    pending = [iter(body)]  # one generator however deep the loops are
    while pending:
        for s in pending[-1]:
            yield s
            bodies = _BODIES.get(type(s))
            if bodies is not None:
                pending += map(iter, reversed(bodies(s)))
                break
        else:
            pending.pop()


_PLACED = (Store, StorePair, StoreTransposed, LocalStore, Update, WidenHalves, WideLoad, WideStore)
"""Statements whose only index is an offset."""


def map_indices(body: Body, f: Callable[[IndexExpr], IndexExpr]) -> Body:
    """Return the statements with `f` applied to every index expression."""
    return tuple(_map_one(s, f) for s in body)


def _map_one(s: Stmt, f: Callable[[IndexExpr], IndexExpr]) -> Stmt:
    if isinstance(s, Let):
        v = s.value
        if isinstance(v, Load | PairLoad | LocalLoad):
            return replace(s, value=replace(v, offset=f(v.offset)))
        if isinstance(v, IndexValue | IndexTest):
            return replace(s, value=replace(v, value=f(v.value)))
        return s
    if isinstance(s, _PLACED):
        return replace(s, offset=f(s.offset))
    if isinstance(s, MatrixProduct):
        return s.map_indices(f)
    if isinstance(s, NarrowHalves | CopyElements):
        return replace(s, offset=f(s.offset), start=f(s.start))
    if isinstance(s, TransposeTile):
        rows, columns = (None if x is None else f(x) for x in (s.rows, s.columns))
        return replace(s, offset=f(s.offset), rows=rows, columns=columns, to=f(s.to))
    if isinstance(s, StreamStore):
        return replace(s, offset=f(s.offset), span=s.span.map_base(f))
    if isinstance(s, For) and s.base is not None:
        s = replace(s, base=f(s.base))
    if isinstance(s, TileProduct | TileAttention | TileChain):
        s = s.map_indices(f)
    return map_bodies(s, lambda inner: map_indices(inner, f))


def indices_in(body: Body) -> Iterator[IndexExpr]:
    """Yield every index expression in the statements."""
    for s in walk(body):
        yield from _indices_of(s)


def _indices_of(s: Stmt) -> Iterator[IndexExpr]:
    """Yield the index expressions of a statement, without those of the statements nested in it."""
    if isinstance(s, Let):
        found = index_of(s.value)
        if found is not None:
            yield found
    elif isinstance(s, _PLACED):
        yield s.offset
    elif isinstance(s, NarrowHalves | CopyElements):
        yield from (s.offset, s.start)
    elif isinstance(s, StreamStore):
        yield from (x for x in (s.offset, s.span.base) if x is not None)
    elif isinstance(s, TransposeTile):
        yield from (x for x in (s.offset, s.rows, s.columns, s.to) if x is not None)
    elif isinstance(s, For) and s.base is not None:
        yield s.base
    elif isinstance(s, MatrixProduct | TileProduct | TileAttention | TileChain):
        yield from s.indices


def names_used(body: Body) -> Iterator[str]:
    """Yield the names that statements read or assign: values, accumulators, local arrays and loop variables."""
    for s in walk(body):
        yield from names_of(s)


def names_assigned(body: Body) -> set[str]:
    """Return the names of the accumulators that statements assign."""
    return {s.name for s in walk(body) if isinstance(s, Assign)}


def names_of(s: Stmt) -> Iterator[str]:
    """Yield the names that a statement itself reads or assigns, without those of the statements nested in it."""
    if isinstance(s, Let):  # most statements
        yield from names_in(s.value)
        index = index_of(s.value)
        if index is not None:
            yield from (v.name for v in index.variables())
        return
    if isinstance(s, Accumulator):
        yield s.init
    elif isinstance(s, Assign):
        yield from (s.name, s.value)
    elif isinstance(s, LocalStore):
        yield from (s.array, s.value)
    elif isinstance(s, TransposeTile):
        yield from (s.array, s.buffer)
    elif isinstance(s, RepeatElements):
        yield from (s.array, s.source)
    elif isinstance(s, StreamStore | StoreTransposed | WidenHalves | NarrowHalves | WideLoad | WideStore):
        yield s.array
    elif isinstance(s, Store | Update | ScanWarp | ScanWarps):
        yield s.value
    elif isinstance(s, StorePair):
        yield from (s.first, s.second)
    elif isinstance(s, If | While | ForFound):
        yield s.condition
        if isinstance(s, ForFound):
            yield from (name for name, _ in s.kept)
    elif isinstance(s, Reduce):
        yield from (r.value for r in s.reductions)
    elif isinstance(s, Sort):
        yield s.before
    elif isinstance(s, MatrixProduct):
        yield from (*(m.array for m in s.matrices), s.decay)
    elif isinstance(s, TileProduct | TileAttention | TileChain):
        yield from s.names
    elif isinstance(s, SortByKey):
        yield s.key
    elif isinstance(s, OrderRow):
        yield from (s.key, s.order)
    elif isinstance(s, OrderCompared):
        yield from (s.before, s.order)
    elif isinstance(s, Scan):
        yield from (name for c in s.carries for name in (c.start, c.next))
        yield s.value
    elif isinstance(s, ForFlagged):
        yield s.flags
    for i in _indices_of(s):
        yield from (v.name for v in i.variables())


def names_defined(body: Body) -> Iterator[str]:
    """Yield the names that statements define."""
    for s in walk(body):
        if isinstance(s, Let | Accumulator | LocalArray):
            yield s.name
        elif isinstance(s, ScanWarp | ScanWarps):
            yield from (s.name, s.whole)
        elif isinstance(s, For):
            yield s.var.name
        elif isinstance(s, Reduce):
            yield from (v.name for v in s.vars)
            yield from (r.name for r in s.reductions)
        elif isinstance(s, Sort):
            yield from (s.left.name, s.right.name, s.position.name)
        elif isinstance(s, Scan):
            yield from (v.name for v in (*s.rows, s.step))
            yield from (c.name for c in s.carries)
        elif isinstance(s, TileProduct | TileAttention | TileChain):
            yield from s.defined
        elif isinstance(s, SortByKey):
            yield from (s.row.name, s.element.name, s.position.name)
        elif isinstance(s, OrderRow):
            yield s.element.name
        elif isinstance(s, OrderCompared):
            yield from (s.left.name, s.right.name)
        elif isinstance(s, ForFlagged):
            yield from (s.position.name, s.slot.name)
