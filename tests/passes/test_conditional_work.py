"""Conditionals become selects only if the branches that are not taken cost little, or in loops."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.passes import make_pass
from compiler.text import parse

BRANCHES = """
%plain (x: f32[{n}]) -> f32[{n}] {{
  %x = f32[{n}] parameter(0)
  ROOT %r = f32[{n}] negate(%x)
}}

%costly (x: f32[{n}]) -> f32[{n}] {{
  %x = f32[{n}] parameter(0)
  ROOT %r = f32[{n}] {op}(%x)
}}
"""
PROGRAM = (
    "HloModule m\n"
    + BRANCHES
    + """
ENTRY %main (p: pred[], x: f32[{n}]) -> f32[{n}] {{
  %p = pred[] parameter(0)
  %x = f32[{n}] parameter(1)
  ROOT %c = f32[{n}] conditional(%p, %x, %x), true_computation=%plain, false_computation=%costly
}}
"""
)
LOOP = (
    "HloModule m\n"
    + BRANCHES
    + """
%body (s: (s32[], f32[{n}])) -> (s32[], f32[{n}]) {{
  %s = (s32[], f32[{n}]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[{n}] get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %zero = s32[] constant(0)
  %next = s32[] add(%i, %one)
  %p = pred[] compare(%i, %zero), direction=EQ
  %c = f32[{n}] conditional(%p, %x, %x), true_computation=%plain, false_computation=%costly
  ROOT %t = (s32[], f32[{n}]) tuple(%next, %c)
}}

%more (s: (s32[], f32[{n}])) -> pred[] {{
  %s = (s32[], f32[{n}]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %three = s32[] constant(3)
  ROOT %less = pred[] compare(%i, %three), direction=LT
}}

ENTRY %main (x: f32[{n}]) -> f32[{n}] {{
  %x = f32[{n}] parameter(0)
  %zero = s32[] constant(0)
  %t = (s32[], f32[{n}]) tuple(%zero, %x)
  %w = (s32[], f32[{n}]) while(%t), condition=%more, body=%body
  ROOT %y = f32[{n}] get-tuple-element(%w), index=1
}}
"""
)


@pytest.mark.parametrize(
    ("text", "n"),
    [
        (PROGRAM, 100),
        (PROGRAM, 100_000),  # only the negation is wasted
        (LOOP.replace("negate(%x)", "tanh(%x)"), 100_000),
    ],
)
def test_cheap_branches_and_those_in_loops_become_selects(text: str, n: int) -> None:
    module = parse(text.format(n=n, op="exponential"))
    assert make_pass("conditional-simplifier").run(module)
    assert not [i for c in module.computations for i in c.instructions if i.opcode is Opcode.CONDITIONAL]


@pytest.mark.parametrize("p", [True, False])
@pytest.mark.parametrize(("n", "selects"), [(100, True), (4096, True), (4097, False)])
def test_branches_with_much_work_stay(n: int, selects: bool, p: bool) -> None:
    text = PROGRAM.replace("negate(%x)", "tanh(%x)").format(n=n, op="exponential")
    module = parse(text)
    assert make_pass("conditional-simplifier").run(module) == selects
    x = np.linspace(-2, 2, n, dtype=np.float32)
    want = np.tanh(x) if p else np.exp(x)
    np.testing.assert_allclose(evaluate(module, [np.bool_(p), x])[0], want, rtol=1e-6)


def test_the_limit_can_be_chosen() -> None:
    text = PROGRAM.replace("negate(%x)", "tanh(%x)").format(n=100_000, op="exponential")
    assert make_pass("conditional-simplifier{max_work=800000}").run(parse(text))
    assert not make_pass("conditional-simplifier{max_work=799999}").run(parse(text))
