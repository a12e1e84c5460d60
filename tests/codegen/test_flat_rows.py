"""Elementwise loops over short rows, which run over all elements of blocks of rows."""

import numpy as np
import pytest

import hlogym
from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.local_memory import local_bytes_bound
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
@pytest.mark.parametrize("n", [1024, 1100, 2087])
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
        (500, 10, "f32", "negate", False), (2000, 70, "s8", "tanh", False), (2000, 2, "f32", "negate", False),
    ],
)  # fmt: skip
def test_which_rows_are_flat(n: int, c: int, t: str, op: str, is_flat: bool) -> None:
    kernel = lower(parse(scaled(n, c, t, op)).entry)
    bound = bind_c(kernel, Schedule())
    arrays = [s for s in walk(bound.body) if isinstance(s, lir.LocalArray)]
    assert any(s.name.endswith("_repeated") for s in arrays) == is_flat
    assert sum(4 * s.size for s in arrays) <= local_bytes_bound(kernel, Schedule())


def test_rows_with_a_value_for_each_row_stay() -> None:
    text = scaled(2000, 10).replace("b = f32[10] parameter(2)", "b = f32[2000] parameter(2)")
    text = text.replace("broadcast(b), dimensions={1}", "broadcast(b), dimensions={0}")
    bound = bind_c(lower(parse(text).entry), Schedule())
    assert not any(isinstance(s, lir.LocalArray) and s.name.endswith("_repeated") for s in walk(bound.body))
