"""Vector loops over bf16 that read and write two adjacent elements as one integer of 32 bits.

A bf16 is the upper half of a float. A vector of pairs becomes two vectors of floats by a shift and a mask, and two
vectors of floats become one of pairs in the same way. Vectors of single elements must be widened and narrowed, which
moves numbers between lanes and takes three times as many instructions. Loops that read the even and the odd elements of
an array, which compilers load one by one, read them as pairs too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.traversal import map_bodies
from compiler.codegen.schedules.halves import groups_of
from compiler.codegen.schedules.known_tests import copy_with
from compiler.codegen.schedules.loop_transforms import are_apart
from compiler.codegen.schedules.stages import is_long
from compiler.ir.types import PrimitiveType as T

MIN_EXTENT = 8
"""Minimum number of elements of a loop over pairs."""
LANES = 16
"""Elements of a whole vector."""
MORE_STEPS = 1 / 16
"""Part by which a loop with long functions may have more steps over pairs than over elements."""


def pair_elements(kernel: lir.Kernel, body: Body) -> Body:
    """Return bound statements whose vector loops over nothing but bf16 run over pairs."""
    types = kernel.types
    if T.BF16 not in types.values():
        return body
    return _paired(body, types)


def _paired(body: Body, types: Mapping[str, T]) -> Body:
    out: list[lir.Stmt] = []
    for s in body:
        if isinstance(s, For) and _suits(s, types):
            out += _loop(s, types)
        else:
            out.append(map_bodies(s, lambda inner: _paired(inner, types)))
    return tuple(out)


def _suits(s: For, types: Mapping[str, T]) -> bool:
    """Check whether all arrays that a vector loop reads or writes along its variable are adjacent elements of bf16."""
    if not s.kind.is_vector or s.base is not None or s.combined:
        return False
    if s.var.extent < MIN_EXTENT or not all(isinstance(x, lir.Let | lir.Store) for x in s.body):
        return False
    stores = [x for x in s.body if isinstance(x, lir.Store)]
    written = {x.buffer for x in stores}
    whole = _whole_pairs(s, types)
    along = [x for x in _accesses(s.body) if s.var in set(x[1].variables()) and (x not in whole or x[0] in written)]
    if not are_apart(stores, s.var.extent) or any(s.var not in set(x.offset.variables()) for x in stores):
        return False
    rests = (offset - ix.of(s.var) for _, offset in along)
    is_adjacent = all(s.var not in set(rest.variables()) for rest in rests)
    if any(isinstance(x, lir.Let) and isinstance(x.value, lir.Apply) and is_long(x.value.op.opcode) for x in s.body):
        pairs = 2 * _steps(s.var.extent // 2) + s.var.extent % 2
        if pairs > _steps(s.var.extent) * (1 + MORE_STEPS):
            return False
    return is_adjacent and bool(stores) and all(types.get(buffer) is T.BF16 for buffer, _ in along)


def _whole_pairs(s: For, types: Mapping[str, T]) -> dict[tuple[str, IndexExpr], int]:
    """Return the places in their pairs, 0 or 1, of loads two elements apart that read both elements of each pair."""
    loads = [x.value for x in s.body if isinstance(x, lir.Let) and isinstance(x.value, lir.Load)]
    groups = groups_of([(x.buffer, x.offset) for x in loads], s.var, types, T.BF16)
    return {
        (buffer, rest + constant): constant - min(constants)
        for (buffer, distance, rest), constants in groups.items()
        if distance == 2 and constants == {min(constants), min(constants) + 1}
        for constant in constants
    }


def _steps(extent: int) -> int:
    """Return the number of vectors, halves and quarters of vectors, and single elements of a loop.

    A function takes as long in each of them.
    """
    rest = extent % LANES
    return extent // LANES + rest // 8 + rest % 8 // 4 + rest % 4


def _accesses(body: Body) -> Iterator[tuple[str, IndexExpr]]:
    """Yield the buffer and the offset of each access; the buffer of another index is empty."""
    for s in body:
        if isinstance(s, lir.Store):
            yield s.buffer, s.offset
        elif isinstance(s, lir.Let):
            i = lir.index_of(s.value)
            if i is not None:
                yield (s.value.buffer if isinstance(s.value, lir.Load) else ""), i


def _loop(s: For, types: Mapping[str, T]) -> Body:
    """Return the loop over pairs, and the last element of an odd number."""
    v, n = s.var, s.var.extent
    var = Var(f"{v.name}p", n // 2)
    halves = [copy_with(s.body, {}, _at(v, ix.of(var) * 2 + k), f"_{k}") for k in (0, 1)]
    pairs: dict[tuple[str, IndexExpr], str] = {}
    before: list[lir.Stmt] = []
    inner: list[lir.Stmt] = []
    after: list[lir.Stmt] = []
    whole = _whole_pairs(s, types)
    for k, half in enumerate(halves):
        for original, x in zip(s.body, half, strict=True):
            if isinstance(x, lir.Let) and isinstance(x.value, lir.Load) and var in set(x.value.offset.variables()):
                assert isinstance(original, lir.Let) and isinstance(original.value, lir.Load)  # noqa: S101
                place = whole.get((original.value.buffer, original.value.offset), k)
                at = x.value.buffer, x.value.offset - place
                if at not in pairs:
                    pairs[at] = f"{x.name}_pair"
                    before.append(lir.Let(pairs[at], T.U32, lir.PairLoad(*at)))
                inner.append(replace(x, value=lir.PairHalf(pairs[at], bool(place))))
            elif not isinstance(x, lir.Store):
                inner.append(x)
    for first, second in zip(*([x for x in h if isinstance(x, lir.Store)] for h in halves), strict=True):
        after.append(lir.StorePair(first.buffer, first.offset, first.value, second.value))
    out: list[lir.Stmt] = [replace(s, var=var, body=(*before, *inner, *after), grain=-(-s.grain // 2))]
    if n % 2:
        last = Var(f"{v.name}e", 1)
        out.append(For(last, LoopKind.SERIAL, copy_with(s.body, {}, _at(v, ix.const(n - 1)), "_2")))
    return tuple(out)


def _at(v: Var, i: IndexExpr) -> dict[IndexSymbol, IndexExpr]:
    return {v: i}
