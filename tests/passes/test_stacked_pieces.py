"""Reductions of many stacked arrays, which are combined without the stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler import compile, parse
from compiler.ir import Opcode
from compiler.passes.infrastructure.registry import make_pass


def stacked(count: int, t: str = "f32", function: str = "add", init: str = "0", result: str = "r") -> str:
    """Return a program that reduces 2 a - w for stacked rows a, and returns that, or it and what is reduced."""
    parameters = "\n".join(f"p{k} = {t}[1,5] parameter({k})" for k in range(count))
    names = ", ".join(f"p{k}" for k in range(count))
    ending = {"r": f"{t}[5] copy(r)", "both": f"({t}[5], {t}[{count},5]) tuple(r, s)"}[result]
    return f"""HloModule m
    f {{ a = {t}[] parameter(0) b = {t}[] parameter(1) ROOT r = {t}[] {function}(a, b) }}
    ENTRY e {{
      {parameters}
      w = {t}[5] parameter({count})
      x = {t}[{count},5] concatenate({names}), dimensions={{0}}
      two = {t}[] constant(2)
      twos = {t}[{count},5] broadcast(two), dimensions={{}}
      d = {t}[{count},5] multiply(x, twos)
      wb = {t}[{count},5] broadcast(w), dimensions={{1}}
      s = {t}[{count},5] subtract(d, wb)
      start = {t}[] constant({init})
      r = {t}[5] reduce(s, start), dimensions={{0}}, to_apply=f
      ROOT out = {ending}
    }}"""


def has_reduction(text: str) -> bool:
    """Check whether a reduction is left after the pass."""
    module = parse(text)
    make_pass("reduce-simplifier").run(module)
    return any(i.opcode is Opcode.REDUCE for i in module.entry.instructions)


@pytest.mark.parametrize("count", [17, 25, 64])
@pytest.mark.parametrize(
    ("function", "init", "combine"), [("add", "0", np.sum), ("maximum", "-inf", np.max), ("minimum", "inf", np.min)]
)
def test_many_rows_are_combined_without_their_stack(
    count: int, function: str, init: str, combine: Callable[..., Any]
) -> None:
    text = stacked(count, function=function, init=init)
    assert not has_reduction(text)
    rows = np.random.default_rng(0).integers(-9, 9, (count, 1, 5)).astype(np.float32)
    w = np.arange(5, dtype=np.float32)
    (found,) = compile(text)(*rows, w)
    np.testing.assert_array_equal(found, combine(2 * rows[:, 0] - w, axis=0))


def test_few_rows_and_very_many_rows_keep_their_stack() -> None:
    assert has_reduction(stacked(16))
    assert has_reduction(stacked(65))


def test_rows_of_halves_keep_their_stack() -> None:
    assert has_reduction(stacked(20, t="bf16"))


def test_a_stack_that_is_also_returned_stays() -> None:
    assert has_reduction(stacked(20, result="both"))


def test_a_start_that_is_not_neutral_stays() -> None:
    assert has_reduction(stacked(20, init="1"))
