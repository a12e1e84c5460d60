"""Vector loops that load one element of each of many rows."""

from __future__ import annotations

import pytest

from compiler.codegen.nest import index as ix
from compiler.codegen.schedules.schedule import Schedule
from tests.codegen.test_stages import checked

COLUMN = """
    x = {t}[{m},{n}] parameter(0)
    column = {t}[{m},1] slice(x), slice={{[0:{m}], [{at}:{next}]}}
    y = {t}[{m}] reshape(column)
    ROOT r = {t}[{m}] {op}(y)
"""


@pytest.mark.parametrize("t", ["f32", "f64", "f16"])
@pytest.mark.parametrize(("m", "n", "hidden"), [(200, 64, True), (200, 63, False), (200, 4, False), (16, 2048, True)])
@pytest.mark.parametrize("at", [0, 3])
def test_the_length_of_rows_is_hidden(t: str, m: int, n: int, hidden: bool, at: int) -> None:
    text = COLUMN.format(t=t, m=m, n=n, at=at, next=at + 1, op="exponential")
    source = checked(text, Schedule(threads=0, stages=0))
    assert (f"hlogym_opaque({n}LL)" in source) == hidden


def test_it_is_known_where_vectors_gain_nothing() -> None:
    far = COLUMN.format(t="f32", m=200, n=2048, at=0, next=1, op="exponential")
    light = COLUMN.format(t="f32", m=200, n=64, at=0, next=1, op="negate")
    for text in (far, light):
        assert "hlogym_opaque" not in checked(text, Schedule(threads=0, stages=0))


SUM = """
    x = {t}[{m},{n}] parameter(0)
    {loads}
    ROOT r = {t}[{m}] negate({last})
"""


@pytest.mark.parametrize(("t", "n"), [("f32", 16), ("f64", 8), ("bf16", 32), ("s32", 16), ("s8", 64)])
@pytest.mark.parametrize("part", [1, 2, 4, 5, 8])
def test_rows_of_a_vector_are_separated_if_most_of_them_is_loaded(t: str, n: int, part: int) -> None:
    m, count = 300, max(1, n * part // 8)
    lines = []
    for k in range(count):
        lines.append(f"s{k} = {t}[{m},1] slice(x), slice={{[0:{m}], [{n - 1 - k}:{n - k}]}}")
        lines.append(f"y{k} = {t}[{m}] reshape(s{k})")
        lines.append(f"q{k} = {t}[{m}] multiply(y{k}, y{k})")
        lines += [f"d{k} = {t}[{m}] subtract(q{k}, y{k})", f"e{k} = {t}[{m}] multiply(d{k}, y{k})"]
        lines.append(f"a{k} = {t}[{m}] {f'add(a{k - 1}, e{k})' if k else f'add(e{k}, e{k})'}")
    text = SUM.format(t=t, m=m, n=n, loads="\n".join(lines), last=f"a{count - 1}")
    source = checked(text, Schedule(threads=0))
    if t not in ("bf16", "s8"):  # whose elements are extended one by one
        assert (f"hlogym_opaque({n}LL)" in source) == (part <= 4)


def test_multiples_by_a_number_that_is_hidden() -> None:
    i, j = ix.Var("i", 10), ix.Var("j", 4)
    stride = ix.Runtime("stride", 64, 64)
    found = ix.multiple(ix.of(i) + 2, stride) + ix.of(j)
    assert found.range == (128, 64 * 11 + 3)
    assert set(found.variables()) == {i, j, stride}
    assert found.to_c() == "(j + (stride*(i + 2)))"
    assert found.substitute({i: ix.const(-2)}) == ix.of(j)
    assert found.substitute({i: ix.of(j) - 2}).to_c() == "(j + (stride*j))"


@pytest.mark.parametrize(("count", "m", "hidden"), [(6, 32, True), (5, 32, False), (6, 65, False), (8, 32, False)])
def test_a_short_loop_does_not_know_where_many_single_elements_are(count: int, m: int, hidden: bool) -> None:
    lines = []
    for k in range(count):
        lines.append(f"s{k} = s32[{m},1] slice(x), slice={{[0:{m}], [{k}:{k + 1}]}}")
        lines.append(f"y{k} = s32[{m}] reshape(s{k})")
        lines.append(f"p{k} = pred[{m}] compare(y{k}, z), direction=EQ")
        lines.append(f"a{k} = pred[{m}] {f'xor(a{k - 1}, p{k})' if k else 'copy(p0)'}")
    text = f"""
    x = s32[{m},15] parameter(0)
    z = s32[{m}] parameter(1)
    {chr(10).join(lines)}
    ROOT r = pred[{m}] not(a{count - 1})
    """
    source = checked(text, Schedule(threads=0, short=0))
    assert ("hlogym_opaque(15LL)" in source) == hidden
