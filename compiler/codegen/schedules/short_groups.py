"""Loops that put the elements of short groups side by side, or take them apart, handle one whole group per iteration.

The channels of an image are planes in one layout and adjacent in another. Between the two, a loop over the channels of
each pixel reads far apart and stores a few elements at a time, and a loop over the pixels of each channel reads every
line of memory once per channel. With the channels written out in one loop over pixels, the C compiler loads and stores
whole vectors, and shuffles them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr
from compiler.codegen.nest.loop_ir import Body, For
from compiler.codegen.nest.traversal import map_bodies
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules.few_elements import LONG, MOST_WORK, is_free
from compiler.codegen.schedules.short_loops import Copies

SHUFFLED, GROUP_BYTES = (2, 3, 4, 8), 32
"""Sizes of the groups that the C compiler shuffles, and the bytes of the largest."""
LARGEST_GROUP = max(SHUFFLED)


def write_out_groups(body: Body) -> Body:
    """Return a nest, before it is bound, in which loops that join or divide short groups run over whole groups."""
    return tuple(_grouped(map_bodies(s, write_out_groups)) for s in body)


def _grouped(s: lir.Stmt) -> lir.Stmt:
    if not isinstance(s, For) or not is_free(s):
        return s
    inner = [x for x in s.body if isinstance(x, For)]
    if len(inner) != 1 or not is_free(inner[0]) or s.body[-1] is not inner[0]:
        return s
    (other,) = inner
    body = (*s.body[:-1], *other.body)
    if not all(isinstance(x, lir.Let) for x in s.body[:-1]) or not all(_is_simple(x) for x in other.body):
        return s
    for rows, element, is_suitable in ((s, other, _joins), (other, s, _divides), (s, other, _changes)):
        fits = rows.var.extent >= LONG and 1 < element.var.extent <= LARGEST_GROUP
        if fits and element.var.extent * work_of(body) <= MOST_WORK and is_suitable(rows, element, body):
            return replace(rows, body=tuple(Copies(element.var).of(body)))
    return s


def _is_simple(s: lir.Stmt) -> bool:
    return isinstance(s, lir.Let | lir.Store)


def _joins(rows: For, element: For, body: Body) -> bool:
    """Check whether all that is stored are whole groups, of elements that are read far apart.

    Where their distance is a power of two, the C compiler would otherwise load what is in between as well.
    """
    n = element.var.extent
    if any((i.coefficient(rows.var), i.coefficient(element.var)) != (n, 1) for i in _stores(body)):
        return False
    for i, byte_size in _loads(body):
        distance = abs(i.coefficient(element.var))
        if abs(i.coefficient(rows.var)) == 1 and distance >= LONG:
            return n * byte_size <= GROUP_BYTES if n in SHUFFLED else distance & (distance - 1) == 0
    return False


def _divides(rows: For, element: For, body: Body) -> bool:
    """Check whether all that is stored are arrays of their own, of elements that are read from groups."""
    if any(i.coefficient(rows.var) != 1 or i.coefficient(element.var) < LONG for i in _stores(body)):
        return False
    groups = [i.coefficient(rows.var) for i, _ in _loads(body) if abs(i.coefficient(element.var)) == 1]
    return any(element.var.extent <= size and size in SHUFFLED for size in groups)


def _changes(rows: For, element: For, body: Body) -> bool:
    """Check whether whole groups of less than a vector are read and stored, all in order or all reversed, and computed.

    Groups that are only moved are written out without vectors (`short_moves`); eight elements in order fill a vector.
    """
    n = element.var.extent
    accesses = [*_loads(body), *((i, 0) for i in _stores(body))]
    places = {(i.coefficient(rows.var), i.coefficient(element.var)) for i, _ in accesses}
    largest = max((byte_size for _, byte_size in accesses), default=0)
    if n not in SHUFFLED or n * largest >= GROUP_BYTES // 2 or not any(_computes(x) for x in body):
        return False
    is_reversed = any(step < 0 for _, step in places)
    groups = {(abs(row), abs(step)) for row, step in places}
    return (is_reversed or n < LARGEST_GROUP) and (n, 1) in groups and groups <= {(n, 1), (0, 1), (1, 0), (0, 0)}


def _computes(s: lir.Stmt) -> bool:
    return isinstance(s, lir.Let) and isinstance(s.value, lir.Apply)


def _loads(body: Body) -> Iterator[tuple[IndexExpr, int]]:
    """Yield the index of each element that is read, and its size in bytes."""
    for s in body:
        if isinstance(s, lir.Let) and isinstance(s.value, lir.Load):
            yield s.value.offset, s.type.byte_size


def _stores(body: Body) -> Iterator[IndexExpr]:
    return (s.offset for s in body if isinstance(s, lir.Store))
