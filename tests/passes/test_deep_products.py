"""Products of few rows and columns with a long sum, which become sums of products of a batch."""

import numpy as np
import pytest

import hlogym
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.ir.verifier import check_module
from compiler.passes.dots.deep_products import DeepProducts
from compiler.text import parse


def product(m: int, n: int, k: int, t: str = "f32") -> str:
    return f"""HloModule m
ENTRY e {{
  x = {t}[{k},{m}] parameter(0)
  y = {t}[{k},{n}] parameter(1)
  ROOT d = {t}[{m},{n}] dot(x, y), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
}}"""


@pytest.mark.parametrize(("k", "parts"), [(40, 5), (41, 5), (30, 5), (37, 4), (24, 3)])
def test_the_sum_is_divided(k: int, parts: int) -> None:
    text = product(3, 5, k)
    module = parse(text)
    assert DeepProducts(depth=8).run(module)
    assert check_module(module) == []
    dots = [i for i in module.entry.instructions if i.opcode is Opcode.DOT]
    assert sum(i.shape.dimensions[0] if i.shape.rank == 3 else 0 for i in dots) == parts
    rng = np.random.default_rng(k)
    args = [rng.standard_normal((k, n)).astype(np.float32) for n in (3, 5)]
    np.testing.assert_allclose(evaluate(module, args)[0], evaluate(parse(text), args)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("m", "n", "k", "t"),
    [(33, 5, 100, "f32"), (5, 33, 100, "f32"), (1, 5, 100, "f32"), (3, 5, 16, "f32"), (3, 5, 99, "s32")],
)
def test_other_products_stay(m: int, n: int, k: int, t: str) -> None:
    assert not DeepProducts(depth=8).run(parse(product(m, n, k, t)))


@pytest.mark.parametrize("t", ["f32", "f64"])
@pytest.mark.parametrize(("m", "n", "k"), [(10, 10, 40000), (5, 7, 4099), (30, 2, 9000), (32, 32, 3000)])
def test_kernels_compute_such_products(m: int, n: int, k: int, t: str) -> None:
    text = product(m, n, k, t)
    dtype = parse(text).entry.parameter_shapes[0].element_type.dtype
    rng = np.random.default_rng(m)
    x, y = (rng.standard_normal((k, c)).astype(dtype) for c in (m, n))
    executable = hlogym.compile(text, backend="cpu")
    assert "product" in {kernel.kind for kernel in executable.kernels}
    (got,) = executable(x, y)
    np.testing.assert_allclose(got, x.T.astype(np.float64) @ y.astype(np.float64), rtol=1e-3, atol=2e-3)
