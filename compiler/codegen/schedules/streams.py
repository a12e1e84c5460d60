"""Stores past the caches: a vector loop computes blocks in local arrays, which are copied to memory as whole lines.

A store to memory usually reads the cache line that it overwrites. Where a kernel writes more than the caches hold, that
is a third or more of its traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import For, LoopKind
from compiler.codegen.nest.traversal import map_indices
from compiler.codegen.schedules.loop_transforms import has_loop
from compiler.ir.types import PrimitiveType as T

BLOCK, MIN_ELEMENTS = 2048, 256
"""Elements that are computed before they are copied, so that a few such arrays fit into the first-level cache, and of
the shortest loop that is divided."""
TYPES = frozenset({T.F32, T.F64, T.S32, T.U32, T.S64, T.U64})
"""Types that kernels hold as they are in memory."""


def can_stream(s: For, arguments: Mapping[str, T]) -> bool:
    """Check whether a loop over single elements computes whole blocks of adjacent results.

    Args:
        s: the loop.
        arguments: types of the arrays in memory.
    """
    stores = [x for x in s.body if isinstance(x, lir.Store)]
    if not stores or not all(isinstance(x, lir.Let | lir.Store) for x in s.body) or has_loop(s.body):
        return False
    return (
        s.var.extent >= MIN_ELEMENTS
        and has_whole_blocks(s, BLOCK)
        and all(arguments[x.buffer] in TYPES and _is_adjacent(x.offset, s.var) for x in stores)
    )


def has_whole_blocks(s: For, size: int) -> bool:
    """Check whether blocks do not reach beyond the extent of a loop, which a loop with a base of its own does not test.

    Args:
        s: a loop over single elements.
        size: number of elements of a block.
    """
    return s.base is None or s.var.extent <= size or s.var.extent % size == 0


def _is_adjacent(offset: ix.IndexExpr, var: Var) -> bool:
    others = offset - ix.of(var)
    return offset.coefficient(var) == 1 and var not in others.variables()


def streamed(s: For, arguments: Mapping[str, T], leaf: Callable[[For], For]) -> For:
    """Return a loop over single elements as a loop over blocks, which stores past the caches.

    Args:
        s: the loop, for which `can_stream` holds.
        arguments: types of the arrays in memory.
        leaf: binds the loop over the elements of a block.
    """
    v, size = s.var, min(s.var.extent, BLOCK)
    block, lane = Var(f"{v.name}k", -(-v.extent // size)), Var(f"{v.name}l", size)
    span = lir.Span(size)
    if s.base is not None or v.extent % size:
        start = ix.of(block) * size + (ix.const(0) if s.base is None else s.base)
        span = lir.Span(size, start, v.extent if s.limit is None else s.limit)
    arrays: list[lir.Stmt] = []
    copies: list[lir.Stmt] = []
    inside: list[lir.Stmt] = []
    for x in map_indices(s.body, lambda i: i.substitute({v: ix.of(block) * size + ix.of(lane)})):
        if isinstance(x, lir.Store):
            array = f"{x.buffer}_block{len(arrays)}"
            arrays.append(lir.LocalArray(array, arguments[x.buffer], size))
            copies.append(lir.StreamStore(x.buffer, x.offset.substitute({lane: ix.const(0)}), array, span))
            x = lir.LocalStore(array, ix.of(lane), x.value)
        inside.append(x)
    limit = None if span.base is None else span.limit
    loop = leaf(replace(s, var=lane, body=tuple(inside), base=span.base, limit=limit))
    return For(block, LoopKind.SERIAL, (*arrays, loop, *copies))
