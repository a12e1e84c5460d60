"""Pieces of random JAX functions: reductions, scans along an axis, softmax and normalisations, sorting."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.fuzz import sizes
from tests.fuzz.jax_composer import Array, Composer, is_float, is_integer, is_number, piece


@piece(12)
def reduce(c: Composer) -> Array:
    v = c.some(is_number)
    op = c.pick((jnp.sum, jnp.sum, jnp.sum, jnp.mean, jnp.mean, jnp.max, jnp.max, jnp.min, jnp.prod))
    if op is jnp.prod and is_float(v):
        v = jnp.tanh(v) + 0.7
    return op(v, axis=c.axes(v), keepdims=c.chance(0.3))


@piece(4)
def moments(c: Composer) -> Array:
    v = c.some_float()
    op = c.pick((jnp.var, jnp.std, jnp.ptp, jnp.nansum, jnp.nanmean, jnp.nanmax, jnp.average))
    return op(v, axis=c.axes(v)) if op is jnp.average else op(v, axis=c.axes(v), keepdims=c.chance(0.3))


@piece(5)
def norm(c: Composer) -> Array:
    v = c.some_float()
    forms: tuple[Any, ...] = (
        lambda: jnp.sqrt(jnp.sum(v * v)),
        lambda: jnp.linalg.norm(v) if v.ndim else jnp.abs(v),
        lambda: jnp.linalg.norm(v, axis=c.axis(v), keepdims=c.chance(0.5)),
        lambda: jnp.sum(jnp.abs(v), axis=c.axes(v)),
        lambda: jnp.max(jnp.abs(v), axis=c.axes(v)),
        lambda: v / (jnp.linalg.norm(v, axis=-1, keepdims=True) + 1e-6),
        lambda: jnp.vdot(v, v),
    )
    return c.pick(forms)()


@piece(5)
def same_elements_reduced_twice(c: Composer) -> Array:
    """Reductions of the same elements in two shapes that differ in dimensions of size 1, used together."""
    v = c.ranked(lambda v: is_number(v) and v.ndim <= 3)
    others = [v.reshape(sizes.with_units(c.rng, v.shape)) for _ in range(c.between(1, 3))]
    op = c.pick((jnp.sum, jnp.max, jnp.mean))
    parts = []
    for o in (v, *others):
        long = [d for d, n in enumerate(o.shape) if n != 1]
        axes = None if not long or c.chance(0.3) else c.pick(long)
        parts.append(op(o * o if c.chance(0.5) else o, axis=axes, keepdims=c.chance(0.2)))
    if c.chance(0.4):
        parts.append(sum(jnp.sum(p) for p in parts))
    return parts


@piece(3)
def chosen_elements(c: Composer) -> Array:
    v = c.ranked(is_number)
    op = c.pick((jnp.argmax, jnp.argmin, jnp.nanargmax))
    return op(v, axis=None if c.chance(0.2) else c.axis(v), keepdims=c.chance(0.2))


@piece(3)
def truth(c: Composer) -> Array:
    v = c.some()
    m = v if v.dtype == bool else v > 0 if is_number(v) else v != 0
    return c.pick((jnp.any, jnp.all, jnp.sum, jnp.count_nonzero, jnp.mean))(m, axis=c.axes(m))


@piece(3)
def logsumexp(c: Composer) -> Array:
    v = c.some_float()
    return jax.nn.logsumexp(v, axis=c.axes(v), keepdims=c.chance(0.4))


@piece(4)
def cumulative(c: Composer) -> Array:
    v = c.ranked(lambda v: is_number(v) and v.size < 10_000)
    axis = c.between(0, v.ndim - 1)
    reverse = c.chance(0.3)
    op = c.pick((lax.cumsum, lax.cumsum, lax.cummax, lax.cummin, lax.cumprod, lax.cumlogsumexp))
    if op is lax.cumlogsumexp and not is_float(v):
        op = lax.cumsum
    if op is lax.cumprod and is_float(v):
        v = jnp.tanh(v) + 0.8
    return op(v, axis=axis, reverse=reverse)


@piece(6)
def softmax(c: Composer) -> Array:
    v = c.some_float(lambda v: v.ndim > 0)
    axis = c.axes(v)
    mask = c.chance(0.2)
    if mask:
        v = jnp.where(v > 0, v, c.pick((-1e9, -jnp.inf)) if v.dtype != jnp.float16 else -6e4)
    return c.pick((jax.nn.softmax, jax.nn.log_softmax))(v, axis=axis)


@piece(6)
def normalise(c: Composer) -> Array:
    v = c.some_float(lambda v: v.ndim > 0)
    axes = c.axes(v)
    kind = c.between(0, 5)
    mean = jnp.mean(v, axes, keepdims=True)
    var = jnp.var(v, axes, keepdims=True)
    if kind == 0:
        return (v - mean) / jnp.sqrt(var + 1e-5)
    if kind == 1:
        return (v - mean) * lax.rsqrt(var + 1e-5) * c.constant((v.shape[-1],), v.dtype) + 0.1
    if kind == 2:
        return v * lax.rsqrt(jnp.mean(v * v, axes, keepdims=True) + 1e-6)
    if kind == 3:
        return jax.nn.standardize(v, axis=axes)
    if kind == 4:
        low, high = jnp.min(v, axes, keepdims=True), jnp.max(v, axes, keepdims=True)
        return (v - low) / (high - low + 1e-6)
    return v - mean, var, mean


@piece(4)
def sort(c: Composer) -> Array:
    v = c.ranked(lambda v: is_number(v) and v.size < 10_000)
    axis = c.axis(v)
    forms = (
        lambda: jnp.sort(v, axis=axis, descending=c.chance(0.3)),
        lambda: jnp.argsort(v, axis=axis, descending=c.chance(0.3)),
        lambda: lax.top_k(v, min(v.shape[-1], c.between(1, 5))),
        lambda: lax.sort((v, jnp.broadcast_to(jnp.arange(v.shape[-1]), v.shape)), dimension=v.ndim - 1, num_keys=1),
        lambda: lax.sort((v % 3, v), dimension=0, num_keys=2),
        lambda: jnp.median(v, axis=axis),
        lambda: jnp.quantile(v.astype(jnp.float32), 0.3, axis=axis),
        lambda: jnp.searchsorted(jnp.sort(v.ravel()), v.ravel()[:7]),
        lambda: jnp.unique(v, size=5, fill_value=0) if v.size < 500 else None,
        lambda: jnp.lexsort((v.ravel(), v.ravel() > 0)) if v.size < 500 else None,
    )
    return c.pick(forms)()


def _least(v: Array) -> Array:
    """Return the neutral element of the maximum."""
    return jnp.asarray(-jnp.inf if is_float(v) else np.iinfo(v.dtype).min, v.dtype)


@piece(1)
def general_reduce(c: Composer) -> Array:
    """`lax.reduce` with custom reducers, in the operand's type."""
    v = c.ranked(is_number)
    axes = tuple(sorted(map(int, c.rng.permutation(v.ndim)[: c.between(1, v.ndim)])))
    zero = jnp.zeros((), v.dtype)
    least = _least(v)
    forms = (
        lambda: lax.reduce(v, zero, lax.add, axes),
        lambda: lax.reduce(v, least, lax.max, axes),
        lambda: lax.reduce(v, zero, lambda a, b: jnp.maximum(jnp.abs(a), jnp.abs(b)), axes),
        lambda: lax.reduce((v, v * 2), (least, zero), lambda a, b: (jnp.maximum(a[0], b[0]), a[1] + b[1]), axes),
        lambda: lax.reduce(v > 0, False, lax.bitwise_or, axes),
        lambda: lax.reduce(v, zero, lax.bitwise_xor, axes) if is_integer(v) else lax.reduce(v, -least, lax.min, axes),
    )
    return c.pick(forms)()


