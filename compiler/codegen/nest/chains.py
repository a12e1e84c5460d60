"""The longest chain of operations of one thread of which each needs the result of the one before."""

from __future__ import annotations

from compiler.codegen.nest.expressions import Apply, Current, LocalLoad
from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.loop_ir import Accumulator, Assign, Body, Expr, For, If, Let, LoopKind
from compiler.codegen.nest.memory import LocalStore
from compiler.codegen.nest.traversal import bodies_of, walk
from compiler.codegen.nest.work import EXPENSIVE_STATEMENTS

__all__ = ["chain_of"]

Key = str | tuple[str, IndexExpr]
"""A name, or a local array with the offset of an element."""


def chain_of(body: Body, threads: int) -> int:
    """Return the number of operations of a thread's longest chain in a nest bound to a GPU.

    It is a lower bound: a loop whose number of iterations is known only at run time counts once, so does each loop over
    blocks, and accesses to memory, exchanges of threads, matrix products and sorts do not count.

    Args:
        body: the bound statements.
        threads: of a block.
    """
    depths: dict[Key, int] = {}
    _run(body, depths, max(1, threads))
    return max(depths.values(), default=0)


def _run(body: Body, depths: dict[Key, int], threads: int) -> None:
    """Set the depths of what statements define: the operations up to it that follow each other."""
    for s in body:
        if isinstance(s, Let):
            depths[s.name] = _depth(s.value, depths)
        elif isinstance(s, Accumulator):
            depths[s.name] = depths.get(s.init, 0)
        elif isinstance(s, Assign):
            depths[s.name] = depths.get(s.value, 0)
        elif isinstance(s, LocalStore):
            depths[s.array, s.offset] = depths.get(s.value, 0)
        elif isinstance(s, For):
            _loop(s, depths, threads)
        elif isinstance(s, If):
            other = dict(depths)
            _run(s.then, depths, threads)
            _run(s.otherwise, other, threads)
            depths.update({key: max(depth, depths.get(key, 0)) for key, depth in other.items()})
        else:
            for inside in bodies_of(s):
                _run(inside, depths, threads)


def _depth(value: Expr, depths: dict[Key, int]) -> int:
    if isinstance(value, Apply):
        steps = EXPENSIVE_STATEMENTS if value.op.is_expensive else 1
        return steps + max((depths.get(a, 0) for a in value.args), default=0)
    if isinstance(value, Current):
        return depths.get(value.name, 0)
    return depths.get((value.array, value.offset), 0) if isinstance(value, LocalLoad) else 0


def _loop(s: For, depths: dict[Key, int], threads: int) -> None:
    """Run three iterations of a loop; all others add to each depth what the third one does.

    What an iteration reads of the one before grows from the second one on.
    """
    trips, inside = _trips(s, threads), s.team.size if s.team else threads
    entry = dict(depths)
    _run(s.body, depths, inside)
    if trips < 2 or not any(isinstance(x, Assign | LocalStore) for x in walk(s.body)):
        return
    own = {key: depth for key, depth in depths.items() if _is_of_one_iteration(key, s.var)}
    last = dict(depths)
    for _ in range(min(trips, 3) - 1):
        last = dict(depths)
        depths.update({key: entry.get(key, 0) for key in own})  # the next iteration has another element
        _run(s.body, depths, inside)
    for key, depth in depths.items():
        depths[key] = depth + max(0, trips - 3) * max(0, depth - last.get(key, 0))


def _is_of_one_iteration(key: Key, var: Var) -> bool:
    return not isinstance(key, str) and key[1].coefficient(var) != 0


def _trips(s: For, threads: int) -> int:
    """Return the iterations of a loop that one thread runs, for certain."""
    if s.kind in (LoopKind.SERIAL, LoopKind.UNROLLED):
        return s.var.extent if s.base is None else 1
    if s.kind is LoopKind.THREAD:
        return s.var.extent // threads
    return 1
