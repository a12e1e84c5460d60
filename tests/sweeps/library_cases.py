"""Cases of the custom calls behind jax.numpy.linalg (LAPACK, batched and complex).

The compared values do not depend on the signs of singular vectors, eigenvectors or columns of Q.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import linalg

from compiler.frontends.jax import lower
from tests.sweeps.case import Array, Case, Tolerance, generator


def _rebuilt_svd(a: Any) -> Any:
    u, s, v = jnp.linalg.svd(a, full_matrices=False)
    return (u * s[..., None, :]) @ v, s


def _rebuilt_eigh(a: Any) -> Any:
    w, v = jnp.linalg.eigh(a)
    return w, (v * w[..., None, :]) @ jnp.swapaxes(v, -1, -2).conj()


def _rebuilt_qr(a: Any) -> Any:
    q, r = jnp.linalg.qr(a)
    return q @ r, jnp.abs(jnp.triu(r))


def _rebuilt_schur(a: Any) -> Any:
    t, z = linalg.schur(a)
    return z @ t @ jnp.swapaxes(z, -1, -2).conj()


def _sorted_eigenvalues(a: Any) -> Any:
    w = jnp.linalg.eigvals(a)
    return jnp.sort(jnp.abs(w), axis=-1)


_SQUARE: dict[str, Callable[..., Any]] = {
    "inverse": jnp.linalg.inv,
    "determinant": jnp.linalg.det,
    "log-determinant": lambda a: jnp.linalg.slogdet(a)[1],
    "lu": lambda a: jax.lax.linalg.lu(a)[0],
    "qr": _rebuilt_qr,
    "svd": _rebuilt_svd,
    "eigenvalues": _sorted_eigenvalues,
    "hermitian-eigen": lambda a: _rebuilt_eigh(a + jnp.swapaxes(a, -1, -2).conj()),
    "cholesky": lambda a: jnp.linalg.cholesky(a @ jnp.swapaxes(a, -1, -2).conj()),
    "exponential": linalg.expm,
}
_WIDE: dict[str, Callable[..., Any]] = {"qr": _rebuilt_qr, "svd": _rebuilt_svd, "pinv": jnp.linalg.pinv}
_SINGLE: dict[str, Callable[..., Any]] = {
    "schur": _rebuilt_schur,
    "hessenberg": lambda a: jnp.abs(linalg.hessenberg(a, calc_q=False)),
}


def cases() -> Iterator[Case]:
    for t in ("float32", "float64", "complex64", "complex128"):
        for name, fn in _SQUARE.items():
            for dims in ((4, 4), (2, 3, 3), (1, 1)):
                yield _case(name, t, fn, _matrix(t, dims) + 2 * np.eye(dims[-1]))
        for name, fn in _WIDE.items():
            for dims in ((5, 3), (3, 5), (2, 4, 2)):
                yield _case(name, t, fn, _matrix(t, dims))
        for name, fn in _SINGLE.items():
            yield _case(name, t, fn, _matrix(t, (4, 4)))
        for dims, right in (((3, 3), (3,)), ((2, 3, 3), (2, 3, 2))):
            yield _case("solve", t, jnp.linalg.solve, _matrix(t, dims) + 2 * np.eye(3), _matrix(t, right))


def _matrix(t: str, dims: tuple[int, ...]) -> Array:
    rng = generator("library", t, dims)
    x = rng.standard_normal(dims) + (1j * rng.standard_normal(dims) if t.startswith("complex") else 0)
    return np.asarray(x)


def _case(name: str, t: str, fn: Callable[..., Any], *args: Array) -> Case:
    given = [a.astype(t) for a in args]
    with jax.enable_x64(True):
        text = str(lower(fn, *given))
    short = {"float32": "f32", "float64": "f64", "complex64": "c64", "complex128": "c128"}[t]
    where = "x".join(map(str, args[0].shape))
    return Case("custom-call", short, f"{name}-{where}", text, tuple(given), Tolerance(1024, 1000))
