"""Eigenvalues and singular values by kernels that call LAPACK: results of the interpreter, without Python."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler import compile, load
from compiler.backends.cpu.executable import CpuExecutable
from compiler.backends.cpu.lapack_routines import KIND
from compiler.frontends import jax as frontend
from compiler.interpreter import evaluate
from compiler.ir import HloModule

jax = pytest.importorskip("jax")
jnp = jax.numpy

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "eigenvectors": lambda x: jnp.linalg.eigh(x + x.mT),
    "eigenvalues": lambda x: jnp.linalg.eigvalsh(x + x.mT),
    "upper": lambda x: jax.lax.linalg.eigh(x, lower=False, symmetrize_input=False),
    "thin": lambda x: jnp.linalg.svd(x, full_matrices=False),
    "full": lambda x: jnp.linalg.svd(x),
    "values": lambda x: jnp.linalg.svd(x, compute_uv=False),
}
SQUARE, TALL, WIDE = (3, 5, 5), (2, 9, 4), (4, 7)


def program(name: str, shape: tuple[int, ...], dtype: str) -> tuple[HloModule, np.ndarray]:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    with jax.enable_x64(dtype == "float64"):
        return frontend.lower(PROGRAMS[name], x), x


def compiled(module: HloModule) -> CpuExecutable:
    exe = compile(module)
    assert isinstance(exe, CpuExecutable)
    assert KIND in [k.kind for k in exe.kernels]
    assert not exe.built.driver.host  # no step is evaluated in Python
    return exe


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((name, SQUARE) for name in PROGRAMS),
        *((name, shape) for name in ("thin", "full", "values") for shape in (TALL, WIDE)),
        ("eigenvectors", (1, 1)), ("eigenvectors", (130, 130)), ("thin", (1, 6)),
    ],
)  # fmt: skip
def test_results_are_those_of_the_interpreter(name: str, shape: tuple[int, ...], dtype: str) -> None:
    module, x = program(name, shape, dtype)
    given = x.copy()
    exact = 1e-4 if dtype == "float32" else 1e-10
    for found, wanted in zip(compiled(module)(x), evaluate(module, [x]), strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=exact, atol=exact)
    np.testing.assert_array_equal(x, given)


def test_vectors_and_values_reconstruct_the_matrices() -> None:
    module, x = program("thin", TALL, "float64")
    u, s, v = compiled(module)(x)
    np.testing.assert_allclose(u * s[..., None, :] @ v, x, atol=1e-12)


def test_a_saved_program_gets_the_routines_when_it_is_loaded(tmp_path: Path) -> None:
    module, x = program("eigenvectors", SQUARE, "float32")
    exe = compiled(module)
    exe.save(tmp_path / "program")
    for found, wanted in zip(load(tmp_path / "program")(x), exe(x), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_matrix_with_nan_has_nan_eigenvalues() -> None:
    module, x = program("eigenvalues", SQUARE, "float32")
    x[1, 2, 2] = np.nan
    (found,) = compiled(module)(x)
    assert np.isnan(found[1]).all()
    np.testing.assert_allclose(found[0], evaluate(module, [x])[0][0], rtol=1e-4, atol=1e-5)


def test_eigenvalues_in_a_loop() -> None:
    def f(x: Any) -> Any:
        return jax.lax.fori_loop(0, 4, lambda _, a: a / (1 + jnp.linalg.eigvalsh(a + a.T)[-1] ** 2), x)

    x = np.random.default_rng(1).standard_normal((6, 6)).astype(np.float32)
    module = frontend.lower(f, x)
    np.testing.assert_allclose(compiled(module)(x)[0], evaluate(module, [x])[0], rtol=1e-4, atol=1e-5)
