"""Binding of tiles to a GPU: blocks of threads take the tiles, and the templates say how many threads."""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.loop_ir import LoopKind
from compiler.codegen.nest.tile_attention import TileAttention
from compiler.codegen.nest.tiles import TileProduct
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.cuda_shapes import MAX_THREADS
from compiler.codegen.schedules.loop_transforms import without_dead_code
from compiler.errors import UnsupportedError


def has_tiles(kernel: lir.Kernel) -> bool:
    """Check whether a nest consists of tiles."""
    return any(isinstance(s, TileProduct | TileAttention) for s in walk(kernel.body))


def bind_tiles(kernel: lir.Kernel, shared_bytes: int) -> lir.Kernel:
    """Return a nest of tiles bound to the blocks of a GPU.

    Args:
        kernel: the nest.
        shared_bytes: the shared memory that a block may use.

    Raises:
        UnsupportedError: a tile needs more threads or shared memory than a block has.
    """
    body = without_dead_code(kernel.body)
    (tile,) = (s for s in walk(body) if isinstance(s, TileProduct | TileAttention))
    if tile.threads > MAX_THREADS:
        raise UnsupportedError(f"a tile needs {tile.threads} threads, more than {MAX_THREADS}")
    if tile.shared_bytes > shared_bytes:
        raise UnsupportedError(f"a tile needs {tile.shared_bytes} bytes of shared memory, more than {shared_bytes}")
    return replace(kernel, body=tuple(map(_bound, body)), threads=tile.threads, resident=tile.resident)


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
