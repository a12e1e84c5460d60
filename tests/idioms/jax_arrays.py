"""JAX idioms for arrays: sorting, segments, cumulative sums, indexing, products, integers, complex numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.idioms.collection import Idioms, booleans, integers, normal, uniform

IDIOMS = Idioms()


@IDIOMS.on(
    table=(np.linspace(0, 5, 33).astype(np.float32), normal(33), uniform(100, low=-1, high=6)),
    two=(np.array([0.0, 1.0], np.float32), normal(2), uniform(65, low=-1, high=2)),
)
def interpolation_with_searchsorted(xs: Any, ys: Any, x: Any) -> Any:
    i = jnp.clip(jnp.searchsorted(xs, x, side="right"), 1, xs.shape[0] - 1)
    t = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
    return ys[i - 1] * (1 - t) + ys[i] * t, jnp.interp(x, xs, ys), jnp.searchsorted(xs, x), jnp.digitize(x, xs)


@IDIOMS.on(values=(normal(200),), one=(normal(1),), column=(normal(64, 1),))
def histogram_and_quantiles(x: Any) -> Any:
    counts, edges = jnp.histogram(x, bins=10, range=(-2.0, 2.0))
    return counts, edges, jnp.quantile(x, jnp.array([0.1, 0.5, 0.9])), jnp.median(x), jnp.percentile(x, 30, axis=0)


@IDIOMS.on(
    rows=(normal(64, 3), np.sort(integers(64, high=9))),
    one=(normal(64, 1), integers(64, high=9)),
    vector=(normal(1000), integers(1000, high=9)),
    none=(normal(0, 17), integers(0, high=9)),
)
def segment_reductions(x: Any, ids: Any) -> Any:
    total = jax.ops.segment_sum(x, ids, 9)
    count = jnp.bincount(ids, length=9)
    mean = total / jnp.maximum(count, 1).reshape((-1,) + (1,) * (x.ndim - 1))
    return (
        total,
        mean,
        jax.ops.segment_max(x, ids, 9),
        jax.ops.segment_min(x, ids, 9),
        jax.ops.segment_prod(x, ids, 9),
        x - mean[ids],
        jax.nn.one_hot(ids, 9).T @ x,
    )


@IDIOMS.on(rows=(normal(5, 33),), one=(normal(1, 64),), column=(normal(64, 1),), ints=(integers(4, 65, high=10),))
def ranking_and_order(x: Any) -> Any:
    order = jnp.argsort(x, axis=-1)
    ranks = jnp.argsort(order, axis=-1)
    best, at = lax.top_k(x, 1)
    return (
        order,
        ranks,
        jnp.sort(x, axis=0),
        jnp.argmax(x, axis=0),
        jnp.argmin(x),
        best,
        at,
        jnp.flip(jnp.sort(x, -1), -1),
        jnp.take_along_axis(x, order[:, ::-1], -1),
        jnp.lexsort((x[:, 0], -x[:, 0])),
        jnp.unravel_index(jnp.argmax(x), x.shape),
    )


@IDIOMS.on(
    rows=(uniform(5, 67, low=0.8, high=1.2),),
    one=(uniform(1, 64, low=0.8, high=1.2),),
    column=(uniform(64, 1, low=0.5),),
    ints=(integers(3, 33, low=-3, high=4),),
)
def cumulative_products_and_extremes(x: Any) -> Any:
    alphas = jnp.cumprod(x, axis=1)
    shifted = jnp.concatenate([jnp.ones_like(x[:, :1]), alphas[:, :-1]], axis=1)
    return (
        alphas,
        shifted,
        jnp.cumsum(x[:, ::-1], axis=1)[:, ::-1],
        lax.cummax(x, axis=0),
        lax.cummin(x, axis=1, reverse=True),
        jnp.cumsum(x),
        jnp.diff(x, axis=1),
        jnp.prod(x, axis=1),
        jnp.cumsum(x, axis=0) / jnp.arange(1, x.shape[0] + 1)[:, None],
    )


@IDIOMS.on(
    numbers=(integers(65, high=1 << 30, dtype=np.uint32), integers(65, low=-100, high=100)),
    row=(integers(1, 64, high=1 << 30, dtype=np.uint32), integers(1, 64, low=-100, high=100)),
)
def integer_arithmetic(u: Any, s: Any) -> Any:
    hashed = (u ^ (u >> 16)) * jnp.uint32(0x45D9F3B)
    hashed = (hashed ^ (hashed >> 16)) * jnp.uint32(0x45D9F3B)
    return (
        hashed,
        hashed % 10,
        s // 7,
        s % 7,
        jnp.fmod(s, 7),
        jnp.remainder(-s, 5),
        lax.population_count(u),
        s << 3,
        jnp.bitwise_and(s, 15),
        (s > 0) ^ (u > 5),
        s.sum(),
        jnp.prod(s),
        jnp.floor_divide(s, jnp.where(s == 0, 1, s)),
        (hashed >> 8).astype(jnp.float32) / (1 << 24),
        lax.clz(u),
        s.astype(jnp.int8),
        jnp.abs(s) ** 2,
        jnp.gcd(s, 12),
    )


@IDIOMS.on(x64=True, doubles=(np.float64(0.3) + normal(33, dtype=np.float64), integers(33, high=9, dtype=np.int64)))
def double_precision(x: Any, n: Any) -> Any:
    compensated = lax.scan(lambda c, v: (((t := c[0] + (v - c[1])), (t - c[0]) - (v - c[1])), None), (0.0, 0.0), x)[0][
        0
    ]
    return (
        compensated,
        jnp.std(x),
        jax.nn.softmax(x),
        jnp.power(x, n),
        lax.erf(x),
        jnp.linalg.norm(x),
        n * (1 << 40),
        jnp.argsort(x),
    )


@IDIOMS.on(
    tensors=(normal(3, 5, 17), normal(17, 5, 4), normal(3, 4)),
    one=(normal(1, 1, 64), normal(64, 1, 3), normal(1, 3)),
)
def einsum_of_many_kinds(a: Any, b: Any, c: Any) -> Any:
    return (
        jnp.einsum("bik,kij->bj", a, b),
        jnp.einsum("bik,kij,bj->b", a, b, c),
        jnp.einsum("bik->kb", a),
        jnp.einsum("bik->i", a),
        jnp.einsum("bik,bjk->bij", a, a),
        jnp.tensordot(a, b, ((2, 1), (0, 1))),
        jnp.einsum("...k,k...->...", a[0], b[..., 0]),
        jnp.einsum("bj,bj->b", c, c),
        jnp.einsum("bj,cj->bc", c, c).trace(),
        jnp.outer(c[0], c[0]),
        jnp.kron(c, c[:, :1]),
    )


@IDIOMS.on(complex=(normal(33), normal(33, name="i")), one=(normal(1), normal(1, name="i")))
def complex_numbers(re: Any, im: Any) -> Any:
    z = re + 1j * im
    w = jnp.exp(1j * re) * z.conj()
    return (
        jnp.abs(z),
        jnp.angle(z),
        w.real,
        w.imag,
        (z * w).sum(),
        jnp.abs(z) ** 2,
        lax.complex(re, im) / (z + 2),
        z.mean(),
    )


@IDIOMS.on(
    gather=(normal(17, 33), integers(5, 7, high=17), integers(5, 7, high=33, name="c"), booleans(17, 33)),
    one=(normal(1, 64), integers(5, 1, high=1), integers(5, 1, high=64, name="c"), booleans(1, 64)),
)
def indexing_and_updates(x: Any, rows: Any, columns: Any, mask: Any) -> Any:
    flat = x.reshape(-1)
    return (
        x[rows, columns],
        x[:, columns[0]],
        x[rows[:, 0]],
        x.at[rows, columns].add(1.0),
        x.at[rows[0]].set(0.0),
        x.at[:, -1].mul(2.0),
        x.at[rows, columns].max(0.5),
        jnp.where(mask, x, 0),
        x[::2, ::-3],
        flat[jnp.arange(0, flat.size, 5)],
        jnp.select([x > 1, x > 0], [x, -x], 9.0),
        jnp.nonzero(mask.ravel(), size=20, fill_value=-1)[0],
        x[..., None].squeeze(-1),
        jnp.extract(mask, x, size=10, fill_value=0),
        jax.lax.dynamic_slice(x, (rows[0, 0], columns[0, 0]), (1, 3)),
        jnp.piecewise(x, [x < 0, x >= 0], [lambda v: -v, lambda v: v * 2]),
    )
