"""Families of linear algebra: products, contractions, iterative solvers, Fourier methods."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from env.suites.programs.differentiation import gradient
from env.suites.programs.family import Argument, Families, Members, each_of, integers, normal, sizes

FAMILIES = Families()
KEY = integers(0, 2**32, 2, dtype="uint32")


@FAMILIES.add
def iterative_solvers() -> Members:
    """Linear systems and eigenvectors by elementary steps: conjugate gradients, Jacobi, power, elimination."""

    def spd(a: Array) -> Array:
        return a @ a.T / a.shape[0] + jnp.eye(a.shape[0])

    def conjugate(a: Array, b: Array) -> Any:
        m = spd(a)

        def step(_: Array, c: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            x, r, p = c
            q = m @ p
            alpha = jnp.vdot(r, r) / (jnp.vdot(p, q) + 1e-9)
            s = r - alpha * q
            return x + alpha * p, s, s + jnp.vdot(s, s) / (jnp.vdot(r, r) + 1e-9) * p

        return lax.fori_loop(0, 10, step, (jnp.zeros_like(b), b, b))[0]

    def power(a: Array, b: Array) -> tuple[Array, Array]:
        m = spd(a)

        def step(_: Array, v: Array) -> Any:
            w = m @ v
            return w / jnp.linalg.norm(w)

        v = lax.fori_loop(0, 20, step, b)
        return v, jnp.vdot(v, m @ v)

    def eliminate(a: Array, b: Array) -> Any:
        n = a.shape[0]
        m = jnp.concatenate([spd(a), b[:, None]], 1)

        def step(k: Array, m: Array) -> Array:
            row = m[k] / m[k, k]
            return (m - m[:, k, None] * row).at[k].set(row)

        return lax.fori_loop(0, n, step, m)[:, -1]

    def factor(a: Array, b: Array) -> Any:
        def step(k: Array, m: Array) -> Array:
            column = jnp.where(jnp.arange(m.shape[0]) >= k, m[:, k], 0) * lax.rsqrt(m[k, k])
            keep = (jnp.arange(m.shape[1]) > k)[None, :]
            return jnp.where(keep, m - jnp.outer(column, column), m).at[:, k].set(column)

        return lax.fori_loop(0, a.shape[0], step, spd(a))

    variants: dict[str, Any] = {
        "conjugate": conjugate,
        "power": power,
        "eliminate": eliminate,
        "factor": factor,
        "jacobi": lambda a, b: lax.fori_loop(0, 20, lambda _, x: x + 0.2 * (b - spd(a) @ x), b),
        "newton_inverse": lambda a, b: lax.fori_loop(
            0, 6, lambda _, x: x @ (2 * jnp.eye(a.shape[0]) - spd(a) @ x), 0.2 * jnp.eye(a.shape[0])
        ),
        "gram_schmidt": lambda a, b: lax.fori_loop(
            0, 3, lambda _, q: 1.5 * q - 0.5 * q @ (q.T @ q), a / jnp.linalg.norm(a)
        ),
    }
    yield from each_of(variants, {str(n): (normal(n, n), normal(n)) for n in (8, 32, 128, 512)})


@FAMILIES.add
def matrix_products() -> Members:
    """Products of matrices with work around them: epilogues, chains, batches, transposes, outer products."""
    variants: dict[str, Any] = {
        "plain": lambda a, b: a @ b,
        "relu": lambda a, b: jax.nn.relu(a @ b + 1),
        "gram": lambda a, b: a.T @ a,
        "chain": lambda a, b: (a @ b) @ (b.T @ a.T),
        "normalised": lambda a, b: jax.nn.softmax(a @ b),
        "sums": lambda a, b: jnp.sum(a @ b, 0),
        "trace": lambda a, b: jnp.sum((a @ b) ** 2, 1),
        "scaled": lambda a, b: (a * jnp.exp(-a * a)) @ b * 0.5,
        "vector": lambda a, b: a @ b[:, 0],
        "outer": lambda a, b: a[:, :1] * b[:1] + a @ b,
        "gradient": gradient(lambda a, b: jnp.tanh(a @ b)),
    }
    cases: dict[str, tuple[Argument, ...]] = {}
    for m, k, n in ((8, 64, 16), (128, 128, 128), (256, 512, 384), (1024, 256, 1024), (2048, 2048, 2048)):
        cases[sizes(m, k, n)] = (normal(m, k), normal(k, n, std=round(k**-0.5, 4)))
    cases["256x256x256_bfloat16"] = (normal(256, 256, dtype="bfloat16"), normal(256, 256, std=0.06, dtype="bfloat16"))
    yield from each_of(variants, cases)


@FAMILIES.add
def tensor_contractions() -> Members:
    """Contractions of several tensors by einsum: batches, traces, low-rank factors, tensor trains."""
    equations = {
        "batched": ("bij,bjk->bik", 3),
        "transposed": ("bij,bkj->bik", 3),
        "inner": ("bij,bij->b", 3),
        "outer": ("bij,bkl->bikjl", 3),
        "mix": ("bij,cjk->bcik", 3),
        "left": ("bij,bjk->bk", 3),
        "shared": ("bij,jkl->bikl", 3),
        "cyclic": ("bij,jbk->ik", 3),
    }
    shapes = {"4": 4, "16": 16, "48": 48}
    variants: dict[str, Any] = {k: (lambda x, y, e=e: jnp.einsum(e, x, y)) for k, (e, _) in equations.items()}
    variants["train"] = lambda x, y: jnp.einsum("aib,bjc,cka->ijk", x, y, x)
    variants["factors"] = lambda x, y: jnp.einsum("ir,jr,kr->ijk", x[0], y[0], x[1])
    yield from each_of(
        variants, {k: (normal(n, n, n), normal(n, n, n, std=round(n**-0.5, 4))) for k, n in shapes.items()}
    )


@FAMILIES.add
def fourier_methods() -> Members:
    """Fourier methods: spectral filters, convolutions, derivatives, Poisson solvers, phase correlation."""

    def poisson(x: Array) -> Array:
        k = jnp.fft.fftfreq(x.shape[0])[:, None] ** 2 + jnp.fft.fftfreq(x.shape[1])[None, :] ** 2
        return jnp.fft.ifft2(jnp.fft.fft2(x) / jnp.where(k == 0, 1, -k * 39.5)).real

    variants: dict[str, Any] = {
        "low_pass": lambda x: jnp.fft.irfft(
            jnp.fft.rfft(x) * (jnp.arange(x.shape[1] // 2 + 1) < x.shape[1] // 8), n=x.shape[1]
        ),
        "derivative": lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * 1j * jnp.arange(x.shape[1] // 2 + 1), n=x.shape[1]),
        "convolve": lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(x[:1]), n=x.shape[1]),
        "poisson": poisson,
        "spectrum": lambda x: jnp.log1p(jnp.abs(jnp.fft.fft2(x))),
        "phase": lambda x: jnp.angle(jnp.fft.rfft(x) + 2.0),
    }
    yield from each_of(variants, {sizes(*d): (normal(*d),) for d in ((8, 64), (64, 256), (256, 1024), (1024, 1024))})
