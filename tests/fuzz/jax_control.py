"""Pieces of random JAX functions: scans, loops, branches, vmap, and random numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.fuzz.jax_composer import Array, Composer, fit, is_float, is_number, nesting, piece


def _carry(c: Composer) -> tuple[Array, ...]:
    """Return a few small values for a loop to carry."""
    fitting = [v for v in c.values if v.size < 3000 and not jnp.iscomplexobj(v)]
    return tuple(c.pick(fitting) for _ in range(c.between(1, 3)))


def _small(v: Array) -> Array:
    """Return the value limited to a small range, so that loops do not overflow."""
    return jnp.tanh(v) if is_float(v) and v.dtype.itemsize > 1 else v


def _next(inner: Composer, carry: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the carried values after a step; some are unchanged or swapped."""
    out = []
    for v in carry:
        kind = inner.between(0, 5)
        same = [o for o in carry if o.shape == v.shape and o.dtype == v.dtype]
        if kind == 0:
            out.append(inner.pick(same))
        else:
            out.append(_small(inner.like(v.shape, v.dtype)))
    return tuple(out)


@piece(5)
@nesting
def scan(c: Composer) -> Array:
    xs = c.ranked(lambda v: 0 < v.shape[0] <= 64 and v.size < 8000 and not jnp.iscomplexobj(v))
    length = xs.shape[0]
    more = [v for v in c.values if v.ndim and v.shape[0] == length and v.size < 8000 and not jnp.iscomplexobj(v)]
    xs = (xs, c.pick(more)) if c.chance(0.5) else (xs,)
    carry, seed, outside = _carry(c), c.seed(), [v for v in c.values if v.size < 500][-3:]
    emits = c.chance(0.8)

    def body(state: Any, x: Any) -> Any:
        inner = c.inner([*outside, *state, *x], seed)
        inner.steps(inner.between(1, 5))
        new = _next(inner, state)
        y = tuple(v for v in (inner.values[-1],) if v.size * length < 20_000) if emits else None
        return new, y

    return lax.scan(body, carry, xs, reverse=c.chance(0.25), unroll=c.pick((1, 1, 1, 2)))


@piece(3)
@nesting
def fori(c: Composer) -> Array:
    carry, seed, outside = _carry(c), c.seed(), [v for v in c.values if v.size < 500][-3:]
    trips = c.pick((0, 1, 2, 3, 5, 9, 20))

    def body(k: Any, state: Any) -> Any:
        inner = c.inner([*outside, *state, k], seed)
        inner.steps(inner.between(1, 4))
        new = list(_next(inner, state))
        if state[0].ndim and state[0].shape[0] > 1 and inner.chance(0.5):
            new[0] = state[0].at[k].set(fit(new[-1], state[0].shape[1:], state[0].dtype))
        return tuple(new)

    return lax.fori_loop(c.pick((0, 0, 1)), trips, body, carry)


@piece(2)
@nesting
def while_(c: Composer) -> Array:
    carry, seed = _carry(c), c.seed()
    limit = c.pick((0, 1, 4, 11))
    bound = c.uniform(-1, 3)
    watched = carry[0]

    def condition(state: Any) -> Any:
        go = state[0] < limit
        return go & (jnp.sum(state[1].astype(jnp.float32)) < bound * 100) if is_number(watched) else go

    def body(state: Any) -> Any:
        inner = c.inner([*state[1:], state[0]], seed)
        inner.steps(inner.between(1, 4))
        return (state[0] + 1, *_next(inner, state[1:]))

    return lax.while_loop(condition, body, (jnp.int32(0), *carry))


@piece(3)
@nesting
def branch(c: Composer) -> Array:
    operands, seeds = _carry(c), [c.seed() for _ in range(c.between(2, 3))]

    def make(seed: int) -> Any:
        def f(*values: Any) -> Any:
            inner = c.inner(values, seed)
            inner.steps(inner.between(1, 3))
            return tuple(inner.like(v.shape, v.dtype) for v in values)

        return f

    branches = [make(s) for s in seeds]
    v = c.some(lambda v: is_number(v) and v.size > 0)
    if len(branches) == 2 and c.chance(0.7):
        return lax.cond(v.ravel()[0] > 0, branches[0], branches[1], *operands)
    index = v.ravel()[0].astype(jnp.int32)
    return lax.switch(index if c.chance(0.3) else index % len(branches), branches, *operands)


