"""Loops that load few of many adjacent elements in each iteration: a loop of its own loads them into local arrays.

The C compiler takes such loads for a group whose elements are all loaded and then separated, however many there are, so
these loops are not vectorized. Where they compute long functions, the loads are separated from the functions, which run
in vectors then: sums over 12 states of exponentials, for each of 32 sequences, computed each exponential alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import map_indices, names_defined, walk
from compiler.codegen.schedules.stages import is_long
from compiler.ir.types import PrimitiveType as T

SPARSE = 16
"""Distance of the elements of adjacent iterations from which on vector instructions should not separate them."""
FEWEST = 8
"""Iterations of the shortest loop whose loads are separated."""
MOST_BYTES = 1 << 15
"""Maximum size of the local arrays of one loop, so that they stay in the first-level cache."""
LOADS_PER_FUNCTION, STATEMENTS_PER_LOAD = 4, 16
"""Maximum number of sparse loads per long function, and the fewest other operations per load, for loads of their own:
more of them take as long as what the loop computes."""


def is_sparse(s: For) -> bool:
    """Check whether a loop reads few of many adjacent elements in each iteration."""
    found: dict[tuple[str, IndexExpr], int] = {}
    for x in walk(s.body):
        if isinstance(x, lir.Let) and isinstance(x.value, lir.Load) and _is_far(x.value.offset, s.var):
            key = x.value.buffer, replace(x.value.offset, const=0)
            if found.setdefault(key, x.value.offset.const) != x.value.offset.const:
                return True
    return False


@dataclass(frozen=True)
class Separated:
    """A loop in parts.

    Attributes:
        arrays: the local arrays that pass values from one part to the next.
        loads: the loop that loads.
        computing: the loop that computes.
        stores: the loop that stores what is stored far apart; None if there are no such stores.
    """

    arrays: Body
    loads: For
    computing: For
    stores: For | None


def separate_sparse_loads(s: For) -> Separated | None:
    """Return a loop over single elements in parts; None if that is of no use.

    Iterations that may run in any order load nothing that another one stores, and what one overwrites in place it has
    loaded before. So all of them may load before any of them stores.
    """
    if s.kind is not LoopKind.INDEPENDENT or s.base is not None or s.combined or s.var.extent < FEWEST:
        return None
    if not all(isinstance(x, lir.Let | lir.LocalStore | lir.Store) for x in s.body) or not is_sparse(s):
        return None
    own = set(names_defined(s.body))
    loads = [x for x in s.body if isinstance(x, lir.Let) and _is_separable(x, s.var, own)]
    stores = [x for x in s.body if isinstance(x, lir.Store) and _is_scattered(x, s)]
    if not _is_long_enough(s, len(loads)) or separated_bytes(s) > MOST_BYTES:
        return None
    types = {x.name: x.type for x in s.body if isinstance(x, lir.Let)}
    passed = {x.name: types[x.name] for x in loads}
    stored = {x.value: types[x.value] for x in stores if x.value in types}
    if T.PRED in (*passed.values(), *stored.values()):  # loops over arrays of bools are not vectorized
        return None
    if any(not _is_known(x.offset, s.var, own) for x in stores) or not _are_apart(s, stores):
        return None
    here = ix.of(s.var)
    body: list[lir.Stmt] = []
    for x in s.body:
        if isinstance(x, lir.Let) and x.name in passed:
            body.append(replace(x, value=lir.LocalLoad(f"{x.name}_apart", here)))
        elif x not in stores:
            body.append(x)
    body += [lir.LocalStore(f"{name}_out", here, name) for name in stored]
    computing = replace(s, body=tuple(body))
    if is_sparse(computing):
        return None
    first, last = Var(f"{s.var.name}p", s.var.extent), Var(f"{s.var.name}q", s.var.extent)
    kept = (lir.LocalStore(f"{name}_apart", here, name) for name in passed)
    results = (lir.Let(name, t, lir.LocalLoad(f"{name}_out", here)) for name, t in stored.items())
    sizes = [(f"{name}_apart", t) for name, t in passed.items()] + [(f"{name}_out", t) for name, t in stored.items()]
    return Separated(
        tuple(lir.LocalArray(name, t, s.var.extent) for name, t in sizes),
        _over(first, s.var, (*loads, *kept)),
        computing,
        _over(last, s.var, (*results, *stores)) if stores else None,
    )


def _are_apart(s: For, later: Sequence[lir.Store]) -> bool:
    """Check that a loop loads nothing from what it stores, and that what it stores later is stored by nothing else."""
    loaded = {x.value.buffer for x in s.body if isinstance(x, lir.Let) and isinstance(x.value, lir.Load)}
    stores = [x for x in s.body if isinstance(x, lir.Store)]
    moved = {x.buffer for x in later}
    return all(x.buffer not in loaded and (x.buffer in moved) == (x in later) for x in stores)


def _over(fresh: Var, v: Var, body: Body) -> For:
    """Return a loop over another variable than that for which its statements were made."""
    at: dict[ix.IndexSymbol, IndexExpr] = {v: ix.of(fresh)}
    return For(fresh, LoopKind.INDEPENDENT, map_indices(body, lambda i: i.substitute(at)))


def _is_long_enough(s: For, loads: int) -> bool:
    """Check whether a loop computes so much that loads of their own are worth their time."""
    applied = [x.value for x in s.body if isinstance(x, lir.Let) and isinstance(x.value, lir.Apply)]
    functions = sum(is_long(value.op.opcode) for value in applied)
    return 0 < loads <= max(LOADS_PER_FUNCTION * functions, len(applied) // STATEMENTS_PER_LOAD)


def _is_scattered(x: lir.Store, s: For) -> bool:
    """Check whether a store is one of several into an array that are not adjacent in adjacent iterations."""
    return abs(x.offset.coefficient(s.var)) > 1 and any(
        isinstance(y, lir.Store) and y.buffer == x.buffer and y.offset != x.offset for y in s.body
    )


def separated_bytes(s: For) -> int:
    """Return a bound of the bytes of the local arrays for the sparse loads of a loop."""
    if not is_sparse(s):
        return 0
    loaded = sum(
        SCALAR_BYTES[x.type]
        for x in s.body
        if isinstance(x, lir.Let) and isinstance(x.value, lir.Load) and _is_far(x.value.offset, s.var)
    )
    stored = sum(max(SCALAR_BYTES.values()) for x in s.body if isinstance(x, lir.Store) and _is_scattered(x, s))
    return s.var.extent * (loaded + stored)


def _is_separable(x: lir.Let, var: Var, own: set[str]) -> bool:
    """Check whether a value is a sparse load whose index needs nothing that the loop itself computes."""
    if not isinstance(x.value, lir.Load) or not _is_far(x.value.offset, var):
        return False
    return _is_known(x.value.offset, var, own)


def _is_known(offset: IndexExpr, var: Var, own: set[str]) -> bool:
    """Check whether an index depends on nothing that the loop itself computes."""
    return all(v == var or v.name not in own for v in offset.variables())


def _is_far(offset: IndexExpr, var: Var) -> bool:
    return abs(offset.coefficient(var)) > SPARSE
