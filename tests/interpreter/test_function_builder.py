"""Generated functions: constant folding, results written in place, and the instruction that an error names."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from compiler.errors import InterpreterError
from compiler.interpreter import Context, Evaluator, evaluate, evaluate_op, register_custom_call
from compiler.interpreter.custom_calls import CUSTOM_CALLS
from compiler.interpreter.machine import Machine
from compiler.interpreter.registry import Value
from compiler.ir import HloInstruction, Opcode
from compiler.text import parse


def loop(body: str, state: str, start: str, count: int = 3) -> str:
    """Return a while loop over `(s32[] counter, state)` whose body computes `next` from `s`."""
    return f"""HloModule loop
body {{
  p = (s32[], {state}) parameter(0)
  k = s32[] get-tuple-element(p), index=0
  one = s32[] constant(1)
  k1 = s32[] add(k, one)
  s = {state} get-tuple-element(p), index=1
  {body}
  next = {state} op(s)
  ROOT r = (s32[], {state}) tuple(k1, next)
}}
cond {{
  p = (s32[], {state}) parameter(0)
  k = s32[] get-tuple-element(p), index=0
  n = s32[] constant({count})
  ROOT c = pred[] compare(k, n), direction=LT
}}
ENTRY main {{
  zero = s32[] constant(0)
  {start}
  t = (s32[], {state}) tuple(zero, x)
  w = (s32[], {state}) while(t), condition=cond, body=body
  ROOT out = {state} get-tuple-element(w), index=1
}}
"""


def run(body: str, next_op: str, state: str, start: str, *args: Any, **options: Any) -> Any:
    text = loop(body, state, start).replace(f"next = {state} op(s)", f"next = {state} {next_op}")
    return evaluate(parse(text), args, **options)[0]


def test_a_constant_of_the_body_is_not_written_over() -> None:
    body = """table = s32[4] constant({10, 20, 30, 40})
  minus = s32[1] constant({-1})
  changed = s32[4] dynamic-update-slice(table, minus, k)"""
    found = run(body, "add(s, changed)", "s32[4]", "x = s32[4] parameter(0)", np.zeros(4, np.int32))
    np.testing.assert_array_equal(found, [19, 39, 59, 120])


def test_the_argument_is_not_written_over() -> None:
    x = np.zeros(4, np.int32)
    found = run("k2 = s32[1] reshape(k1)", "dynamic-update-slice(s, k2, k)", "s32[4]", "x = s32[4] parameter(0)", x)
    np.testing.assert_array_equal(found, [1, 2, 3, 0])
    np.testing.assert_array_equal(x, 0)


def test_an_array_that_is_filled_step_by_step_stays_where_it_is() -> None:
    seen = []
    register_custom_call("look", lambda instruction, values: seen.append(id(values[0])) or values[0])  # type: ignore[func-returns-value]
    try:
        body = 'k2 = s32[1] reshape(k1)\n  same = s32[4] custom-call(s), custom_call_target="look"'
        start = "zeros = s32[4] broadcast(zero), dimensions={}\n  x = s32[4] add(zeros, zeros)"
        run(body, "dynamic-update-slice(same, k2, k)", "s32[4]", start)
    finally:
        del CUSTOM_CALLS["look"]
    assert len(seen) == 3
    assert len(set(seen)) == 1


def test_random_numbers_of_constant_bounds_differ_from_step_to_step() -> None:
    body = """low = f32[] constant(0)
  high = f32[] constant(1)
  draw = f32[] rng(low, high), distribution=rng_uniform
  wide = f32[4] broadcast(draw), dimensions={}
  which = s32[4] iota(), iota_dimension=0
  at = s32[4] broadcast(k), dimensions={}
  here = pred[4] compare(which, at), direction=EQ"""
    start = "zf = f32[] constant(0)\n  x = f32[4] broadcast(zf), dimensions={}"
    found = run(body, "select(here, wide, s)", "f32[4]", start, context=Context(seed=3))
    assert len(set(found[:3].tolist())) == 3


def test_an_error_in_a_body_names_its_instruction() -> None:
    def fail(instruction: Any, values: Any) -> Any:
        raise ValueError("no such thing")

    register_custom_call("fail", fail)
    try:
        with pytest.raises(InterpreterError, match=r"%next .*line 9: no such thing"):
            run("", 'custom-call(s), custom_call_target="fail"', "s32[]", "x = s32[] parameter(0)", np.int32(0))
    finally:
        del CUSTOM_CALLS["fail"]


DECORATED = """HloModule m
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
body { x = f32[4] parameter(0) h = f32[] constant(0.5) k = f32[4] broadcast(h), dimensions={}
  ROOT y = f32[4] multiply(x, k) }
condition { x = f32[4] parameter(0) z = f32[] constant(0) s = f32[] reduce(x, z), dimensions={0}, to_apply=sum
  one = f32[] constant(1) ROOT r = pred[] compare(s, one), direction=GT }
ENTRY e { x = f32[4] parameter(0) w = f32[4] while(x), condition=condition, body=body ROOT n = f32[4] negate(w) }"""


def test_evaluators_can_be_decorated_in_all_computations() -> None:
    seen: Counter[str] = Counter()

    def counted(instruction: HloInstruction, evaluator: Evaluator) -> Evaluator:
        def run(machine: Machine, i: HloInstruction, values: list[Value]) -> Value:
            seen[i.opcode.text] += 1
            return evaluator(machine, i, values)

        return run

    module, x = parse(DECORATED), np.full(4, 1, np.float32)
    plain, decorated = evaluate(module, [x])[0], evaluate(module, [x], Context(decorate=counted))[0]
    np.testing.assert_array_equal(plain, decorated)
    assert seen == {"while": 1, "multiply": 2, "broadcast": 1, "reduce": 3, "compare": 3, "negate": 1}


def test_decorated_evaluators_give_the_results() -> None:
    def twice(instruction: HloInstruction, evaluator: Evaluator) -> Evaluator:
        if instruction.opcode is not Opcode.NEGATE:
            return evaluator
        return lambda machine, i, values: np.asarray(evaluator(machine, i, values)) * np.float32(2)

    module, x = parse(DECORATED), np.full(4, 0.25, np.float32)
    np.testing.assert_array_equal(evaluate(module, [x], Context(decorate=twice))[0], -2 * x)
    negate = module.entry.root
    np.testing.assert_array_equal(evaluate_op(negate, [x], Context(decorate=twice)), -2 * x)
