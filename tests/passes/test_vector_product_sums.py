"""Products with vectors in programs for a GPU."""

import numpy as np
import pytest

from compiler import compile, parse
from compiler.backends.cuda.emulation import available, stand_in
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.passes.dots.vector_product_sums import VectorProductSums
from compiler.runtime.thunks import GemmThunk, KernelThunk

DOTS = {
    "matrix times vector": ("f32[300,70]", "f32[70]", "f32[300]", "lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
    "transposed": ("f32[70,300]", "f32[70,1]", "f32[300,1]", "lhs_contracting_dims={0}, rhs_contracting_dims={0}"),
    "row": ("f64[1,70]", "f64[70,300]", "f64[1,300]", "lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
    "vectors": ("f32[9001]", "f32[9001]", "f32[]", "lhs_contracting_dims={0}, rhs_contracting_dims={0}"),
    "batch": (
        "f32[5,33,64]", "f32[5,64]", "f32[5,33]",
        "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}",
    ),
}  # fmt: skip


def _program(lhs: str, rhs: str, result: str, dims: str) -> str:
    return f"""HloModule m
    ENTRY e {{
      a = {lhs} parameter(0)
      b = {rhs} parameter(1)
      c = {result} parameter(2)
      d = {result} dot(a, b), {dims}
      ROOT s = {result} add(d, c)
    }}"""


@pytest.mark.parametrize("name", DOTS)
def test_a_product_with_a_vector_is_one_kernel_with_what_follows(name: str) -> None:
    module = parse(_program(*DOTS[name]))
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s.dimensions).astype(s.dtype) for s in module.parameter_shapes]
    (wanted,) = evaluate(module, args)
    executable = compile(module, backend="cuda")
    assert [type(t) for t in executable.thunks] == [KernelThunk]
    if available():
        with stand_in.installed():
            (got,) = executable(*args)
        np.testing.assert_allclose(got.get(), wanted, rtol=1e-4, atol=1e-4)


def test_a_long_sum_is_divided() -> None:
    module = parse(
        _program("f32[3000001]", "f32[3000001]", "f32[]", "lhs_contracting_dims={0}, rhs_contracting_dims={0}")
    )
    assert compile(module, backend="cuda").kernels[0].grid >= 132


@pytest.mark.parametrize(
    ("lhs", "rhs", "result"),
    [
        pytest.param("f32[300,70]", "f32[70,2]", "f32[300,2]", id="two columns"),
        pytest.param("bf16[300,70]", "bf16[70,1]", "f32[300,1]", id="mixed types"),
        pytest.param("f32[300,0]", "f32[0,1]", "f32[300,1]", id="empty"),
    ],
)
def test_other_products_stay(lhs: str, rhs: str, result: str) -> None:
    module = parse(_program(lhs, rhs, result, "lhs_contracting_dims={1}, rhs_contracting_dims={0}"))
    assert not VectorProductSums().run(module)
    assert any(i.opcode is Opcode.DOT for i in module.entry.instructions)


def test_products_of_matrices_are_the_librarys() -> None:
    text = _program(
        "f32[2048,2048]", "f32[2048,2048]", "f32[2048,2048]", "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    )
    assert any(isinstance(t, GemmThunk) for t in compile(text, backend="cuda").thunks)
