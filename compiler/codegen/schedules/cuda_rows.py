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
from compiler.codegen.nest.traversal import map_bodies, names_used, walk
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules import accumulators
from compiler.codegen.schedules.cuda_columns import join_columns
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
        columns: number of adjacent results that an iteration of the loop computes.
    """

    var: Var
    body: Body
    by_columns: bool
    types: Mapping[str, PrimitiveType]
    room: int
    columns: int = 1

    @staticmethod
    def of(s: lir.Stmt, types: Mapping[str, PrimitiveType], schedule: Schedule, room: int = 0) -> RowNest | None:
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
        columns = 1
        if by_columns:
            var, body, columns = join_columns(var, body, types, schedule)
        return RowNest(var, body, by_columns, types, room, columns)

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
        statements = [x for s in self._sweeps for x in walk(s.body)]
        read = [x.buffer for x in statements if isinstance(x, lir.WideLoad)]
        read += [x.value.buffer for x in statements if isinstance(x, lir.Let) and isinstance(x.value, lir.Load)]
        size = min((self.types[b].byte_size for b in read), default=1)
        sector = max(1, SECTOR_BYTES // (size * self.columns))
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


def _far(array: str) -> str:
    """Return the name of the part of an array that is in shared memory while the rest is in registers."""
    return f"{array}_far"


def _with_arrays(body: Body, names: Mapping[str, str]) -> Body:
    """Return the statements with local arrays renamed."""

    def renamed(s: lir.Stmt) -> lir.Stmt:
        if isinstance(s, lir.LocalStore) and s.array in names:
            return replace(s, array=names[s.array])
        if isinstance(s, lir.Let) and isinstance(s.value, lir.LocalLoad) and s.value.array in names:
            return replace(s, value=replace(s.value, array=names[s.value.array]))
        return map_bodies(s, lambda inner: _with_arrays(inner, names))

    return tuple(map(renamed, body))


def _with_reused_arrays(body: Body) -> Body:
    """Return the statements with arrays in the place of others that are read for the last time where they are written.

    A thread accesses its own elements alone, and reads each of them before it writes the other.
    """
    arrays = {s.name: s for s in body if isinstance(s, lir.LocalArray)}
    uses = {name: [n for n, s in enumerate(body) if _uses(s, name)] for name in arrays}
    names: dict[str, str] = {}
    for old, new in itertools.permutations(arrays, 2):
        a, b = arrays[old], arrays[new]
        if old in names or new in names or old in names.values() or not uses[old] or not uses[new]:
            continue
        at = uses[old][-1]
        if (a.type, a.size) == (b.type, b.size) and at == uses[new][0] and _reads_first(body[at], old, new):
            names[new] = old
    kept = tuple(s for s in body if not (isinstance(s, lir.LocalArray) and s.name in names))
    return _with_arrays(kept, names) if names else body


def _uses(s: lir.Stmt, array: str) -> bool:
    return not isinstance(s, lir.LocalArray) and array in names_used((s,))


def _reads_first(s: lir.Stmt, old: str, new: str) -> bool:
    """Check whether a sweep reads all that it needs of one array before it writes another."""
    if not isinstance(s, For | lir.Reduce):
        return False
    reads = [n for n, x in enumerate(s.body) if _uses(x, old)]
    writes = [n for n, x in enumerate(s.body) if _uses(x, new)]
    plain = all(isinstance(s.body[n], lir.Let) for n in reads) and isinstance(s.body[writes[0]], lir.LocalStore)
    return plain and max(reads) < min(writes)


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
        for candidate in dict.fromkeys((body, _with_reused_arrays(body))):
            arrays = [s for s in candidate if isinstance(s, lir.LocalArray)]
            shared = self._in_shared_memory(arrays, candidate)
            if shared is not None:
                return self._bound(candidate, {a.name: 0 if a.name in shared else self._slots(a.size) for a in arrays})
        near = self._slots_in_registers(arrays, candidate)
        return None if near is None else self._bound(candidate, {a.name: near for a in arrays})

    def _bound(self, body: Body, near: Mapping[str, int]) -> Body:
        """Return the bound statements; `near` says how many elements of a thread are in registers, for each array."""
        out: list[lir.Stmt] = []
        for s in body:
            var = _var_of(s)
            if isinstance(s, lir.LocalArray):
                own = near[s.name]
                if own:
                    out.append(replace(s, size=own))
                far = self._slots(s.size) - own
                if far:
                    name = _far(s.name) if own else s.name
                    out.append(replace(s, name=name, size=far * self.team.size, scope=lir.Scope.DYNAMIC))
            elif isinstance(s, lir.Reduce) and var is not None:
                combined = accumulators.combined_of(s)
                out += accumulators.start(s)
                out += self._sweep(var, (*s.body, *accumulators.combine(s)), near)
                if self.team.size > 1:
                    out.append(lir.CombineThreads(combined, self.team))
                out += accumulators.results(s)
            elif isinstance(s, For) and var is not None:
                out += self._sweep(var, s.body, near)
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

    def _slots_in_registers(self, arrays: Sequence[lir.LocalArray], body: Body) -> int | None:
        """Return how many elements of a thread stay in registers if the others of each array are in shared memory.

        None if they do not fit there either, or if the arrays differ in length or are short.
        """
        if len({a.size for a in arrays}) != 1:
            return None
        if min(a.size * SCALAR_BYTES[a.type] for a in arrays) < LEAST_SHARED:
            return None  # the level 1 cache holds what is loaded or computed again
        slots = self._slots(arrays[0].size)
        per_slot = self._words({a.name: -(-SCALAR_BYTES[a.type] // 4) for a in arrays}, body)
        near = self._registers // max(1, per_slot) // self.width * self.width
        far_bytes = (slots - near) * self.team.size * sum(SCALAR_BYTES[a.type] for a in arrays)
        return near if 0 < near < slots and far_bytes <= self.room else None

    @property
    def _registers(self) -> int:
        """Registers of a thread in which elements of a row are kept."""
        return REGISTERS if self.team.threads < MAX_THREADS else REGISTERS // 2

    def _fits(self, arrays: Sequence[lir.LocalArray], body: Body) -> bool:
        """Check whether threads have registers for the elements that they keep from one statement to the next."""
        words = {a.name: self._slots(a.size) * -(-SCALAR_BYTES[a.type] // 4) for a in arrays}
        return self._words(words, body) <= self._registers

    def _words(self, words: Mapping[str, int], body: Body) -> int:
        """Return how many words are kept from one statement to the next, at most.

        Where a sweep reads an element of one array for the last time, that of another takes its place.
        """
        uses = [words.keys() & set(names_used((s,))) for s in body if not isinstance(s, lir.LocalArray)]
        most = 0
        for n in range(1, len(uses)):
            before, after = set[str]().union(*uses[:n]), set[str]().union(*uses[n:])
            most = max(most, sum(words[name] for name in before & after))
        return most

    def _sweep(self, var: Var, body: Body, near: Mapping[str, int]) -> list[lir.Stmt]:
        """Return the loops by which each thread runs over its elements; `near`: how many are in registers, by array."""
        words, size = var.extent // self.width, self.team.size
        whole, rest = divmod(words, size)
        thread = Var(f"{var.name}t", size)
        slots = self._slots(var.extent)
        # Where a part of each array is in registers, the loop over the elements of a thread is two.
        split = min((n for name, n in near.items() if name in names_used(body) and 0 < n < slots), default=0)
        out: list[lir.Stmt] = []
        first = 0
        for end in sorted({min(whole, split // self.width), whole} - {0}):
            number = Var(f"{var.name}k" if end == whole else f"{var.name}n", end - first)
            at = ix.of(number) + first
            loop: lir.Stmt = For(thread, LoopKind.THREAD, self._elements(var, body, at, ix.of(thread), near, first))
            if end - first > 1:
                in_registers = any(first * self.width < near.get(name, 0) for name in names_used(body))
                loop = For(number, LoopKind.SERIAL, (loop,), unroll=self._unroll(body, end - first, in_registers))
            out.append(loop)
            first = end
        if rest:
            last = ix.const(whole)
            inner = self._elements(var, body, last, ix.of(thread), near, whole)
            out.append(For(thread, LoopKind.THREAD, inner, base=last * size, limit=words))
        return out

    def _elements(
        self, var: Var, body: Body, number: IndexExpr, thread: IndexExpr, near: Mapping[str, int], first: int
    ) -> Body:
        """Return the statements of a thread for its element `number`, which is at least `first`."""
        group = number * self.team.size + thread
        lane = Lane.of(var, group, self.width)
        total = self._slots(var.extent)
        slots: dict[str, tuple[IndexExpr, int]] = {}
        renamed: dict[str, str] = {}
        for name, own in near.items():
            if first * self.width < own:
                slots[name] = (number * self.width, 1)
                continue
            # In shared memory, adjacent threads access adjacent elements.
            groups = (total - own) // self.width * self.team.size
            slots[name] = (group - own // self.width * self.team.size, groups)
            if own:
                renamed[name] = _far(name)
        placed = in_lane(body, lane, self.types, slots)
        return _with_arrays(placed, renamed) if renamed else placed

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
