"""Loops without reductions on a GPU: each thread computes a few elements, and adjacent threads adjacent ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Remainder, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind, Team
from compiler.codegen.nest.traversal import bodies_of, map_indices, walk
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules.cuda_shapes import (
    ACCESS_BYTES,
    FULL_THREADS,
    UNROLLED_WORK,
    WARP,
    blocks_of,
    flat_threads,
)
from compiler.codegen.schedules.cuda_wide import Lane, in_lane, width_of
from compiler.codegen.schedules.loop_transforms import flat_nest
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.types import PrimitiveType

MANY_LOADS = 16
"""Loads in branches of branches from which on threads that diverge take longer than accesses that are not adjacent."""
MOST_ITEMS = 4
"""Maximum number of accesses to an array by one thread by default."""


def flattened(vars_: tuple[Var, ...], body: Body) -> tuple[Var, Body]:
    """Return one variable for a nest of loops, and the body with it."""
    if len(vars_) == 1:
        return vars_[0], body
    total = 1
    for v in vars_:
        total *= v.extent
    var = Var(f"{vars_[-1].name}f", total)
    parts = ix.delinearize(ix.of(var), [v.extent for v in vars_])
    mapping: dict[IndexSymbol, IndexExpr] = dict(zip(vars_, parts, strict=True))
    return var, map_indices(body, lambda i: i.substitute(mapping))


@dataclass(frozen=True)
class FlatNest:
    """A nest of independent loops over single elements, as one loop.

    Attributes:
        var: its variable.
        body: the statements of an element.
        width: number of adjacent elements that a thread computes together.
        items: number of groups of so many elements that a thread computes.
        types: element types of the arguments of the kernel.
    """

    var: Var
    body: Body
    width: int
    items: int
    types: Mapping[str, PrimitiveType]

    combine_bytes = 0

    @staticmethod
    def of(s: lir.Stmt, types: Mapping[str, PrimitiveType], schedule: Schedule) -> FlatNest | None:
        """Return the nest of a statement, or None if it has another form."""
        found = flat_nest(s) if isinstance(s, For) else None
        if found is None or not is_element(found[1]):
            return None
        vars_, body = found
        var, body = flattened(_with_equal_branches(vars_, body), body)
        width = width_of([(var, body)], types, schedule, max(1, var.extent // (FULL_THREADS // 4)))
        return FlatNest(var, body, width, _items(var, body, width, types, schedule), types)

    def threads(self, schedule: Schedule) -> int:
        """Return the preferred number of threads of a block."""
        return flat_threads(self.var.extent // self.width // self.items, schedule)

    def bind(self, threads: int, schedule: Schedule, may_combine: bool) -> For:
        """Return the bound nest for blocks of so many threads, which combine nothing."""
        del may_combine
        words, v = self.var.extent // self.width, self.var.name
        rounds = -(-words // (threads * self.items))
        number, item, thread = Var(f"{v}b", rounds), Var(f"{v}k", self.items), Var(f"{v}t", threads)
        base = (ix.of(number) * self.items + ix.of(item)) * threads
        lane = Lane.of(self.var, base + ix.of(thread), self.width)
        loop = For(thread, LoopKind.THREAD, in_lane(self.body, lane, self.types, {}))
        if words % (threads * self.items):
            loop = For(thread, LoopKind.THREAD, loop.body, base=base, limit=words)
        body: Body = (loop,)
        if self.items > 1:
            body = (For(item, LoopKind.SERIAL, body, unroll=self.items),)
        return For(number, LoopKind.BLOCK, body, team=Team(threads, 1), blocks=blocks_of(rounds, schedule))


def _with_equal_branches(vars_: tuple[Var, ...], body: Body) -> tuple[Var, ...]:
    """Return the loops in an order in which adjacent threads take the same branches, if many loads are in branches.

    Every second or fourth element of the last loop may be computed in its own way, as by an associative scan. A warp
    would run the branches of all of its threads one after the other, with a few threads in each.
    """
    last = vars_[-1]
    if _nested_loads(body) < MANY_LOADS or not any(_alternates(x, last) for x in walk(body)):
        return vars_
    tests = (x.value for x in walk(body) if isinstance(x, lir.Let) and isinstance(x.value, lir.IndexTest))
    tested = {v for t in tests for v in t.value.variables()}
    free = [v for v in vars_ if v not in tested and v.extent >= WARP]
    return (*(v for v in vars_ if v is not free[-1]), free[-1]) if free else vars_


def _nested_loads(body: Body, depth: int = 0) -> int:
    """Return the number of loads in branches of branches."""
    count = 0
    for s in body:
        if isinstance(s, lir.Let):
            count += depth > 1 and isinstance(s.value, lir.Load)
        else:
            count += sum(_nested_loads(inner, depth + isinstance(s, lir.If)) for inner in bodies_of(s))
    return count


def _alternates(s: lir.Stmt, var: Var) -> bool:
    """Check for a test of the remainder of a variable, which differs between adjacent elements."""
    if not isinstance(s, lir.Let) or not isinstance(s.value, lir.IndexTest):
        return False
    symbols = [symbol for symbol, _ in s.value.value.terms]
    return any(isinstance(x, Remainder) and x.divisor <= WARP and var in x.value.variables() for x in symbols)


def is_element(body: Body) -> bool:
    """Check whether statements compute one element, with nothing that threads could share; loops may be inside."""
    allowed = lir.Let | lir.Store | lir.If | lir.Accumulator | lir.Assign | For | lir.While
    return all(
        isinstance(s, allowed) and not (isinstance(s, For) and s.kind is not LoopKind.SERIAL) for s in walk(body)
    )


def _items(var: Var, body: Body, width: int, types: Mapping[str, PrimitiveType], schedule: Schedule) -> int:
    if schedule.gpu.items:
        return schedule.gpu.items
    if any(isinstance(s, For | lir.While) for s in body):
        return 1
    stores = [types[s.buffer].byte_size for s in walk(body) if isinstance(s, lir.Store)]
    most = min(MOST_ITEMS, ACCESS_BYTES // (width * max(stores, default=ACCESS_BYTES)))
    items = 1
    while (
        items * 2 <= most
        and var.extent // width >= 4 * items * FULL_THREADS
        and 2 * items * width * work_of(body) <= UNROLLED_WORK
    ):
        items *= 2
    return items
