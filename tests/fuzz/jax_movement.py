"""Pieces of random JAX functions: data movement, indexing, gather and scatter."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.fuzz.jax_composer import MAX_ELEMENTS, Array, Composer, is_float, is_number, piece


@piece(5)
def reshape(c: Composer) -> Array:
    v = c.some()
    left: int = v.size
    dims: list[int] = []
    while left > 1 and len(dims) < 3:
        dims.append(c.pick([d for d in range(1, left + 1) if left % d == 0][:40]))
        left //= dims[-1]
    if left != 1 or c.chance(0.3):
        dims.insert(c.between(0, len(dims)), left)
    return c.pick((lambda: v.reshape(dims), lambda: v.reshape(dims), lambda: v.ravel(), lambda: v.reshape(-1, 1)))()


@piece(4)
def transpose(c: Composer) -> Array:
    v = c.some(lambda v: v.ndim > 1)
    forms = (
        lambda: v.T,
        lambda: jnp.transpose(v, tuple(map(int, c.rng.permutation(v.ndim)))),
        lambda: jnp.swapaxes(v, c.axis(v), c.axis(v)),
        lambda: jnp.moveaxis(v, c.axis(v), c.axis(v)),
    )
    return c.pick(forms)()


@piece(5)
def units(c: Composer) -> Array:
    """Insertion and removal of dimensions of size 1."""
    v = c.some(lambda v: v.ndim < 5)
    forms = (
        lambda: jnp.squeeze(v),
        lambda: jnp.expand_dims(v, c.between(0, v.ndim)),
        lambda: v[..., None],
        lambda: v[None],
        lambda: v[:, None] if v.ndim else v[None, None],
        lambda: jnp.atleast_2d(v),
    )
    return c.pick(forms)()


@piece(4)
def broadcast(c: Composer) -> Array:
    v = c.some(lambda v: v.ndim < 4 and v.size < 4000)
    forms = (
        lambda: jnp.broadcast_to(v, (c.size(), *v.shape)),
        lambda: jnp.broadcast_to(v, tuple(c.size() if n == 1 else n for n in v.shape)),
        lambda: jnp.tile(v, c.between(1, 3)),
        lambda: jnp.repeat(v, c.between(1, 3), axis=c.axis(v) if v.ndim else None),
        lambda: jnp.kron(v, jnp.ones((2,), v.dtype)) if v.ndim == 1 else jnp.tile(v, 2),
    )
    return c.pick(forms)()


@piece(5)
def slices(c: Composer) -> Array:
    v = c.ranked(lambda v: v.size > 0)
    spec: list[Any] = []
    for n in v.shape:
        kind = c.between(0, 5)
        start = c.between(0, n - 1)
        spec.append(
            (
                slice(None), slice(start, None), slice(None, n - start), slice(None, None, 2), slice(None, None, -1),
                start - n if c.chance(0.3) else start,
            )[kind]
        )  # fmt: skip
    return v[tuple(spec)]


@piece(3)
def order(c: Composer) -> Array:
    v = c.ranked()
    axis = c.axis(v)
    forms = (
        lambda: jnp.flip(v, axis),
        lambda: jnp.roll(v, c.pick((1, -1, 3, 50)), axis),
        lambda: jnp.roll(v, 2),
        lambda: jnp.rot90(v) if v.ndim == 2 else jnp.flip(v, axis),
        lambda: jnp.diff(v, axis=axis),
    )
    return c.pick(forms)()


@piece(4)
def join(c: Composer) -> Array:
    v = c.ranked(lambda v: v.size < MAX_ELEMENTS // 4)
    axis = c.axis(v)
    same = [o for o in c.values if o.shape == v.shape and o.dtype == v.dtype]
    parts = [v, *(c.pick(same) for _ in range(c.between(1, 3)))]
    forms = (
        lambda: jnp.concatenate(parts, axis=axis),
        lambda: jnp.stack(parts, axis=axis),
        lambda: jnp.concatenate([v, lax.slice_in_dim(v, 0, min(1, v.shape[axis]), axis=axis)], axis=axis),
        lambda: jnp.hstack(parts),
        lambda: jnp.stack([jnp.sum(p) for p in parts]),
        lambda: jnp.append(v, parts[-1]),
    )
    return c.pick(forms)()


@piece(2)
def split(c: Composer) -> Array:
    v = c.ranked(lambda v: v.size > 0)
    axis = c.between(0, v.ndim - 1)
    n = v.shape[axis]
    if c.chance(0.5):
        return jnp.split(v, [c.between(0, n)], axis=axis)
    return jnp.array_split(v, c.between(1, min(3, n)), axis=axis)


@piece(3)
def pad(c: Composer) -> Array:
    v = c.ranked(lambda v: v.size < MAX_ELEMENTS // 4)
    if c.chance(0.4) and v.dtype != bool:
        config = [(c.between(-1, 2), c.between(-1, 2), c.pick((0, 0, 1))) for _ in v.shape]
        return lax.pad(v, jnp.zeros((), v.dtype), config)
    width = [(c.between(0, 2), c.between(0, 2)) for _ in v.shape]
    return jnp.pad(v, width, mode=c.pick(("constant", "constant", "edge", "reflect", "wrap", "symmetric")))


@piece(2)
def triangles(c: Composer) -> Array:
    v = c.some(lambda v: v.ndim >= 2 and is_number(v))
    forms = (
        lambda: jnp.tril(v, c.between(-1, 1)),
        lambda: jnp.triu(v),
        lambda: jnp.diagonal(v),
        lambda: jnp.trace(v),
        lambda: jnp.where(jnp.tri(v.shape[-2], v.shape[-1], dtype=bool), v, -1e9 if is_float(v) else 0),
    )
    return c.pick(forms)()


# ---- indexing


def indices(c: Composer, n: int, dims: tuple[int, ...], unique: bool = False) -> Array:
    """Return random indices into a dimension of size `n`; some are out of range, some negative."""
    if unique:
        return jnp.asarray(c.rng.permutation(n)[: int(np.prod(dims))].reshape(dims).astype(np.int32))
    kind = c.rng.random()
    if kind < 0.35:
        try:
            v = c.some(lambda v: v.dtype in (jnp.int32, jnp.uint8, jnp.int64) and v.shape == dims)
            return v if c.chance(0.4) else v % max(1, n)
        except ValueError:
            pass
    low, high = (0, max(1, n)) if kind < 0.8 else (-n - 2, n + 3)
    return jnp.asarray(c.rng.integers(low, high, dims).astype(c.pick((np.int32, np.int32, np.int64, np.int8))))


@piece(5)
def take(c: Composer) -> Array:
    v = c.ranked(lambda v: v.size > 0)
    axis = c.between(0, v.ndim - 1)
    n = v.shape[axis]
    count = c.pick((1, 3, 5, 17))
    i = indices(c, n, (count,))
    forms = (
        lambda: jnp.take(v, i, axis=axis, mode=c.pick((None, "clip", "wrap", "fill"))),
        lambda: v[i] if axis == 0 else jnp.take(v, i, axis=axis),
        lambda: v.at[i].get(mode=c.pick(("fill", "clip", "promise_in_bounds"))) if n > 40 else v[i],
        lambda: v[indices(c, v.shape[0], (2, 3))],
        lambda: v[indices(c, v.shape[0], ())],
        lambda: v[:, indices(c, v.shape[1], (3,))],
        lambda: v[indices(c, v.shape[0], (4,)), indices(c, v.shape[1], (4,))],
        lambda: jnp.take_along_axis(v, jnp.argsort(v, axis=axis), axis=axis),
        lambda: jnp.take_along_axis(v, jnp.argmax(v, axis=axis, keepdims=True), axis=axis),
    )
    return c.pick(forms)()


@piece(5)
def scatter(c: Composer) -> Array:
    v = c.ranked(lambda v: v.size > 0 and v.dtype != bool and not jnp.iscomplexobj(v))
    n = v.shape[0]
    i = indices(c, n, (c.pick((1, 3, 5, 17)),), unique=c.chance(0.2))
    mode = c.pick((None, None, "drop", "clip"))
    rest = v.shape[1:]
    u = c.constant((*i.shape, *rest), v.dtype) if c.chance(0.5) else jnp.asarray(2, v.dtype)
    at = v.at[i]
    forms = (
        lambda: at.add(u, mode=mode), lambda: at.add(u, mode=mode), lambda: at.max(u, mode=mode),
        lambda: at.min(u, mode=mode), lambda: at.multiply(u, mode=mode), lambda: at.set(jnp.asarray(3, v.dtype)),
        lambda: v.at[indices(c, n, i.shape, unique=True)].set(u[: min(n, len(u))] if u.ndim else u),
        lambda: v.at[c.between(0, n - 1)].set(0), lambda: v.at[..., 0].add(1), lambda: v.at[:, 1:].multiply(2),
        lambda: v.at[indices(c, n, ())].set(1), lambda: v.at[::2].set(-v[::2]),
        lambda: v.at[indices(c, n, (3,)), indices(c, v.shape[1], (3,))].add(1),
        lambda: jnp.zeros((7, *rest), v.dtype).at[indices(c, 7, (n,))].add(v),
        lambda: jnp.zeros((n,), v.dtype).at[jnp.argsort(v.reshape(n, -1)[:, 0])].set(v.reshape(n, -1)[:, 0]),
    )  # fmt: skip
    return c.pick(forms)()


@piece(4)
def dynamic(c: Composer) -> Array:
    v = c.ranked(lambda v: v.size > 0)
    starts = [indices(c, n, ()) for n in v.shape]
    starts = [s.astype(jnp.int32) for s in starts]
    dims = tuple(c.between(1, n) for n in v.shape)
    forms = (
        lambda: lax.dynamic_slice(v, starts, dims),
        lambda: lax.dynamic_update_slice(v, c.constant(dims, v.dtype), starts),
        lambda: lax.dynamic_index_in_dim(v, starts[0], 0, keepdims=c.chance(0.5)),
        lambda: lax.dynamic_update_index_in_dim(v, v[0] * 2, starts[0], 0),
        lambda: lax.dynamic_slice_in_dim(v, starts[-1], dims[-1], axis=v.ndim - 1),
    )
    return c.pick(forms)()


@piece(3)
def one_hot(c: Composer) -> Array:
    v = c.some(lambda v: jnp.issubdtype(v.dtype, jnp.integer) and v.size < 1000)
    classes = c.pick((3, 5, 17, 40))
    return jax.nn.one_hot(v, classes, dtype=c.pick((jnp.float32, jnp.float32, jnp.bfloat16, jnp.int32)))


@piece(1)
def masked(c: Composer) -> Array:
    v = c.ranked(lambda v: is_number(v) and 0 < v.size < 3000)
    forms = (
        lambda: jnp.nonzero(v.ravel() > 0, size=6, fill_value=0)[0],
        lambda: jnp.sum(v, where=v > 0),
        lambda: jnp.max(v, where=v < 1, initial=-3),
        lambda: jnp.mean(v.astype(jnp.float32), where=v > 0),
        lambda: jnp.argwhere(v.ravel() > 0, size=4, fill_value=-1),
        lambda: jnp.extract(v > 0, v, size=5),
        lambda: jnp.choose(jnp.clip(v.astype(jnp.int32), 0, 1), [v, v * 2]),
        lambda: jnp.select([v > 1, v < -1], [v, -v], 0),
        lambda: jnp.piecewise(v, [v < 0], [lambda x: -x, lambda x: x * 2]),
        lambda: jnp.interp(v.astype(jnp.float32), jnp.arange(5.0), jnp.arange(5.0) ** 2),
    )
    return c.pick(forms)()
