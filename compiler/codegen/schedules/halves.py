"""Vector loops over f16 whose elements the processor converts, one vector at a time.

gcc 12 has no vector conversion of f16, so such a loop would compute each conversion by some ten instructions. Instead
it runs over blocks of one vector: a statement converts the elements of a block from memory to a local array of floats,
and another one converts results back. The compiler then keeps these arrays in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    if s.combined or s.var.extent < LANES or (s.base is not None and s.var.extent % LANES):
        return False
    if not all(isinstance(x, lir.Let | lir.Store | lir.LocalStore) for x in s.body):
        return False
    read = [x.value for x in s.body if isinstance(x, lir.Let) and isinstance(x.value, lir.Load)]
    written = [x for x in s.body if isinstance(x, lir.Store)]
    sources, targets = ([(x.buffer, x.offset) for x in accessed] for accessed in (read, written))
    changed = {buffer for buffer, _ in targets}
    in_place = all(at in targets for at in sources if at[0] in changed)
    if not in_place or not are_apart(written, s.var.extent):
        return False
    accesses = sources + targets
    halves = [offset for name, offset in accesses if types.get(name) is T.F16 and s.var in set(offset.variables())]
    is_arithmetic = any(
        isinstance(x, lir.Let) and isinstance(x.value, lir.Apply) and x.value.op.opcode not in MOVES
        and x.value.op.type.is_float
        for x in s.body
    )  # fmt: skip
    return bool(halves) and is_arithmetic and all(_is_adjacent(offset, s.var) for offset in halves)


def _is_adjacent(offset: IndexExpr, var: Var) -> bool:
    rest = offset - ix.of(var)
    return offset.coefficient(var) == 1 and var not in set(rest.variables())


def _blocks(s: For, types: Mapping[str, T], numbers: Iterator[int]) -> Body:
    """Return a vector loop as a loop over blocks, and one over the elements that remain over."""
    n = s.var.extent
    if s.kind is LoopKind.PARALLEL_VECTOR:  # a range of iterations that begins anywhere
        return (s,)
    if s.base is not None and s.limit is not None:
        return (_bounded_blocks(s, s.base, s.limit, types, next(numbers)),)
    lanes = lanes_of(s, types)
    if n <= LONGEST_ROW and n % lanes == 0:
        return _block(s, s.var, ix.of(s.var), types, next(numbers))
    block, lane = Var(f"{s.var.name}h", n // lanes), Var(f"{s.var.name}w", lanes)
    at = ix.of(block) * lanes + ix.of(lane)
    out: list[lir.Stmt] = [For(block, LoopKind.SERIAL, _block(s, lane, at, types, next(numbers)))]
    if n % lanes:
        last = Var(f"{s.var.name}u", n % lanes)
        rest = replace(s, var=last, body=_moved(s, ix.of(last) + (n - n % lanes)))
        out += _blocks(rest, types, numbers) if last.extent >= LANES else (rest,)
    return tuple(out)


def lanes_of(s: For, types: Mapping[str, T]) -> int:
    """Return the number of elements of a block: those of the widest vector of the narrowest elements, if it stores."""
    read = [x.value.buffer for x in s.body if isinstance(x, lir.Let) and isinstance(x.value, lir.Load)]
    written = [x.buffer for x in s.body if isinstance(x, lir.Store)]
    others = [types[name].byte_size for name in (*read, *written) if types[name] is not T.F16]
    if T.F16 not in map(types.get, written) or not others:
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
    after: list[lir.Stmt] = []
    body = _moved(s, at)
    sources = _rounded_values(body)
    for x in body:
        if isinstance(x, lir.Let) and isinstance(x.value, lir.Load) and _is_half(x.value, lane, types):
            key = x.value.buffer, x.value.offset.substitute({lane: ix.const(0)})
            if key not in before:
                before[key] = lir.WidenHalves(f"{x.name}_halves{number}", *key, lane.extent)
            inside.append(replace(x, value=lir.LocalLoad(before[key].array, ix.of(lane))))
        elif isinstance(x, lir.Store) and _is_half(x, lane, types):
            again = sum(isinstance(y, lir.NarrowHalves) and y.buffer == x.buffer for y in after)
            array = f"{x.buffer}_{f'{again}_' if again else ''}halves{number}"
            inside.append(lir.LocalStore(array, ix.of(lane), sources.get(x.value, x.value)))
            after.append(lir.NarrowHalves(x.buffer, x.offset.substitute({lane: ix.const(0)}), array, lane.extent))
        else:
            inside.append(x)
    names = [*(x.array for x in before.values()), *(x.array for x in after if isinstance(x, lir.NarrowHalves))]
    arrays = [lir.LocalArray(name, T.F32, lane.extent) for name in names]
    loop = For(lane, LoopKind.VECTOR, _without_unread(inside))
    return (*arrays, *before.values(), loop, *after)


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


def _without_unread(body: list[lir.Stmt]) -> Body:
    """Return the statements without the roundings that are not read any more."""
    read = {name for x in body for name in names_of(x)}
    rounded = _rounded_values(tuple(body))
    return tuple(x for x in body if not isinstance(x, lir.Let) or x.name in read or x.name not in rounded)
