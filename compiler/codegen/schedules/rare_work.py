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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES, ScalarOp, conversion
from compiler.codegen.nest.traversal import map_bodies, map_compound, map_indices, names_used, walk
from compiler.codegen.schedules import rare_analysis
from compiler.codegen.schedules.loop_transforms import has_loop
from compiler.codegen.schedules.rare_analysis import RareWork, find_rare, other_operand
from compiler.codegen.schedules.schedule import LOCAL_BYTES, Schedule
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

MOVE_COST = 8
"""Cost of a value that is passed between the loops, in flops."""
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
    held = sum(s.size * SCALAR_BYTES[s.type] for s in walk(body) if isinstance(s, lir.LocalArray))
    return _Separation(schedule, shared, LOCAL_BYTES - held).body(body)


class _Separation:
    """The split of all loops of one kernel.

    Attributes:
        shared: inputs whose buffers outputs may overwrite.
        room: bytes left for local arrays.
        count: number of splits so far.
    """

    def __init__(self, schedule: Schedule, shared: frozenset[str], room: int) -> None:
        self.schedule = schedule
        self.shared = shared
        self.room = room
        self.count = 0

    def body(self, body: Body) -> Body:
        return map_compound(body, self._statement)

    def _statement(self, s: lir.Stmt) -> Body:
        if isinstance(s, For) and s.kind is LoopKind.INDEPENDENT and not has_loop(s.body):
            return self._loop(s)
        return (map_bodies(s, self.body),)

    def _loop(self, s: For) -> Body:
        """Return a loop over single elements in blocks of positions, each split; or the loop itself."""
        size, v = self.schedule.rare, s.var
        if v.extent <= size:
            return self._block(s)
        inner = _renamed(s, Var(f"{v.name}k", size), IndexExpr())
        if s.base is not None or self._split(inner) is None:
            return (s,)
        block, rest = Var(f"{v.name}b", v.extent // size), v.extent % size
        inner = _renamed(s, inner.var, ix.of(block) * size)
        out: list[lir.Stmt] = [For(block, LoopKind.INDEPENDENT, self._block(inner))]
        if rest:
            out += self._block(_renamed(s, Var(f"{v.name}k", rest), ix.const(v.extent - rest)))
        return tuple(out)

    def _block(self, s: For) -> Body:
        split = self._split(s)
        if split is None:
            return (s,)
        self.count += 1
        self.room -= split.bytes
        last = () if split.last is None else self._block(split.last)
        return (*split.arrays, *self._block(split.first), split.groups, *last)

    def _split(self, s: For) -> Split | None:
        """Return the split of a loop over one block, None if it is not worthwhile or needs too much memory."""
        if s.base is not None or s.var.extent < MIN_POSITIONS:
            return None
        found = find_rare(s, self.shared)
        if found is None:
            return None
        split = split_loop(s, found, f"r{self.count}", self.schedule.vector // ELEMENT_BITS)
        worthwhile = found.cost >= rare_analysis.MIN_COST + MOVE_COST * (len(split.arrays) - 1)
        return split if worthwhile and split.bytes <= self.room else None


def _renamed(s: For, var: Var, base: IndexExpr) -> For:
    at = base + ix.of(var)
    return replace(s, var=var, body=map_indices(s.body, lambda i: i.substitute({s.var: at})))


# ---- the split


@dataclass(frozen=True)
class Split:
    """The loops that replace a loop over one block.

    Attributes:
        arrays: local arrays, which precede the loops.
        first: the loop over all positions.
        groups: the loops over the positions that need the expensive work.
        last: the loop over all positions that computes what depends on its results, if anything does.
    """

    arrays: tuple[lir.LocalArray, ...]
    first: For
    groups: lir.ForFlagged
    last: For | None

    @property
    def bytes(self) -> int:
        """Return the size of the local arrays, with the list of positions."""
        return sum(a.size * SCALAR_BYTES[a.type] for a in self.arrays) + 4 * self.groups.position.extent


def split_loop(s: For, rare: RareWork, tag: str, group: int) -> Split:
    """Return the split of a loop; `tag` distinguishes its names, and a group has `group` positions."""
    return _Splitter(s, rare, tag, group).split()


class _Splitter:
    """The construction of a split."""

    def __init__(self, s: For, rare: RareWork, tag: str, group: int) -> None:
        self.loop, self.graph, self.rare, self.tag = s, rare.graph, rare, tag
        self.here = ix.of(s.var)
        self.position = Var(f"{s.var.name}_{tag}", s.var.extent)
        self.group = group
        self.slot = Var(f"{s.var.name}_{tag}s", -(-s.var.extent // group) * group)
        self.arrays: list[lir.LocalArray] = []
        # The values that the first loop passes to the others through arrays, by the order of their definitions.
        self.passed: dict[str, str] = {}
        self.types = {x.name: x.type for x in s.body if isinstance(x, lir.Let)}
        self.operands = self.graph.selects(rare.predicate, rare.holds)
        self.others = {x: other_operand(x, self.operands, rare.outputs) for x in rare.outputs}

    def split(self) -> Split:
        flags = self._array("flags", T.S32, self.loop.var.extent)
        groups = self._groups(flags)
        last = self._last()
        first = replace(self.loop, body=tuple(self._first(flags)))
        return Split(tuple(self.arrays), first, groups, last)

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
        return lir.ForFlagged(flags, self.position, self.slot, self.group, tuple(body), tuple(ordered))

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
        return map_indices(tuple(body), lambda i: i.substitute({self.loop.var: ix.of(var)}))

    # ---- the last loop

    def _last(self) -> For | None:
        if not self.rare.late:
            return None
        late = [s for n, s in enumerate(self.graph.statements) if n in self.rare.late]
        defined = {s.name for s in late if isinstance(s, lir.Let)}
        needed = dict.fromkeys(name for s in late for name in names_used((s,)) if name not in defined)
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
            work += [u for u in names_used((s,)) if u != name]
        return tuple(out[n] for n in sorted(out))

    def _is_recomputed(self, name: str) -> bool:
        found = self.graph.recomputed(name)
        return found is not None and not any(n in self.rare.moved or n in self.rare.late for n in found)
