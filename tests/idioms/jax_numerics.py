"""Numerical idioms in JAX: stable formulas, distances, interpolation, segments, solvers, transforms."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.idioms.collection import Closeness, Idioms, integers, normal, uniform

IDIOMS = Idioms()


def _positive(n: int) -> Any:
    a = normal(n, n)
    return (a @ a.T + n * np.eye(n)).astype(np.float32)


@IDIOMS.on(
    rows=(normal(17, 33), uniform(17, 33)),
    one=(normal(1, 64), uniform(1, 64)),
    column=(normal(64, 1), uniform(64, 1)),
    huge=(normal(3, 65, scale=200), uniform(3, 65)),
)
def weighted_logsumexp(x: Any, w: Any) -> Any:
    value, sign = jax.nn.logsumexp(x, axis=0, b=w - 0.3, return_sign=True)
    return jax.nn.logsumexp(x, axis=-1, b=w), value, sign, jax.grad(lambda a: jax.nn.logsumexp(a, b=w))(x)


@IDIOMS.on(
    line=(np.linspace(-200, 200, 401).astype(np.float32),),
    column=(normal(64, 1, scale=50),),
    special=(np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-30, -1e30], np.float32),),
)
def stable_softplus_and_friends(x: Any) -> Any:
    return (
        jax.nn.softplus(x),
        jnp.logaddexp(x, 0.0),
        jax.nn.log_sigmoid(x),
        jnp.log1p(jnp.exp(-jnp.abs(x))),
        jax.nn.sigmoid(x),
        jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), 0.0),
        jax.vmap(jax.grad(jax.nn.softplus))(x.ravel()),
        jnp.expm1(-jnp.abs(x)),
        jnp.nan_to_num(1 / x),
    )


@IDIOMS.on(
    rows=(normal(19, 32), normal(23, 32, name="b")),
    narrow=(normal(64, 1), normal(33, 1, name="b")),
    one=(normal(1, 65), normal(1, 65, name="b")),
)
def cosine_similarity(a: Any, b: Any) -> Any:
    def unit(x: Any) -> Any:
        return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-8)

    paired = min(a.shape[0], b.shape[0])
    x, y = a[:paired], b[:paired]
    direct = jnp.sum(x * y, -1) / (jnp.linalg.norm(x, axis=-1) * jnp.linalg.norm(y, axis=-1) + 1e-8)
    return unit(a) @ unit(b).T, direct


@IDIOMS.on(
    points=(normal(17, 3), normal(33, 3, name="b")),
    line=(normal(64, 1), normal(17, 1, name="b")),
    one=(normal(1, 64), normal(1, 64, name="b")),
)
def pairwise_distances(a: Any, b: Any) -> Any:
    squared = jnp.maximum(jnp.sum(a**2, 1)[:, None] + jnp.sum(b**2, 1)[None] - 2 * a @ b.T, 0.0)
    direct = jnp.sqrt(jnp.sum((a[:, None] - b[None]) ** 2, axis=-1))
    return squared, direct, jnp.abs(a[:, None] - b[None]).sum(-1), jnp.argmin(direct, 1), direct.min(0)


@IDIOMS.on(
    volume=(normal(2, 5, 33), integers(2, 33, high=5)),
    image=(normal(1, 3, 8, 9), integers(1, 8, 9, high=3)),
    one=(normal(1, 64, 1), integers(1, 1, high=64)),
)
def softmax_cross_entropy_over_an_axis(z: Any, labels: Any) -> Any:
    def loss(z: Any) -> Any:
        lp = jax.nn.log_softmax(z, axis=1)
        return -jnp.mean(jnp.take_along_axis(lp, jnp.expand_dims(labels, 1), axis=1))

    return jax.value_and_grad(loss)(z), jnp.argmax(z, axis=1)


@IDIOMS.on(Closeness(1e-3, 1e-3), points=(np.linspace(-1, 1, 50).astype(np.float32), normal(50)))
def polynomial_fit(x: Any, y: Any) -> Any:
    basis = jnp.vander(x, 4)
    normal_equations = jnp.linalg.solve(basis.T @ basis, basis.T @ y)
    return normal_equations, jnp.polyval(normal_equations, x), jnp.polyder(normal_equations)


@IDIOMS.on(
    Closeness(1e-3, 1e-3),
    matrix=(_positive(17), normal(17)),
    one=(_positive(1), normal(1)),
    big=(_positive(64), normal(64)),
)
def power_iteration(a: Any, v: Any) -> Any:
    def body(_: Any, v: Any) -> Any:
        v = a @ v
        return v / jnp.linalg.norm(v)

    v = lax.fori_loop(0, 50, body, v / jnp.linalg.norm(v))
    return v @ a @ v, jnp.abs(v) * 0 + jnp.abs(v @ v)


@IDIOMS.on(vector=(uniform(33, low=0.5, high=9),), one=(uniform(1, low=0.5, high=9),))
def newton_by_while_loop(a: Any) -> Any:
    def root(c: Any) -> Any:
        def cond(state: Any) -> Any:
            x, k = state
            return (jnp.abs(x**3 - c) > 1e-4) & (k < 30)

        def body(state: Any) -> Any:
            x, k = state
            value, slope = jax.value_and_grad(lambda y: y**3 - c)(x)
            return x - value / slope, k + 1

        return lax.while_loop(cond, body, (c, 0))

    return jax.vmap(root)(a)


@IDIOMS.on(Closeness(1e-3, 1e-3), matrix=(_positive(17), normal(17, 3)), one=(_positive(1), normal(1, 64)))
def cholesky_solve_and_log_determinant(a: Any, b: Any) -> Any:
    factor = jnp.linalg.cholesky(a)
    half = jax.scipy.linalg.solve_triangular(factor, b, lower=True)
    x = jax.scipy.linalg.cho_solve((factor, True), b)
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(factor)))
    return x, log_det, -0.5 * jnp.sum(half**2) - 0.5 * log_det - 0.5 * a.shape[0] * jnp.log(2 * jnp.pi)


@IDIOMS.on(Closeness(1e-3, 1e-3), matrix=(_positive(17), normal(17)), big=(_positive(40), normal(40)))
def conjugate_gradients(a: Any, b: Any) -> Any:
    def body(state: Any, _: Any) -> Any:
        x, r, p, rr = state
        ap = a @ p
        alpha = rr / (p @ ap)
        x, r = x + alpha * p, r - alpha * ap
        new = r @ r
        return (x, r, r + new / rr * p, new), None

    (x, *_), _ = lax.scan(body, (jnp.zeros_like(b), b, b, b @ b), None, length=8)
    return x


@IDIOMS.on(signal=(normal(3, 64),), one=(normal(1, 100),), odd=(normal(2, 37),))
def fft_filters(x: Any) -> Any:
    n = x.shape[-1]
    spectrum = jnp.fft.rfft(x)
    frequencies = jnp.fft.rfftfreq(n)
    low = jnp.fft.irfft(jnp.where(frequencies < 0.21, spectrum, 0), n)
    power = jnp.abs(jnp.fft.fft(x)) ** 2 / n
    kernel = jnp.exp(-(jnp.linspace(-2, 2, n) ** 2))
    convolved = jnp.fft.irfft(jnp.fft.rfft(x, 2 * n) * jnp.fft.rfft(kernel, 2 * n), 2 * n)[..., : 2 * n - 1]
    return low, power, convolved, jnp.fft.ifft(jnp.fft.fftshift(jnp.fft.fft(x), -1)).real


@IDIOMS.on(
    orbit=(normal(2, 4), np.linspace(0, 1, 33).astype(np.float32)),
    one=(normal(1, 4), np.linspace(0, 1, 17).astype(np.float32)),
)
def runge_kutta(y: Any, times: Any) -> Any:
    def f(t: Any, y: Any) -> Any:
        q, p = jnp.split(y, 2, axis=-1)
        return jnp.concatenate([p, -jnp.sin(q) - 0.1 * p + 0.1 * jnp.cos(t)], axis=-1)

    def step(y: Any, ts: Any) -> Any:
        t, h = ts
        k1 = f(t, y)
        k2 = f(t + h / 2, y + h / 2 * k1)
        k3 = f(t + h / 2, y + h / 2 * k2)
        k4 = f(t + h, y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y, y

    return lax.scan(step, y, (times[:-1], jnp.diff(times)))[1]


@IDIOMS.on(
    bodies=(normal(17, 3), normal(17, 3, name="v"), uniform(17)), one=(normal(1, 3), normal(1, 3, name="v"), uniform(1))
)
def n_body(position: Any, velocity: Any, mass: Any) -> Any:
    def potential(p: Any) -> Any:
        apart = p[:, None] - p[None]
        squared = jnp.sum(apart**2, -1) + 0.01
        pairs = -mass[:, None] * mass[None] * lax.rsqrt(squared)
        return 0.5 * jnp.sum(jnp.where(jnp.eye(p.shape[0], dtype=bool), 0.0, pairs))

    def step(state: Any, _: Any) -> Any:
        p, v = state
        v = v - 0.01 * jax.grad(potential)(p) / mass[:, None]
        p = p + 0.01 * v
        return (p, v), potential(p)

    return lax.scan(step, (position, velocity), None, length=5)


@IDIOMS.on(
    field=(normal(17, 33),),
    line=(normal(64),),
    row=(normal(1, 64),),
)
def finite_differences(u: Any) -> Any:
    inner = u[1:-1] if u.ndim == 1 else u[:, 1:-1]
    left, right = (u[..., :-2], u[..., 2:])
    laplacian = sum(jnp.roll(u, 1, d) + jnp.roll(u, -1, d) - 2 * u for d in range(u.ndim))
    upwind = jnp.where(inner > 0, inner - left, right - inner)
    limited = jnp.minimum(jnp.abs(inner - left), jnp.abs(right - inner)) * jnp.sign(inner)
    return u + 0.1 * laplacian, u.at[..., 1:-1].add(-0.1 * inner * upwind), limited, jnp.gradient(u, axis=-1)


@IDIOMS.on(system=(normal(3, 5), normal(3), normal(4, 3)), one=(normal(1, 64), normal(1), normal(64, 1)))
def jacobians_and_hessians(w: Any, b: Any, x: Any) -> Any:
    def f(v: Any) -> Any:
        return jnp.tanh(w.T @ v).sum() + v @ v

    h = jax.hessian(f)(b)
    product = jax.jvp(jax.grad(f), (b,), (jnp.ones_like(b),))[1]
    return (
        h,
        product,
        jax.jacfwd(lambda v: jnp.sin(w.T @ v))(b),
        jax.jacrev(lambda v: w.T @ v * v.sum())(b),
        jax.vmap(f)(x),
    )


@IDIOMS.on(
    signal=(normal(65), normal(7)),
    long=(normal(1000), normal(17)),
    one=(
        normal(
            1,
        ),
        normal(3),
    ),
)
def one_dimensional_convolution(x: Any, k: Any) -> Any:
    return jnp.convolve(x, k), jnp.convolve(x, k, mode="same"), jnp.correlate(k, k, mode="full")


@IDIOMS.on(
    system=(uniform(33, low=2, high=3), uniform(33, low=-1, high=0), uniform(33, low=-1, high=0, name="u"), normal(33)),
    long=(
        uniform(257, low=2, high=3),
        uniform(257, low=-1, high=0),
        uniform(257, low=-1, high=0, name="u"),
        normal(257),
    ),
)
def tridiagonal_solve(d: Any, lower: Any, upper: Any, b: Any) -> Any:
    def forward(carry: Any, row: Any) -> Any:
        c, y = carry
        d, lo, up, rhs = row
        scale = d - lo * c
        out = (up / scale, (rhs - lo * y) / scale)
        return out, out

    _, (c, y) = lax.scan(forward, (0.0, 0.0), (d, lower.at[0].set(0), upper.at[-1].set(0), b))
    _, x = lax.scan(lambda x, cy: (cy[1] - cy[0] * x,) * 2, 0.0, (c, y), reverse=True)
    return x
