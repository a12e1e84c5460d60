"""The elements that remain over after whole vectors, in loops with long functions: halves and quarters of a vector.

The C compiler computes the rest of a vector loop with one half vector and then element by element. An exponential takes
as long for one element as for a vector, so that in rows of 36 elements the last four took more time than all others.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.traversal import map_bodies, map_indices, walk
from compiler.ir.opcodes import Opcode

LEAST_LANES = 4
"""Lanes of the narrowest vector; fewer elements are computed one by one."""
MAX_VECTORS = 64
"""Number of vectors in a loop from which on the elements that remain over do not matter."""
MAX_STATEMENTS = 150
"""Maximum number of statements of a loop that is repeated for its rest, because repetitions take time to compile."""
_SHORT = frozenset({Opcode.DIVIDE, Opcode.SQRT, Opcode.RSQRT})
"""Expensive operations that are few instructions."""


def split_tails(body: Body, lanes: int) -> Body:
    """Return bound statements in which vector loops with long functions end with narrower vectors.

    Args:
        body: the statements of a kernel, with all loops bound.
        lanes: elements of a whole vector.
    """
    out: list[lir.Stmt] = []
    for s in body:
        if isinstance(s, For) and s.kind is LoopKind.VECTOR:
            out += _parts(s, lanes) if _is_split(s, lanes) else [s]
        else:
            out.append(map_bodies(s, lambda inner: split_tails(inner, lanes)))
    return tuple(out)


def _is_split(s: For, lanes: int) -> bool:
    rest = s.var.extent % lanes
    # The C compiler takes one half vector on its own.
    if s.combined or s.base is not None or rest % (lanes // 2) < LEAST_LANES or s.var.extent >= MAX_VECTORS * lanes:
        return False
    statements = list(walk(s.body))
    return len(statements) <= MAX_STATEMENTS and any(_is_long(x) for x in statements)


def _is_long(s: lir.Stmt) -> bool:
    if not isinstance(s, lir.Let) or not isinstance(s.value, lir.Apply):
        return False
    op = s.value.op
    return op.is_expensive and op.type.is_float and op.opcode not in _SHORT


def _parts(s: For, lanes: int) -> list[lir.Stmt]:
    out: list[lir.Stmt] = []
    start, width = 0, lanes
    while start < s.var.extent:
        left = s.var.extent - start
        size = left if width < LEAST_LANES else left // width * width
        if size:
            out.append(_part(s, Var(f"{s.var.name}w{width}", size), start))
        start, width = start + size, width // 2
    return out


def _part(s: For, var: Var, start: int) -> For:
    """Return the iterations of a loop from `start` on, as many as the variable has values."""
    at = ix.IndexExpr(((var, 1),), start)
    return replace(s, var=var, body=map_indices(s.body, lambda i: i.substitute({s.var: at})))
