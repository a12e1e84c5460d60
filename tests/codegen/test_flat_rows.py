"""Elementwise loops over short rows, which run over all elements of blocks of rows."""

import numpy as np
import pytest

import hlogym
from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.flat_rows import flatten_rows
from compiler.codegen.schedules.schedule import Schedule
from compiler.interpreter import evaluate
from compiler.text import parse

SCALED = """HloModule m
ENTRY main {{
  q = {t}[{n},{c}] parameter(0)
  w = f32[{c}] parameter(1)
  b = f32[{c}] parameter(2)
  k = f32[] parameter(3)
  x = f32[{n},{c}] convert(q)
  ws = f32[{n},{c}] broadcast(w), dimensions={{1}}
  bs = f32[{n},{c}] broadcast(b), dimensions={{1}}
  ks = f32[{n},{c}] broadcast(k), dimensions={{}}
  p = f32[{n},{c}] multiply(x, ws)
  a = f32[{n},{c}] add(p, bs)
  d = f32[{n},{c}] subtract(a, ks)
  ROOT r = f32[{n},{c}] {op}(d)
}}"""


def scaled(n: int, c: int, t: str = "s8", op: str = "negate") -> str:
    return SCALED.format(n=n, c=c, t=t, op=op)


@pytest.mark.parametrize("c", [3, 4, 7, 8, 10, 15, 20, 31, 40, 63])
@pytest.mark.parametrize("n", [64, 91, 1024, 1100, 2087])
@pytest.mark.parametrize("t", ["s8", "f32", "bf16", "s32"])
def test_rows_have_the_results_of_the_interpreter(n: int, c: int, t: str) -> None:
    text = scaled(n, c, t, "tanh")
    rng = np.random.default_rng(c)
    dtypes = [p.element_type.dtype for p in parse(text).entry.parameter_shapes]
    q = rng.integers(-50, 50, (n, c)).astype(dtypes[0])
    args = [q, *(rng.standard_normal(s).astype(np.float32) for s in ((c,), (c,), ()))]
    (got,), (expected,) = hlogym.compile(text, backend="cpu")(*args), evaluate(parse(text), args)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("n", "c", "t", "op", "is_flat"),
    [
        (2000, 10, "f32", "negate", True), (2000, 8, "s8", "negate", True), (2000, 40, "s8", "negate", True),
        (2000, 40, "f32", "tanh", True), (2000, 40, "f32", "negate", False), (2000, 16, "s8", "negate", False),
        (500, 10, "f32", "negate", False), (70, 10, "f32", "tanh", True), (70, 20, "f32", "tanh", False),
        (50, 10, "f32", "tanh", False), (2000, 70, "s8", "tanh", False), (2000, 2, "f32", "negate", False),
    ],
)  # fmt: skip
def test_which_rows_are_flat(n: int, c: int, t: str, op: str, is_flat: bool) -> None:
    kernel = lower(parse(scaled(n, c, t, op)).entry)
    bound = bind_c(kernel, Schedule())
    arrays = [s for s in walk(bound.body) if isinstance(s, lir.LocalArray)]
    assert any(s.name.endswith("_repeated") for s in arrays) == is_flat


WEIGHTED = """HloModule m
ENTRY main {{
  q = {t}[{n},{c}] parameter(0)
  m = {v}[{n}] parameter(1)
  w = f32[{c}] parameter(2)
  x = f32[{n},{c}] convert(q)
  mf = f32[{n}] convert(m)
  e = f32[{n}] {op}(mf)
  ms = f32[{n},{c}] broadcast(e), dimensions={{0}}
  ws = f32[{n},{c}] broadcast(w), dimensions={{1}}
  g = pred[{n},{c}] compare(ms, ws), direction=GT
  p = f32[{n},{c}] multiply(x, ms)
  s = f32[{n},{c}] select(g, p, x)
  ROOT r = {t}[{n},{c}] convert(s)
}}"""


@pytest.mark.parametrize("c", [3, 4, 5, 6, 7, 8, 9, 12, 15, 20, 31, 40])
@pytest.mark.parametrize("n", [1024, 1100, 2087])
@pytest.mark.parametrize(("t", "v"), [("u8", "f32"), ("f32", "u8"), ("bf16", "bf16"), ("s32", "pred"), ("f64", "f16")])
def test_rows_with_values_have_the_results_of_the_interpreter(n: int, c: int, t: str, v: str) -> None:
    text = WEIGHTED.format(n=n, c=c, t=t, v=v, op="negate")
    rng = np.random.default_rng(c)
    dtypes = [p.element_type.dtype for p in parse(text).entry.parameter_shapes]
    q, m = rng.integers(0, 12, (n, c)).astype(dtypes[0]), rng.integers(0, 2, n).astype(dtypes[1])
    args = [q, m, rng.integers(-2, 2, c).astype(np.float32)]
    (got,), (expected,) = hlogym.compile(text, backend="cpu")(*args), evaluate(parse(text), args)
    np.testing.assert_array_equal(got, expected)


