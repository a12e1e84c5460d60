"""Analysis of expensive work that few positions of a loop need: the operands of selects that nothing else uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr
from compiler.codegen.nest.loop_ir import For
from compiler.codegen.nest.traversal import names_defined, names_used, walk
from compiler.ir.opcodes import Opcode

MIN_COST = 64
"""Minimum cost of the expensive operands, in flops; finding the positions must cost less."""
RECOMPUTE_COST = 8
"""Maximum number of statements of a value that is computed again instead of passed through an array."""
MAX_PREDICATES = 16
"""Maximum number of predicates that are considered in one loop; each is a traversal of the loop."""


@dataclass(frozen=True)
class RareWork:
    """Expensive work behind one predicate, and the order in which the statements of the loop then run.

    Attributes:
        predicate: name of the predicate.
        holds: the value of the predicate for which the work is needed.
        outputs: results of selects whose expensive operand is computed in groups.
        moved: positions in the body of the statements that only the outputs need.
        stores: positions of the statements that only store an output.
        late: positions of the statements that depend on an output in another way.
        cost: cost of the moved statements for one position, in flops.
        graph: the definitions and uses in the loop.
    """

    predicate: str
    holds: bool
    outputs: tuple[str, ...]
    moved: frozenset[int]
    stores: frozenset[int]
    late: frozenset[int]
    cost: int
    graph: Graph


def find_rare(s: For, shared: frozenset[str]) -> RareWork | None:
    """Return the most expensive work behind a predicate that can be separated, if there is any.

    Args:
        s: a loop over single elements.
        shared: inputs whose buffers outputs may overwrite, so that they must be read before anything is stored.
    """
    if any(isinstance(x, lir.LocalArray | lir.Update) for x in s.body):
        return None
    graph = Graph(s, shared)
    if graph.total < MIN_COST:
        return None
    found = [graph.rare(predicate, holds) for predicate, holds in graph.predicates()]
    return max((r for r in found if r is not None), key=lambda r: r.cost, default=None)


class Graph:
    """The definitions and uses in the body of a loop."""

    def __init__(self, s: For, shared: frozenset[str]) -> None:
        self.statements = s.body
        self.shared = shared
        self.lets = {x.name: n for n, x in enumerate(s.body) if isinstance(x, lir.Let)}
        self.uses = [frozenset(names_used((x,))) for x in s.body]
        self.users: dict[str, list[int]] = {}
        for n, names in enumerate(self.uses):
            for name in names:
                self.users.setdefault(name, []).append(n)
        stored = {x.array for x in walk(s.body) if isinstance(x, lir.LocalStore)}
        self.pure = [isinstance(x, lir.Let) and self._is_pure(x.value, stored) for x in s.body]
        self._costs = [self._cost_of(x) for x in s.body]
        self.total = sum(self._costs)
        # By the predicate without its negations: each select, what it yields where that holds, and where not.
        self._selects: dict[str, dict[str, tuple[str, str]]] = {}
        for x in s.body:
            if isinstance(x, lir.Let) and isinstance(x.value, lir.Apply) and x.value.op.opcode is Opcode.SELECT:
                by, then, otherwise = x.value.args
                root, positive = self._root(by)
                yields = (then, otherwise) if positive else (otherwise, then)
                self._selects.setdefault(root, {})[x.name] = yields
        # The statements that may be moved, the last one first, and the users of their values.
        self._movable = [
            (n, x.name, self.users[x.name])
            for n, x in reversed(list(enumerate(s.body)))
            if isinstance(x, lir.Let) and self.pure[n] and x.name in self.users
        ]

    def _is_pure(self, value: lir.Expr, stored: set[str]) -> bool:
        """Check whether an expression has the same value wherever in the loop it is computed."""
        if isinstance(value, lir.Load):
            return value.buffer not in self.shared
        if isinstance(value, lir.LocalLoad):
            return value.array not in stored
        return not isinstance(value, lir.Current)

    def let(self, name: str) -> lir.Let | None:
        n = self.lets.get(name)
        s = None if n is None else self.statements[n]
        return s if isinstance(s, lir.Let) else None

    def _root(self, predicate: str) -> tuple[str, bool]:
        """Return a predicate without its negations, and whether it is the predicate itself and not its negation."""
        s, holds = self.let(predicate), True
        while s is not None and isinstance(s.value, lir.Apply) and s.value.op.opcode is Opcode.NOT:
            predicate, holds = s.value.args[0], not holds
            s = self.let(predicate)
        return predicate, holds

    def selects(self, predicate: str, holds: bool) -> dict[str, tuple[str, str]]:
        """Return the selects by a predicate: the operands that they yield where it is `holds`, and where not."""
        found = self._selects.get(predicate, {})
        return dict(found) if holds else {x: (b, a) for x, (a, b) in found.items()}

    def predicates(self) -> list[tuple[str, bool]]:
        """Return the predicates of selects that the loop computes, at most MAX_PREDICATES, and their negations."""
        found = [p for p in self._selects if p in self.lets]
        return [(p, holds) for p in found[:MAX_PREDICATES] for holds in (True, False)]

    def rare(self, predicate: str, holds: bool) -> RareWork | None:
        """Return the work that is needed only where `predicate` is `holds`; None if it is cheap or cannot be moved."""
        selects = self.selects(predicate, holds)
        while True:
            moved = self._only_for(selects)
            outputs = [x for x, (a, _) in selects.items() if self.lets.get(a) in moved and self.lets[x] not in moved]
            cost = sum(self._costs[n] for n in moved)
            if cost < MIN_COST:
                return None
            stores, late = self._after(outputs)
            # The other operand must be known before the work is done; a select of which it is not stays as it is.
            dropped = [x for x in outputs if self.lets.get(other_operand(x, selects, outputs)) in late]
            if not dropped:
                break
            for x in dropped:
                del selects[x]
        rare = RareWork(predicate, holds, tuple(outputs), frozenset(moved), stores, late, cost, self)
        return rare if self._is_legal(rare) else None

    def _only_for(self, selects: dict[str, tuple[str, str]]) -> set[int]:
        """Return the statements whose values are used only where a select yields its first operand."""
        moved: set[int] = set()
        for n, name, users in self._movable:
            for u in users:
                if u not in moved and not self._is_first(u, name, selects):
                    break
            else:
                moved.add(n)
        return moved

    def _is_first(self, user: int, name: str, selects: dict[str, tuple[str, str]]) -> bool:
        s = self.statements[user]
        if not isinstance(s, lir.Let) or s.name not in selects or not isinstance(s.value, lir.Apply):
            return False
        return selects[s.name][0] == name and s.value.args.count(name) == 1

    def _after(self, outputs: Sequence[str]) -> tuple[frozenset[int], frozenset[int]]:
        """Return the statements that store an output and nothing else, and those that depend on one otherwise."""
        stores: set[int] = set()
        late: set[int] = set()
        names: set[str] = set()
        selects = {self.lets[x] for x in outputs}
        for x in outputs:
            users = [u for u in self.users.get(x, ()) if u not in selects]
            if all(self._is_store_of(u, x) for u in users):
                stores.update(users)
            else:
                names.add(x)
        for n, s in enumerate(self.statements):
            if isinstance(s, lir.Let) and s.name in outputs:
                continue
            if not names.isdisjoint(self.uses[n]):
                late.add(n)
                names.update(names_defined((s,)))
        return frozenset(stores), frozenset(late)

    def _is_store_of(self, user: int, name: str) -> bool:
        s = self.statements[user]
        return isinstance(s, lir.Store | lir.LocalStore) and s.value == name and name not in _symbols(s.offset)

    def _is_legal(self, rare: RareWork) -> bool:
        """Check whether the statements may run in the new order."""
        for n in rare.late:
            s = self.statements[n]
            simple = isinstance(s, lir.Store | lir.LocalStore) or (isinstance(s, lir.Let) and self.pure[n])
            if not simple:
                return False
        postponed = {
            s.array for n in rare.late | rare.stores if isinstance(s := self.statements[n], lir.LocalStore)
        }  # fmt: skip
        if any(isinstance(s, lir.Let) and isinstance(s.value, lir.LocalLoad) and s.value.array in postponed
               and self._is_after_store(n, s.value.array) for n, s in enumerate(self.statements)):  # fmt: skip
            return False
        needed = {name for n in rare.moved for name in self.uses[n]}
        late_names = {s.name for n in rare.late if isinstance(s := self.statements[n], lir.Let)}
        return needed.isdisjoint(late_names)

    def _is_after_store(self, load: int, array: str) -> bool:
        return any(isinstance(s, lir.LocalStore) and s.array == array for s in self.statements[:load])

    @staticmethod
    def _cost_of(s: lir.Stmt) -> int:
        return max(1, s.value.op.flops) if isinstance(s, lir.Let) and isinstance(s.value, lir.Apply) else 0

    def recomputed(self, name: str) -> set[int] | None:
        """Return the statements of a value that is cheap to compute anywhere, None if it is not."""
        found: set[int] = set()
        work, cost = [name], 0
        while work:
            n = self.lets.get(work.pop())
            if n is None or n in found:
                continue
            found.add(n)
            cost += 1
            if not self.pure[n] or cost > RECOMPUTE_COST:
                return None
            work += self.uses[n]
        return found


def other_operand(output: str, selects: Mapping[str, tuple[str, str]], outputs: Sequence[str]) -> str:
    """Return the value of an output where the predicate does not hold: no output, although the operand may be one."""
    name = selects[output][1]
    while name in outputs:
        name = selects[name][1]
    return name


def _symbols(offset: IndexExpr) -> set[str]:
    return {v.name for v in offset.variables()}
