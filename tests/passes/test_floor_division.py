"""Quotients and remainders that are rounded down."""

import numpy as np
import pytest

from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.ir.verifier import check_module
from compiler.passes.infrastructure.registry import make_pass
from compiler.text import parse

ORDERS = [
    ("differs, some", "below, some"), ("some, differs", "some, below"), ("below, some", "differs, some"),
    ("below, differs", "some, below"),
]  # fmt: skip


def text(t: str, c: int, down: str, up: str, step: str = "add(q, lesses)") -> str:
    return f"""HloModule m
ENTRY e {{
  x = {t}[40] parameter(0)
  zero = {t}[] constant(0)
  zeros = {t}[40] broadcast(zero), dimensions={{}}
  one = {t}[] constant(1)
  ones = {t}[40] broadcast(one), dimensions={{}}
  less = {t}[] constant(-1)
  lesses = {t}[40] broadcast(less), dimensions={{}}
  c = {t}[] constant({c})
  cs = {t}[40] broadcast(c), dimensions={{}}
  sign = {t}[40] sign(x)
  differs = pred[40] compare(sign, ones), direction=NE
  r = {t}[40] remainder(x, cs)
  some = pred[40] compare(r, zeros), direction=NE
  below = pred[40] compare(r, zeros), direction=LT
  q = {t}[40] divide(x, cs)
  q1 = {t}[40] {step}
  other = pred[40] compare(x, zeros), direction=NE
  down = pred[40] and({down})
  floor = {t}[40] select(down, q1, q)
  up = pred[40] and({up})
  r1 = {t}[40] add(r, cs)
  mod = {t}[40] select(up, r1, r)
  ROOT t = ({t}[40], {t}[40]) tuple(floor, mod)
}}"""


def values(t: str) -> np.ndarray[tuple[int], np.dtype[np.signedinteger]]:
    dtype = np.dtype({"s8": "i1", "s32": "i4", "s64": "i8"}[t])
    info = np.iinfo(dtype)
    return np.array([*range(-17, 17), info.min, info.min + 1, info.max, info.max - 1, 99, -99], dtype)


@pytest.mark.parametrize("c", [1, 2, 3, 8, 10, 64, 127])
@pytest.mark.parametrize("t", ["s8", "s32", "s64"])
@pytest.mark.parametrize(("down", "up"), ORDERS)
def test_results_are_those_of_python(t: str, c: int, down: str, up: str) -> None:
    module, x = parse(text(t, c, down, up)), values(t)

    assert make_pass("floor-division").run(module)

    assert check_module(module) == []
    quotient, remainder = evaluate(module, [x])
    assert [int(v) for v in quotient] == [int(v) // c for v in x]
    assert [int(v) for v in remainder] == [int(v) % c for v in x]
    divides = any(i.opcode in (Opcode.DIVIDE, Opcode.REMAINDER) for i in module.entry.post_order())
    assert divides == (c & (c - 1) != 0)


@pytest.mark.parametrize(
    ("c", "down", "up", "step"),
    [
        (-4, "differs, some", "below, some", "add(q, lesses)"),
        (4, "differs, other", "below, other", "add(q, lesses)"),
        (4, "some, some", "differs, differs", "add(q, lesses)"),
        (4, "some, below", "some, some", "add(q, ones)"),
    ],
)
def test_other_corrections_are_kept(c: int, down: str, up: str, step: str) -> None:
    assert not make_pass("floor-division").run(parse(text("s32", c, down, up, step)))
