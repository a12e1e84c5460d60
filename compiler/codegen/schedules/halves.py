"""Vector loops over f16 whose elements the processor converts, one vector at a time.

gcc 12 has no vector conversion of f16, so such a loop would compute each conversion by some ten instructions. Instead
it runs over blocks of one vector: a statement converts the elements of a block from memory to a local array of floats,
and another one converts results back. The compiler then keeps these arrays in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import binary
from compiler.codegen.nest.traversal import map_indices, names_of
from compiler.codegen.schedules.loop_transforms import are_apart, map_vector_loops
from compiler.codegen.schedules.moved_halves import MOVES
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

LANES = 16
"""Elements that are converted at once: the floats of the widest vector."""
GROUPS = (2, 4)
"""Numbers of elements of groups, such as pairs, that one loop reads or writes."""
FEWER = (8, 4)
"""Elements that narrower vectors convert, for what remains over and for short rows."""
WIDEST = 64
"""Bytes of the widest vector. Where a block has fewer of the narrowest elements of its loop, gcc 12 computes all of it
in narrower vectors, so that loads of whole vectors from local arrays wait for several stores."""
LONGEST_ROW = 64
"""Number of elements up to which a loop of whole vectors stays one loop."""


def convert_halves(kernel: lir.Kernel, body: Body) -> Body:
    """Return bound statements whose vector loops read and write adjacent elements of f16 by whole vectors."""
    types = kernel.types
    if T.F16 not in types.values():
        return body
    # Copies of a loop may be side by side, so that each needs names of its own for its arrays.
    numbers = count(1)

    def converted(s: For) -> Body:
        written_out = replace(s, body=tuple(x for y in s.body for x in _written_out(y, types)))
        return _blocks(written_out, types, numbers) if suits_halves(written_out, types) else (s,)

    return map_vector_loops(body, converted)


def _written_out(s: lir.Stmt, types: Mapping[str, T]) -> Body:
    """Return an update of an element of f16 as statements that read, change and store it."""
    if not isinstance(s, lir.Update) or types.get(s.buffer) is not T.F16:
        return (s,)
    before, after = (f"{s.buffer}_{s.value}_{end}" for end in ("before", "after"))
    combined = lir.Apply(binary(s.combiner, T.F16), (before, s.value))
    return (
        lir.Let(before, T.F16, lir.Load(s.buffer, s.offset)),
        lir.Let(after, T.F16, combined),
        lir.Store(s.buffer, s.offset, after),
    )


def suits_halves(s: For, types: Mapping[str, T]) -> bool:
    """Check whether a loop over single elements computes with adjacent elements of f16.

    Args:
        s: the loop, bound or not.
        types: the element types of the arrays in memory.
    """
    if s.combined or s.var.extent < FEWER[-1] or (s.base is not None and s.var.extent % LANES):
        return False
    if not all(isinstance(x, lir.Let | lir.Store | lir.LocalStore) for x in s.body):
        return False
    read, written = _accesses(s.body)
    sources, targets = ([(x.buffer, x.offset) for x in accessed] for accessed in (read, written))
    changed = {buffer for buffer, _ in targets}
    in_place = all(at in targets for at in sources if at[0] in changed)
    halves = [groups_of(accessed, s.var, types, T.F16) for accessed in (sources, targets)]
    if not in_place or not _stores_apart(written, s.var, halves[1]):
        return False
    is_arithmetic = any(
        isinstance(x, lir.Let) and isinstance(x.value, lir.Apply) and x.value.op.opcode not in MOVES
        and x.value.op.type.is_float
        for x in s.body
    )  # fmt: skip
    return any(halves) and is_arithmetic and all(map(_are_whole_groups, halves))


def groups_of(
    accesses: Sequence[tuple[str, IndexExpr]], var: Var, types: Mapping[str, T], element: T
) -> dict[tuple[str, int, IndexExpr], set[int]]:
    """Return the accesses to elements of one type that vary with a variable.

    Returns:
        Those of a group, such as the even and the odd elements of a row, have one key: the array, the distance of the
        elements of an access, 0 if it has none, and the index without its constant part. The values are these parts.
    """
    found: dict[tuple[str, int, IndexExpr], set[int]] = {}
    for name, offset in accesses:
        if types.get(name) is element and var in set(offset.variables()):
            distance = _distance(offset, var)
            found.setdefault((name, distance, offset - offset.const), set()).add(offset.const)
    return found


def _stores_apart(
    written: Sequence[lir.Store], var: Var, halves: Mapping[tuple[str, int, IndexExpr], set[int]]
) -> bool:
    """Check whether a loop stores to different elements, of which those of a group are stored together."""
    if len({(x.buffer, x.offset) for x in written}) < len(written):
        return False
    firsts = [x for x in written if x.offset.const == _first(x, var, halves)]
    return are_apart(firsts, var.extent * max((distance for _, distance, _ in halves), default=1))


def _first(x: lir.Load | lir.Store, var: Var, halves: Mapping[tuple[str, int, IndexExpr], set[int]]) -> int:
    """Return the constant part of the index of the first element of an access's group, or of its own element."""
    constant, distance = x.offset.const, _distance(x.offset, var)
    return constant if distance == 1 else min(halves.get((x.buffer, distance, x.offset - constant), {constant}))


