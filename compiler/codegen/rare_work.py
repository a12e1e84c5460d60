"""Expensive work that few positions need, such as the random numbers by which a simulator resets finished episodes.

Vector code computes both operands of a select for every position. If an operand is expensive and used only where the
predicate holds, the loop is split into three:

1. a vector loop over a block of positions that computes everything else, the predicate, and the other operand;
2. loops over the positions where the predicate holds, in groups that fill a vector (`loop_ir.ForFlagged`), which
   compute the expensive operand and write it over the other one;
3. a vector loop that computes what depends on the result of the select, unless it is only stored.

Expressions have no side effects, so this changes no value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.codegen import index as ix
from compiler.codegen import loop_ir as lir
from compiler.codegen.index import IndexExpr, Var
from compiler.codegen.loop_ir import Body, For, LoopKind
from compiler.codegen.loop_transforms import has_loop
from compiler.codegen.scalar_ops import ScalarOp, conversion
from compiler.codegen.schedule import Schedule
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

MIN_COST = 64
"""Minimum cost of the expensive operands, in flops; finding the positions and moving values must cost less."""
MOVE_COST = 8
"""Cost of a value that is passed between the loops."""
RECOMPUTE_COST = 8
"""Maximum cost of a value that is computed again instead of passed through an array."""
MIN_POSITIONS = 64
"""Minimum number of positions of a block."""
ELEMENT_BITS = 32
"""Size of the elements that the slots of a group are counted by."""


def separate_rare_work(kernel: lir.Kernel, body: Body, schedule: Schedule) -> Body:
    """Return the unbound statements of a kernel with its loops over single elements split where it is worthwhile."""
    if not schedule.rare or not schedule.vector:
        return body
    arguments = kernel.arguments
    shared = frozenset(arguments[read].name for read, _ in (*kernel.in_place, *kernel.must_alias))
    return _Separation(schedule, shared).body(body)


class _Separation:
    """The split of all loops of one kernel; `shared` are the inputs whose buffers outputs may overwrite."""

    def __init__(self, schedule: Schedule, shared: frozenset[str]) -> None:
        self.schedule = schedule
        self.shared = shared
        self.count = 0

    def body(self, body: Body) -> Body:
        return tuple(x for s in body for x in self._statement(s))

    def _statement(self, s: lir.Stmt) -> Body:
        if isinstance(s, For) and s.kind is LoopKind.INDEPENDENT and not has_loop(s.body):
            return self._loop(s)
        return (lir.map_bodies(s, self.body),)

    def _loop(self, s: For) -> Body:
        """Return a loop over single elements in blocks of positions, each split; or the loop itself."""
        if s.base is not None or s.var.extent < MIN_POSITIONS or _find(s, self.shared) is None:
            return (s,)
        size, v = self.schedule.rare, s.var
        if v.extent <= size:
            return self._block(s)
        block, rest = Var(f"{v.name}k", v.extent // size), v.extent % size
        inner = _renamed(s, Var(f"{v.name}p", size), ix.of(block) * size)
        out: list[lir.Stmt] = [For(block, LoopKind.INDEPENDENT, self._block(inner))]
        if rest:
            out += self._block(_renamed(s, Var(f"{v.name}q", rest), ix.const(v.extent - rest)))
        return tuple(out)

    def _block(self, s: For) -> Body:
        found = _find(s, self.shared) if s.var.extent >= MIN_POSITIONS else None
        if found is None:
            return (s,)
        self.count += 1
        split = _Split(s, _Graph(s, self.shared), found, f"r{self.count}", self.schedule.vector // ELEMENT_BITS)
        arrays, first, groups, last = split.loops()
        return (*arrays, *self._block(first), groups, *(() if last is None else self._block(last)))


def _renamed(s: For, var: Var, base: IndexExpr) -> For:
    at = base + ix.of(var)
    return replace(s, var=var, body=lir.map_indices(s.body, lambda i: i.substitute({s.var: at})))


# ---- what is rare


@dataclass(frozen=True)
class _Rare:
    """Expensive work behind one predicate, and the order in which the statements of the loop then run.

    Attributes:
        predicate: name of the predicate.
        holds: the value of the predicate for which the work is needed.
        outputs: results of selects whose expensive operand is computed in groups.
        moved: positions in the body of the statements that only the outputs need.
        stores: positions of the statements that only store an output.
        late: positions of the statements that depend on an output in another way.
    """

    predicate: str
    holds: bool
    outputs: tuple[str, ...]
    moved: frozenset[int]
    stores: frozenset[int]
    late: frozenset[int]


def _find(s: For, shared: frozenset[str]) -> _Rare | None:
    """Return the most expensive work behind a predicate that can be separated, None if none is worthwhile."""
    if any(isinstance(x, lir.LocalArray | lir.Update) for x in s.body):
        return None
    graph = _Graph(s, shared)
    best, most = None, 0.0
    for predicate, holds in graph.predicates():
        found = graph.rare(predicate, holds)
        if found is not None and found[1] > most:
            best, most = found
    return best


class _Graph:
    """The definitions and uses in the body of a loop."""

    def __init__(self, s: For, shared: frozenset[str]) -> None:
        self.statements = s.body
        self.shared = shared
        self.lets = {x.name: n for n, x in enumerate(s.body) if isinstance(x, lir.Let)}
        self.uses = [frozenset(lir.names_used((x,))) for x in s.body]
        self.users: dict[str, list[int]] = {}
        for n, names in enumerate(self.uses):
            for name in names:
                self.users.setdefault(name, []).append(n)
        stored = {x.array for x in lir.walk(s.body) if isinstance(x, lir.LocalStore)}
        self.pure = [isinstance(x, lir.Let) and self._is_pure(x.value, stored) for x in s.body]

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

    def root(self, predicate: str, holds: bool) -> tuple[str, bool]:
        """Return a predicate without its negations."""
        s = self.let(predicate)
        while s is not None and isinstance(s.value, lir.Apply) and s.value.op.opcode is Opcode.NOT:
            predicate, holds = s.value.args[0], not holds
            s = self.let(predicate)
        return predicate, holds

    def select(self, name: str, predicate: str, holds: bool) -> tuple[str, str] | None:
        """Return the operands that a select yields where the predicate holds and where not; None for other values."""
        s = self.let(name)
        if s is None or not isinstance(s.value, lir.Apply) or s.value.op.opcode is not Opcode.SELECT:
            return None
        by, then, otherwise = s.value.args
        root, positive = self.root(by, True)
        if root != predicate:
            return None
        return (then, otherwise) if positive == holds else (otherwise, then)

    def predicates(self) -> list[tuple[str, bool]]:
        """Return the predicates of selects that the loop computes, and their negations."""
        found: dict[str, None] = {}
        for name in self.lets:
            s = self.let(name)
            if s is not None and isinstance(s.value, lir.Apply) and s.value.op.opcode is Opcode.SELECT:
                root, _ = self.root(s.value.args[0], True)
                if root in self.lets:
                    found[root] = None
        return [(p, holds) for p in found for holds in (True, False)]

    def rare(self, predicate: str, holds: bool) -> tuple[_Rare, float] | None:
        """Return the work that is needed only where `predicate` is `holds`, and how much of it is saved elsewhere."""
        selects = {x: found for x in self.lets if (found := self.select(x, predicate, holds)) is not None}
        while True:
            moved = self._only_for(selects)
            outputs = [x for x, (a, _) in selects.items() if self.lets.get(a) in moved and self.lets[x] not in moved]
            cost = sum(self._cost(n) for n in moved)
            if cost < MIN_COST + MOVE_COST * len(outputs):
                return None
            stores, late = self._after(outputs)
            # The other operand must be known before the work is done; a select of which it is not stays as it is.
            dropped = [x for x in outputs if self.lets.get(other_operand(x, selects, outputs)) in late]
            if not dropped:
                break
            for x in dropped:
                del selects[x]
        rare = _Rare(predicate, holds, tuple(outputs), frozenset(moved), stores, late)
        return (rare, cost) if self._is_legal(rare) else None

    def _only_for(self, selects: dict[str, tuple[str, str]]) -> set[int]:
        """Return the statements whose values are used only where a select yields its first operand."""
        moved: set[int] = set()
        for n in range(len(self.statements) - 1, -1, -1):
            s = self.statements[n]
            if not isinstance(s, lir.Let) or not self.pure[n] or s.name not in self.users:
                continue
            if all(u in moved or self._is_first(u, s.name, selects) for u in self.users[s.name]):
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
                names.update(lir.names_defined((s,)))
        return frozenset(stores), frozenset(late)

    def _is_store_of(self, user: int, name: str) -> bool:
        s = self.statements[user]
        return isinstance(s, lir.Store | lir.LocalStore) and s.value == name and name not in _symbols(s.offset)

    def _is_legal(self, rare: _Rare) -> bool:
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

    def _cost(self, n: int) -> int:
        s = self.statements[n]
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


# ---- the split


class _Split:
    """The loops that replace a loop with rare work."""

    def __init__(self, s: For, graph: _Graph, rare: _Rare, tag: str, slots: int) -> None:
        self.loop, self.graph, self.rare, self.tag = s, graph, rare, tag
        self.here = ix.of(s.var)
        self.position = Var(f"{s.var.name}_{tag}", s.var.extent)
        self.slot = Var(f"{s.var.name}_{tag}s", slots)
        self.arrays: list[lir.LocalArray] = []
        # The values that the first loop passes to the others through arrays, by the order of their definitions.
        self.passed: dict[str, str] = {}
        self.types = {x.name: x.type for x in s.body if isinstance(x, lir.Let)}
        selects = {x: graph.select(x, rare.predicate, rare.holds) for x in self.types}
        self.operands = {x: found for x, found in selects.items() if found is not None}
        self.others = {x: other_operand(x, self.operands, rare.outputs) for x in rare.outputs}

    def loops(self) -> tuple[Body, For, lir.ForFlagged, For | None]:
        """Return the local arrays, the first loop, the loop over groups and the last loop, if there is one."""
        flags = self._array("flags", T.S32, self.loop.var.extent)
        groups = self._groups(flags)
        last = self._last()
        first = replace(self.loop, body=tuple(self._first(flags)))
        return tuple(self.arrays), first, groups, last

    def _array(self, name: str, t: T, size: int) -> str:
        name = f"{name}_{self.tag}"
        self.arrays.append(lir.LocalArray(name, t, size))
        return name

    def _result(self, output: str) -> str:
        """Return the array that passes an output to the last loop."""
        if output not in self.passed:
            self.passed[output] = self._array(f"{output}_all", self.types[output], self.loop.var.extent)
        return self.passed[output]

    # ---- the first loop

    def _first(self, flags: str) -> list[lir.Stmt]:
        rare = self.rare
        out: list[lir.Stmt] = []
        for n, s in enumerate(self.graph.statements):
            if n in rare.moved or n in rare.late or (isinstance(s, lir.Let) and s.name in rare.outputs):
                continue
            if n in rare.stores and isinstance(s, lir.Store | lir.LocalStore):
                s = replace(s, value=self.others[s.value])
            out.append(s)
        holds = rare.predicate
        if not rare.holds:
            holds = f"{holds}_{self.tag}not"
            negation = ScalarOp(Opcode.NOT, T.PRED, T.PRED)
            out.append(lir.Let(holds, T.PRED, lir.Apply(negation, (rare.predicate,))))
        number = f"{rare.predicate}_{self.tag}"
        out.append(lir.Let(number, T.S32, lir.Apply(conversion(T.PRED, T.S32), (holds,))))
        out.append(lir.LocalStore(flags, self.here, number))
        for name, array in self.passed.items():
            value = self.others.get(name, name)
            out.append(lir.LocalStore(array, self.here, value))
        return out

    # ---- the loop over groups

    def _groups(self, flags: str) -> lir.ForFlagged:
        body: list[lir.Stmt] = list(self._values([self.operands[x][0] for x in self.rare.outputs], self._resolved))
        body = list(self._at(body, self.position))
        ordered: list[lir.Stmt] = []
        for x in self.rare.outputs:
            t, group, one = self.types[x], self._array(f"{x}_group", self.types[x], self.slot.extent), f"{x}_{self.tag}"
            body.append(lir.LocalStore(group, ix.of(self.slot), self.operands[x][0]))
            ordered.append(lir.Let(one, t, lir.LocalLoad(group, ix.of(self.slot))))
            users = self.graph.users.get(x, [])
            for s in (self.graph.statements[n] for n in users if n in self.rare.stores):
                if isinstance(s, lir.Store | lir.LocalStore):
                    ordered += self._at([replace(s, value=one)], self.position)
            if any(n in self.rare.late for n in users):
                ordered.append(lir.LocalStore(self._result(x), ix.of(self.position), one))
        return lir.ForFlagged(flags, self.position, self.slot, tuple(body), tuple(ordered))

    def _resolved(self, name: str) -> lir.Let | None:
        """Return the definition of a name within a group, where the predicate is known; None if it is as elsewhere."""
        if name == self.rare.predicate:
            return lir.Let(name, T.PRED, lir.Constant(self.rare.holds))
        if name not in self.operands:
            return None
        t = self.types[name]
        return lir.Let(name, t, lir.Apply(ScalarOp(Opcode.COPY, t, t), self.operands[name][:1]))

    def _at(self, body: Iterable[lir.Stmt], var: Var) -> Body:
        """Return statements with the position of the loop replaced."""
        return lir.map_indices(tuple(body), lambda i: i.substitute({self.loop.var: ix.of(var)}))

    # ---- the last loop

    def _last(self) -> For | None:
        if not self.rare.late:
            return None
        late = [s for n, s in enumerate(self.graph.statements) if n in self.rare.late]
        defined = {s.name for s in late if isinstance(s, lir.Let)}
        needed = dict.fromkeys(name for s in late for name in lir.names_used((s,)) if name not in defined)
        given = self._values(list(needed), lambda name: None)
        return replace(self.loop, body=(*given, *late))

    # ---- values in another loop than the first

    def _values(self, names: Sequence[str], resolved: Callable[[str], lir.Let | None]) -> Body:
        """Return the statements that define values in another loop: moved, computed again, or passed by the first."""
        graph, out = self.graph, dict[int, lir.Stmt]()
        work = list(names)
        while work:
            name = work.pop()
            n = graph.lets.get(name)
            if n is None or n in out:
                continue
            known = resolved(name)
            if known is not None:
                out[n] = known
            elif n in self.rare.moved or (name not in self.rare.outputs and self._is_recomputed(name)):
                out[n] = graph.statements[n]
            else:
                array = self._result(name)
                at = self.position if resolved == self._resolved else self.loop.var
                out[n] = lir.Let(name, self.types[name], lir.LocalLoad(array, ix.of(at)))
            s = out[n]
            work += [u for u in lir.names_used((s,)) if u != name]
        return tuple(out[n] for n in sorted(out))

    def _is_recomputed(self, name: str) -> bool:
        found = self.graph.recomputed(name)
        return found is not None and not any(n in self.rare.moved or n in self.rare.late for n in found)
