"""Products with matrices that are known and mostly zeros."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from compiler import compile, parse
from compiler.backends.cuda.emulation import available, stand_in
from compiler.interpreter import evaluate
from compiler.ir import HloModule, Opcode
from compiler.ir.verifier import check_module
from compiler.passes.dots.sparse_matrices import SparseMatrices

ROWS, COLUMNS = 64, 96
BANDS = """
  i = s32[64,96] iota(), iota_dimension=0
  j = s32[64,96] iota(), iota_dimension=1
  three = s32[] constant(3)
  threes = s32[64,96] broadcast(three), dimensions={}
  two = s32[] constant(2)
  twos = s32[64,96] broadcast(two), dimensions={}
  a = s32[64,96] multiply(i, threes)
  b = s32[64,96] multiply(j, twos)
  d = s32[64,96] subtract(a, b)
  e = s32[64,96] abs(d)
  f = T[64,96] convert(e)
  WIDTH
  r = T[64,96] broadcast(width), dimensions={}
  h = T[64,96] subtract(r, f)
  zero = T[] constant(0)
  zeros = T[64,96] broadcast(zero), dimensions={}
  w = T[64,96] maximum(h, zeros)"""
"""A matrix whose columns have a triangle of elements that are not zero: max(0, width - |3 i - 2 j|)."""


def bands(width: float) -> npt.NDArray[np.float64]:
    i, j = np.ogrid[:ROWS, :COLUMNS]
    found: npt.NDArray[np.float64] = np.maximum(0.0, width - np.abs(3 * i - 2 * j))
    return found


def program(t: str, x: str, result: str, product: str, width: str = "width = T[] constant(4)") -> HloModule:
    matrix = BANDS.replace("WIDTH", width).replace("T[", f"{t}[")
    return parse(f"HloModule m\nENTRY e {{ x = {t}[{x}] parameter(0)\n{matrix}\nROOT d2 = {t}[{result}] {product} }}")


DIMS = "lhs_contracting_dims={{{}}}, rhs_contracting_dims={{{}}}"
PRODUCTS = {
    "columns last": ("5,300,64", "5,300,96", f"dot(x, w), {DIMS.format(2, 0)}", "aik,kj->aij"),
    "columns first": ("300,64,5", "96,300,5", f"dot(w, x), {DIMS.format(0, 1)}", "akb,kj->jab"),
    "transposed": ("300,96", "300,64", f"dot(x, w), {DIMS.format(1, 1)}", "ak,jk->aj"),
    "transposed first": ("96,700", "64,700", f"dot(w, x), {DIMS.format(1, 0)}", "ka,jk->ja"),
}


@pytest.mark.parametrize("t", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_few_elements_of_each_column_are_added(name: str, t: str) -> None:
    x, result, product, einsum = PRODUCTS[name]
    module = program(t, x, result, product)
    value = np.random.default_rng(1).normal(size=module.parameter_shapes[0].dimensions)
    args = [value.astype(module.parameter_shapes[0].dtype)]
    assert SparseMatrices().run(module)
    assert check_module(module) == []
    module.entry.remove_dead()
    assert not any(i.opcode is Opcode.DOT for i in module.entry.instructions)
    wanted = np.einsum(einsum, args[0].astype(np.float64), bands(4))
    tolerance = 0.01 if t == "bf16" else 1e-5
    np.testing.assert_allclose(evaluate(module, args)[0].astype(np.float64), wanted, rtol=tolerance, atol=tolerance)


def test_elements_that_only_zeros_multiply_are_skipped() -> None:
    x, result, product, _ = PRODUCTS["columns last"]
    module = program("f32", x, result, product)
    args = [np.ones((5, 300, 64), np.float32)]
    args[0][:, :, 40] = np.nan
    assert SparseMatrices().run(module)
    found = evaluate(module, args)[0]
    np.testing.assert_array_equal(np.isnan(found[0, 0]), bands(4)[40] > 0)


@pytest.mark.parametrize(
    ("x", "result", "width"),
    [
        pytest.param("5,300,64", "5,300,96", "width = T[] constant(40)", id="many elements"),
        pytest.param("2,64", "2,96", "width = T[] constant(4)", id="little work"),
        pytest.param("5,300,64", "5,300,96", "width = T[] parameter(1)", id="unknown"),
    ],
)
def test_other_products_stay(x: str, result: str, width: str) -> None:
    rank = x.count(",")
    module = program("f32", x, result, f"dot(x, w), {DIMS.format(rank, 0)}", width)
    text = str(module)
    assert not SparseMatrices().run(module)
    assert str(module) == text


@pytest.mark.skipif(not available(), reason="the emulator needs g++")
def test_a_gpu_multiplies_no_matrix() -> None:
    x, result, product, einsum = PRODUCTS["columns first"]
    module = program("f32", x, result, product)
    value = np.random.default_rng(2).normal(size=(300, 64, 5)).astype(np.float32)
    executable = compile(module, backend="cuda")
    with stand_in.installed():
        (got,) = executable(value)
    assert [k.kind for k in executable.kernels] == ["loop"]
    np.testing.assert_allclose(got.get(), np.einsum(einsum, value, bands(4)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("operands", ["m, v", "v, m"])
def test_products_of_an_unknown_matrix_with_a_vector_stay(operands: str) -> None:
    lhs = 1 if operands == "m, v" else 0
    text = f"""HloModule m
ENTRY e {{
  m = f32[200,200] parameter(0)
  v = f32[200] parameter(1)
  ROOT r = f32[200] dot({operands}), lhs_contracting_dims={{{lhs}}}, rhs_contracting_dims={{0}}
}}"""
    assert not SparseMatrices().run(parse(text))
