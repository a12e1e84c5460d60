"""Pads and crops of rows of a few elements, whose tests are known or those of longer rows."""

import numpy as np
import pytest

import hlogym
from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.schedule import Schedule
from compiler.interpreter import evaluate
from compiler.text import parse

PADDED = """HloModule m
ENTRY main {{
  x = {t}[{n},{c}] parameter(0)
  z = {t}[] parameter(1)
  ROOT r = {t}[{m},{d}] pad(x, z), padding={a}_{b}x{e}_{f}
}}"""


@pytest.mark.parametrize("c", [1, 3, 5, 8, 12, 15, 20])
@pytest.mark.parametrize("edges", [(1, 1, 1, 1), (2, 0, 0, 3), (0, 3, 2, 1), (-1, 1, 1, -1), (1, 1, 0, 0)])
@pytest.mark.parametrize("t", ["f32", "u8", "bf16", "f64"])
def test_pads_have_the_results_of_the_interpreter(c: int, edges: tuple[int, int, int, int], t: str) -> None:
    a, b, e, f = edges
    if c + e + f < 1:
        pytest.skip("no elements")
    text = PADDED.format(t=t, n=217, c=c, m=217 + a + b, d=c + e + f, a=a, b=b, e=e, f=f)
    dtype = parse(text).entry.parameter_shapes[0].element_type.dtype
    args = [np.random.default_rng(c).integers(0, 99, (217, c)).astype(dtype), np.asarray(7).astype(dtype)]
    (got,), (expected,) = hlogym.compile(text, backend="cpu")(*args), evaluate(parse(text), args)
    np.testing.assert_array_equal(got, expected)


def test_rows_that_are_padded_have_no_tests() -> None:
    text = PADDED.format(t="f32", n=217, c=8, m=219, d=10, a=1, b=1, e=1, f=1)
    bound = bind_c(lower(parse(text).entry), Schedule())
    assert not any(isinstance(s, lir.Let) and isinstance(s.value, lir.IndexTest) for s in walk(bound.body))


CROPPED = """HloModule m
ENTRY main {{
  x = {t}[{n},{h},{c}] parameter(0)
  o = s32[{n}] parameter(1)
  z = {t}[] constant(3)
  p = {t}[{n},{k},{c}] pad(x, z), padding=0_0x2_3x0_0
  os = s32[{n},1] reshape(o)
  ROOT r = {t}[{n},{h},{c}] gather(p, os), offset_dims={{1,2}}, collapsed_slice_dims={{}}, start_index_map={{1}},
    operand_batching_dims={{0}}, start_indices_batching_dims={{0}}, index_vector_dim=1, slice_sizes={{1,{h},{c}}}
}}"""


@pytest.mark.parametrize("c", [1, 2, 3, 4, 5, 7, 8, 12, 17])
@pytest.mark.parametrize("h", [5, 32, 33])
@pytest.mark.parametrize("t", ["f32", "u8", "bf16", "f64"])
def test_crops_have_the_results_of_the_interpreter(c: int, h: int, t: str) -> None:
    text = CROPPED.format(t=t, n=7, h=h, k=h + 5, c=c)
    dtype = parse(text).entry.parameter_shapes[0].element_type.dtype
    rng = np.random.default_rng(c)
    args = [rng.integers(0, 99, (7, h, c)).astype(dtype), rng.integers(-2, 9, 7).astype(np.int32)]
    (got,), (expected,) = hlogym.compile(text, backend="cpu")(*args), evaluate(parse(text), args)
    np.testing.assert_array_equal(got, expected)
