"""Loops whose state follows a linear recurrence, in segments."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from compiler import compile, parse
from compiler.backends.cuda.emulation import available, stand_in
from compiler.interpreter import evaluate
from compiler.ir import HloModule, Opcode
from compiler.ir.verifier import check_module
from compiler.passes.loops.linear_recurrences import LinearRecurrences

Array = npt.NDArray[Any]


def loop(
    step: str, steps: int, columns: int, outputs: str = "state", reverse: bool = False, needs_last: bool = True
) -> HloModule:
    """Return a scan over x and y with one state; `step` defines `next` from `state`, `a` and `b` of a step."""
    row, whole = f"f32[{columns}]", f"f32[{steps},{columns}]"
    state = f"(s32[], {row}, {whole}, {whole}, {whole})"
    number = f"m = s32[] constant({steps - 1})\nat = s32[] subtract(m, n)" if reverse else ""
    at = "at" if reverse else "n"
    result = f"r = ({whole}, {row}) tuple(found, last)" if needs_last else f"r = {whole} negate(found)"
    return parse(
        f"""HloModule m
        body {{
          s = {state} parameter(0)
          n = s32[] get-tuple-element(s), index=0
          state = {row} get-tuple-element(s), index=1
          out = {whole} get-tuple-element(s), index=2
          x = {whole} get-tuple-element(s), index=3
          y = {whole} get-tuple-element(s), index=4
          one = s32[] constant(1)
          more = s32[] add(n, one)
          zero = s32[] constant(0)
          {number}
          p = f32[1,{columns}] dynamic-slice(x, {at}, zero), dynamic_slice_sizes={{1,{columns}}}
          q = f32[1,{columns}] dynamic-slice(y, {at}, zero), dynamic_slice_sizes={{1,{columns}}}
          a = {row} reshape(p)
          b = {row} reshape(q)
          {step.replace("ROW", row)}
          r = f32[1,{columns}] reshape({outputs})
          written = {whole} dynamic-update-slice(out, r, {at}, zero)
          ROOT t = {state} tuple(more, next, written, x, y)
        }}
        condition {{
          s = {state} parameter(0)
          n = s32[] get-tuple-element(s), index=0
          count = s32[] constant({steps})
          ROOT r = pred[] compare(n, count), direction=LT
        }}
        ENTRY e {{
          x = {whole} parameter(0)
          y = {whole} parameter(1)
          first = {row} parameter(2)
          zero = s32[] constant(0)
          none = f32[] constant(0)
          out = {whole} broadcast(none), dimensions={{}}
          t = {state} tuple(zero, first, out, x, y)
          w = {state} while(t), condition=condition, body=body
          found = {whole} get-tuple-element(w), index=2
          last = {row} get-tuple-element(w), index=1
          ROOT {result}
        }}"""
    )


LINEAR = {
    "multiplied and added": "m1 = ROW multiply(a, state)\nnext = ROW add(m1, b)",
    "subtracted from": "m1 = ROW multiply(state, a)\nnext = ROW subtract(b, m1)",
    "negated": "m1 = ROW negate(state)\nm2 = ROW multiply(m1, a)\nnext = ROW add(b, m2)",
    "used twice": "m1 = ROW multiply(a, state)\nm2 = ROW subtract(state, m1)\nnext = ROW add(m2, b)",
    "divided": (
        "o = f32[] constant(3)\nos = ROW broadcast(o), dimensions={}\nm1 = ROW divide(state, os)\nnext = ROW add(m1, b)"
    ),
    "selected": (
        "c = pred[{n}] compare(a, b), direction=GT\nm1 = ROW multiply(a, state)\nm2 = ROW add(m1, b)\n"
        "next = ROW select(c, m2, b)"
    ),
}
OTHERS = {
    "a function": "m1 = ROW tanh(state)\nnext = ROW add(m1, b)",
    "a square": "m1 = ROW multiply(state, state)\nnext = ROW add(m1, b)",
    "a divisor": "m1 = ROW divide(b, state)\nnext = ROW add(m1, a)",
    "a condition": "c = pred[{n}] compare(state, b), direction=GT\nnext = ROW select(c, a, state)",
    "another position": "m1 = ROW reverse(state), dimensions={0}\nm2 = ROW multiply(m1, a)\nnext = ROW add(m2, b)",
}


def arguments(steps: int, columns: int) -> list[Array]:
    rng = np.random.default_rng(steps)
    x, y = (rng.uniform(-0.99, 0.99, (steps, columns)).astype(np.float32) for _ in range(2))
    return [x, y, rng.normal(size=columns).astype(np.float32)]


def loops_of(module: HloModule) -> int:
    return sum(i.opcode is Opcode.WHILE for i in module.entry.instructions)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", LINEAR)
def test_linear_states_run_in_segments(name: str, reverse: bool) -> None:
    module = loop(LINEAR[name].replace("{n}", "5"), 144, 5, reverse=reverse)
    args = arguments(144, 5)
    wanted = evaluate(module, args)
    assert LinearRecurrences().run(module)
    assert check_module(module) == []
    assert loops_of(module) == 3
    for got, want in zip(evaluate(module, args), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_other_states_stay(name: str) -> None:
    module = loop(OTHERS[name].replace("{n}", "5"), 144, 5)
    text = str(module)
    assert not LinearRecurrences().run(module)
    assert str(module) == text


def test_outputs_may_be_any_function_of_the_state() -> None:
    step = LINEAR["multiplied and added"] + "\nf = ROW tanh(next)\ng = ROW multiply(f, state)"
    module = loop(step, 200, 4, outputs="g")
    args = arguments(200, 4)
    wanted = evaluate(module, args)
    assert LinearRecurrences().run(module)
    for got, want in zip(evaluate(module, args), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("steps", "columns"), [(100, 5), (144, 5000), (139, 5)])
def test_short_loops_and_large_states_and_odd_numbers_of_steps_stay(steps: int, columns: int) -> None:
    assert not LinearRecurrences().run(loop(LINEAR["negated"], steps, columns))


@pytest.mark.parametrize("reverse", [False, True])
def test_an_odd_number_of_steps_is_divided_if_the_last_state_is_not_needed(reverse: bool) -> None:
    module = loop(LINEAR["multiplied and added"], 211, 3, reverse=reverse, needs_last=False)
    args = arguments(211, 3)
    wanted = evaluate(module, args)
    assert LinearRecurrences().run(module)
    np.testing.assert_allclose(evaluate(module, args)[0], wanted[0], rtol=1e-5, atol=1e-5)


def test_a_state_of_zero_stays_zero_where_products_of_factors_overflow() -> None:
    module = loop(LINEAR["multiplied and added"], 400, 2)
    args = [np.full((400, 2), 1e9, np.float32), np.zeros((400, 2), np.float32), np.zeros(2, np.float32)]
    assert LinearRecurrences().run(module)
    found, last = evaluate(module, args)
    assert not found.any()
    assert not last.any()


@pytest.mark.skipif(not available(), reason="the emulator needs g++")
def test_a_gpu_runs_segments_at_once() -> None:
    text = str(loop(LINEAR["multiplied and added"], 144, 8))
    module = parse(text)
    args = arguments(144, 8)
    wanted = evaluate(module, args)
    executable = compile(text, backend="cuda")
    with stand_in.installed():
        got = executable(*args)
    assert max(k.grid * k.block for k in executable.kernels) > 8
    for g, want in zip(got, wanted, strict=True):
        np.testing.assert_allclose(g.get(), want, rtol=1e-5, atol=1e-5)
