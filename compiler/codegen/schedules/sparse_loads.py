"""Loops that load few of many adjacent elements in each iteration: a loop of its own loads them into local arrays.

The C compiler takes such loads for a group whose elements are all loaded and then separated, however many there are, so
these loops are not vectorized. Where they compute long functions, the loads are separated from the functions, which run
in vectors then: sums over 12 states of exponentials, for each of 32 sequences, computed each exponential alone.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.schedules.stages import is_long
from compiler.ir.types import PrimitiveType as T

SPARSE = 16
"""Distance of the elements of adjacent iterations from which on vector instructions should not separate them."""
FEWEST = 8
"""Iterations of the shortest loop whose loads are separated."""
MOST_BYTES = 1 << 15
"""Maximum size of the local arrays of one loop, so that they stay in the first-level cache."""
LOADS_PER_FUNCTION = 4
"""Maximum number of sparse loads per long function; more of them take as long as the functions."""


def is_sparse(s: For) -> bool:
    """Check whether a loop reads few of many adjacent elements in each iteration."""
    found: dict[tuple[str, IndexExpr], int] = {}
    for x in lir.walk(s.body):
        if isinstance(x, lir.Let) and isinstance(x.value, lir.Load) and _is_far(x.value.offset, s.var):
            key = x.value.buffer, replace(x.value.offset, const=0)
            if found.setdefault(key, x.value.offset.const) != x.value.offset.const:
                return True
    return False


def separate_sparse_loads(s: For) -> tuple[Body, For, For] | None:
    """Return a loop as the local arrays, the loop that loads, and the one that computes; None if that is of no use.

    Args:
        s: a loop over single elements, before it is bound. It must store to no argument: what it loads after a store
            might be what was stored.
    """
    if s.kind is not LoopKind.INDEPENDENT or s.base is not None or s.combined or s.var.extent < FEWEST:
        return None
    if not all(isinstance(x, lir.Let | lir.LocalStore) for x in s.body) or not is_sparse(s):
        return None
    own = set(lir.names_defined(s.body))
    loads = [x for x in s.body if isinstance(x, lir.Let) and _is_separable(x, s.var, own)]
    applied = [x.value for x in s.body if isinstance(x, lir.Let) and isinstance(x.value, lir.Apply)]
    functions = sum(is_long(value.op.opcode) for value in applied)
    if any(x.type is T.PRED for x in loads):  # loops over arrays of bools are not vectorized
        return None
    if not functions or len(loads) > LOADS_PER_FUNCTION * functions or separated_bytes(s) > MOST_BYTES:
        return None
    names = {x.name for x in loads}
    fresh = Var(f"{s.var.name}p", s.var.extent)
    moved = lir.map_indices(tuple(loads), lambda i: i.substitute({s.var: ix.of(fresh)}))
    arrays = tuple(lir.LocalArray(f"{x.name}_apart", x.type, s.var.extent) for x in loads)
    stores = tuple(lir.LocalStore(a.name, ix.of(fresh), x.name) for a, x in zip(arrays, loads, strict=True))
    rest = tuple(
        replace(x, value=lir.LocalLoad(f"{x.name}_apart", ix.of(s.var)))
        if isinstance(x, lir.Let) and x.name in names
        else x
        for x in s.body
    )
    computing = replace(s, body=rest)
    return None if is_sparse(computing) else (arrays, For(fresh, LoopKind.INDEPENDENT, (*moved, *stores)), computing)


def separated_bytes(s: For) -> int:
    """Return a bound of the bytes of the local arrays for the sparse loads of a loop."""
    if not is_sparse(s):
        return 0
    return s.var.extent * sum(
        SCALAR_BYTES[x.type]
        for x in s.body
        if isinstance(x, lir.Let) and isinstance(x.value, lir.Load) and _is_far(x.value.offset, s.var)
    )


def _is_separable(x: lir.Let, var: Var, own: set[str]) -> bool:
    """Check whether a value is a sparse load whose index needs nothing that the loop itself computes."""
    if not isinstance(x.value, lir.Load) or not _is_far(x.value.offset, var):
        return False
    return all(v == var or v.name not in own for v in x.value.offset.variables())


def _is_far(offset: IndexExpr, var: Var) -> bool:
    return abs(offset.coefficient(var)) > SPARSE
