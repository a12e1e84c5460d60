"""Copies of statements in which the outcome of some index tests is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Runtime, Var
from compiler.codegen.nest.loop_ir import Body, For
from compiler.codegen.nest.scalar_ops import ScalarOp
from compiler.codegen.nest.traversal import map_bodies, names_assigned, walk
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

Facts = Mapping[lir.IndexTest, bool]
"""The index tests whose outcome is known."""

COPYABLE = (lir.Let, lir.Accumulator, lir.Assign, lir.Store, lir.LocalStore, lir.If, lir.For)
"""The statements that `copy_with` can copy."""


def copy_with(
    body: Body,
    facts: Facts,
    at: Mapping[IndexSymbol, IndexExpr],
    suffix: str,
    known: Mapping[str, bool] | None = None,
) -> Body:
    """Return a copy of statements without the branches that are not taken.

    Args:
        body: statements of the types COPYABLE.
        facts: index tests whose outcome is known, in terms of the original variables.
        at: what loop variables are replaced with.
        suffix: makes the names that the copy defines different from those of other copies.
        known: preds whose value is known, by the names with which they are defined outside of the statements.
    """
    return copy_with_names(body, facts, at, suffix, known)[0]


def copy_with_names(
    body: Body,
    facts: Facts,
    at: Mapping[IndexSymbol, IndexExpr],
    suffix: str,
    known: Mapping[str, bool] | None = None,
) -> tuple[Body, Callable[[str], str]]:
    """Return the same as `copy_with`, and a function from the names of values to their names in the copy."""
    copy = _Copy(facts, at, suffix, known=dict(known or {}))
    copied = copy.body(body)
    read = {s.value.name for s in walk(copied) if isinstance(s, lir.Let) and isinstance(s.value, lir.Current)}
    return _without_unread(copied, read), copy.name


def _without_unread(body: Body, read: set[str]) -> Body:
    """Return the statements without the accumulators that are not read."""
    unread = [s for s in body if isinstance(s, lir.Accumulator | lir.Assign) and s.name not in read]
    return tuple(map_bodies(s, lambda inner: _without_unread(inner, read)) for s in body if s not in unread)


@dataclass
class _Copy:
    facts: Facts
    at: Mapping[IndexSymbol, IndexExpr]
    suffix: str
    names: dict[str, str] = field(default_factory=dict)
    known: dict[str, bool] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    """Names of the copy's values: `names` of values, `known` preds, and what accumulators hold at this point."""
    places: dict[str, IndexExpr] = field(default_factory=dict)
    """What values of the copy that are indices are, by name."""

    def body(self, body: Body) -> Body:
        return tuple(x for s in body for x in self.statement(s))

    def name(self, name: str) -> str:
        return self.names.get(name, name)

    def define(self, name: str) -> str:
        return self.names.setdefault(name, name + self.suffix)

    def index(self, i: IndexExpr) -> IndexExpr:
        found: dict[IndexSymbol, IndexExpr] = {v: self._runtime(v) for v in i.variables() if isinstance(v, Runtime)}
        return i.substitute({**self.at, **found})

    def _runtime(self, v: Runtime) -> IndexExpr:
        name = self.name(v.name)
        place = self.places.get(name)
        return IndexExpr(((replace(v, name=name), 1),)) if place is None else place

    def statement(self, s: lir.Stmt) -> Body:
        if isinstance(s, lir.Let):
            return self._let(s)
        if isinstance(s, lir.Accumulator):
            self.held[s.name] = self.name(s.init)
            return (lir.Accumulator(self.define(s.name), s.type, self.name(s.init)),)
        if isinstance(s, lir.Assign):
            self.held[s.name] = self.name(s.value)
            return (lir.Assign(self.name(s.name), self.name(s.value)),)
        if isinstance(s, lir.Store | lir.LocalStore):
            return (replace(s, offset=self.index(s.offset), value=self.name(s.value)),)
        if isinstance(s, lir.If):
            return self._branch(s)
        if isinstance(s, For):
            return (self._loop(s),)
        raise TypeError(f"{type(s).__name__} cannot be copied")

    def _branch(self, s: lir.If) -> Body:
        known = self.known.get(s.condition)
        if known is not None:
            return self.body(s.then if known else s.otherwise)
        before, sides = dict(self.held), []
        for side in (s.then, s.otherwise):
            self.held = dict(before)
            sides.append(self.body(side))
        changed = names_assigned((s,))
        self.held = {k: v for k, v in before.items() if k not in changed}
        return (lir.If(self.name(s.condition), *sides),)

    def _loop(self, s: For) -> For:
        changed = names_assigned((s,))
        self.held = {k: v for k, v in self.held.items() if k not in changed}
        var = Var(s.var.name + self.suffix, s.var.extent)
        self.at = {**self.at, s.var: IndexExpr(((var, 1),))}
        body = self.body(s.body)
        self.held = {k: v for k, v in self.held.items() if k not in changed}
        base = None if s.base is None else self.index(s.base)
        return replace(s, var=var, body=body, base=base)

    def _let(self, s: lir.Let) -> Body:
        v = s.value
        if isinstance(v, lir.IndexTest):
            outcome = self.facts.get(v)
            if outcome is not None:
                return self._pred(s, outcome)
            v = replace(v, value=self.index(v.value))
            outcome = _outcome(v)
            if outcome is not None:
                return self._pred(s, outcome)
        elif isinstance(v, lir.Load | lir.LocalLoad):
            v = replace(v, offset=self.index(v.offset))
        elif isinstance(v, lir.IndexValue):
            v = replace(v, value=self.index(v.value))
            if s.type in (T.S32, T.S64):  # narrower ones wrap
                self.places[self.define(s.name)] = v.value
        elif isinstance(v, lir.Current):
            if v.name in self.held:
                self.names[s.name] = self.held[v.name]
                return ()
            v = lir.Current(self.name(v.name))
        elif isinstance(v, lir.Apply):
            known = self._logic(v.op, v.args) if v.op.type is T.PRED else None
            if isinstance(known, bool):
                return self._pred(s, known)
            if v.op.opcode is Opcode.SELECT and v.args[0] in self.known:
                known = v.args[1 if self.known[v.args[0]] else 2]
            if known is not None:
                self.names[s.name] = self.name(known)
                if known in self.known:
                    self.known[s.name] = self.known[known]
                return ()
            v = replace(v, args=tuple(map(self.name, v.args)))
        return (lir.Let(self.define(s.name), s.type, v),)

    def _pred(self, s: lir.Let, value: bool) -> Body:
        self.known[s.name] = value
        return (lir.Let(self.define(s.name), s.type, lir.Constant(value)),)

    def _logic(self, op: ScalarOp, args: tuple[str, ...]) -> bool | str | None:
        """Return the value of a logical operation, or the name of the operand that it equals, or None."""
        if op.opcode is Opcode.NOT and args[0] in self.known:
            return not self.known[args[0]]
        if op.opcode not in (Opcode.AND, Opcode.OR):
            return None
        deciding = op.opcode is Opcode.OR
        for mine, other in (args, args[::-1]):
            if mine in self.known:
                return deciding if self.known[mine] is deciding else other
        return None


def _outcome(t: lir.IndexTest) -> bool | None:
    """Return the outcome of a test that is the same for all values of its variables; None for others."""
    least, most = t.value.range
    if (t.low is None or least >= t.low) and (t.high is None or most <= t.high):
        return True
    never = (t.low is not None and most < t.low) or (t.high is not None and least > t.high)
    return False if never else None
