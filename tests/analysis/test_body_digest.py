"""Digests of computations: names do not count, everything that a kernel depends on does."""

import pytest

from compiler.analysis.body_digest import body_digest
from compiler.text import parse

TEXT = """HloModule m
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY main {
  x = f32[4,8] parameter(0)
  y = f32[4,8] parameter(1)
  k = f32[] constant(2)
  w = f32[4,8] broadcast(k), dimensions={}
  d = f32[4,8] subtract(x, y)
  e = f32[4,8] multiply(d, w)
  z = f32[] constant(0)
  ROOT r = f32[4] reduce(e, z), dimensions={1}, to_apply=add
}"""


def digest(text: str) -> bytes:
    return body_digest(parse(text).entry)


def test_names_and_metadata_do_not_count() -> None:
    other = TEXT.replace("d = ", "different = ").replace("(d, w)", "(different, w)").replace("add", "plus")
    other = other.replace("plus(a, b)", "add(a, b)").replace("(x, y)", '(x, y), metadata={op_name="n"}')
    assert digest(other) == digest(TEXT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("subtract(x, y)", "subtract(y, x)"),
        ("multiply(d, w)", "multiply(w, d)"),
        ("constant(2)", "constant(3)"),
        ("constant(0)", "constant(-0)"),
        ("ROOT c = f32[] add(a, b)", "ROOT c = f32[] maximum(a, b)"),
        ("[4,8]", "[4,9]"),
        ("x = f32[4,8]", "x = f32[4,8]{0,1}"),
        ("ROOT r = f32[4] reduce(e, z), dimensions={1}", "ROOT r = f32[8] reduce(e, z), dimensions={0}"),
        ("(d, w)", '(d, w), frontend_attributes={mark="1"}'),
        ("ROOT r = f32[4]", "r = f32[4]"),
    ],
)
def test_other_contents_have_other_digests(old: str, new: str) -> None:
    changed = TEXT.replace(old, new)
    if "ROOT r" not in changed:
        changed = changed.replace("e = f32[4,8] multiply", "ROOT e = f32[4,8] multiply")
    assert changed != TEXT
    assert digest(changed) != digest(TEXT)


def test_large_constants_are_compared_by_content() -> None:
    zeros = "HloModule m\nENTRY main { ROOT c = f32[64] constant({" + ",".join(["0"] * 64) + "}) }"
    assert digest(zeros) != digest(zeros.replace("{0,", "{1,", 1))
