"""Pieces of random JAX functions: products, convolutions, attention, linear algebra."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.fuzz.jax_composer import Array, Composer, is_float, is_number, piece

MAX_PRODUCT = 3_000_000


def _fits(v: Array) -> bool:
    return is_number(v) and v.ndim > 0 and v.size < 10_000


def _weights(c: Composer, inner: int, outer: int, dtype: Any) -> Array:
    """Return a matrix to multiply with: an existing value or a constant."""
    found = [v for v in c.values if v.shape == (inner, outer) and v.dtype == dtype]
    if found:
        return c.pick(found)
    return c.constant((inner, outer), dtype)


@piece(6)
def product(c: Composer) -> Array:
    v = c.some(_fits)
    k, n = v.shape[-1], c.size()
    if v.size * n > MAX_PRODUCT or k * n > 40_000:
        n = c.pick((1, 3, 17))
    w = _weights(c, k, n, v.dtype)
    forms = (
        lambda: v @ w,
        lambda: jnp.dot(v, w),
        lambda: jnp.einsum("...i,ij->...j", v, w),
        lambda: lax.dot_general(v, w, (((v.ndim - 1,), (0,)), ((), ())), preferred_element_type=jnp.float32),
        lambda: v @ w + c.constant((n,), v.dtype),
        lambda: jnp.tanh(v @ w) if is_float(v) else v @ w,
        lambda: (w.T @ v[..., None])[..., 0],
        lambda: v @ c.constant((k,), v.dtype),
    )
    return c.pick(forms)()


@piece(4)
def self_product(c: Composer) -> Array:
    v = c.some(lambda v: _fits(v) and v.ndim >= 2 and v.size * max(v.shape[-2:]) < MAX_PRODUCT)
    forms = (
        lambda: v @ jnp.swapaxes(v, -1, -2),
        lambda: jnp.swapaxes(v, -1, -2) @ v,
        lambda: jnp.einsum("...ij,...kj->...ik", v, v),
        lambda: jnp.einsum("...ij,...ij->...i", v, v),
        lambda: jnp.tensordot(v, v, axes=v.ndim),
        lambda: jnp.einsum("...ij->...j", v),
        lambda: jnp.inner(v[0], v[0]),
        lambda: jnp.vecdot(v, v[..., ::-1]),
    )
    return c.pick(forms)()


@piece(2)
def outer(c: Composer) -> Array:
    v = c.some(lambda v: is_number(v) and v.ndim == 1 and v.size < 150)
    w = c.some(lambda w: w.ndim == 1 and w.dtype == v.dtype and w.size < 150)
    return c.pick((jnp.outer, lambda a, b: a[:, None] - b[None, :], lambda a, b: a[:, None] * b, jnp.subtract.outer))(
        v, w
    )


@piece(3)
def pairwise(c: Composer) -> Array:
    """Distances between rows."""
    v = c.some_float(lambda v: v.ndim == 2 and v.shape[0] ** 2 * v.shape[1] < 40_000)
    forms = (
        lambda: jnp.sum((v[:, None] - v[None]) ** 2, -1),
        lambda: jnp.sum(v * v, -1)[:, None] - 2 * v @ v.T + jnp.sum(v * v, -1)[None],
        lambda: jnp.max(jnp.abs(v[:, None] - v[None]), -1),
        lambda: v @ v.T / (jnp.linalg.norm(v, axis=1)[:, None] * jnp.linalg.norm(v, axis=1)[None] + 1e-3),
    )
    return c.pick(forms)()


@piece(3)
def attention(c: Composer) -> Array:
    v = c.some_float(lambda v: v.ndim in (2, 3) and 0 < v.size < 4000 and v.shape[-2] < 130)
    if v.ndim == 2:
        v = v[None]
    t, d = v.shape[-2:]
    q, k = v, v * 0.5
    if c.chance(0.5) and d < 70:
        q = v @ _weights(c, d, d, v.dtype)
    scores = jnp.einsum("btd,bsd->bts", q, k) / np.sqrt(max(1, d)).astype(v.dtype)
    kind = c.between(0, 2)
    if kind == 1:
        scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9 if v.dtype != jnp.float16 else -6e4)
    elif kind == 2:
        scores = jnp.where(jnp.arange(t) < max(1, t - 2), scores, np.finfo(np.float32).min / 2)
    return jax.nn.softmax(scores, -1) @ v


@piece(3)
def convolution(c: Composer) -> Array:
    v = c.some(lambda v: is_number(v) and v.ndim > 0 and 0 < v.size < 4000)
    kind = c.between(0, 4)
    if kind == 0:
        x = v.ravel()[:400]
        return jnp.convolve(x, c.constant((3,), v.dtype), mode=c.pick(("full", "same", "valid")))
    n = v.size
    features = c.pick([f for f in (1, 2, 3, 4, 8, 16, 17) if n % f == 0])
    if kind == 1:
        x = v.reshape(1, n // features, features)
        w = c.constant((c.pick((1, 2, 3)), features, c.pick((1, 3, 5))), v.dtype)
        return lax.conv_general_dilated(
            x, w, (c.pick((1, 2)),), c.pick(("SAME", "VALID")), dimension_numbers=("NWC", "WIO", "NWC"),
            rhs_dilation=(c.pick((1, 2)),),
        )  # fmt: skip
    rows = n // features
    width = c.pick([d for d in range(1, min(rows, 40) + 1) if rows % d == 0])
    x = v.reshape(1, features, rows // width, width)
    groups = features if c.chance(0.2) else 1
    w = c.constant((c.pick((1, 2)) * groups, features // groups, c.pick((1, 2, 3)), c.pick((1, 3))), v.dtype)
    if kind == 2:
        return lax.conv_transpose(x, w, (1, 1), "SAME", dimension_numbers=("NCHW", "IOHW", "NCHW"))
    return lax.conv_general_dilated(
        x, w, (c.pick((1, 2)), 1), c.pick(("SAME", "VALID", [(1, 1), (2, 0)])), feature_group_count=groups,
        lhs_dilation=(c.pick((1, 1, 2)), 1),
    )  # fmt: skip


@piece(1)
def decomposition(c: Composer) -> Array:
    """Linear algebra, which JAX implements with LAPACK."""
    v = c.some_float(lambda v: v.ndim >= 2 and v.dtype in (jnp.float32, jnp.float64) and 0 < v.shape[-1] < 12)
    a = jnp.tanh(v[..., :1, :] if v.ndim > 2 else v)
    g = jnp.swapaxes(a, -1, -2) @ a / max(1, v.shape[-2]) + 2 * jnp.eye(v.shape[-1], dtype=v.dtype)
    forms = (
        lambda: jnp.linalg.cholesky(g),
        lambda: jnp.linalg.solve(g, jnp.ones((*g.shape[:-1], 1), g.dtype)),
        lambda: (
            jax.scipy.linalg.solve_triangular(g, jnp.ones(g.shape[-1], g.dtype)) if g.ndim == 2 else jnp.linalg.inv(g)
        ),
        lambda: jnp.linalg.det(g),
        lambda: jnp.linalg.slogdet(g)[1],
        lambda: jnp.linalg.eigvalsh(g),
        lambda: jnp.linalg.matrix_power(g / 4, 3),
    )
    return c.pick(forms)()


@piece(1)
def mixed_product(c: Composer) -> Array:
    """Products of half-precision or 8-bit types, accumulated in a wider type."""
    v = c.some(lambda v: _fits(v) and v.dtype in (jnp.bfloat16, jnp.float16, jnp.int8, jnp.uint8, jnp.float32))
    wide: Any = jnp.float32 if is_float(v) else jnp.int32
    w = c.constant((v.shape[-1], c.pick((1, 5, 17))), v.dtype)
    return lax.dot_general(v, w, (((v.ndim - 1,), (0,)), ((), ())), preferred_element_type=wide)
