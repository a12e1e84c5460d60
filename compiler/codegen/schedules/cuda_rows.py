"""Reductions on a GPU: teams of threads reduce rows or columns, and sweep over them again where results are needed.

Each team runs an iteration of the loops around the reductions. If the reduced elements are adjacent, the threads of a
team are: a part of a warp, a warp or a block. Otherwise adjacent threads belong to adjacent results, and the threads of
a team are apart. What several sweeps over a row need stays in the registers of the threads if there are enough, else in
shared memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind, Team
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import names_used, walk
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules import accumulators
from compiler.codegen.schedules.cuda_flat import flattened
from compiler.codegen.schedules.cuda_shapes import (
    MAX_THREADS,
    ROWS_UNROLLED,
    SECTOR_BYTES,
    UNROLLED_WORK,
    WARP,
    blocks_of,
    column_team,
    in_block,
    row_team,
)
from compiler.codegen.schedules.cuda_wide import Lane, in_lane, width_of
from compiler.codegen.schedules.loop_transforms import flat_nest, has_loop, without_dead_code
from compiler.codegen.schedules.row_cache import cache_rows
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.types import PrimitiveType

REGISTERS = 64
"""Registers of a thread in which elements of a row are kept; half of that in blocks of 1024 threads."""
NO_ROOM = 1 << 40
"""Bytes of a row that `cache_rows` may keep: registers are counted afterwards."""
LINES = 4
"""Iterations of a long loop over the elements of a thread that are written out, so that their loads are under way."""
MOST_LOADS = 12
"""Loads of such iterations, whose results need registers at the same time; if there are more, iterations are halved."""

LEAST_SHARED = 32 * 1024
"""Bytes of a row from which on it is kept in shared memory; the level 1 cache holds shorter ones without any stores."""

Sweep = For | lir.Reduce


@dataclass(frozen=True)
class RowNest:
    """Reductions, and loops over what is reduced, for each result.

    Attributes:
        var: variable of the loop over results.
        body: the statements for a result, whose sweeps have one variable each.
        by_columns: whether elements of adjacent results are adjacent.
        types: element types of the arguments of the kernel.
        room: bytes of dynamic shared memory in which a block may keep elements of a row.
    """

    var: Var
    body: Body
    by_columns: bool
    types: Mapping[str, PrimitiveType]
    room: int

    @staticmethod
    def of(s: lir.Stmt, types: Mapping[str, PrimitiveType], room: int = 0) -> RowNest | None:
        """Return the nest of a statement with so much dynamic shared memory, or None if it has another form."""
        if not isinstance(s, For):
            return None
        vars_, before = [], list[lir.Stmt]()
        while True:
            if s.kind is not LoopKind.INDEPENDENT or s.base is not None:
                return None
            vars_.append(s.var)
            if any(isinstance(x, lir.Reduce) for x in s.body):
                break
            *lets, inner = s.body or (None,)
            if not isinstance(inner, For) or not all(isinstance(x, lir.Let) for x in lets):
                return None
            before += [x for x in lets if x is not None]
            s = inner
        body = _with_flat_sweeps((*before, *s.body))
        if body is None:
            return None
        by_columns = _is_by_columns(vars_[-1], body)
        var, body = flattened(tuple(vars_), body)
        return RowNest(var, body, by_columns, types, room)

    @property
    def combine_bytes(self) -> int:
        """Bytes of shared memory per thread in which a block combines accumulators: of each thread, or of each warp."""
        reductions = [r for s in self.body if isinstance(s, lir.Reduce) for r in s.reductions]
        total = sum(max(4, SCALAR_BYTES[r.type]) for r in reductions)
        return total if self.by_columns else -(-total // WARP)

    @property
    def _sweeps(self) -> list[Sweep]:
        return [s for s in self.body if isinstance(s, For | lir.Reduce) and _var_of(s) is not None]

    @property
    def _elements(self) -> int:
        return max(_extent(s) for s in self._sweeps)

    def _team(self, schedule: Schedule) -> Team:
        if not self.by_columns:
            return row_team(self.var.extent, self._elements, schedule)
        loaded = (x.value for s in self._sweeps for x in walk(s.body) if isinstance(x, lir.Let))
        sizes = [self.types[x.buffer].byte_size for x in loaded if isinstance(x, lir.Load)]
        sector = SECTOR_BYTES // min(sizes, default=1)
        return column_team(self.var.extent, self._elements, schedule, sector, self.var.extent % sector == 0)

    def threads(self, schedule: Schedule) -> int:
        """Return the preferred number of threads of a block."""
        return self._team(schedule).threads

    def bind(self, threads: int, schedule: Schedule, may_combine: bool) -> For:
        """Return the bound nest for blocks of so many threads; unless they may combine, each reduces by itself."""
        team = in_block(self._team(schedule), threads) if may_combine else Team(1, threads, True)
        level, width = schedule.cache, self._width(team, schedule)
        while True:
            cached = without_dead_code(cache_rows(self.body, level, NO_ROOM))
            bound = _Sweeps(team, width, self.types, self.room if team.teams == 1 else 0).statements(cached)
            if bound is not None:
                break
            level -= 1
        rounds = -(-self.var.extent // team.teams)
        return For(self.var, LoopKind.BLOCK, bound, team=team, blocks=blocks_of(rounds, schedule))

    def _width(self, team: Team, schedule: Schedule) -> int:
        if self.by_columns or team.strided:
            return 1
        sweeps = [(v, s.body) for s in self._sweeps if (v := _var_of(s)) is not None]
        if len({v.extent for v, _ in sweeps}) > 1:
            return 1
        return width_of(sweeps, self.types, schedule, max(1, self._elements // team.size))


def _with_flat_sweeps(body: Body) -> Body | None:
    """Return the statements of a result with one variable for each sweep, or None if they have another form."""
    out: list[lir.Stmt] = []
    for s in body:
        if isinstance(s, lir.Reduce):
            var, inner = flattened(s.vars, s.body)
            if not _is_serial(inner):
                return None
            out.append(replace(s, vars=(var,), body=inner))
        elif isinstance(s, For) and s.kind is LoopKind.INDEPENDENT:
            found = flat_nest(s)
            if found is None or not _is_serial(found[1]):
                return None
            var, inner = flattened(*found)
            out.append(For(var, LoopKind.INDEPENDENT, inner))
        elif isinstance(s, lir.Let | lir.Store | lir.If | lir.Accumulator | lir.Assign | For | lir.While):
            if not _is_serial((s,)):
                return None
            out.append(s)
        else:
            return None
    return tuple(out)


def _is_serial(body: Body) -> bool:
    """Check whether every thread of a team may execute statements by itself."""
    allowed = lir.Let | lir.Store | lir.If | lir.Accumulator | lir.Assign | For | lir.While
    return all(
        isinstance(s, allowed) and not (isinstance(s, For) and s.kind is not LoopKind.SERIAL) for s in walk(body)
    )


def _var_of(s: lir.Stmt) -> Var | None:
    """Return the variable of a sweep, or None for any other statement."""
    if isinstance(s, lir.Reduce):
        return s.vars[0]
    return s.var if isinstance(s, For) and s.kind is LoopKind.INDEPENDENT else None


def _extent(s: Sweep) -> int:
    return s.vars[0].extent if isinstance(s, lir.Reduce) else s.var.extent


def _is_by_columns(kept: Var, body: Body) -> bool:
    """Check whether reductions read adjacent elements along the loop around them rather than along their own.

    What all results share, such as a mean for each row, comes from the cache in either order: loads count by the
    number of elements that they read.
    """
    along = across = 0
    for s in body:
        if not isinstance(s, lir.Reduce):
            continue
        (var,) = s.vars
        for x in walk(s.body):
            if isinstance(x, lir.Let) and isinstance(x.value, lir.Load):
                i = x.value.offset
                read = math.prod(v.extent for v in set(i.variables()) if isinstance(v, Var))
                along += read if i.coefficient(kept) == 1 else 0
                across += read if _step(i, var) == 1 else 0
    return along > across


def _step(i: IndexExpr, var: Var) -> int:
    """Return by how much an index grows with the last dimension of a flattened variable, 0 if that is not constant."""
    for symbol, c in i.terms:
        if symbol == var or (isinstance(symbol, ix.Remainder) and symbol.value == ix.of(var)):
            return c
    return 0


@dataclass
class _Sweeps:
    """The binding of the statements of one result to a team.

    Attributes:
        team: the threads.
        width: number of adjacent elements that a thread reduces together.
        types: element types of the arguments of the kernel.
        room: bytes of shared memory in which elements of the only row of a block may be kept.
    """

    team: Team
    width: int
    types: Mapping[str, PrimitiveType]
    room: int

    def statements(self, body: Body) -> Body | None:
        """Return the bound statements; None if they keep more of a row than registers and shared memory hold."""
        arrays = [s for s in body if isinstance(s, lir.LocalArray)]
        shared = self._in_shared_memory(arrays, body)
        if shared is None:
            return None
        kept = {a.name: a.name not in shared for a in arrays}
        out: list[lir.Stmt] = []
        for s in body:
            var = _var_of(s)
            if isinstance(s, lir.LocalArray) and s.name in shared:
                out.append(replace(s, size=self._slots(s.size) * self.team.size, scope=lir.Scope.DYNAMIC))
            elif isinstance(s, lir.LocalArray):
                out.append(replace(s, size=self._slots(s.size)))
            elif isinstance(s, lir.Reduce) and var is not None:
                combined = accumulators.combined_of(s)
                out += accumulators.start(s)
                out += self._sweep(var, (*s.body, *accumulators.combine(s)), kept)
                if self.team.size > 1:
                    out.append(lir.CombineThreads(combined, self.team))
                out += accumulators.results(s)
            elif isinstance(s, For) and var is not None:
                out += self._sweep(var, s.body, kept)
            else:
                out.append(s)
        return tuple(out)

    def _slots(self, elements: int) -> int:
        """Return the number of elements of a thread, rounded up."""
        return -(-(elements // self.width) // self.team.size) * self.width

    def _in_shared_memory(self, arrays: Sequence[lir.LocalArray], body: Body) -> set[str] | None:
        """Return the arrays for which registers do not suffice, as few as possible; None if they do not fit either.

        A thread accesses its own elements alone, so that there are no barriers.
        """
        sizes = {a.name: self._slots(a.size) * self.team.size * SCALAR_BYTES[a.type] for a in arrays}
        long = [name for name, size in sizes.items() if size >= LEAST_SHARED]
        for count in range(len(long) + 1):
            for chosen in itertools.combinations(long, count):
                bytes_needed = sum(sizes[name] for name in chosen)
                if bytes_needed <= self.room and self._fits([a for a in arrays if a.name not in chosen], body):
                    return set(chosen)
        return None

    def _fits(self, arrays: Sequence[lir.LocalArray], body: Body) -> bool:
        """Check whether threads have registers for the elements that they keep from one statement to the next.

        Where a sweep reads an element of one array for the last time, that of another takes its place.
        """
        words = {a.name: self._slots(a.size) * -(-SCALAR_BYTES[a.type] // 4) for a in arrays}
        uses = [words.keys() & set(names_used((s,))) for s in body if not isinstance(s, lir.LocalArray)]
        most = 0
        for n in range(1, len(uses)):
            before, after = set[str]().union(*uses[:n]), set[str]().union(*uses[n:])
            most = max(most, sum(words[name] for name in before & after))
        return most <= (REGISTERS if self.team.threads < MAX_THREADS else REGISTERS // 2)

    def _sweep(self, var: Var, body: Body, kept: Mapping[str, bool]) -> list[lir.Stmt]:
        """Return the loops by which each thread runs over its elements; `kept` says which arrays are in registers."""
        words, size = var.extent // self.width, self.team.size
        whole, rest = divmod(words, size)
        number, thread = Var(f"{var.name}k", whole), Var(f"{var.name}t", size)
        in_registers = any(kept.get(name, False) for name in names_used(body))
        out: list[lir.Stmt] = []
        if whole:
            loop: lir.Stmt = For(thread, LoopKind.THREAD, self._elements(var, body, ix.of(number), ix.of(thread), kept))
            if whole > 1:
                loop = For(number, LoopKind.SERIAL, (loop,), unroll=self._unroll(body, whole, in_registers))
            out.append(loop)
        if rest:
            last = ix.const(whole)
            inner = self._elements(var, body, last, ix.of(thread), kept)
            out.append(For(thread, LoopKind.THREAD, inner, base=last * size, limit=words))
        return out

    def _elements(self, var: Var, body: Body, number: IndexExpr, thread: IndexExpr, kept: Mapping[str, bool]) -> Body:
        group = number * self.team.size + thread
        lane = Lane.of(var, group, self.width)
        # In shared memory, adjacent threads access adjacent elements.
        groups = self._slots(var.extent) // self.width * self.team.size
        slots = {name: (number * self.width, 1) if own else (group, groups) for name, own in kept.items()}
        return in_lane(body, lane, self.types, slots)

    def _unroll(self, body: Body, iterations: int, in_registers: bool) -> int:
        if in_registers:
            return iterations
        work = self.width * work_of(body)
        if has_loop(body) or LINES * work > UNROLLED_WORK:
            return 1
        if iterations <= ROWS_UNROLLED and iterations * work <= UNROLLED_WORK:
            return iterations
        loads = sum(isinstance(s, lir.Let) and isinstance(s.value, lir.Load) for s in walk(body))
        return LINES if loads * LINES <= MOST_LOADS else LINES // 2
