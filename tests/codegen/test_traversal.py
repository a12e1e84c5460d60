"""Tests of rewriting statements: what does not change stays the same object."""

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import For, LoopKind
from compiler.codegen.nest.traversal import has_compound, map_bodies, map_compound
from compiler.ir.types import PrimitiveType as T

LET = lir.Let("x", T.F32, lir.Constant(1.0))
INNER = For(Var("j", 4), LoopKind.SERIAL, (LET,))
OUTER = For(Var("i", 4), LoopKind.SERIAL, (LET, INNER))


def test_a_statement_whose_bodies_stay_is_itself() -> None:
    assert map_bodies(OUTER, lambda body: body) is OUTER
    assert map_bodies(LET, lambda body: ()) is LET


def test_every_body_of_a_branch_is_mapped() -> None:
    branch = lir.If("x", (LET,), (INNER,))
    assert map_bodies(branch, lambda body: (*body, LET)) == lir.If("x", (LET, LET), (INNER, LET))


def test_statements_with_others_inside_are_mapped() -> None:
    body = (LET, OUTER)
    assert map_compound(body, lambda s: (s,)) is body
    assert map_compound(body, lambda s: (s, INNER)) == (LET, OUTER, INNER)
    assert map_compound(body, lambda s: ()) == (LET,)
    assert map_compound((LET,), lambda s: ()) == (LET,)
    assert has_compound(body)
    assert not has_compound((LET,))
