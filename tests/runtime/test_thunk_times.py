"""Times of thunks are taken inside the program, and executions are counted."""

import numpy as np
import pytest

from compiler.api import CompileOptions, compile

DATA_DEPENDENT = """HloModule m
body {
  p = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[8] get-tuple-element(p), index=1
  one = s32[] constant(1)
  next = s32[] subtract(i, one)
  y = f32[8] tanh(x)
  ROOT t = (s32[], f32[8]) tuple(next, y)
}
condition {
  p = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  zero = s32[] constant(0)
  ROOT r = pred[] compare(i, zero), direction=GT
}
ENTRY e {
  n = s32[] parameter(0)
  x = f32[8] parameter(1)
  start = (s32[], f32[8]) tuple(n, x)
  w = (s32[], f32[8]) while(start), condition=condition, body=body
  ROOT r = f32[8] get-tuple-element(w), index=1
}
"""
BRANCHES = """HloModule m
one { a = f32[8,8] parameter(0) ROOT r = f32[8,8] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0} }
two { a = f32[8,8] parameter(0) ROOT r = f32[8,8] tanh(a) }
ENTRY e {
  p = pred[] parameter(0)
  x = f32[8,8] parameter(1)
  ROOT r = f32[8,8] conditional(p, x, x), true_computation=one, false_computation=two
}
"""
PLAIN = CompileOptions(optimize=False)


@pytest.mark.parametrize("trips", [0, 1, 7])
def test_iterations_are_counted_and_not_estimated(trips: int) -> None:
    exe = compile(DATA_DEPENDENT, options=PLAIN)
    arguments = [np.array(trips, np.int32), np.ones(8, np.float32)]
    found = {r.name: r for r in exe.profile(*arguments, repeats=2)}
    assert found["y"].executions == trips
    assert found["w"].executions == trips
    assert next(r for n, r in found.items() if n.startswith("r")).executions == trips + 1  # the last test fails
    assert found["y"].total == pytest.approx(found["y"].seconds * trips)


@pytest.mark.parametrize("taken", [True, False])
def test_branches_are_counted(taken: bool) -> None:
    exe = compile(BRANCHES, options=PLAIN)
    rows = exe.profile(np.array(taken), np.ones((8, 8), np.float32), repeats=3)
    inside = {r.kind: r.executions for r in rows if r.kind in ("gemm", "kernel")}
    assert inside == {"gemm": float(taken), "kernel": float(not taken)}


def test_a_timed_call_computes_its_results_anew() -> None:
    exe = compile("HloModule m\nENTRY e { x = f32[64] parameter(0) ROOT r = f32[64] add(x, x) }")
    x = np.arange(64, dtype=np.float32)
    seconds, results = exe.timed_call([x], 4)  # type: ignore[attr-defined]
    assert len(seconds) == 4
    np.testing.assert_array_equal(results[0], 2 * x)
    samples = exe.time_thunks([x], 2)
    np.testing.assert_array_equal(exe(x)[0], 2 * x)  # a call after a timed one
    assert [s.executions for s in samples] == [1.0] * len(exe.thunks)
