"""Kernels of small factorizations and triangular solves equal the interpreter's results."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler import compile, load, parse
from compiler.backends.cpu.factorizations import LARGEST
from compiler.interpreter import evaluate
from compiler.runtime.thunks import HostThunk, walk

Arrays = list[NDArray[np.generic]]


def matrix(n: int, batch: tuple[int, ...] = (), seed: int = 0) -> NDArray[np.float64]:
    """Return symmetric, positive definite matrices."""
    x = np.random.default_rng(seed).standard_normal((*batch, n, n))
    return np.asarray(x @ np.swapaxes(x, -1, -2) / n + np.eye(n))


def check(text: str, arguments: Arrays, native: bool = True) -> list[NDArray[np.generic]]:
    module = parse(text)
    exe = compile(module)
    assert any(isinstance(t, HostThunk) for t in walk(list(exe.thunks))) != native
    found = exe(*arguments)
    for got, want in zip(found, evaluate(module, arguments), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3 if got.dtype == np.float32 else 1e-9, atol=1e-4)
    return [np.asarray(x) for x in found]


def entry(result: str, parameters: str, ops: str) -> str:
    return f"HloModule m\n\nENTRY %e ({parameters}) -> {result} {{\n{ops}\n}}\n"


def solve_text(element: str, batch: str, n: int, b: str, options: str) -> str:
    a = f"{element}[{batch}{n},{n}]"
    return entry(
        f"{element}[{b}]",
        f"a: {a}, b: {element}[{b}]",
        f"  %a = {a} parameter(0)\n  %b = {element}[{b}] parameter(1)\n"
        f"  ROOT %x = {element}[{b}] triangular-solve(%a, %b), {options}",
    )


@pytest.mark.parametrize("columns", [1, 5, 20, 150])
@pytest.mark.parametrize(("left", "lower"), list(itertools.product(("true", "false"), repeat=2)))
def test_triangular_solves_equal_the_interpreter(left: str, lower: str, columns: int) -> None:
    n, batch = 13, 3
    shape = (batch, n, columns) if left == "true" else (batch, columns, n)
    a = matrix(n, (batch,)).astype(np.float32)
    b = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    for unit, how in itertools.product(("true", "false"), ("NO_TRANSPOSE", "TRANSPOSE")):
        options = f"left_side={left}, lower={lower}, unit_diagonal={unit}, transpose_a={how}"
        check(solve_text("f32", f"{batch},", n, ",".join(map(str, shape)), options), [a, b])


@pytest.mark.parametrize("lower", ["true", "false"])
def test_factors_of_matrices_that_are_not_positive_definite_are_nan(lower: str) -> None:
    a = np.stack([matrix(9), -matrix(9), matrix(9, seed=2)])
    text = entry("f64[3,9,9]", "a: f64[3,9,9]", f"  %a = f64[3,9,9] parameter(0)\n  ROOT %x = f64[3,9,9] "
                 f"cholesky(%a), lower={lower}")  # fmt: skip
    (factors,) = check(text, [a])
    assert np.isnan(factors[1]).all()
    assert np.isfinite(factors[[0, 2]]).all()


def lapack_text(routine: str, results: str, n: int, config: str) -> str:
    return entry(
        f"({results})",
        f"a: f32[4,{n},{n}]",
        f"  %a = f32[4,{n},{n}] parameter(0)\n  ROOT %x = ({results}) custom-call(%a), "
        f'custom_call_target="lapack_s{routine}_ffi", api_version=API_VERSION_TYPED_FFI, backend_config={{{config}}}',
    )


def test_pivots_and_status_of_lu_equal_the_interpreter() -> None:
    a = np.random.default_rng(3).standard_normal((4, 11, 11)).astype(np.float32)
    a[2, :, 4] = 0  # no pivot in column 5
    _, pivots, status = check(lapack_text("getrf", "f32[4,11,11], s32[4,11], s32[4]", 11, ""), [a])
    assert pivots.min() >= 1
    assert list(status) == [0, 0, 5, 0]


def qr_text(element: str, batch: str, rows: int, columns: int, complete: bool) -> str:
    """Return a program whose results are the reflectors of a QR factorization, their factors, and Q."""
    k, letter = min(rows, columns), {"f32": "s", "f64": "d"}[element]
    width = rows if complete else k
    a, tau, q = f"{element}[{batch}{rows},{columns}]", f"{element}[{batch}{k}]", f"{element}[{batch}{rows},{width}]"
    rank = 2 + batch.count(",")
    if width <= columns:
        sizes = [*batch.split(",")[:-1], str(rows), str(width)]
        reflectors = f"%p = {q} slice(%g), slice={{{', '.join(f'[0:{n}]' for n in sizes)}}}"
    else:
        padding = "x".join([*["0_0"] * (rank - 1), f"0_{width - columns}"])
        reflectors = f"%z = {element}[] constant(0)\n  %p = {q} pad(%g, %z), padding={padding}"
    return entry(
        f"({a}, {tau}, {q})",
        f"a: {a}",
        f"  %a = {a} parameter(0)\n"
        f'  %f = ({a}, {tau}) custom-call(%a), custom_call_target="lapack_{letter}geqrf_ffi", '
        f"api_version=API_VERSION_TYPED_FFI\n"
        f"  %g = {a} get-tuple-element(%f), index=0\n  %t = {tau} get-tuple-element(%f), index=1\n  {reflectors}\n"
        f'  %q = {q} custom-call(%p, %t), custom_call_target="lapack_{letter}orgqr_ffi", '
        f"api_version=API_VERSION_TYPED_FFI\n"
        f"  ROOT %x = ({a}, {tau}, {q}) tuple(%g, %t, %q)",
    )


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 3), (7, 4), (4, 7), (40, 3), (33, 33)])
@pytest.mark.parametrize(("element", "batch"), [("f32", "300,"), ("f64", "2,3,"), ("f64", "")])
def test_reflectors_and_q_equal_the_interpreter(
    element: str, batch: str, rows: int, columns: int, complete: bool
) -> None:
    sizes = tuple(int(n) for n in batch.split(",")[:-1])
    dtype = np.float32 if element == "f32" else np.float64
    a = np.random.default_rng(5).standard_normal((*sizes, rows, columns)).astype(dtype)
    reflected, _, q = check(qr_text(element, batch, rows, columns, complete), [a])
    width = min(rows, columns)
    r = np.triu(reflected[..., :width, :])
    np.testing.assert_allclose(np.asarray(q)[..., :width] @ r, np.asarray(a, np.float64), atol=1e-4)
    unit = np.broadcast_to(np.eye(q.shape[-1]), (*sizes, q.shape[-1], q.shape[-1]))
    np.testing.assert_allclose(np.swapaxes(q, -1, -2) @ q, unit, atol=1e-4)


@pytest.mark.parametrize("columns", [4, 2])
def test_qr_of_zeros_and_of_large_and_small_values(columns: int) -> None:
    a = np.random.default_rng(6).standard_normal((5, 9, columns)).astype(np.float32)
    a[0] = 0
    a[1, 3:] = 0
    a[2] = np.triu(a[2])
    a[3] *= 1e30
    a[4] *= 1e-30
    check(qr_text("f32", "5,", 9, columns, False), [a / np.abs(a).max((1, 2), keepdims=True, initial=1)])
    reflected, tau, q = (np.asarray(x, np.float64) for x in compile(parse(qr_text("f32", "5,", 9, columns, False)))(a))
    assert not tau[0].any()
    assert not tau[2].any()
    for n in range(5):
        np.testing.assert_allclose(q[n] @ np.triu(reflected[n, :columns]), a[n], atol=1e-5 * float(np.abs(a[n]).max()))


def test_a_qr_factorization_with_nan_has_nan() -> None:
    a = np.ones((2, 6, 3), np.float32)
    a[0, 4, 0] = np.nan
    _, tau, q = compile(parse(qr_text("f32", "2,", 6, 3, False)))(a)
    assert np.isnan(tau[0]).any()
    assert np.isnan(q[0]).any()
    assert np.isfinite(q[1]).all()


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_lapack_cholesky_keeps_the_other_triangle(uplo: str) -> None:
    a = matrix(7, (4,)).astype(np.float32)
    factors, status = check(
        lapack_text("potrf", "f32[4,7,7], s32[4]", 7, f"uplo = {ord(uplo)} : ui8"), [a]
    )  # fmt: skip
    at = np.triu_indices(7, 1) if uplo == "L" else np.tril_indices(7, -1)
    np.testing.assert_array_equal(factors[:, at[0], at[1]], a[:, at[0], at[1]])
    assert not status.any()


def test_large_matrices_are_factored_by_lapack() -> None:
    n = LARGEST + 1
    text = entry(f"f32[{n},{n}]", f"a: f32[{n},{n}]", f"  %a = f32[{n},{n}] parameter(0)\n  ROOT %x = f32[{n},{n}] "
                 "cholesky(%a), lower=true")  # fmt: skip
    check(text, [matrix(n).astype(np.float32)], native=False)


def test_saved_programs_keep_their_factorizations(tmp_path: object) -> None:
    text = solve_text("f32", "", 6, "6,2", "left_side=true, lower=true, unit_diagonal=false, transpose_a=NO_TRANSPOSE")
    a, b = matrix(6).astype(np.float32), np.ones((6, 2), np.float32)
    exe = compile(parse(text))
    exe.save(str(tmp_path) + "/saved")
    np.testing.assert_array_equal(load(str(tmp_path) + "/saved")(a, b)[0], exe(a, b)[0])