MASKED = """HloModule m
ENTRY main {{
  x = {t}[{n},{c}] parameter(0)
  m = {v}[{n}] parameter(1)
  ms = {v}[{n},{c}] broadcast(m), dimensions={{0}}
  z = {t}[] constant(0)
  zs = {t}[{n},{c}] broadcast(z), dimensions={{}}
  k = {v}[{n},{c}] iota(), iota_dimension=1
  g = pred[{n},{c}] compare(k, ms), direction=LT
  ROOT r = {t}[{n},{c}] select(g, x, zs)
}}"""


@pytest.mark.parametrize("c", [3, 5, 8, 11, 13, 31, 47])
@pytest.mark.parametrize(("t", "v"), [("u8", "s32"), ("f32", "u8"), ("bf16", "s8"), ("pred", "u32"), ("s64", "s16")])
def test_rows_with_lengths_have_the_results_of_the_interpreter(c: int, t: str, v: str) -> None:
    text = MASKED.format(n=1300, c=c, t=t, v=v)
    rng = np.random.default_rng(c)
    dtypes = [p.element_type.dtype for p in parse(text).entry.parameter_shapes]
    args = [rng.integers(0, 2, (1300, c)).astype(dtypes[0]), rng.integers(0, c + 1, 1300).astype(dtypes[1])]
    (got,), (expected,) = hlogym.compile(text, backend="cpu")(*args), evaluate(parse(text), args)
    np.testing.assert_array_equal(got, expected)


BITS = """HloModule m
ENTRY main {{
  x = {t}[{n}] parameter(0)
  xs = {t}[{n},{c}] broadcast(x), dimensions={{0}}
  k = {t}[{n},{c}] iota(), iota_dimension=1
  s = {t}[{n},{c}] {op}(xs, k)
  one = {t}[] constant(1)
  ones = {t}[{n},{c}] broadcast(one), dimensions={{}}
  ROOT r = {t}[{n},{c}] and(s, ones)
}}"""


@pytest.mark.parametrize(
    ("t", "c"), [("u8", 8), ("s8", 8), ("u8", 5), ("u8", 11), ("u16", 16), ("s16", 13), ("s32", 20)]
)
@pytest.mark.parametrize("op", ["shift-right-logical", "shift-right-arithmetic"])
def test_bits_have_the_results_of_the_interpreter(t: str, c: int, op: str) -> None:
    text = BITS.format(n=2051, c=c, t=t, op=op)
    dtype = parse(text).entry.parameter_shapes[0].element_type.dtype
    info = np.iinfo(dtype)
    args = [np.random.default_rng(c).integers(info.min, info.max + 1, 2051).astype(dtype)]
    (got,), (expected,) = hlogym.compile(text, backend="cpu")(*args), evaluate(parse(text), args)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("n", "c", "t", "op", "is_flat"),
    [
        (2000, 5, "f32", "negate", True), (2000, 8, "f32", "negate", False), (2000, 8, "f32", "exponential", True),
        (2000, 8, "u8", "negate", True), (2000, 40, "u8", "negate", True), (2000, 40, "bf16", "negate", False),
        (2000, 20, "f32", "exponential", False), (500, 5, "f32", "negate", False), (2000, 5, "f64", "negate", True),
    ],
)  # fmt: skip
def test_which_rows_with_values_are_flat(n: int, c: int, t: str, op: str, is_flat: bool) -> None:
    kernel = lower(parse(WEIGHTED.format(n=n, c=c, t=t, v="f32", op=op)).entry)
    bound = bind_c(kernel, Schedule())
    arrays = [s for s in walk(bound.body) if isinstance(s, lir.LocalArray)]
    assert any(s.name.endswith("_rows") for s in arrays) == is_flat


NESTED = """HloModule m
ENTRY main {{
  x = {t}[{b},{n},{c}] parameter(0)
  m = f32[{n}] parameter(1)
  w = f32[{b},{c}] parameter(2)
  xf = f32[{b},{n},{c}] convert(x)
  ms = f32[{b},{n},{c}] broadcast(m), dimensions={{1}}
  ws = f32[{b},{n},{c}] broadcast(w), dimensions={{0,2}}
  p = f32[{b},{n},{c}] multiply(xf, ms)
  s = f32[{b},{n},{c}] subtract(p, ws)
  ROOT r = {t}[{b},{n},{c}] convert(s)
}}"""


@pytest.mark.parametrize("c", [3, 4, 5, 8, 13, 20, 40])
@pytest.mark.parametrize(("b", "n"), [(3, 256), (2, 1027), (5, 300), (4, 200)])
@pytest.mark.parametrize("t", ["u8", "f32", "bf16", "s16"])
def test_rows_of_a_batch_have_the_results_of_the_interpreter(b: int, n: int, c: int, t: str) -> None:
    text = NESTED.format(b=b, n=n, c=c, t=t)
    rng = np.random.default_rng(c)
    dtype = parse(text).entry.parameter_shapes[0].element_type.dtype
    args = [rng.integers(0, 12, (b, n, c)).astype(dtype), *(rng.integers(0, 9, s).astype("f") for s in ((n,), (b, c)))]
    (got,), (expected,) = hlogym.compile(text, backend="cpu")(*args), evaluate(parse(text), args)
    np.testing.assert_array_equal(got, expected)


def test_a_loop_that_does_nothing_has_no_rows() -> None:
    empty = lir.For(Var("i", 200_000), lir.LoopKind.INDEPENDENT, ())
    assert flatten_rows((empty,), {}) == (empty,)
