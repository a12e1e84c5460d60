"""Loops of small kernels that run as one C function, against the interpreter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiler import compile, load, parse
from compiler.backends.cpu.executable import CpuExecutable
from compiler.backends.cpu.loop_functions import loop_functions
from compiler.interpreter import evaluate
from compiler.loops import KeepLoops

# Row by row, each element depends on its left neighbor, as in dynamic programming.
TABLE = """
HloModule table
inner {
  p = (s32[], f32[], f32[N], f32[N], f32[]) parameter(0)
  j = s32[] get-tuple-element(p), index=0
  left = f32[] get-tuple-element(p), index=1
  out = f32[N] get-tuple-element(p), index=2
  row = f32[N] get-tuple-element(p), index=3
  cost = f32[] get-tuple-element(p), index=4
  one = s32[] constant(1)
  next = s32[] add(j, one)
  slice = f32[1] dynamic-slice(row, j), dynamic_slice_sizes={1}
  up = f32[] reshape(slice)
  least = f32[] minimum(left, up)
  new = f32[] add(least, cost)
  value = f32[1] reshape(new)
  stored = f32[N] dynamic-update-slice(out, value, j)
  ROOT t = (s32[], f32[], f32[N], f32[N], f32[]) tuple(next, new, stored, row, cost)
}
inner_condition {
  p = (s32[], f32[], f32[N], f32[N], f32[]) parameter(0)
  j = s32[] get-tuple-element(p), index=0
  n = s32[] constant(N)
  ROOT r = pred[] compare(j, n), direction=LT
}
outer {
  p = (s32[], f32[N], f32[M]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  row = f32[N] get-tuple-element(p), index=1
  costs = f32[M] get-tuple-element(p), index=2
  one = s32[] constant(1)
  zero = s32[] constant(0)
  start = f32[] constant(0)
  next = s32[] add(i, one)
  slice = f32[1] dynamic-slice(costs, i), dynamic_slice_sizes={1}
  cost = f32[] reshape(slice)
  blank = f32[N] broadcast(start), dimensions={}
  init = (s32[], f32[], f32[N], f32[N], f32[]) tuple(zero, start, blank, row, cost)
  w = (s32[], f32[], f32[N], f32[N], f32[]) while(init), condition=inner_condition, body=inner
  new = f32[N] get-tuple-element(w), index=2
  ROOT t = (s32[], f32[N], f32[M]) tuple(next, new, costs)
}
outer_condition {
  p = (s32[], f32[N], f32[M]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(M)
  ROOT r = pred[] compare(i, n), direction=LT
}
ENTRY main {
  row = f32[N] parameter(0)
  costs = f32[M] parameter(1)
  zero = s32[] constant(0)
  init = (s32[], f32[N], f32[M]) tuple(zero, row, costs)
  w = (s32[], f32[N], f32[M]) while(init), condition=outer_condition, body=outer
  ROOT r = f32[N] get-tuple-element(w), index=1
}
"""
# The state is exchanged, and a conditional inside the loop changes one of its values.
BRANCHES = """
HloModule branches
up { x = T[] parameter(0) c = T[] constant(2) ROOT r = T[] multiply(x, c) }
down { x = T[] parameter(0) c = T[] constant(3) ROOT r = T[] subtract(x, c) }
same { x = T[] parameter(0) ROOT r = T[] copy(x) }
body {
  p = (s32[], T[], T[], s32[K]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  a = T[] get-tuple-element(p), index=1
  b = T[] get-tuple-element(p), index=2
  which = s32[K] get-tuple-element(p), index=3
  one = s32[] constant(1)
  next = s32[] add(i, one)
  slice = s32[1] dynamic-slice(which, i), dynamic_slice_sizes={1}
  selector = s32[] reshape(slice)
  chosen = T[] conditional(selector, a, a, a), branch_computations={up, down, same}
  sum = T[] add(chosen, b)
  ROOT t = (s32[], T[], T[], s32[K]) tuple(next, b, sum, which)
}
condition {
  p = (s32[], T[], T[], s32[K]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  a = T[] get-tuple-element(p), index=1
  limit = T[] constant(1000)
  n = s32[] constant(K)
  small = pred[] compare(a, limit), direction=LT
  more = pred[] compare(i, n), direction=LT
  ROOT r = pred[] and(small, more)
}
ENTRY main {
  a = T[] parameter(0)
  b = T[] parameter(1)
  which = s32[K] parameter(2)
  zero = s32[] constant(0)
  init = (s32[], T[], T[], s32[K]) tuple(zero, a, b, which)
  ROOT w = (s32[], T[], T[], s32[K]) while(init), condition=condition, body=body
}
"""


def compiled(text: str) -> CpuExecutable:
    exe = compile(text, backend="cpu", loop_policy=KeepLoops())
    assert isinstance(exe, CpuExecutable)
    return exe


def table(rows: int, columns: int) -> str:
    text = TABLE.replace("[N]", f"[{columns}]").replace("constant(N)", f"constant({columns})")
    return text.replace("[M]", f"[{rows}]").replace("constant(M)", f"constant({rows})")


def has_function(exe: CpuExecutable) -> bool:
    symbols = {f.spec.symbol for f in loop_functions(exe.program).values()}
    return bool(symbols) and symbols <= set(exe.built.driver.kernels)


@pytest.mark.parametrize(("rows", "columns"), [(1, 9), (9, 2), (9, 33), (65, 130)])
def test_nested_loops_over_rows_equal_the_interpreter(rows: int, columns: int) -> None:
    text = table(rows, columns)
    exe = compiled(text)
    assert has_function(exe)
    rng = np.random.default_rng(rows)
    row, costs = rng.standard_normal(columns).astype(np.float32), rng.standard_normal(rows).astype(np.float32)
    row[columns // 2] = np.inf
    (expected,) = evaluate(parse(text), [row, costs])
    for _ in range(2):  # the state of one call does not stay for the next
        np.testing.assert_array_equal(exe(row, costs)[0], expected)


@pytest.mark.parametrize("element", ["f32", "f64", "bf16", "s32"])
@pytest.mark.parametrize("start", [(1, 2), (5000, 1), (-7, 3)])
def test_conditionals_and_exchanged_values(element: str, start: tuple[int, int]) -> None:
    trips = 5 if element == "bf16" else 40  # few enough for all values to be exact in bf16
    text = BRANCHES.replace("T[", f"{element}[").replace("[K]", f"[{trips}]").replace("(K)", f"({trips})")
    exe = compiled(text)
    assert has_function(exe)
    dtype = exe.module.entry.parameters[0].shape.dtype
    a, b = (np.array(x, dtype) for x in start)
    which = np.random.default_rng(0).integers(-2, 5, trips).astype(np.int32)
    for got, want in zip(exe(a, b, which), evaluate(parse(text), [a, b, which]), strict=True):
        np.testing.assert_array_equal(got, want)


def test_nan_ends_a_loop_whose_condition_it_makes_false() -> None:
    text = BRANCHES.replace("T[", "f32[").replace("[K]", "[20]").replace("constant(K)", "constant(20)")
    exe = compiled(text)
    which = np.zeros(20, np.int32)
    for a, b in [(np.nan, 1), (1, np.nan), (-np.inf, 2), (np.inf, -np.inf)]:
        arguments = [np.float32(a).reshape(()), np.float32(b).reshape(()), which]
        for got, want in zip(exe(*arguments), evaluate(parse(text), arguments), strict=True):
            np.testing.assert_array_equal(got, want)


def test_one_array_for_two_arguments() -> None:
    text = table(16, 16)
    exe = compiled(text)
    x = np.random.default_rng(1).standard_normal(16).astype(np.float32)
    np.testing.assert_array_equal(exe(x, x)[0], evaluate(parse(text), [x, x])[0])


def test_a_donated_argument_is_updated_in_place() -> None:
    text = table(12, 20).replace("HloModule table", "HloModule table, input_output_alias={ {}: (0, {}, may-alias) }")
    exe = compiled(text)
    assert has_function(exe)
    rng = np.random.default_rng(2)
    row, costs = rng.standard_normal(20).astype(np.float32), rng.standard_normal(12).astype(np.float32)
    (expected,) = evaluate(parse(text), [row.copy(), costs])
    np.testing.assert_array_equal(exe(row, costs)[0], expected)


def test_a_saved_program_keeps_its_functions(tmp_path: Path) -> None:
    text = table(10, 30)
    exe = compiled(text)
    exe.save(tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    assert isinstance(loaded, CpuExecutable)
    assert has_function(loaded)
    assert loaded.built.driver.kernels == exe.built.driver.kernels
    rng = np.random.default_rng(3)
    arguments = [rng.standard_normal(30).astype(np.float32), rng.standard_normal(10).astype(np.float32)]
    np.testing.assert_array_equal(loaded(*arguments)[0], exe(*arguments)[0])


def test_a_timed_run_makes_the_steps() -> None:
    exe = compiled(table(10, 30))
    arguments = [np.zeros(30, np.float32), np.ones(10, np.float32)]
    samples = exe.time_thunks(arguments, repeats=2)
    assert sum(s.executions for s in samples) >= 300
    np.testing.assert_array_equal(exe(*arguments)[0], evaluate(parse(table(10, 30)), arguments)[0])


def test_large_kernels_keep_their_calls() -> None:
    text = table(3, 30)
    exe = compiled(text.replace("[30]", "[300000]").replace("constant(30)", "constant(2)"))
    assert not loop_functions(exe.program)
