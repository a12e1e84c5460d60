"""Linear algebra by kernels that call LAPACK: results of the interpreter, without Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler import compile, load
from compiler.backends.cpu.executable import CpuExecutable
from compiler.backends.cpu.lapack_routines import KIND, ROUTINES
from compiler.frontends import jax as frontend
from compiler.interpreter import evaluate

jax = pytest.importorskip("jax")
jnp = jax.numpy
lin = jax.lax.linalg

REAL: dict[str, Callable[[Any], Any]] = {
    "eigenvectors": lambda x: lin.eig(x, compute_left_eigenvectors=True),
    "eigenvalues": lambda x: jnp.linalg.eigvals(x),
    "left": lambda x: lin.eig(x, compute_left_eigenvectors=True, compute_right_eigenvectors=False),
    "schur": lambda x: lin.schur(x),
    "hessenberg": lambda x: lin.hessenberg(x),
    "tridiagonal": lambda x: lin.tridiagonal(x, lower=False),
    "system": lambda x: lin.tridiagonal_solve(x[..., 0], x[..., 1] + 9, x[..., 2], x[..., :3]),
    "pivots": lambda x: lin.qr(x, pivoting=True, full_matrices=False),
}
COMPLEX: dict[str, Callable[[Any], Any]] = {
    **REAL,
    "hermitian": lambda x: jnp.linalg.eigh(x),
    "hermitian values": lambda x: jnp.linalg.eigvalsh(x),
    "lu": lambda x: lin.lu(x),
    "qr": lambda x: jnp.linalg.qr(x),
    "cholesky": lambda x: jnp.linalg.cholesky(x @ x.mT.conj() + 9 * jnp.eye(x.shape[-1], dtype=x.dtype)),
    "inverse": lambda x: jnp.linalg.inv(x),
    "right side": lambda x: lin.triangular_solve(x + 9, x, lower=True, transpose_a=True, conjugate_a=True),
    "left side": lambda x: lin.triangular_solve(x + 9, x[..., :2], left_side=True, unit_diagonal=True),
    "thin": lambda x: jnp.linalg.svd(x, full_matrices=False),
    "full": lambda x: jnp.linalg.svd(x),
    "singular values": lambda x: jnp.linalg.svd(x, compute_uv=False),
}
RECTANGULAR = ("lu", "qr", "pivots", "thin", "full", "singular values")


def _compiled(function: Callable[[Any], Any], x: np.ndarray) -> tuple[CpuExecutable, Any]:
    with jax.enable_x64(x.dtype in (np.float64, np.complex128)):
        module = frontend.lower(function, x)
    exe = compile(module)
    assert isinstance(exe, CpuExecutable)
    assert KIND in [k.kind for k in exe.kernels]
    return exe, module


def _matrices(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.startswith("complex") else x).astype(dtype)


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        *((name, (3, 5, 5), dtype) for name in REAL for dtype in ("float32", "float64")),
        *((name, (3, 5, 5), "complex64") for name in COMPLEX),
        *((name, (5, 5), "complex128") for name in COMPLEX),
        *((name, shape, "complex64") for name in RECTANGULAR for shape in ((2, 9, 4), (4, 7))),
        ("eigenvectors", (1, 1), "float32"), ("eigenvectors", (60, 60), "float64"),
    ],
)  # fmt: skip
def test_results_are_those_of_the_interpreter(name: str, shape: tuple[int, ...], dtype: str) -> None:
    x = _matrices(shape, dtype)
    exe, module = _compiled({**COMPLEX, **REAL}[name], x)
    given = x.copy()
    exact = 3e-4 if dtype in ("float32", "complex64") else 1e-9
    for found, wanted in zip(exe(x), evaluate(module, [x]), strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=exact, atol=exact)
    np.testing.assert_array_equal(x, given)


def test_no_step_is_evaluated_in_python() -> None:
    exe, _ = _compiled(REAL["eigenvectors"], _matrices((3, 5, 5), "float32"))
    assert not exe.built.driver.host


def test_a_matrix_that_is_not_positive_has_no_factor() -> None:
    x = np.array([[1, 2j], [-2j, 1]], np.complex64)
    exe, _ = _compiled(lambda x: jnp.linalg.cholesky(x), x)
    assert np.isnan(exe(x)[0][np.tril_indices(2)]).all()


def test_a_saved_program_gets_the_routines_when_it_is_loaded(tmp_path: Path) -> None:
    x = _matrices((3, 5, 5), "complex64")
    exe, _ = _compiled(COMPLEX["inverse"], x)
    exe.save(tmp_path / "program")
    np.testing.assert_array_equal(load(tmp_path / "program")(x)[0], exe(x)[0])


def test_the_runtime_has_room_for_each_routine() -> None:
    text = (Path(__file__).parents[2] / "compiler/backends/cpu/runtime.c").read_text()
    assert f"hlogym_lapack[{len(ROUTINES)}]" in text
