"""Blocks of short rows that are transposed, so that vectors run over rows."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import hlogym
from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.schedule import Schedule
from compiler.interpreter import evaluate
from compiler.support.processor import AVX2, AVX512, VectorUnit
from compiler.text import parse

REDUCERS = """
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
max {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] maximum(a, b)
}
least {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT c = s32[] minimum(a, b)
}
"""
BODIES = {
    "maximum": "ROOT r = f32[N] reduce(x, low), dimensions={1}, to_apply=max",
    "sum": "ROOT r = f32[N] reduce(x, zero), dimensions={1}, to_apply=add",
    "distance": "m = f32[N] reduce(x, low), dimensions={1}, to_apply=max k = f32[N,C] broadcast(m), dimensions={0} "
    "ROOT r = f32[N,C] subtract(x, k)",
    "softmax": "m = f32[N] reduce(x, low), dimensions={1}, to_apply=max k = f32[N,C] broadcast(m), dimensions={0} "
    "d = f32[N,C] subtract(x, k) e = f32[N,C] exponential(d) t = f32[N] reduce(e, zero), dimensions={1}, to_apply=add "
    "u = f32[N,C] broadcast(t), dimensions={0} ROOT r = f32[N,C] divide(e, u)",
    "weighted": "v = f32[N,C] broadcast(w), dimensions={1} p = f32[N,C] multiply(x, v) "
    "t = f32[N] reduce(p, zero), dimensions={1}, to_apply=add ROOT r = f32[N] multiply(t, y)",
    "part": "q = f32[N,D] slice(x), slice={[0:N], [1:C]} ROOT r = f32[N] reduce(q, low), dimensions={1}, to_apply=max",
    "place": "m = f32[N] reduce(x, low), dimensions={1}, to_apply=max k = f32[N,C] broadcast(m), dimensions={0} "
    "h = pred[N,C] compare(x, k), direction=EQ i = s32[N,C] iota(), iota_dimension=1 n = s32[] constant(C) "
    "f = s32[N,C] broadcast(n), dimensions={} s = s32[N,C] select(h, i, f) "
    "ROOT r = s32[N] reduce(s, n), dimensions={1}, to_apply=least",
    "both": "s = f32[N,C] multiply(x, x) t = f32[N] reduce(s, zero), dimensions={1}, to_apply=add "
    "k = f32[N,C] broadcast(t), dimensions={0} "
    "d = f32[N,C] divide(x, k) ROOT r = (f32[N], f32[N,C]) tuple(t, d)",
}


def program(body: str, rows: int, columns: int) -> str:
    text = f"""HloModule m
{REDUCERS}
ENTRY main {{
  x = f32[N,C] parameter(0)
  y = f32[N] parameter(1)
  w = f32[C] parameter(2)
  zero = f32[] constant(0)
  low = f32[] constant(-inf)
  {body}
}}"""
    for name, n in (("N", rows), ("C", columns), ("D", columns - 1)):
        text = text.replace(f"[{name}", f"[{n}").replace(f",{name}]", f",{n}]").replace(f":{name}]", f":{n}]")
        text = text.replace(f"constant({name})", f"constant({n})")
    return text


def _compiled(text: str) -> Callable[[npt.NDArray[Any]], Sequence[npt.NDArray[Any]]]:
    executable = hlogym.compile(text, backend="cpu")
    return lambda x: executable(x)


def arguments(rows: int, columns: int) -> list[npt.NDArray[np.float32]]:
    rng = np.random.default_rng(rows + columns)
    return [rng.standard_normal(s).astype(np.float32) for s in ((rows, columns), (rows,), (columns,))]


@pytest.mark.parametrize(
    "shape", [(16, 5), (100, 7), (90, 8), (1000, 10), (333, 15), (70, 16), (70, 17), (129, 20), (64, 31)], ids=str
)
@pytest.mark.parametrize("name", BODIES)
def test_short_rows_have_the_results_of_the_interpreter(name: str, shape: tuple[int, int]) -> None:
    text = program(BODIES[name], *shape)
    got = hlogym.compile(text, backend="cpu")(*arguments(*shape))
    expected = evaluate(parse(text), arguments(*shape))
    for g, e in zip(got if isinstance(got, tuple | list) else [got], expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "columns", "is_transposed"),
    [
        ("maximum", 10, True), ("sum", 10, True), ("softmax", 10, True), ("maximum", 20, True), ("softmax", 20, True),
        ("sum", 20, False), ("sum", 24, False), ("maximum", 40, False),
        ("distance", 10, True), ("distance", 20, False),
    ],
)  # fmt: skip
def test_which_rows_are_transposed(name: str, columns: int, is_transposed: bool) -> None:
    executable = hlogym.compile(program(BODIES[name], 1000, columns), backend="cpu")
    assert any("transpose_rows_32(" in k.source for k in executable.kernels) == is_transposed


@pytest.mark.parametrize(("columns", "unit", "is_transposed"), [(8, AVX2, True), (16, AVX2, True), (16, AVX512, False)])
def test_vectors_decide_about_rows_that_fill_their_halves(columns: int, unit: VectorUnit, is_transposed: bool) -> None:
    kernel = bind_c(lower(parse(program(BODIES["maximum"], 1000, columns)).entry), Schedule(unit=unit))
    assert any(isinstance(s, lir.TransposeTile) for s in walk(kernel.body)) == is_transposed


@pytest.mark.parametrize(
    "shape", [(100, 8), (100, 10), (1000, 7), (70, 16), (50, 17), (333, 24), (80, 50), (70, 63)], ids=str
)
@pytest.mark.parametrize(
    ("t", "op", "init"),
    [
        ("bf16", "maximum", "-inf"), ("f16", "maximum", "-inf"), ("s32", "add", "0"), ("u32", "maximum", "0"),
        ("s8", "maximum", "-128"), ("u8", "minimum", "255"), ("s16", "add", "0"), ("u16", "maximum", "0"),
        ("pred", "and", "true"), ("pred", "or", "false"), ("f64", "add", "0"),
    ],
)  # fmt: skip
def test_rows_of_other_types(t: str, op: str, init: str, shape: tuple[int, int]) -> None:
    rows, columns = shape
    text = f"""HloModule m
