"""Loops that fill stacks and sum products, on the cpu backend against the interpreter: memory without a first value."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import compile
from compiler.runtime.thunks import CopyThunk, KernelThunk
from compiler.text import parse
from env.reference import Reference
from tests.codegen.running import problem

STATE = "(s32[], f32[16,32], f32[12,16,32], f32[12,16,32], f32[12,16,32], f32[64,32], f32[32,32])"
RECURRENCE = f"""
HloModule recurrence

body {{
  p = {STATE} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  h = f32[16,32] get-tuple-element(p), index=1
  olds = f32[12,16,32] get-tuple-element(p), index=2
  news = f32[12,16,32] get-tuple-element(p), index=3
  xs = f32[12,16,32] get-tuple-element(p), index=4
  w = f32[64,32] get-tuple-element(p), index=5
  sum = f32[32,32] get-tuple-element(p), index=6
  one = s32[] constant(1)
  zero = s32[] constant(0)
  eleven = s32[] constant(11)
  next = s32[] add(i, one)
  back = s32[] subtract(eleven, i)
  slice = f32[1,16,32] dynamic-slice(xs, back, zero, zero), dynamic_slice_sizes={{1,16,32}}
  x = f32[16,32] reshape(slice)
  product = f32[16,64] dot(h, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  left = f32[16,32] slice(product), slice={{[0:16], [0:32]}}
  right = f32[16,32] slice(product), slice={{[0:16], [32:64]}}
  shifted = f32[16,32] add(left, x)
  scaled = f32[16,32] logistic(shifted)
  gated = f32[16,32] multiply(scaled, right)
  new = f32[16,32] tanh(gated)
  row = f32[1,16,32] reshape(scaled)
  new_olds = f32[12,16,32] dynamic-update-slice(olds, row, i, zero, zero)
  row2 = f32[1,16,32] reshape(new)
  new_news = f32[12,16,32] dynamic-update-slice(news, row2, back, zero, zero)
  outer = f32[32,32] dot(x, new), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  new_sum = f32[32,32] add(outer, sum)
  ROOT t = {STATE} tuple(next, new, new_olds, new_news, xs, w, new_sum)
}}

condition {{
  p = {STATE} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  limit = s32[] constant(12)
  ROOT lt = pred[] compare(i, limit), direction=LT
}}

ENTRY main {{
  h = f32[16,32] parameter(0)
  xs = f32[12,16,32] parameter(1)
  w = f32[64,32] parameter(2)
  zero = s32[] constant(0)
  zerof = f32[] constant(0)
  stack = f32[12,16,32] broadcast(zerof), dimensions={{}}
  sum = f32[32,32] broadcast(zerof), dimensions={{}}
  init = {STATE} tuple(zero, h, stack, stack, xs, w, sum)
  loop = {STATE} while(init), condition=condition, body=body
  olds = f32[12,16,32] get-tuple-element(loop), index=2
  news = f32[12,16,32] get-tuple-element(loop), index=3
  total = f32[32,32] get-tuple-element(loop), index=6
  both = f32[12,16,32] multiply(olds, news)
  ROOT r = (f32[12,16,32], f32[12,16,32], f32[32,32]) tuple(both, news, total)
}}
"""


def _arguments(text: str, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = parse(text).entry.parameter_shapes
    return [(0.3 * rng.standard_normal(s.dimensions)).astype(np.float32) for s in shapes]


@pytest.mark.parametrize("policy", ["savings", "none", "multi-output", "priority"])
def test_a_recurrence_with_stacks_matches_the_interpreter(policy: str) -> None:
    exe = compile(RECURRENCE, fusion_policy=policy)
    for seed in range(3):  # later calls find the values of earlier ones in the arena
        args = _arguments(RECURRENCE, seed)
        assert problem(exe(*args), Reference.of(parse(RECURRENCE), args)) is None


def test_stacks_are_written_by_one_kernel_without_copies() -> None:
    thunks = compile(RECURRENCE).thunks
    updates = [t for t in thunks if isinstance(t, KernelThunk) and t.spec.kind == "in-place-update"]
    assert len(updates) == 1
    assert len(updates[0].spec.must_alias) == 2
    copied = [t.target.shape.dimensions for t in thunks if isinstance(t, CopyThunk)]
    assert (12, 16, 32) not in copied
    assert (32, 32) not in copied, "the sum of products is copied in the loop"


INNER = "(s32[], f32[40], f32[4,40])"
OUTER = "(s32[], f32[40], f32[40])"
NESTED = f"""
HloModule nested

inner {{
  p = {INNER} parameter(0)
  j = s32[] get-tuple-element(p), index=0
  x = f32[40] get-tuple-element(p), index=1
  stack = f32[4,40] get-tuple-element(p), index=2
  one = s32[] constant(1)
  zero = s32[] constant(0)
  next = s32[] add(j, one)
  order = f32[40] sort(x), dimensions={{0}}, to_apply=less
  y = f32[40] cosine(order)
  z = f32[40] add(y, x)
  sorted = f32[40] sort(z), dimensions={{0}}, to_apply=less
  row = f32[1,40] reshape(sorted)
  new = f32[4,40] dynamic-update-slice(stack, row, j, zero)
  ROOT t = {INNER} tuple(next, sorted, new)
}}

inner_condition {{
  p = {INNER} parameter(0)
  j = s32[] get-tuple-element(p), index=0
  limit = s32[] constant(4)
  ROOT lt = pred[] compare(j, limit), direction=LT
}}

less {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT lt = pred[] compare(a, b), direction=LT
}}

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}}

outer {{
  p = {OUTER} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[40] get-tuple-element(p), index=1
  total = f32[40] get-tuple-element(p), index=2
  one = s32[] constant(1)
  zero = s32[] constant(0)
  zerof = f32[] constant(0)
  next = s32[] add(i, one)
  stack = f32[4,40] broadcast(zerof), dimensions={{}}
  init = {INNER} tuple(zero, x, stack)
  loop = {INNER} while(init), condition=inner_condition, body=inner
  last = f32[40] get-tuple-element(loop), index=1
  rows = f32[4,40] get-tuple-element(loop), index=2
  column = f32[40] reduce(rows, zerof), dimensions={{0}}, to_apply=add
  new = f32[40] add(total, column)
  ROOT t = {OUTER} tuple(next, last, new)
}}

outer_condition {{
  p = {OUTER} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  limit = s32[] constant(3)
  ROOT lt = pred[] compare(i, limit), direction=LT
}}

ENTRY main {{
  x = f32[40] parameter(0)
  zero = s32[] constant(0)
  init = {OUTER} tuple(zero, x, x)
  loop = {OUTER} while(init), condition=outer_condition, body=outer
  last = f32[40] get-tuple-element(loop), index=1
  total = f32[40] get-tuple-element(loop), index=2
  ROOT r = (f32[40], f32[40]) tuple(last, total)
}}
"""


@pytest.mark.parametrize("pipeline", ["dce", "loop-stack-allocation"])
def test_a_stack_shares_no_memory_with_other_values_of_its_loop(pipeline: str) -> None:
    """The inner loop writes its stack last, after temporaries that are dead by then."""
    exe = compile(NESTED, pipeline=pipeline, fusion_policy="none")
    for seed in range(3):
        args = _arguments(NESTED, seed)
        assert problem(exe(*args), Reference.of(parse(NESTED), args)) is None
