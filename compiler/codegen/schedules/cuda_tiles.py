"""Loops on a GPU that read and write along different dimensions: tiles pass through shared memory.

Adjacent threads first read elements that are adjacent in memory into a tile in shared memory, and then take elements
from it that are adjacent in the results. Rows of a tile are one element longer than its edge, so that threads access
different banks both ways.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind, Scope, Team
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES, binary
from compiler.codegen.nest.traversal import map_indices, names_defined
from compiler.codegen.schedules.cuda_flat import is_element
from compiler.codegen.schedules.cuda_shapes import blocks_of, most_threads
from compiler.codegen.schedules.loop_transforms import flat_nest
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

TILE_BYTES = 40 * 1024
"""Maximum shared memory of the tiles of a kernel."""
LEAST_EDGE = 16
"""Minimum edge of a tile: so many elements of 4 bytes are two whole sectors of memory."""
THREADS = 256
"""Threads of a block by default."""


@dataclass(frozen=True)
class TileNest:
    """A nest of independent loops over single elements, some of which are read along another loop than the last.

    Attributes:
        others: variables of the loops besides the two.
        across: variable of the loop along which the tiles are read.
        along: variable of the last loop, along which results are adjacent.
        body: the statements of an element.
        staged: the definitions that read through tiles.
        edge: edge of the tiles.
    """

    others: tuple[Var, ...]
    across: Var
    along: Var
    body: Body
    staged: tuple[lir.Let, ...]
    edge: int

    combine_bytes = 0

    @staticmethod
    def of(s: lir.Stmt, types: Mapping[str, T], schedule: Schedule, room: int) -> TileNest | None:
        """Return the nest of a statement whose tiles fit into so many bytes, or None if it has another form."""
        found = flat_nest(s) if isinstance(s, For) else None
        if not schedule.gpu.tile or found is None or len(found[0]) < 2 or not is_element(found[1]):
            return None
        (*outer, along), body = found
        candidates = [(v, _staged(body, v, along)) for v in outer]
        across, staged = max(candidates, key=lambda c: len(c[1]))
        stored = [x for x in body if isinstance(x, lir.Store)]
        if not staged or not any(x.offset.coefficient(along) == 1 for x in stored):
            return None
        narrow = all(types[x.value.buffer].byte_size <= 2 for x in staged if isinstance(x.value, lir.Load))
        edge = schedule.gpu.tile * (2 if narrow else 1)
        size = sum(SCALAR_BYTES[x.type] for x in staged)
        while edge > LEAST_EDGE and (size * edge * (edge + 1) > room or min(across.extent, along.extent) <= edge // 2):
            edge //= 2
        if size * edge * (edge + 1) > room or min(across.extent, along.extent) < LEAST_EDGE:
            return None
        return TileNest(tuple(v for v in outer if v != across), across, along, body, staged, edge)

    def threads(self, schedule: Schedule) -> int:
        """Return the preferred number of threads of a block."""
        return most_threads(schedule, THREADS)

    def bind(self, threads: int, schedule: Schedule, may_combine: bool) -> For:
        """Return the bound nest for blocks of so many threads."""
        del may_combine
        edge, name = self.edge, self.along.name
        a_tiles, b_tiles = (-(-v.extent // edge) for v in (self.across, self.along))
        dims = [*(v.extent for v in self.others), a_tiles, b_tiles]
        number = Var(f"{name}b", math.prod(dims))
        *outside, a_tile, b_tile = ix.delinearize(ix.of(number), dims)
        around: dict[IndexSymbol, IndexExpr] = dict(zip(self.others, outside, strict=True))
        a_first, b_first = a_tile * edge, b_tile * edge

        def phase(body: Body, label: str, reads: bool) -> list[lir.Stmt]:
            """Return a loop over the points of a tile, adjacent threads along the loop in which it is read or not."""
            thread, item = Var(f"{name}{label}t", threads), Var(f"{name}{label}k", -(-edge * edge // threads))
            base = ix.of(item) * threads
            point = base + ix.of(thread)
            slow, fast = point.floordiv(edge), point.mod(edge)
            a_in, b_in = (fast, slow) if reads else (slow, fast)
            a, b = a_first + a_in, b_first + b_in
            inside = _in_tile(body, b_in * (edge + 1) + a_in)
            inside = map_indices(inside, lambda i: i.substitute({**around, self.across: a, self.along: b}))
            inside = _within(inside, [(a, self.across.extent), (b, self.along.extent)], edge, f"{name}{label}")
            loop = For(thread, LoopKind.THREAD, inside)
            if edge * edge % threads:
                loop = replace(loop, base=base, limit=edge * edge)
            if item.extent == 1:
                return [loop]
            return [For(item, LoopKind.SERIAL, (loop,), unroll=item.extent)]

        arrays = [lir.LocalArray(_tile_of(x), x.type, edge * (edge + 1), Scope.SHARED) for x in self.staged]
        loads = [s for x in self.staged for s in (x, lir.LocalStore(_tile_of(x), ix.of(_POINT), x.name))]
        tiled = {x.name for x in self.staged}
        rest = tuple(
            replace(s, value=lir.LocalLoad(_tile_of(s), ix.of(_POINT)))
            if isinstance(s, lir.Let) and s.name in tiled
            else s
            for s in self.body
        )
        body = (
            *arrays,
            *phase(tuple(loads), "r", reads=True),
            lir.Barrier(),
            *phase(rest, "w", reads=False),
            lir.Barrier(),
        )
        blocks = blocks_of(number.extent, schedule)
        return For(number, LoopKind.BLOCK, body, team=Team(threads, 1), blocks=blocks)


_POINT = Var("point", 1 << 30)
"""Stands for the place in a tile until the loops over its points are made."""


def _tile_of(x: lir.Let) -> str:
    return f"{x.name}_tile"


def _in_tile(body: Body, place: IndexExpr) -> Body:
    return map_indices(body, lambda i: place if i == ix.of(_POINT) else i)


def _staged(body: Body, across: Var, along: Var) -> tuple[lir.Let, ...]:
    """Return the loads that are contiguous along one loop and far apart along another; branches are left out."""
    defined = set(names_defined(body))
    found = []
    for s in body:
        if isinstance(s, lir.Let) and isinstance(s.value, lir.Load):
            i = s.value.offset
            rest = i - ix.of(across) - ix.of(along) * i.coefficient(along)
            names = {v.name for v in rest.variables()}
            if (
                i.coefficient(across) == 1
                and abs(i.coefficient(along)) > 1
                and names.isdisjoint({across.name, along.name} | defined)
            ):
                found.append(s)
    return tuple(found)


def _within(body: Body, places: Sequence[tuple[IndexExpr, int]], edge: int, name: str) -> Body:
    """Return the statements behind a branch if a tile may reach beyond the loops."""
    tests = [(i, extent) for i, extent in places if extent % edge]
    if not tests:
        return body
    out: list[lir.Stmt] = []
    for n, (i, extent) in enumerate(tests):
        out.append(lir.Let(f"{name}_in{n}", T.PRED, lir.IndexTest(i, None, extent - 1)))
    inside = f"{name}_in0"
    if len(tests) > 1:
        out.append(lir.Let(f"{name}_in", T.PRED, lir.Apply(binary(Opcode.AND, T.PRED), (inside, f"{name}_in1"))))
        inside = f"{name}_in"
    return (*out, lir.If(inside, body))