combine {{ a = {t}[] parameter(0) b = {t}[] parameter(1) ROOT c = {t}[] {op}(a, b) }}
ENTRY main {{
  x = {t}[{rows},{columns}] parameter(0)
  init = {t}[] constant({init})
  ROOT r = {t}[{rows}] reduce(x, init), dimensions={{1}}, to_apply=combine
}}"""
    dtype = parse(text).entry.parameter_shapes[0].element_type.dtype
    rng = np.random.default_rng(columns)
    values = rng.integers(0, 20, shape) > 1 if t == "pred" else rng.integers(0 if t[0] == "u" else -50, 50, shape)
    (got,), (expected,) = (f(values.astype(dtype)) for f in (_compiled(text), lambda x: evaluate(parse(text), [x])))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("t", "columns", "is_transposed"), [("u8", 24, True), ("u8", 50, True), ("bf16", 24, False)])
def test_longer_rows_of_bytes_are_transposed(t: str, columns: int, is_transposed: bool) -> None:
    text = f"""HloModule m
add {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }}
ENTRY main {{
  x = {t}[1000,{columns}] parameter(0)
  y = f32[1000,{columns}] convert(x)
  zero = f32[] constant(0)
  ROOT r = f32[1000] reduce(y, zero), dimensions={{1}}, to_apply=add
}}"""
    executable = hlogym.compile(text, backend="cpu")
    assert any("transpose_rows_32(" in k.source for k in executable.kernels) == is_transposed


def test_nan_and_infinities_are_kept() -> None:
    text = program(BODIES["maximum"], 100, 10)
    x, *others = arguments(100, 10)
    x[3, 9] = np.nan
    x[7] = -np.inf
    x[12, 0] = np.inf
    (expected,) = evaluate(parse(text), [x, *others])
    (got,) = hlogym.compile(text, backend="cpu")(x, *others)
    np.testing.assert_array_equal(got, expected)
    assert np.isnan(got[3])
    assert got[7] == -np.inf


@pytest.mark.parametrize(("short", "is_transposed"), [(0, False), (4, True)])
def test_a_schedule_without_short_loops_leaves_rows_as_they_are(short: int, is_transposed: bool) -> None:
    kernel = bind_c(lower(parse(program(BODIES["maximum"], 1000, 10)).entry), Schedule(short=short))
    assert any(isinstance(s, lir.TransposeTile) for s in walk(kernel.body)) == is_transposed
