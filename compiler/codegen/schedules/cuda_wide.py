"""Wide accesses on a GPU: one thread computes adjacent elements, which it reads and writes in accesses of 16 bytes.

An access can be wide if it is contiguous along the loop and if all else in its offset is a multiple of its width,
because arrays start at multiples of at least 16 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Quotient, Remainder, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.traversal import bodies_of, map_indices, names_assigned, names_defined, names_of
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules.cuda_shapes import ACCESS_BYTES, UNROLLED_WORK, floor_power
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.types import PrimitiveType

_SAME = lir.Constant | lir.Apply | lir.Load | lir.IndexValue | lir.IndexTest


@dataclass(frozen=True, slots=True)
class Lane:
    """The place of an element of a loop: var = word * width + u.

    Attributes:
        var: the variable of the loop.
        word: which group of adjacent elements.
        width: number of elements of a group.
        u: variable of the element in the group; its extent is the width.
    """

    var: Var
    word: IndexExpr
    width: int
    u: Var

    @staticmethod
    def of(var: Var, word: IndexExpr, width: int) -> Lane:
        """Return the elements of a group."""
        return Lane(var, word, width, Var(f"{var.name}u", width))

    def place(self, i: IndexExpr) -> IndexExpr:
        """Return an index of the loop as one of group and element.

        Quotients and remainders by multiples of the width are those of the group, which shows what is contiguous.
        """
        out = IndexExpr((), i.const)
        for symbol, c in i.terms:
            if symbol == self.var:
                out = out + (self.word * self.width + ix.of(self.u)) * c
            elif isinstance(symbol, Quotient):
                out = out + self._divided(self.place(symbol.value), symbol.divisor) * c
            elif isinstance(symbol, Remainder):
                out = out + self._rest(self.place(symbol.value), symbol.divisor) * c
            else:
                out = out + IndexExpr(((symbol, c),))
        return out

    def _group(self, i: IndexExpr, divisor: int) -> IndexExpr | None:
        """Return g if i = g * width + u and the divisor is a multiple of the width, else None."""
        if self.width == 1 or divisor % self.width or i.coefficient(self.u) != 1:
            return None
        rest = i - ix.of(self.u)
        if rest.factor % self.width or self.u in set(rest.variables()):
            return None
        return IndexExpr(tuple((s, c // self.width) for s, c in rest.terms), rest.const // self.width)

    def _divided(self, i: IndexExpr, divisor: int) -> IndexExpr:
        group = self._group(i, divisor)
        return i.floordiv(divisor) if group is None else group.floordiv(divisor // self.width)

    def _rest(self, i: IndexExpr, divisor: int) -> IndexExpr:
        group = self._group(i, divisor)
        return i.mod(divisor) if group is None else group.mod(divisor // self.width) * self.width + ix.of(self.u)

    def is_wide(self, i: IndexExpr) -> bool:
        """Check whether the elements at a placed index can be accessed at once."""
        rest = i - ix.of(self.u)
        contiguous = i.coefficient(self.u) == 1 and self.u not in set(rest.variables())
        return contiguous and rest.factor % self.width == 0

    def is_uniform(self, i: IndexExpr) -> bool:
        """Check whether all elements of a group have the same index."""
        return self.u not in set(i.variables())


def width_of(
    sweeps: Sequence[tuple[Var, Body]], types: Mapping[str, PrimitiveType], schedule: Schedule, elements: int
) -> int:
    """Return how many adjacent elements a thread computes together in loops that run over the same elements.

    Args:
        sweeps: variable and statements of each loop.
        types: element types of the arguments.
        schedule: may set the width.
        elements: maximum number of elements of a thread.
    """
    sizes = [types[b].byte_size for v, body in sweeps for b, i, _ in _accesses(body) if _runs_along(i, v)]
    if not sizes:
        return 1
    most = ACCESS_BYTES // max(sizes)
    if schedule.gpu.width:
        most = min(floor_power(schedule.gpu.width), ACCESS_BYTES // min(sizes))
    work = max((work_of(body) for _, body in sweeps), default=1)
    width = floor_power(max(1, min(most, elements, UNROLLED_WORK // max(1, work))))
    while width > 1 and not all(_all_wide(var, body, width) for var, body in sweeps):
        width //= 2
    return width


def _runs_along(i: IndexExpr, var: Var) -> bool:
    """Check whether an index grows by one with a variable, or with the last dimension of one that was flattened."""
    return any(
        c == 1 and (symbol == var or (isinstance(symbol, Remainder) and symbol.value == ix.of(var)))
        for symbol, c in i.terms
    )


def _all_wide(var: Var, body: Body, width: int) -> bool:
    if var.extent % width:
        return False
    lane = Lane.of(var, ix.of(Var(f"{var.name}w", var.extent // width)), width)
    placed = map_indices(body, lane.place)
    return all(
        lane.is_uniform(at) or (is_certain and lane.is_wide(at) and _definitions(placed, at, lane) is not None)
        for _, at, is_certain in _accesses(placed)
    )


def _definitions(placed: Body, offset: IndexExpr, lane: Lane) -> list[lir.Let] | None:
    """Return what defines the integers in an offset, as after an index was loaded, in the order of the statements.

    None if they may differ between the elements of the group.
    """
    lets = {s.name: s for s in placed if isinstance(s, lir.Let)}
    inside = set(names_defined(placed))
    found: set[str] = set()
    work = [v.name for v in offset.variables() if isinstance(v, ix.Runtime)]
    while work:
        name = work.pop()
        if name in found or name not in inside:
            continue
        s = lets.get(name)
        if s is None or not isinstance(s.value, lir.Constant | lir.Apply | lir.Load | lir.IndexValue):
            return None
        index = lir.index_of(s.value)
        if index is not None and not lane.is_uniform(index):
            return None
        found.add(name)
        work += names_of(s)
    return [s for s in lets.values() if s.name in found]


def _accesses(body: Body, is_certain: bool = True) -> Iterator[tuple[str, IndexExpr, bool]]:
    """Yield array, offset, and whether the access is made for every element, for all accesses to arguments."""
    for s in body:
        if isinstance(s, lir.Let) and isinstance(s.value, lir.Load):
            yield s.value.buffer, s.value.offset, is_certain
        elif isinstance(s, lir.Store):
            yield s.buffer, s.offset, is_certain
        else:
            for inner in bodies_of(s):
                yield from _accesses(inner, False)


def in_lane(
    body: Body, lane: Lane, types: Mapping[str, PrimitiveType], slots: Mapping[str, tuple[IndexExpr, int]]
) -> Body:
    """Return the statements of the elements of a group; what is the same for all of them runs once.

    Args:
        body: the statements of an element.
        lane: the elements of the group.
        types: element types of the arguments.
        slots: where the first element of the group is in local arrays of kept elements, and the distance of the next
            ones, by array.
    """
    placed = tuple(_placed(s, lane, slots) for s in body)
    if lane.width == 1:
        return placed
    arrays: dict[tuple[str, IndexExpr], str] = {}
    before: list[lir.Stmt] = []
    inside: list[lir.Stmt] = []
    after: list[lir.Stmt] = []
    shared: dict[str, lir.Let] = {}
    at, origin = ix.of(lane.u), IndexExpr(((lane.u, 1),))

    def can_be_wide(offset: IndexExpr) -> bool:
        needed = _definitions(placed, offset, lane) if lane.is_wide(offset) else None
        for d in needed or ():
            if d.name not in shared:
                shared[d.name] = d
                before.append(d)
        return needed is not None

    varying = {lane.u.name}

    def is_same(s: lir.Stmt) -> bool:
        """Check for a value that is the same for all elements of the group."""
        return isinstance(s, lir.Let) and isinstance(s.value, _SAME) and varying.isdisjoint(names_of(s))

    for s in placed:
        if isinstance(s, lir.Let) and s.name not in shared and is_same(s):
            shared[s.name] = s
            before.append(s)
            continue
        varying.update(n for n in names_defined((s,)) if n not in shared)
        varying.update(names_assigned((s,)))
        if isinstance(s, lir.Let) and isinstance(s.value, lir.Load) and can_be_wide(s.value.offset):
            key = s.value.buffer, s.value.offset
            if key not in arrays:
                arrays[key] = f"{s.name}_wide"
                before.append(lir.LocalArray(arrays[key], s.type, lane.width))
                before.append(lir.WideLoad(arrays[key], s.value.buffer, s.value.offset - origin, lane.width))
            inside.append(replace(s, value=lir.LocalLoad(arrays[key], at)))
        elif isinstance(s, lir.Store) and can_be_wide(s.offset):
            array = f"{s.buffer}_wide{len(after)}"
            before.append(lir.LocalArray(array, types[s.buffer], lane.width))
            inside.append(lir.LocalStore(array, at, s.value))
            after.append(lir.WideStore(s.buffer, s.offset - origin, array, lane.width))
        else:
            inside.append(s)
    own = tuple(s for s in inside if not (isinstance(s, lir.Let) and s.name in shared))
    return (*before, For(lane.u, LoopKind.SERIAL, own, unroll=lane.width), *after)


def _placed(s: lir.Stmt, lane: Lane, slots: Mapping[str, tuple[IndexExpr, int]]) -> lir.Stmt:
    def slot(array: str) -> IndexExpr:
        first, step = slots[array]
        return first + ix.of(lane.u) * step

    if isinstance(s, lir.LocalStore) and s.array in slots:
        return replace(s, offset=slot(s.array))
    if isinstance(s, lir.Let) and isinstance(s.value, lir.LocalLoad) and s.value.array in slots:
        return replace(s, value=replace(s.value, offset=slot(s.value.array)))
    (mapped,) = map_indices((s,), lane.place)
    return mapped
