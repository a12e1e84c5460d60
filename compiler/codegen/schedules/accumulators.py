"""Accumulators of reductions: the statements that start, combine and read them."""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.index import of as index_of
from compiler.codegen.nest.loop_ir import Combined, Reduce, Reduction, Stmt
from compiler.codegen.nest.scalar_ops import ScalarOp, binary, identity_of
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

_IDEMPOTENT = frozenset({Opcode.MAXIMUM, Opcode.MINIMUM, Opcode.AND, Opcode.OR})
"""Combiners for which a value may be combined more than once."""


def combined_of(s: Reduce) -> tuple[Combined, ...]:
    """Return the accumulators of a reduction as lanes or threads combine them."""
    return tuple(Combined(_accumulator(r), r.type, r.combiner) for r in s.reductions)


def start(s: Reduce) -> list[Stmt]:
    """Return the statements that declare an accumulator for each result, with the identity of its combiner."""
    out: list[Stmt] = []
    for r in s.reductions:
        out.append(_identity(r, f"{r.name}_start"))
        out.append(lir.Accumulator(_accumulator(r), r.type, f"{r.name}_start"))
    return out


def combine(s: Reduce) -> list[Stmt]:
    """Return the statements that combine the values of one iteration into the accumulators."""
    out: list[Stmt] = []
    for r in s.reductions:
        out.append(lir.Let(f"{r.name}_so_far", r.type, lir.Current(_accumulator(r))))
        out.append(combination(r, f"{r.name}_so_far", f"{r.name}_now"))
        out.append(lir.Assign(_accumulator(r), f"{r.name}_now"))
    return out


def results(s: Reduce) -> list[Stmt]:
    """Return the definitions of the results from the accumulators."""
    return [lir.Let(r.name, r.type, lir.Current(_accumulator(r))) for r in s.reductions]


def start_in_array(r: Reduction, array: str, at: IndexExpr, name: str) -> list[Stmt]:
    """Return the statements that set an element of an array of accumulators to the identity, called `name`."""
    return [_identity(r, name), lir.LocalStore(array, at, name)]


def combine_in_array(r: Reduction, array: str, at: IndexExpr) -> list[Stmt]:
    """Return the statements that combine the value of one iteration into an element of an array of accumulators."""
    return [
        lir.Let(f"{r.name}_before", r.type, lir.LocalLoad(array, at)),
        combination(r, f"{r.name}_before", f"{r.name}_after"),
        lir.LocalStore(array, at, f"{r.name}_after"),
    ]


def is_repeatable(body: lir.Body) -> bool:
    """Check whether the body of a reduction may run again for an element: it stores nothing that it reads."""
    if not all(isinstance(s, lir.Let | lir.LocalStore) for s in body):
        return False
    stored = {s.array for s in body if isinstance(s, lir.LocalStore)}
    loads = (s.value for s in body if isinstance(s, lir.Let) and isinstance(s.value, lir.LocalLoad))
    return all(load.array not in stored for load in loads)


def masked(s: Reduce, lane: Var, first: int) -> Reduce:
    """Return a reduction in which the lanes before the lane `first` combine the identity of the combiner."""
    changed = [r for r in s.reductions if r.combiner not in _IDEMPOTENT]
    kept = f"{lane.name}_kept"
    body = [*s.body, lir.Let(kept, T.PRED, lir.IndexTest(index_of(lane), first, None))] if changed else [*s.body]
    for r in changed:
        op = ScalarOp(Opcode.SELECT, r.type, r.type)
        body.append(_identity(r, f"{r.name}_none"))
        body.append(lir.Let(f"{r.name}_some", r.type, lir.Apply(op, (kept, r.value, f"{r.name}_none"))))
    reductions = tuple(replace(r, value=f"{r.name}_some") if r in changed else r for r in s.reductions)
    return replace(s, reductions=reductions, body=tuple(body))


def _accumulator(r: Reduction) -> str:
    return f"{r.name}_sum"


def _identity(r: Reduction, name: str) -> Stmt:
    return lir.Let(name, r.type, lir.Constant(identity_of(r.combiner, r.type)))


def combination(r: Reduction, before: str, after: str) -> Stmt:
    """Return the definition of `after` as the combination of `before` with the value of a reduction."""
    return lir.Let(after, r.type, lir.Apply(binary(r.combiner, r.type), (before, r.value)))
