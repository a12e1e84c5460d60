"""Batches of transposes of a few rows, whose elements are moved one by one."""

import numpy as np
import pytest

import hlogym
from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.loop_ir import For, LoopKind
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.schedule import Schedule
from compiler.text import parse

TRANSPOSED = """HloModule m
ENTRY main {{
  x = {t}[{n},{a},{b}] parameter(0)
  ROOT r = {t}[{n},{b},{a}] transpose(x), dimensions={{0,2,1}}
}}"""


@pytest.mark.parametrize(("a", "b"), [(8, 8), (5, 16), (7, 64), (6, 8), (12, 8), (15, 32), (8, 17), (4, 8), (9, 128)])
@pytest.mark.parametrize("n", [1, 13, 300])
@pytest.mark.parametrize("t", ["f32", "u8", "bf16", "f64", "pred", "c64"])
def test_transposes_have_the_results_of_numpy(a: int, b: int, n: int, t: str) -> None:
    text = TRANSPOSED.format(t=t, n=n, a=a, b=b)
    dtype = parse(text).entry.parameter_shapes[0].element_type.dtype
    x = np.random.default_rng(a).integers(0, 250, (n, a, b)).astype(dtype)
    (got,) = hlogym.compile(text, backend="cpu")(x)
    np.testing.assert_array_equal(got, x.transpose(0, 2, 1))


@pytest.mark.parametrize(("a", "b", "vectors"), [(8, 8, False), (5, 16, False), (12, 8, True), (7, 9, True)])
def test_which_transposes_have_no_vectors(a: int, b: int, vectors: bool) -> None:
    bound = bind_c(lower(parse(TRANSPOSED.format(t="f32", n=300, a=a, b=b)).entry), Schedule())
    inner = [s for s in walk(bound.body) if isinstance(s, For) and s.var.extent == a]
    assert any(s.kind is LoopKind.VECTOR for s in inner) == vectors
    assert any(isinstance(s, lir.Store) for s in walk(bound.body))
