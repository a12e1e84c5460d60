"""Selects whose condition is the same for all elements of a loop, such as the mask of a row: the row branches.

A vector computes and loads both operands of a select. Where rows are chosen as a whole, as images that are flipped at
random and episodes that have ended, a branch in front of the loop leaves each row what it needs. What is left is often
simpler than both: the rows that are not flipped are copied.

What decides is work, and loads of elements against the order of a loop. To load one of two rows instead of both is no
gain: the next rows are then prefetched less well.
"""

from __future__ import annotations

from collections.abc import Iterator

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.traversal import map_bodies, names_assigned, names_defined, walk
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules.known_tests import COPYABLE, copy_with
from compiler.codegen.schedules.loop_transforms import without_dead_code
from compiler.ir.opcodes import Opcode

__all__ = ["branch_on_rows"]

LEAST_SAVED = 256
"""Statements that the sides of a branch save, on average, from which on it is worthwhile: the processor guesses wrong
how some branches go, which takes as long as some vectors of statements."""
SAVED_PART = 8
"""The part of the statements of a loop that they save at least is one in so many."""
BACKWARDS_WORK = 4
"""Statements that take as long as the load of an element against the order of a loop: vectors are put in order."""
MAX_STATEMENTS = 200
"""Maximum number of statements of a loop that is copied."""


def branch_on_rows(body: Body) -> Body:
    """Return the unbound statements of a kernel with branches around loops where these are worthwhile.

    Loops that no other loop contains stay as they are, because threads share them.
    """
    branches = _Branches()
    found = tuple(map_bodies(s, branches.body) for s in body)
    return without_dead_code(found) if branches.count else body


class _Branches:
    """The branches of one kernel, of which there have been `count` so far."""

    def __init__(self) -> None:
        self.count = 0

    def body(self, body: Body) -> Body:
        """Return the statements inside of a loop.

        Loops beside a reduction stay, because both may become loops over columns.
        """
        if any(isinstance(s, lir.Reduce) for s in body):
            return body
        return tuple(x for s in body for x in self._statement(s))

    def _statement(self, s: lir.Stmt) -> Body:
        if isinstance(s, For) and s.kind is LoopKind.INDEPENDENT and s.base is None and not s.combined:
            for condition in _conditions(s):
                sides = self._sides(s, condition)
                if sides is not None:
                    then, otherwise = map(self.body, sides)
                    return (lir.If(condition, then, otherwise),)
        return (map_bodies(s, self.body),)

    def _sides(self, s: For, condition: str) -> tuple[Body, Body] | None:
        """Return a loop for rows where a condition holds and one for others, or None if a branch is not worthwhile."""
        statements = list(walk(s.body))
        if len(statements) > MAX_STATEMENTS or not all(isinstance(x, COPYABLE) for x in statements):
            return None
        held = {x.name for x in statements if isinstance(x, lir.Accumulator)}
        if not held.issuperset(names_assigned((s,))):  # which may be read after the loop
            return None
        self.count += 1
        then, otherwise = (
            without_dead_code(copy_with((s,), {}, {}, f"_{side}{self.count}", {condition: holds}))
            for side, holds in (("then", True), ("else", False))
        )
        work = _work((s,))
        saved = work - (_work(then) + _work(otherwise)) // 2
        return (then, otherwise) if saved >= max(LEAST_SAVED, work // SAVED_PART) else None


def _work(body: Body, inside: tuple[Var, ...] = (), runs: int = 1) -> int:
    """Return the number of statements that the loops among some run, without selects and loads in order."""
    total = 0
    for s in body:
        if isinstance(s, For):
            total += _work(s.body, (*inside, s.var), runs * s.var.extent)
        elif isinstance(s, lir.If):
            total += max(_work(s.then, inside, runs), _work(s.otherwise, inside, runs))
        elif isinstance(s, lir.Let) and isinstance(s.value, lir.Load | lir.LocalLoad):
            is_backwards = any(s.value.offset.coefficient(v) < 0 for v in inside)
            total += runs * BACKWARDS_WORK if is_backwards else 0
        elif not _is_select(s):
            total += runs * work_of((s,))
    return total


def _is_select(s: lir.Stmt) -> bool:
    return isinstance(s, lir.Let) and isinstance(s.value, lir.Apply) and s.value.op.opcode is Opcode.SELECT


def _conditions(s: For) -> Iterator[str]:
    """Yield the conditions of selects in a loop that are the same for all of its iterations, each once.

    Those of the last selects come first: one side of these may need no others.
    """
    defined = set(names_defined(s.body))
    for x in reversed(list(walk(s.body))):
        if isinstance(x, lir.Let) and isinstance(x.value, lir.Apply) and _is_select(x):
            condition = x.value.args[0]
            if condition not in defined:
                defined.add(condition)
                yield condition