@piece(4)
@nesting
def vmap(c: Composer) -> Array:
    v = c.ranked(lambda v: v.shape[0] > 0 and v.size < 8000)
    n = v.shape[0]
    others = [o for o in c.values if o.ndim and o.shape[0] == n and o.size < 8000]
    values = [v, *(c.pick(others) for _ in range(c.between(0, 2)))]
    shared, seed = [o for o in c.values if o.size < 200][-2:], c.seed()

    def f(*rows: Any) -> Any:
        inner = c.inner([*shared, *rows], seed)
        inner.steps(inner.between(1, 5))
        return tuple(inner.values[len(shared) + len(rows) :][-2:]) or rows[0]

    return jax.vmap(f, out_axes=c.pick((0, 0, -1)))(*values)


@piece(1)
@nesting
def mapped(c: Composer) -> Array:
    v = c.ranked(lambda v: 0 < v.shape[0] <= 40 and v.size < 4000 and not jnp.iscomplexobj(v))
    seed = c.seed()

    def f(row: Any) -> Any:
        inner = c.inner([row], seed)
        inner.steps(2)
        return inner.values[-1]

    return lax.map(f, v)


@piece(1)
def associative(c: Composer) -> Array:
    v = c.ranked(lambda v: is_number(v) and 0 < v.size < 4000)
    axis = c.between(0, v.ndim - 1)
    if c.chance(0.5):
        return lax.associative_scan(c.pick((jnp.add, jnp.maximum, jnp.minimum)), v, axis=axis, reverse=c.chance(0.3))
    decay = jax.nn.sigmoid(v.astype(jnp.float32))

    def combine(a: Any, b: Any) -> Any:
        return a[0] * b[0], b[0] * a[1] + b[1]

    return lax.associative_scan(combine, (decay, v.astype(jnp.float32)), axis=axis)[1]


@piece(1)
@nesting
def called(c: Composer) -> Array:
    """Call an inner function through jit, checkpoint or an optimization barrier."""
    values, seed = _carry(c), c.seed()

    def f(*given: Any) -> Any:
        inner = c.inner(given, seed)
        inner.steps(3)
        return tuple(inner.values[-2:])

    return c.pick((jax.jit(f), jax.checkpoint(f), lambda *a: lax.optimization_barrier(f(*a))))(*values)  # type: ignore[no-untyped-call]


@piece(3)
def randomness(c: Composer) -> Array:
    key = jax.random.key(c.between(0, 1000))
    if c.chance(0.5):
        v = c.some(lambda v: jnp.issubdtype(v.dtype, jnp.integer) and v.size > 0)
        key = jax.random.fold_in(key, v.ravel()[0].astype(jnp.uint32))
    if c.chance(0.5):
        key = jax.random.split(key)[c.between(0, 1)]
    dims = c.shape(limit=3000)
    v = c.some_float(lambda v: v.size < 4000)
    forms = (
        lambda: jax.random.uniform(key, dims, dtype=c.pick((jnp.float32, jnp.float32, jnp.bfloat16, jnp.float16))),
        lambda: jax.random.normal(key, dims),
        lambda: jax.random.bernoulli(key, 0.3, dims),
        lambda: jax.random.randint(key, dims, -5, 9),
        lambda: jax.random.bits(key, dims),
        lambda: jnp.where(jax.random.bernoulli(key, 0.8, v.shape), v / 0.8, 0),
        lambda: v + 0.1 * jax.random.normal(key, v.shape, v.dtype),
        lambda: jax.random.categorical(key, v.astype(jnp.float32)) if v.ndim else v,
        lambda: jax.random.permutation(key, v) if v.ndim and 0 < v.shape[0] < 300 else v,
        lambda: jax.random.gumbel(key, dims),
        lambda: jax.random.truncated_normal(key, -1.0, 1.0, dims),
        lambda: jax.random.exponential(key, dims),
        lambda: jax.random.choice(key, v.ravel()[:20], (4,)) if v.size else v,
    )
    return c.pick(forms)()
