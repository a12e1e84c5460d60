"""LAPACK and sparse products that JAX calls on the CPU: results of stock JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import sparse
from jax.scipy.linalg import qr_multiply

from compiler.frontends.jax import lower
from compiler.interpreter import evaluate

TYPES = ("float32", "float64", "complex64", "complex128")
QR = lax.linalg.SvdAlgorithm.QR


def matrix(t: str, *dims: int, seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(dims) + (1j * rng.standard_normal(dims) if t.startswith("complex") else 0)
    return np.asarray(x, t)


def check(f: Callable[..., Any], *args: Any) -> None:
    """Compare the interpreter of the function's program with JAX."""
    tight = np.result_type(*args) in (np.float64, np.complex128)
    with jax.enable_x64(True):
        expected = jax.tree.leaves(jax.jit(f)(*args))
        for found, value in zip(evaluate(lower(f, *args), args), expected, strict=True):
            assert (found.dtype, found.shape) == (value.dtype, value.shape)
            limit = (1e-12 if tight else 1e-5) * max(1, np.abs(value).max(initial=0))
            np.testing.assert_allclose(found, value, rtol=0, atol=limit)


@pytest.mark.parametrize("t", TYPES)
@pytest.mark.parametrize("dims", [(4, 3), (2, 3, 5), (1, 1)])
def test_singular_values_by_qr(t: str, dims: tuple[int, ...]) -> None:
    def rebuilt(full: bool) -> Callable[[Any], Any]:
        def f(a: Any) -> Any:
            u, s, v = lax.linalg.svd(a, full_matrices=full, algorithm=QR)
            return (u[..., : s.shape[-1]] * s[..., None, :]) @ v[..., : s.shape[-1], :], s

        return f

    a = matrix(t, *dims)
    for full in (False, True):
        check(rebuilt(full), a)
    check(lambda a: lax.linalg.svd(a, compute_uv=False, algorithm=QR), a)


@pytest.mark.parametrize("t", TYPES)
@pytest.mark.parametrize("mode", ["left", "right"])
@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("pivoting", [False, True])
def test_products_by_q(t: str, mode: str, conjugate: bool, pivoting: bool) -> None:
    for rows, columns in ((5, 5), (5, 3), (3, 5)):
        k = min(rows, columns)
        c = matrix(t, *((k, 2) if mode == "left" else (2, rows)), seed=1)
        check(
            lambda a, c: qr_multiply(a, c, mode=mode, pivoting=pivoting, conjugate=conjugate)[:2],
            matrix(t, rows, columns),
            c,
        )
    check(lambda a, c: qr_multiply(a, c, mode=mode)[0], matrix(t, 2, 4, 4), matrix(t, 2, 4, 4, seed=1))


def test_products_by_no_reflectors() -> None:
    check(lax.linalg.ormqr, *(np.ones(dims, np.float32) for dims in ((3, 0), (0,), (3, 2))))


def solve(lower: Any, diagonal: Any, upper: Any, b: Any) -> Any:
    return lax.linalg.tridiagonal_solve(lower, diagonal, upper, b, perturb_singular=True)


@pytest.mark.parametrize("t", TYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_tridiagonal_systems(t: str, n: int) -> None:
    args = [matrix(t, *dims, seed=k) for k, dims in enumerate([(2, n), (2, n), (2, n), (2, n, 3)])]
    args[0][..., 0] = args[2][..., -1] = 0
    check(solve, *args)
    args[0][..., n // 2] = 0
    args[1][..., : n // 2] *= 1e-4
    check(solve, *args)


@pytest.mark.parametrize("t", TYPES)
@pytest.mark.parametrize("diagonal", [[0, 0, 0, 0, 0], [2, 2, 0, 1, 2], [1, 1, 1, 1, 0], [0], [1e-30, 0]])
def test_tridiagonal_systems_without_a_solution(t: str, diagonal: list[float]) -> None:
    n = len(diagonal)
    zero = np.zeros(n, t)
    check(solve, zero, np.asarray(diagonal, t), zero, np.ones((n, 2), t))
    shifted = np.ones(n, t)
    shifted[0] = 0
    check(solve, shifted, np.ones(n, t), shifted[::-1].copy(), np.ones((n, 2), t))


@pytest.mark.parametrize("t", [*TYPES, "int32"])
def test_sparse_rows_times_dense_arrays(t: str) -> None:
    a = np.round(matrix(t if t != "int32" else "float32", 4, 5) * 2).astype(t)
    with jax.enable_x64(True):
        rows = sparse.BCSR.fromdense(jnp.asarray(a), nse=18)  # type: ignore[no-untyped-call]  # with padding

    def product(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        return sparse.BCSR((data, indices, indptr), shape=(4, 5)) @ x

    given = [np.asarray(v) for v in (rows.data, rows.indices, rows.indptr)]
    for dims in ((5,), (5, 3)):
        check(product, *given, np.round(matrix("float32", *dims) * 3).astype(t))
