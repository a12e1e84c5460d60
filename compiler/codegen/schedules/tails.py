"""The elements that remain over after whole vectors, in loops with long functions: halves and quarters of a vector.

The C compiler computes the rest of a vector loop with one half vector and then element by element. An exponential takes
as long for one element as for a vector, so that in rows of 36 elements the last four took more time than all others.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.traversal import map_bodies, walk
from compiler.codegen.schedules.loop_transforms import iterations
from compiler.ir.opcodes import Opcode

LEAST_LANES = 4
"""Lanes of the narrowest vector; fewer elements are computed one by one."""
MAX_VECTORS = 64
"""Number of vectors in a loop from which on the elements that remain over do not matter."""
LEAST_BYTES, LEAST_WORK = 8, 8
"""Elements that remain over after a half vector of bytes, and statements of a loop, from which on it is divided."""
LANES_OF_BYTES, MAX_BYTES = 4, 2048
"""How many times as many lanes the vectors of a loop over bytes have, and its elements from which on those that remain
over do not matter."""
MAX_STATEMENTS = 150
"""Maximum number of statements of a loop that is repeated for its rest, because repetitions take time to compile."""
_SHORT = frozenset({Opcode.DIVIDE, Opcode.SQRT, Opcode.RSQRT})
"""Expensive operations that are few instructions."""


def split_tails(body: Body, lanes: int, narrow: frozenset[str] = frozenset()) -> Body:
    """Return bound statements in which vector loops with long functions, or that read bytes, end with narrower vectors.

    Args:
        body: the statements of a kernel, with all loops bound.
        lanes: elements of 32 bits of a whole vector.
        narrow: names of the arguments whose elements are bytes.
    """
    out: list[lir.Stmt] = []
    for s in body:
        if isinstance(s, For) and s.kind is LoopKind.VECTOR:
            out += _parts(s, lanes, narrow)
        else:
            out.append(map_bodies(s, lambda inner: split_tails(inner, lanes, narrow)))
    return tuple(out)


def _parts(s: For, lanes: int, narrow: frozenset[str]) -> list[lir.Stmt]:
    """Return a loop in parts, the whole vectors first."""
    statements = list(walk(s.body))
    if s.combined or s.base is not None or len(statements) > MAX_STATEMENTS:
        return [s]
    many, extent = LANES_OF_BYTES * lanes, s.var.extent
    reads_bytes = _reads_bytes(statements, narrow)
    if any(map(takes_a_vector, statements)):
        if reads_bytes and lanes // 2 <= extent < MAX_BYTES and extent % many:
            return _ending_in_widened_bytes(s, lanes)
        # The C compiler takes one half vector on its own.
        is_divided = extent % (lanes // 2) >= LEAST_LANES and extent < MAX_VECTORS * lanes
        return _narrowing(s, 0, lanes) if is_divided else [s]
    is_divided = len(statements) >= LEAST_WORK and extent % (many // 2) >= LEAST_BYTES and extent < MAX_BYTES
    return _narrowing(s, 0, many) if is_divided and reads_bytes else [s]


def _ending_in_widened_bytes(s: For, lanes: int) -> list[lir.Stmt]:
    """Return a loop over whole vectors of bytes, and loops over single vectors, in front of which bytes are widened.

    The C compiler makes no vectors of what remains over after whole vectors of bytes if the loop has branches, and
    takes no more elements at once than there are bytes in the narrowest vector otherwise.
    """
    many, extent = LANES_OF_BYTES * lanes, s.var.extent
    start = extent // many * many
    out: list[lir.Stmt] = [iterations(s, Var(f"{s.var.name}w{many}", start), 0)] if start else []
    while start + lanes <= extent:
        out.append(iterations(s, Var(f"{s.var.name}w{lanes}_{start}", lanes), start))
        start += lanes
    return out + _narrowing(s, start, lanes // 2)


def _reads_bytes(statements: Sequence[lir.Stmt], narrow: frozenset[str]) -> bool:
    """Check whether statements read bytes and compute with 32 bits, so that vectors have the lanes of bytes."""
    lets = [x for x in statements if isinstance(x, lir.Let)]
    bytes_read = any(isinstance(x.value, lir.Load) and x.value.buffer in narrow for x in lets)
    return bytes_read and any(isinstance(x.value, lir.Apply) and x.type.bits == 32 for x in lets)


def takes_a_vector(s: lir.Stmt) -> bool:
    """Check for a long function, which takes as long for one element as for a vector."""
    if not isinstance(s, lir.Let) or not isinstance(s.value, lir.Apply):
        return False
    op = s.value.op
    return op.is_expensive and op.type.is_float and op.opcode not in _SHORT


def _narrowing(s: For, start: int, width: int) -> list[lir.Stmt]:
    """Return a loop from an iteration on, over vectors of a width, of half of it, and so on."""
    out: list[lir.Stmt] = []
    while start < s.var.extent:
        left = s.var.extent - start
        size = left if width < LEAST_LANES else left // width * width
        if size:
            out.append(iterations(s, Var(f"{s.var.name}w{width}", size), start))
        start, width = start + size, width // 2
    return out
