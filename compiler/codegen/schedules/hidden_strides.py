"""Vector loops that load one element of each of many rows: the C compiler does not know how long the rows are.

It takes loads whose distance is a power of two for the first elements of groups, which it would load as whole vectors
and separate, even if each vector has one of them; of a group that is longer than a vector it makes no vectors of the
loop at all. If the distance is another number, or one that it does not know, it loads the elements one by one and
computes the rest in vectors.

A short loop is written out as a whole. If it loads many elements one by one, at distances that the C compiler knows,
the C compiler computes comparisons of them one by one as well, and takes time that grows with the square of their
number.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Runtime, Var
from compiler.codegen.nest.loop_ir import Body, For
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import map_bodies, walk
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules.loop_transforms import map_vector_loops
from compiler.codegen.schedules.stages import is_long_value
from compiler.ir.types import PrimitiveType as T

VECTOR_BYTES = 64
"""Size of the largest vector. Smaller groups of elements are separated, and those of this size if most is loaded."""
SET_BYTES, FEW = 4096, 32
"""Distance of elements that share a set of the first-level cache, and how many of them are still near: a loop over more
waits for memory, with vectors even longer."""
SHORT, MANY = 64, 6
"""Iterations of the longest loop that is written out as a whole, and the number of loads of single elements that are
many."""
SHORTEST_SINGLE = 5
"""Least distance, if it is no power of two, of elements that are loaded one by one: groups of three are separated."""
MIN_WORK = 5
"""Minimum number of statements, for each element that is loaded by itself, of a loop without long functions: vectors
gain nothing in a shorter one."""

Group = tuple[str, IndexExpr]
"""An array, and where its elements are in each row but for a constant."""


def hide_strides(body: Body) -> Body:
    """Return bound statements whose vector loops over rows have strides that the C compiler does not know."""
    return map_vector_loops(body, _loop)


def _loop(s: For) -> Body:
    whole = _whole_groups(s)
    long = [stride for x in walk(s.body) for stride in _strides(x, s.var, whole)]
    if not (_has_function(s.body) or work_of(s.body, expensive=1) >= MIN_WORK * len(long)):
        long = []
    single = [stride for x in walk(s.body) for stride in _single_strides(x, s.var, whole)]
    if s.var.extent > SHORT or len(single) < MANY:
        single = []
    hidden = {*long, *single}
    if not hidden:
        return (s,)
    names = {stride: Runtime(f"{s.var.name}_stride{stride}", stride, stride) for stride in sorted(hidden)}

    def statement(x: lir.Stmt) -> lir.Stmt:
        for stride in hidden.intersection((*_strides(x, s.var, whole), *_single_strides(x, s.var, whole))):
            assert isinstance(x, lir.Let)  # noqa: S101 - `_strides` found its load
            assert isinstance(x.value, lir.Load | lir.LocalLoad)  # noqa: S101
            offset = _hidden(x.value.offset, s.var, names[stride])
            return replace(x, value=replace(x.value, offset=offset))
        return map_bodies(x, lambda inner: tuple(map(statement, inner)))

    lets = (lir.Let(name.name, T.S32, lir.Opaque(stride)) for stride, name in names.items())
    return *lets, replace(s, body=tuple(map(statement, s.body)))


def _has_function(body: Body) -> bool:
    return any(isinstance(x, lir.Let) and is_long_value(x) for x in walk(body))


def _hidden(i: IndexExpr, row: Var, stride: Runtime) -> IndexExpr:
    sign = 1 if i.coefficient(row) > 0 else -1
    return i - ix.of(row) * i.coefficient(row) + ix.multiple(ix.of(row), stride) * sign


def _whole_groups(s: For) -> frozenset[Group]:
    """Return the groups of a vector's elements of which a loop over rows loads more than half."""
    groups: dict[Group, set[int]] = defaultdict(set)
    for x in walk(s.body):
        if isinstance(x, lir.Let) and isinstance(x.value, lir.Load | lir.LocalLoad):
            groups[_group(x.value)].add(x.value.offset.const)
    return frozenset(group for group, places in groups.items() if 2 * len(places) > abs(group[1].coefficient(s.var)))


def _group(load: lir.Load | lir.LocalLoad) -> Group:
    return load.buffer if isinstance(load, lir.Load) else load.array, replace(load.offset, const=0)


def _single_strides(x: lir.Stmt, row: Var, whole: frozenset[Group]) -> tuple[int, ...]:
    """Return the distance of the elements that a statement loads if the C compiler loads them one by one."""
    if not isinstance(x, lir.Let) or not isinstance(x.value, lir.Load | lir.LocalLoad):
        return ()
    stride = abs(x.value.offset.coefficient(row))
    if stride < SHORTEST_SINGLE or not stride & (stride - 1) or _group(x.value) in whole:
        return ()
    return (stride,)


def _strides(x: lir.Stmt, row: Var, whole: frozenset[Group]) -> tuple[int, ...]:
    """Return the distance of the elements that a statement loads if the C compiler takes them for long groups."""
    if not isinstance(x, lir.Let) or not isinstance(x.value, lir.Load | lir.LocalLoad):
        return ()
    stride = abs(x.value.offset.coefficient(row))
    size = stride * SCALAR_BYTES.get(x.type, 4)
    is_far = size >= SET_BYTES and row.extent > FEW
    if size < VECTOR_BYTES or stride & (stride - 1) or is_far:
        return ()
    return () if size == VECTOR_BYTES and _group(x.value) in whole else (stride,)
