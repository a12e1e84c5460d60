"""Whether the function of a reduction may combine its elements in any order."""

import pytest

from compiler.analysis.reducers import combines_in_any_order
from compiler.text import parse

LOGADDEXP = """
    m = f32[] maximum(a, b)
    d = f32[] subtract(a, b)
    s = f32[] abs(d)
    n = f32[] negate(s)
    e = f32[] exponential(n)
    l = f32[] log-plus-one(e)
    ROOT r = f32[] add(m, l)
"""


@pytest.mark.parametrize(
    ("t", "body", "expected"),
    [
        ("f32", "ROOT r = f32[] add(a, b)", True),
        ("f32", LOGADDEXP, True),
        ("s32", "ROOT r = s32[] xor(a, b)", True),
        ("f32", "ROOT r = f32[] subtract(a, b)", False),
        ("f32", "ROOT r = f32[] copy(a)", False),
        ("s32", "ROOT r = s32[] copy(b)", False),
        ("f32", "s = f32[] add(a, b) c = f32[] constant(0.5) ROOT r = f32[] multiply(s, c)", False),
        ("s32", "z = s32[] constant(0) p = pred[] compare(a, z), direction=NE ROOT r = s32[] select(p, a, b)", False),
    ],
)
def test_functions(t: str, body: str, expected: bool) -> None:
    module = parse(f"HloModule m\nENTRY f {{ a = {t}[] parameter(0)\n b = {t}[] parameter(1)\n {body} }}")
    assert combines_in_any_order(module.entry) is expected


def test_functions_of_other_shapes() -> None:
    wide = parse("HloModule m\nENTRY f { a = f32[2] parameter(0) b = f32[2] parameter(1) ROOT r = f32[2] add(a, b) }")
    assert not combines_in_any_order(wide.entry)
    single = parse("HloModule m\nENTRY f { a = f32[] parameter(0) ROOT r = f32[] negate(a) }")
    assert not combines_in_any_order(single.entry)
