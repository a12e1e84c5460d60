"""Factorizations and triangular solves in CUDA kernels equal the interpreter's results."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler import compile, parse
from compiler.backends.cuda.emulation import emulator, stand_in
from compiler.backends.cuda.matrix_kernels import LARGEST
from compiler.interpreter import evaluate
from compiler.runtime.thunks import HostThunk, walk
from tests.backends.test_factorizations import Arrays, entry, lapack_text, matrix, solve_text

pytestmark = pytest.mark.skipif(not emulator.available(), reason="the emulator needs g++")


def check(text: str, arguments: Arrays, native: bool = True) -> list[NDArray[np.generic]]:
    module = parse(text)
    executable = compile(module, backend="cuda")
    assert any(isinstance(t, HostThunk) for t in walk(list(executable.thunks))) != native
    with stand_in.installed() as gpu:
        found = [np.asarray(o.get()) for o in executable(*arguments)]
        assert gpu.faults == []
    for got, want in zip(found, evaluate(module, arguments), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3 if got.dtype == np.float32 else 1e-9, atol=1e-4)
    return found


@pytest.mark.parametrize(("n", "columns", "batch"), [(1, 1, 40), (3, 1, 7), (6, 4, 300), (13, 5, 3), (40, 2, 2)])
def test_triangular_solves_equal_the_interpreter(n: int, columns: int, batch: int) -> None:
    for number, (left, lower, unit, how) in enumerate(
        itertools.product(("true", "false"), ("true", "false"), ("true", "false"), ("NO_TRANSPOSE", "TRANSPOSE"))
    ):
        if number % 5 and n != 6:
            continue  # all combinations of one size, some of the others
        shape = (batch, n, columns) if left == "true" else (batch, columns, n)
        a = matrix(n, (batch,)).astype(np.float32)
        b = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        options = f"left_side={left}, lower={lower}, unit_diagonal={unit}, transpose_a={how}"
        check(solve_text("f32", f"{batch},", n, ",".join(map(str, shape)), options), [a, b])


@pytest.mark.parametrize("lower", ["true", "false"])
@pytest.mark.parametrize("n", [2, 9, 50])
def test_factors_of_matrices_that_are_not_positive_definite_are_nan(lower: str, n: int) -> None:
    a = np.stack([matrix(n), -matrix(n), matrix(n, seed=2)])
    shape = f"f64[3,{n},{n}]"
    text = entry(shape, f"a: {shape}", f"  %a = {shape} parameter(0)\n  ROOT %x = {shape} cholesky(%a), lower={lower}")
    (factors,) = check(text, [a])
    assert np.isnan(factors[1]).all()
    assert np.isfinite(factors[[0, 2]]).all()


@pytest.mark.parametrize("n", [3, 11, 36])
def test_pivots_and_status_of_lu_equal_the_interpreter(n: int) -> None:
    a = np.random.default_rng(3).standard_normal((4, n, n)).astype(np.float32)
    a[2, :, 2] = 0  # no pivot in column 3
    results = f"f32[4,{n},{n}], s32[4,{n}], s32[4]"
    _, pivots, status = check(lapack_text("getrf", results, n, ""), [a])
    assert pivots.min() >= 1
    assert list(status) == [0, 0, 3, 0]


@pytest.mark.parametrize(("rows", "columns"), [(7, 4), (4, 7), (1, 5)])
def test_lu_of_matrices_that_are_not_square(rows: int, columns: int) -> None:
    k = min(rows, columns)
    text = entry(
        f"(f64[5,{rows},{columns}], s32[5,{k}], s32[5])",
        f"a: f64[5,{rows},{columns}]",
        f"  %a = f64[5,{rows},{columns}] parameter(0)\n"
        f"  ROOT %x = (f64[5,{rows},{columns}], s32[5,{k}], s32[5]) custom-call(%a), "
        'custom_call_target="lapack_dgetrf_ffi", api_version=API_VERSION_TYPED_FFI, backend_config={}',
    )
    check(text, [np.random.default_rng(4).standard_normal((5, rows, columns))])


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_lapack_cholesky_keeps_the_other_triangle(uplo: str) -> None:
    a = matrix(7, (4,)).astype(np.float32)
    factors, status = check(lapack_text("potrf", "f32[4,7,7], s32[4]", 7, f"uplo = {ord(uplo)} : ui8"), [a])
    at = np.triu_indices(7, 1) if uplo == "L" else np.tril_indices(7, -1)
    np.testing.assert_array_equal(factors[:, at[0], at[1]], a[:, at[0], at[1]])
    assert not status.any()


def test_large_matrices_are_factored_on_the_host() -> None:
    n = LARGEST + 1
    shape = f"f32[{n},{n}]"
    text = entry(shape, f"a: {shape}", f"  %a = {shape} parameter(0)\n  ROOT %x = {shape} cholesky(%a), lower=true")
    check(text, [matrix(n).astype(np.float32)], native=False)
