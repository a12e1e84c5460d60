"""The row cache: values that several loops over one row compute are computed by the first and kept in a local array."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from compiler.analysis.kernel_summary import ROW_BYTES
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import bodies_of, map_bodies, names_defined, names_used
from compiler.codegen.schedules.lanes import is_column_loop
from compiler.codegen.schedules.loop_transforms import perfect_nest
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType

ROW_CACHE_BYTES = ROW_BYTES
"""Maximum size of the values of one row that are kept in local arrays, as the analytic cost model takes it."""
EXPENSIVE, LOADED = 1, 2
"""Levels of `Schedule.cache`: keep values that are expensive to compute; keep values that are loaded, too."""
MUCH_WORK = 10
"""Number of operations of a value from which on it is expensive to compute again."""
_WORK = {Opcode.DIVIDE: 10, Opcode.CLAMP: 4}
"""Number of operations that an operation counts as, where it is more than one whatever its type."""
ROUNDED_WORK = 4
"""Number of operations that one with a result of 16 bits counts as, because it is rounded."""
_CHOOSING = frozenset({Opcode.SELECT, Opcode.MAXIMUM, Opcode.MINIMUM, Opcode.NEGATE, Opcode.ABS})
"""Operations whose results are operands but for the sign, so that they are not rounded."""

Sweep: TypeAlias = "For | lir.Reduce"
"""A loop over the elements of a row."""


def cache_rows(body: Body, level: int, room: int = ROW_CACHE_BYTES) -> Body:
    """Return the statements with the values of each row computed once.

    Args:
        body: the statements.
        level: the `cache` of the schedule.
        room: maximum bytes of the values of one row that are kept.
    """
    if level == 0:
        return body
    body = tuple(s if _is_by_columns(s) else map_bodies(s, lambda inner: cache_rows(inner, level, room)) for s in body)
    sweeps = [s for s in body if _var_of(s) is not None]
    for extent in dict.fromkeys(v.extent for s in sweeps if (v := _var_of(s)) is not None):
        body = _cache_one(body, extent, level, room)
    return body


def kept_bytes_bound(body: Body, level: int) -> int:
    """Return an upper bound of the bytes that `cache_rows` keeps, also if nests are merged before."""
    if level == 0:
        return 0
    total = sum(kept_bytes_bound(inner, level) for s in body for inner in bodies_of(s))
    values: dict[int, list[int]] = {}
    costly: set[int] = set()
    for s in body:
        found = _elements(s)
        if found is not None:
            extent, inside = found
            lets = [x for x in inside if isinstance(x, lir.Let)]
            values.setdefault(extent, []).append(sum(SCALAR_BYTES[x.type] for x in lets))
            if level >= LOADED or has_expensive(lets):
                costly.add(extent)
    for extent, sizes in values.items():
        if len(sizes) > 1 and extent in costly:
            total += min(ROW_CACHE_BYTES, extent * (sum(sizes) - min(sizes)))
    return total


def has_expensive(lets: Iterable[lir.Let]) -> bool:
    """Check whether any of the values that one loop computes, operands first, may be expensive."""
    work: dict[str, int] = {}
    for x in lets:
        if isinstance(x.value, lir.Apply):
            own = work[x.name] = _work_of(x.value) + sum(work.get(a, 0) for a in set(x.value.args))
            if own >= MUCH_WORK or _is_costly(x.value):
                return True
    return False


def _elements(s: lir.Stmt) -> tuple[int, Body] | None:
    """Return the number of elements of a sweep once its loops are merged, and its statements; None for others."""
    if isinstance(s, lir.Reduce):
        return math.prod(v.extent for v in s.vars), s.body
    nest = perfect_nest(s)
    return (math.prod(f.var.extent for f in nest), nest[-1].body) if nest else None


def _is_costly(v: lir.Apply) -> bool:
    return v.op.is_expensive and v.op.opcode is not Opcode.DIVIDE


def _work_of(v: lir.Apply) -> int:
    is_rounded = v.op.result in (PrimitiveType.BF16, PrimitiveType.F16) and v.op.opcode not in _CHOOSING
    return _WORK.get(v.op.opcode, ROUNDED_WORK if is_rounded else 1)


def _is_by_columns(s: lir.Stmt) -> bool:
    """Check for a loop over columns: the values of all rows of a tile of columns are too many to be kept."""
    return isinstance(s, For) and is_column_loop(s)


def _var_of(s: lir.Stmt) -> Var | None:
    """Return the variable of a loop over single elements, or None for any other statement."""
    if isinstance(s, lir.Reduce) and len(s.vars) == 1:
        return s.vars[0]
    return s.var if isinstance(s, For) and s.kind is LoopKind.INDEPENDENT else None


@dataclass
class _Numbers:
    """Value numbers: equal expressions of the element number have equal numbers.

    Attributes:
        of: number of each expression, whose operands are numbers themselves.
        expensive: numbers of values that are computed by an expensive op or by many, directly or through operands.
        work: number of operations of each value, as far as it is known.
        varying: numbers of values that depend on the element.
    """

    of: dict[Hashable, int] = field(default_factory=dict)
    expensive: set[int] = field(default_factory=set)
    work: dict[int, int] = field(default_factory=dict)
    varying: set[int] = field(default_factory=set)

    def number(self, key: Hashable) -> int:
        return self.of.setdefault(key, len(self.of))

    def values(self, body: Body, var: Var) -> dict[str, int]:
        """Return the numbers of the values that a loop defines and that depend on its variable."""
        marker = ix.of(Var("element", var.extent))
        local, found = set(names_defined(body)), dict[str, int]()
        for s in body:
            if not isinstance(s, lir.Let):
                continue
            v, index = s.value, lir.index_of(s.value)
            if isinstance(v, lir.Constant):
                found[s.name] = self.number(("constant", s.type, repr(v.value)))
            elif isinstance(v, lir.IndexValue | lir.Load | lir.LocalLoad) and index is not None:
                names = {x.name for x in index.variables()}
                if names & local:
                    continue
                buffer = v.buffer if isinstance(v, lir.Load) else v.array if isinstance(v, lir.LocalLoad) else None
                found[s.name] = number = self.number((buffer, s.type, index.substitute({var: marker})))
                if var.name in names:
                    self.varying.add(number)
            elif isinstance(v, lir.Apply) and all(a in found or a not in local for a in v.args):
                self._apply(s.name, v, found)
        return {name: n for name, n in found.items() if n in self.varying}

    def _apply(self, name: str, v: lir.Apply, found: dict[str, int]) -> None:
        parts = tuple(found[a] if a in found else self.number(("outside", a)) for a in v.args)
        found[name] = number = self.number((v.op, parts))
        if not self.varying.isdisjoint(parts):
            self.varying.add(number)
        self.work[number] = min(MUCH_WORK, _work_of(v) + sum(self.work.get(p, 0) for p in set(parts) & self.varying))
        if _is_costly(v) or self.work[number] >= MUCH_WORK or not self.expensive.isdisjoint(parts):
            self.expensive.add(number)


def _cache_one(body: Body, extent: int, level: int, room: int) -> Body:
    """Share values among the loops over `extent` elements that are next to each other in `body`."""
    numbers = _Numbers()
    first: dict[int, tuple[int, lir.Let]] = {}  # by number: the position of the loop that has it first
    kept: dict[int, str] = {}  # arrays by number
    rewritten: dict[int, lir.Stmt] = {}
    for at, s in enumerate(body):
        var = _var_of(s)
        if var is None or var.extent != extent or not isinstance(s, For | lir.Reduce):
            continue
        values = numbers.values(s.body, var)
        replaced: dict[str, str] = {}
        needed = set(_sinks(s))
        for let in reversed(s.body):
            if not isinstance(let, lir.Let) or let.name not in needed:
                continue
            n = values.get(let.name, -1)
            if n in first and (level >= LOADED or n in numbers.expensive):
                size = extent * SCALAR_BYTES[let.type]
                if n not in kept and size <= room:
                    room -= size
                    kept[n] = f"{first[n][1].name}_row"
                if n in kept:
                    replaced[let.name] = kept[n]
                    continue
            needed.update(names_used((let,)))
        if replaced:
            rewritten[at] = replace(s, body=tuple(_from_cache(s.body, replaced, var)))
        for x in s.body:
            if isinstance(x, lir.Let) and x.name in values and x.name not in replaced:
                first.setdefault(values[x.name], (at, x))
    return _rebuilt(body, {kept[n]: first[n] for n in kept}, rewritten, extent)


def _rebuilt(body: Body, arrays: dict[str, tuple[int, lir.Let]], rewritten: dict[int, lir.Stmt], extent: int) -> Body:
    """Return the statements with the arrays declared and filled by the loops that have their values first."""
    if not arrays:
        return body
    out: list[lir.Stmt] = []
    for at, s in enumerate(body):
        mine = {let.name: name for name, (where, let) in arrays.items() if where == at}
        out += [lir.LocalArray(name, let.type, extent) for name, (where, let) in arrays.items() if where == at]
        s = rewritten.get(at, s)
        if mine and isinstance(s, For | lir.Reduce):
            s = replace(s, body=tuple(_with_stores(s.body, mine, _var_of(s))))
        out.append(s)
    return tuple(out)


def _sinks(s: Sweep) -> Iterator[str]:
    """Yield the names that the loop uses in anything but definitions."""
    yield from names_used(tuple(x for x in s.body if not isinstance(x, lir.Let)))
    if isinstance(s, lir.Reduce):
        yield from (r.value for r in s.reductions)


def _from_cache(body: Body, replaced: dict[str, str], var: Var) -> Iterator[lir.Stmt]:
    for s in body:
        if isinstance(s, lir.Let) and s.name in replaced:
            yield replace(s, value=lir.LocalLoad(replaced[s.name], ix.of(var)))
        else:
            yield s


def _with_stores(body: Body, arrays: dict[str, str], var: Var | None) -> Iterator[lir.Stmt]:
    for s in body:
        yield s
        if isinstance(s, lir.Let) and s.name in arrays and var is not None:
            yield lir.LocalStore(arrays[s.name], ix.of(var), s.name)
