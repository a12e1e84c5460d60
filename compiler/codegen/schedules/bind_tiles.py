"""Binding of tiles to a GPU: blocks of threads take the tiles, and the templates say how many threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import LoopKind
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.tile_attention import TileAttention
from compiler.codegen.nest.tile_chain import OuterProduct, TileChain
from compiler.codegen.nest.tiles import GROUP, TileOperand, TileProduct, group_number
from compiler.codegen.nest.traversal import map_bodies, walk
from compiler.codegen.schedules.cuda_shapes import ACCESS_BYTES, MAX_THREADS
from compiler.codegen.schedules.cuda_wide import Lane, in_lane, width_of
from compiler.codegen.schedules.loop_transforms import without_dead_code
from compiler.codegen.schedules.schedule import Schedule
from compiler.errors import UnsupportedError
from compiler.ir.types import PrimitiveType

LEAST_GROUPED, MOST_GROUPED = 4, 8
"""Adjacent elements of an operand that a thread computes at a time."""


def has_tiles(kernel: lir.Kernel) -> bool:
    """Check whether a nest consists of tiles."""
    return any(isinstance(s, TileProduct | TileAttention | TileChain) for s in walk(kernel.body))


def bind_tiles(kernel: lir.Kernel, shared_bytes: int) -> lir.Kernel:
    """Return a nest of tiles bound to the blocks of a GPU.

    Args:
        kernel: the nest.
        shared_bytes: the shared memory that a block may use.

    Raises:
        UnsupportedError: a tile needs more threads or shared memory than a block has.
    """
    body = without_dead_code(kernel.body)
    (tile,) = (s for s in walk(body) if isinstance(s, TileProduct | TileAttention | TileChain))
    if tile.threads > MAX_THREADS:
        raise UnsupportedError(f"a tile needs {tile.threads} threads, more than {MAX_THREADS}")
    if tile.shared_bytes > shared_bytes:
        raise UnsupportedError(f"a tile needs {tile.shared_bytes} bytes of shared memory, more than {shared_bytes}")
    grouped = tuple(_with_groups(s, kernel.types) for s in body)
    return replace(kernel, body=tuple(map(_bound, grouped)), threads=tile.threads, resident=tile.resident)


def _with_groups(s: lir.Stmt, types: Mapping[str, PrimitiveType]) -> lir.Stmt:
    """Return a tile with several adjacent elements at a time where possible: operands of tensor cores, and results."""
    if isinstance(s, TileProduct):
        made = _with_grouped_results(s, types)
        if not s.uses_tensor_cores:
            return made
        lhs, rhs = _grouped(s.lhs, s.row, s.depth, types), _grouped(s.rhs, s.column, s.depth, types)
        return replace(made, lhs=lhs, rhs=rhs)
    if isinstance(s, TileAttention) and s.uses_tensor_cores:
        keys, values = _grouped(s.keys, s.key, s.depth, types), _grouped(s.values, s.feature, s.key, types)
        return replace(s, queries=_grouped(s.queries, s.query, s.depth, types), keys=keys, values=values)
    if isinstance(s, TileChain):
        chain = s.map_operands(lambda o, free, depth: _grouped(o, free, depth, types))
        return replace(chain, outer=tuple(_with_grouped_features(p, types) for p in chain.outer))
    return map_bodies(s, lambda inner: tuple(_with_groups(x, types) for x in inner))


def _grouped(o: TileOperand, free: Var, depth: Var, types: Mapping[str, PrimitiveType]) -> TileOperand:
    """Return an operand that computes as many adjacent elements at a time as are loaded in one access."""
    if o.vector:
        return o
    along = o.along(free, depth)
    group = width_of([(along, o.body)], types, Schedule(), MOST_GROUPED)
    if group < LEAST_GROUPED:
        return o
    lane = Lane.of(along, ix.of(group_number(along, group)), group)
    body = (*o.body, lir.LocalStore(GROUP, ix.of(lane.u), o.value))
    return replace(o, group=group, group_body=in_lane(body, lane, types, {}))


def _with_grouped_results(s: TileProduct, types: Mapping[str, PrimitiveType]) -> TileProduct:
    """Return a product that stores as many adjacent columns at a time as one access takes."""
    most = ACCESS_BYTES // SCALAR_BYTES[s.sums] * (2 if s.uses_tensor_cores else 1)
    found = _grouped_results(s.column, s.epilogue, s.result, s.sums, most, types)
    return s if found is None else replace(s, group=found[0], epilogue=found[1])


def _with_grouped_features(p: OuterProduct, types: Mapping[str, PrimitiveType]) -> OuterProduct:
    """Return a product of a chain that stores as many adjacent features at a time as one access of halves takes."""
    most = ACCESS_BYTES // 2
    found = _grouped_results(p.feature, p.epilogue, p.result, PrimitiveType.F32, most, types)
    return p if found is None else replace(p, group=found[0], epilogue=found[1])


def _grouped_results(
    along: Var,
    epilogue: lir.Body,
    result: str,
    sums: PrimitiveType,
    most: int,
    types: Mapping[str, PrimitiveType],
) -> tuple[int, lir.Body] | None:
    """Return how many results along a variable are stored at a time, and the statements that do; None for one."""
    group = width_of([(along, epilogue)], types, Schedule(), most)
    if group < 2:
        return None
    lane = Lane.of(along, ix.of(group_number(along, group)), group)
    body = (lir.Let(result, sums, lir.LocalLoad(GROUP, ix.of(lane.u))), *epilogue)
    return group, in_lane(body, lane, types, {})


def _bound(s: lir.Stmt) -> lir.Stmt:
    """Return a loop of tiles bound to blocks; what is computed between its loops moves into the innermost one."""
    if not isinstance(s, lir.For):
        return s
    before = tuple(x for x in s.body if not isinstance(x, lir.For))
    inner = next((x for x in s.body if isinstance(x, lir.For)), None)
    if inner is None:
        return replace(s, kind=LoopKind.BLOCK)
    return replace(s, kind=LoopKind.BLOCK, body=(_bound(_with_front(inner, before)),))


def _with_front(s: lir.For, before: lir.Body) -> lir.For:
    return replace(s, body=(*before, *s.body))