def _are_whole_groups(halves: Mapping[tuple[str, int, IndexExpr], set[int]]) -> bool:
    """Check for accesses to adjacent elements: their own, or all those of groups."""
    return all(
        distance == 1 or (distance in GROUPS and constants == set(range(min(constants), min(constants) + distance)))
        for (_, distance, _), constants in halves.items()
    )


def _distance(offset: IndexExpr, var: Var) -> int:
    """Return how far apart the elements of an access are in a loop over a variable; 0: the distance varies."""
    distance = offset.coefficient(var)
    return 0 if var in set((offset - ix.of(var) * distance).variables()) else distance


def _blocks(s: For, types: Mapping[str, T], numbers: Iterator[int]) -> Body:
    """Return a vector loop as a loop over blocks, and one over the elements that remain over."""
    n = s.var.extent
    if s.kind is LoopKind.PARALLEL_VECTOR:  # a range of iterations that begins anywhere
        return (s,)
    if s.base is not None and s.limit is not None:
        return (_bounded_blocks(s, s.base, s.limit, types, next(numbers)),)
    lanes = next(k for k in (lanes_of(s, types), *FEWER) if k <= n)
    if n <= LONGEST_ROW and n % lanes == 0:
        return _block(s, s.var, ix.of(s.var), types, next(numbers))
    block, lane = Var(f"{s.var.name}h", n // lanes), Var(f"{s.var.name}w", lanes)
    at = ix.of(block) * lanes + ix.of(lane)
    out: list[lir.Stmt] = [For(block, LoopKind.SERIAL, _block(s, lane, at, types, next(numbers)))]
    if n % lanes:
        last = Var(f"{s.var.name}u", n % lanes)
        rest = replace(s, var=last, body=_moved(s, ix.of(last) + (n - n % lanes)))
        out += _blocks(rest, types, numbers) if last.extent >= FEWER[-1] else (replace(rest, kind=LoopKind.SERIAL),)
    return tuple(out)


def lanes_of(s: For, types: Mapping[str, T]) -> int:
    """Return the number of elements of a block: those of the widest vector of the narrowest elements, if it stores."""
    read, written = _accesses(s.body)
    accessed: list[lir.Load | lir.Store] = [*read, *written]
    others = [types[x.buffer].byte_size for x in accessed if types[x.buffer] is not T.F16]
    if all(types.get(x.buffer) is not T.F16 for x in written) or not others:
        return LANES
    lanes = max(LANES, WIDEST // min(others))
    return lanes if s.var.extent >= lanes else LANES


def _bounded_blocks(s: For, base: IndexExpr, limit: int, types: Mapping[str, T], number: int) -> For:
    """Return a loop that ends at a limit as a loop over blocks, each of which is whole or ends there."""
    lanes = lanes_of(s, types)
    lanes = LANES if s.var.extent % lanes else lanes
    block, lane = Var(f"{s.var.name}h", s.var.extent // lanes), Var(f"{s.var.name}w", lanes)
    start = ix.of(block) * lanes
    whole = lir.Let(f"{s.var.name}_whole", T.PRED, lir.IndexTest(base + start, None, limit - lanes))
    rest = replace(s, var=lane, body=_moved(s, start + ix.of(lane)), base=base + start)
    converted = _block(s, lane, start + ix.of(lane), types, number)
    return For(block, LoopKind.SERIAL, (whole, lir.If(whole.name, converted, (rest,))))


def _moved(s: For, at: IndexExpr) -> Body:
    return map_indices(s.body, lambda i: i.substitute({s.var: at}))


def _block(s: For, lane: Var, at: IndexExpr, types: Mapping[str, T], number: int) -> Body:
    """Return the statements for the elements of one block.

    Args:
        s: the loop.
        lane: the variable of the loop over the block.
        at: what the variable of the loop stands for.
        types: the element types of the arrays in memory.
        number: of the loop, for the names of its arrays.
    """
    before: dict[tuple[str, IndexExpr], lir.WidenHalves] = {}
    inside: list[lir.Stmt] = []
    after: dict[tuple[str, IndexExpr], lir.NarrowHalves] = {}
    arrays: list[lir.LocalArray] = []
    body = _moved(s, at)
    sources = _rounded_values(body)
    copied = _copied_values(body, lane)
    halves = [groups_of([(x.buffer, x.offset) for x in found], lane, types, T.F16) for found in _accesses(body)]
    for x in body:
        if isinstance(x, lir.Let) and isinstance(x.value, lir.Load) and _is_half(x.value, lane, types):
            start, place, count = _place(x.value, lane, halves[0])
            key = x.value.buffer, start
            if key not in before:
                before[key] = lir.WidenHalves(f"{x.name}_halves{number}", *key, count)
                arrays.append(lir.LocalArray(before[key].array, T.F32, count))
            inside.append(replace(x, value=lir.LocalLoad(before[key].array, place)))
        elif isinstance(x, lir.Store) and _is_half(x, lane, types):
            start, place, count = _place(x, lane, halves[1])
            value, key = sources.get(x.value, x.value), (x.buffer, start)
            if value in copied and count == lane.extent:
                after[key] = lir.NarrowHalves(*key, *copied[value], count)
                continue
            if key not in after:
                again = sum(y.buffer == x.buffer for y in after.values())
                array = f"{x.buffer}_{f'{again}_' if again else ''}halves{number}"
                after[key] = lir.NarrowHalves(*key, array, ix.const(0), count)
                arrays.append(lir.LocalArray(array, T.F32, count))
            inside.append(lir.LocalStore(after[key].array, place, value))
        else:
            inside.append(x)
    kept = _without_unread(inside)
    loops = (For(lane, LoopKind.VECTOR, kept),) if kept else ()
    return (*arrays, *before.values(), *loops, *after.values())


def _place(
    x: lir.Load | lir.Store, lane: Var, halves: Mapping[tuple[str, int, IndexExpr], set[int]]
) -> tuple[IndexExpr, IndexExpr, int]:
    """Return where in memory a block of the groups of an access begins, its place there, and the size of the block."""
    distance, place = _distance(x.offset, lane), x.offset.const - _first(x, lane, halves)
    start = x.offset.substitute({lane: ix.const(0)}) - place
    return start, ix.of(lane) * distance + place, distance * lane.extent


def _accesses(body: Body) -> tuple[list[lir.Load], list[lir.Store]]:
    read = [x.value for x in body if isinstance(x, lir.Let) and isinstance(x.value, lir.Load)]
    return read, [x for x in body if isinstance(x, lir.Store)]


def _is_half(x: lir.Load | lir.Store, lane: Var, types: Mapping[str, T]) -> bool:
    return types.get(x.buffer) is T.F16 and lane in set(x.offset.variables())


def _rounded_values(body: Body) -> dict[str, str]:
    """Return the names of what is rounded to f16, which a store rounds as well, by the names of the results."""
    return {
        x.name: x.value.args[0]
        for x in body
        if isinstance(x, lir.Let) and isinstance(x.value, lir.Apply) and x.value.op.opcode is Opcode.CONVERT
        and x.value.op.result is T.F16 and x.value.op.type is T.F32
    }  # fmt: skip


def _copied_values(body: Body, lane: Var) -> dict[str, tuple[str, IndexExpr]]:
    """Return where the values are that are adjacent numbers of f32 in an array that the statements do not write.

    gcc copies such a block by narrower vectors, so that loads of whole vectors from the copy wait for several stores.
    """
    written = {
        x.buffer if isinstance(x, lir.Store) else x.array for x in body if isinstance(x, lir.Store | lir.LocalStore)
    }
    found: dict[str, tuple[str, IndexExpr]] = {}
    for x in body:
        if not isinstance(x, lir.Let) or x.type is not T.F32 or not isinstance(x.value, lir.Load | lir.LocalLoad):
            continue
        array = x.value.buffer if isinstance(x.value, lir.Load) else x.value.array
        if array not in written and _distance(x.value.offset, lane) == 1:
            found[x.name] = array, x.value.offset.substitute({lane: ix.const(0)})
    return found


def _without_unread(body: list[lir.Stmt]) -> Body:
    """Return the statements without the loads and roundings that are not read any more."""
    rounded = _rounded_values(tuple(body))
    kept: list[lir.Stmt] = []
    read: set[str] = set()
    for x in reversed(body):
        if not isinstance(x, lir.Let) or x.name in read or not (x.name in rounded or _is_load(x)):
            read.update(names_of(x))
            kept.append(x)
    return tuple(reversed(kept))


def _is_load(x: lir.Let) -> bool:
    return isinstance(x.value, lir.Load | lir.LocalLoad)