@piece(2)
def windows(c: Composer) -> Array:
    """Pooling and moving sums."""
    v = c.ranked(lambda v: is_number(v) and 0 < v.size < 10_000)
    window = tuple(min(n, c.pick((1, 2, 3))) for n in v.shape)
    strides = tuple(c.pick((1, 1, 2)) for _ in v.shape)
    padding = c.pick(("VALID", "SAME"))
    kind = c.between(0, 2)
    if kind == 0:
        return lax.reduce_window(v, jnp.zeros((), v.dtype), lax.add, window, strides, padding)
    if kind == 1:
        return lax.reduce_window(v, _least(v), lax.max, window, strides, padding)
    ones = lax.reduce_window(jnp.ones_like(v), jnp.zeros((), v.dtype), lax.add, window, strides, padding)
    return lax.reduce_window(v, jnp.zeros((), v.dtype), lax.add, window, strides, padding) / ones


@piece(1)
def histogram(c: Composer) -> Array:
    v = c.ranked(lambda v: is_number(v) and v.size < 5000)
    forms = (
        lambda: jnp.bincount(jnp.abs(v.astype(jnp.int32)).ravel() % 11, length=11),
        lambda: jnp.histogram(v.astype(jnp.float32), bins=7, range=(-3, 3))[0],
        lambda: jnp.digitize(v.astype(jnp.float32), jnp.array([-1.0, 0.0, 1.0, 2.0])),
        lambda: jax.ops.segment_sum(v.ravel(), jnp.arange(v.size) % 5, num_segments=c.pick((4, 5, 17))),
        lambda: jax.ops.segment_max(v.ravel(), jnp.arange(v.size) // 4, num_segments=5),
    )
    return c.pick(forms)()
