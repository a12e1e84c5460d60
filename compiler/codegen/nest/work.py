"""How much work the statements of the loop IR are, as numbers of statements."""

from __future__ import annotations

import math

from compiler.codegen.nest.expressions import Apply, Constant
from compiler.codegen.nest.loop_ir import Body, For, If, Let, Reduce, Stmt, While
from compiler.codegen.nest.matrix_product import MatrixProduct
from compiler.codegen.nest.memory import (
    CopyElements,
    NarrowHalves,
    RepeatElements,
    StoreTransposed,
    StreamStore,
    TransposeTile,
    WideLoad,
    WidenHalves,
    WideStore,
)
from compiler.codegen.nest.orders import ForFlagged, Scan, Sort, SortByKey
from compiler.codegen.nest.tile_attention import TileAttention
from compiler.codegen.nest.tile_chain import TileChain
from compiler.codegen.nest.tiles import TileProduct
from compiler.codegen.nest.traversal import walk

UNKNOWN_TRIPS = 10
"""Iterations that are assumed for a loop whose number of iterations is known only at run time."""


def tile_products(body: Body) -> int:
    """Return the multiplications of the tiles of products that a block of threads computes."""
    tiles = (s for s in walk(body) if isinstance(s, TileProduct | TileAttention | TileChain))
    return sum(s.products for s in tiles)


PRODUCTS_PER_STATEMENT = 1
"""Multiplications of a `MatrixProduct` that take as long as a statement in a vector loop."""


EXPENSIVE_STATEMENTS = 8
"""Statements that take as long as an expensive one, such as a division or an inline exponential."""


def is_expensive(s: Stmt) -> bool:
    """Check for a definition that computes a function or a division."""
    return isinstance(s, Let) and isinstance(s.value, Apply) and s.value.op.is_expensive


def work_of(body: Body, expensive: int = EXPENSIVE_STATEMENTS) -> int:
    """Return the number of statements that one execution runs, as an estimate of its work.

    Args:
        body: the statements.
        expensive: how many statements an expensive one counts as.
    """
    total = 0
    for s in body:
        if isinstance(s, Let):  # most statements
            if isinstance(s.value, Apply):
                total += expensive if s.value.op.is_expensive else 1
            elif not isinstance(s.value, Constant):
                total += 1
        elif isinstance(s, For):
            total += s.var.extent * work_of(s.body, expensive)
        elif isinstance(s, Reduce):
            runs = 1
            for v in s.vars:
                runs *= v.extent
            total += runs * (work_of(s.body, expensive) + len(s.reductions))
        elif isinstance(s, If):
            total += 1 + max(work_of(s.then, expensive), work_of(s.otherwise, expensive))
        elif isinstance(s, While):
            total += UNKNOWN_TRIPS * (1 + work_of(s.test, expensive) + work_of(s.body, expensive))
        elif isinstance(s, Sort):
            n = s.position.extent
            total += n * (max(1, n - 1).bit_length() * (2 + work_of(s.compare, expensive)) + work_of(s.body, expensive))
        elif isinstance(s, MatrixProduct):
            total += 1 + math.prod(span.extent for span in s.spans) // PRODUCTS_PER_STATEMENT
        elif isinstance(s, TileProduct | TileAttention | TileChain):
            total += s.products // PRODUCTS_PER_STATEMENT + s.results * work_of(s.epilogue)
        elif isinstance(s, Scan):
            total += s.rows[0].extent * s.rows[1].extent * s.step.extent * (work_of(s.body, expensive) + len(s.carries))
        elif isinstance(s, SortByKey):
            n, k = s.element.extent, s.position.extent
            total += s.row.extent * (n * work_of(s.read, expensive) + k * (k.bit_length() + work_of(s.body, expensive)))
        elif isinstance(s, ForFlagged):  # as many groups as there are if one position in 16 is flagged
            total += (
                s.position.extent // 16 * (work_of(s.body, expensive) + work_of(s.ordered, expensive))
                + s.position.extent
            )
        elif isinstance(s, StreamStore):
            total += s.span.extent
        elif isinstance(s, WidenHalves | NarrowHalves | CopyElements | WideLoad | WideStore):
            total += s.count
        elif isinstance(s, TransposeTile):
            total += s.size * (s.height or s.size)
        elif isinstance(s, StoreTransposed):
            total += s.size * s.stride
        elif isinstance(s, RepeatElements):
            total += s.size * s.times
        else:
            total += 1
    return total
