"""Loops on a GPU that read and write along different dimensions: tiles pass through shared memory.

Adjacent threads first read elements that are adjacent in memory into a tile in shared memory, and then take elements
from it that are adjacent in the results. Rows of a tile have an odd length, so that threads access different banks both
ways. Tiles may be as wide as a short loop is long, and several loops over adjacent elements count as one, such as those
of the positions and features of a kernel of a convolution.
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
from compiler.codegen.schedules.cuda_shapes import MULTIPROCESSORS, blocks_of, floor_power, most_threads
from compiler.codegen.schedules.loop_transforms import flat_nest
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

TILE_BYTES = 40 * 1024
"""Maximum shared memory of the tiles of a kernel."""
LEAST_EDGE = 16
"""Minimum edge of a tile: so many elements of 4 bytes are two whole sectors of memory."""
MOST_TILES = 4 * MULTIPROCESSORS
"""Tiles from which on they are as large as they may be."""
THREADS = 256
"""Threads of a block by default."""


@dataclass(frozen=True)
class TileNest:
    """A nest of independent loops over single elements, some of which are read along other loops than the last ones.

    Attributes:
        others: variables of the loops besides the two.
        across: variable of the loop along which the tiles are read; several loops that read adjacent elements are one.
        along: variable of the last loop, along which results are adjacent; it may be several loops, too.
        body: the statements of an element.
        staged: the definitions that read through tiles.
        edges: edges of the tiles across and along.
    """

    others: tuple[Var, ...]
    across: Var
    along: Var
    body: Body
    staged: tuple[lir.Let, ...]
    edges: tuple[int, int]

    combine_bytes = 0

    @staticmethod
    def of(s: lir.Stmt, types: Mapping[str, T], schedule: Schedule, room: int) -> TileNest | None:
        """Return the nest of a statement whose tiles fit into so many bytes, or None if it has another form."""
        found = flat_nest(s) if isinstance(s, For) else None
        if not schedule.gpu.tile or found is None or len(found[0]) < 2 or not is_element(found[1]):
            return None
        loads = [x for x in found[1] if isinstance(x, lir.Let) and isinstance(x.value, lir.Load)]
        pairs = {_pair(found[0], x.value.offset): None for x in loads if isinstance(x.value, lir.Load)}
        nests = [_with_pair(*found, *pair) for pair in pairs if pair is not None]
        if not nests:
            return None
        vars_, body, staged = max(nests, key=lambda n: len(n[2]))
        *others, across, along = vars_
        stored = [x for x in body if isinstance(x, lir.Store) and x.offset.coefficient(along) == 1]
        if not staged or not stored:
            return None
        narrow = all(types[x.value.buffer].byte_size <= 2 for x in staged if isinstance(x.value, lir.Load))
        size = sum(SCALAR_BYTES[x.type] for x in staged)
        # Short loops are whole edges of tiles if the next elements follow them in memory.
        shorts = (
            across.extent < LEAST_EDGE and all(_follows(x.value, along, across) for x in staged),
            along.extent < LEAST_EDGE and all(x.offset.coefficient(across) == along.extent for x in stored),
        )
        edge = schedule.gpu.tile * (2 if narrow else 1)
        elements = math.prod(v.extent for v in vars_)
        while edge > LEAST_EDGE and elements < MOST_TILES * edge * edge:
            edge //= 2  # a thread would wait for one element after another while multiprocessors are idle
        edges = _edges(across.extent, along.extent, shorts, edge, room // size)
        return edges and TileNest(tuple(others), across, along, body, staged, edges)

    def threads(self, schedule: Schedule) -> int:
        """Return the preferred number of threads of a block."""
        return most_threads(schedule, THREADS)

    def bind(self, threads: int, schedule: Schedule, may_combine: bool) -> For:
        """Return the bound nest for blocks of so many threads."""
        del may_combine
        (a_edge, b_edge), name = self.edges, self.along.name
        stride, points = a_edge | 1, a_edge * b_edge
        dims = [*(v.extent for v in self.others), -(-self.across.extent // a_edge), -(-self.along.extent // b_edge)]
        number = Var(f"{name}b", math.prod(dims))
        *outside, a_tile, b_tile = ix.delinearize(ix.of(number), dims)
        around: dict[IndexSymbol, IndexExpr] = dict(zip(self.others, outside, strict=True))

        def phase(body: Body, label: str, reads: bool) -> list[lir.Stmt]:
            """Return a loop over the points of a tile, adjacent threads along the loop in which it is read or not."""
            thread, item = Var(f"{name}{label}t", threads), Var(f"{name}{label}k", -(-points // threads))
            base = ix.of(item) * threads
            point = base + ix.of(thread)
            slow, fast = point.floordiv(a_edge if reads else b_edge), point.mod(a_edge if reads else b_edge)
            a_in, b_in = (fast, slow) if reads else (slow, fast)
            a, b = a_tile * a_edge + a_in, b_tile * b_edge + b_in
            inside = _in_tile(body, b_in * stride + a_in)
            inside = map_indices(inside, lambda i: i.substitute({**around, self.across: a, self.along: b}))
            ends = [(a, self.across.extent, a_edge), (b, self.along.extent, b_edge)]
            loop = For(thread, LoopKind.THREAD, _within(inside, ends, f"{name}{label}"))
            if points % threads:
                loop = replace(loop, base=base, limit=points)
            if item.extent == 1:
                return [loop]
            return [For(item, LoopKind.SERIAL, (loop,), unroll=item.extent)]

        arrays = [lir.LocalArray(_tile_of(x), x.type, b_edge * stride, Scope.SHARED) for x in self.staged]
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


def _pair(vars_: Sequence[Var], read: IndexExpr) -> tuple[tuple[Var, ...], tuple[Var, ...]] | None:
    """Return the loops along which a load reads adjacent elements, and the last loops, along which others are stored.

    None if there are none. Loops before the last one belong to the last ones if that is short.
    """
    first = next((v for v in vars_ if read.coefficient(v) == 1 and v.extent > 1), None)
    if first is None or first == vars_[-1]:
        return None
    along = [vars_[-1]]
    for v in reversed(vars_[:-1]):
        if v == first or math.prod(x.extent for x in along) >= LEAST_EDGE:
            break
        along.insert(0, v)
    across, run = [first], first.extent
    while (outer := next((v for v in vars_ if read.coefficient(v) == run and v not in along), None)) is not None:
        across.insert(0, outer)
        run *= outer.extent
    return tuple(across), tuple(along)


def _with_pair(
    vars_: Sequence[Var], body: Body, across: tuple[Var, ...], along: tuple[Var, ...]
) -> tuple[tuple[Var, ...], Body, tuple[lir.Let, ...]]:
    """Return the loops of a nest, with two groups as one each at the end, its body, and the loads through tiles."""
    merged = [v[0] if len(v) == 1 else Var(f"{v[-1].name}m", math.prod(x.extent for x in v)) for v in (across, along)]
    parts: dict[IndexSymbol, IndexExpr] = {}
    for v, group in zip(merged, (across, along), strict=True):
        if len(group) > 1:
            parts.update(zip(group, ix.delinearize(ix.of(v), [x.extent for x in group]), strict=True))
    body = map_indices(body, lambda i: i.substitute(parts)) if parts else body
    others = (v for v in vars_ if v not in (*across, *along))
    return (*others, *merged), body, _staged(body, *merged)


def _follows(value: object, along: Var, across: Var) -> bool:
    """Check whether the elements of a load at the next iteration of a loop follow those of the whole other loop."""
    return isinstance(value, lir.Load) and value.offset.coefficient(along) == across.extent


def _edges(a: int, b: int, shorts: tuple[bool, bool], edge: int, room: int) -> tuple[int, int] | None:
    """Return the edges of tiles of loops of these extents that fit into room for so many elements; None for no tiles.

    Args:
        a: extent across.
        b: extent along.
        shorts: which of them are whole edges.
        edge: the edge of a square tile.
        room: maximum number of elements.
    """
    if all(shorts) or any(n < LEAST_EDGE and not short for n, short in zip((a, b), shorts, strict=True)):
        return None
    while True:
        if shorts[0]:
            edges = a, max(LEAST_EDGE, floor_power(edge * edge // a))
        elif shorts[1]:
            edges = max(LEAST_EDGE, floor_power(edge * edge // b)), b
        else:
            edges = edge, edge
        fits = edges[1] * (edges[0] | 1) <= room
        whole = any(shorts) or min(a, b) > edge // 2
        if fits and (whole or edge <= LEAST_EDGE):
            return edges
        if edge <= LEAST_EDGE:
            return None
        edge //= 2


def _staged(body: Body, across: Var, along: Var) -> tuple[lir.Let, ...]:
    """Return the loads that are contiguous along one loop and far apart along another; branches are left out."""
    defined = set(names_defined(body))
    found = []
    for s in body:
        if isinstance(s, lir.Let) and isinstance(s.value, lir.Load):
            i = s.value.offset
            rest = i - ix.of(across) - ix.of(along) * i.coefficient(along)
            names = {v.name for v in rest.variables()}
            is_far = abs(i.coefficient(along)) > 1 or (i.coefficient(along) == 0 and along.name in names)
            if i.coefficient(across) == 1 and is_far and names.isdisjoint({across.name} | defined):
                found.append(s)
    return tuple(found)


def _within(body: Body, places: Sequence[tuple[IndexExpr, int, int]], name: str) -> Body:
    """Return the statements behind a branch if a tile may reach beyond the loops, by place, extent and edge."""
    tests = [(i, extent) for i, extent, edge in places if extent % edge]
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
