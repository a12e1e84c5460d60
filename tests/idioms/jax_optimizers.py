"""Optimizers in JAX: norms and clipping of parameter trees, update rules, schedules, averages."""

from __future__ import annotations

from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.idioms.collection import Idioms, integers, normal, uniform

IDIOMS = Idioms()


def _tree(*shapes: tuple[int, ...], name: str = "", scale: float = 1.0, dtype: Any = np.float32) -> dict[str, Any]:
    return {f"p{k}": normal(*s, name=f"{name}{k}", scale=scale, dtype=dtype) for k, s in enumerate(shapes)}


MANY = ((64,), (1, 64), (64, 1), (3, 3, 1, 8), (), (1,), (1, 1, 72), (17, 23))
LONG = ((1000,), (1, 1000), (1000, 1), (1, 1), (10, 100), (100, 10))
DENSE = ((128, 64), (64,), (64, 1), (1,))
EMPTY = ((64,), (0, 64), (64, 1), (1, 0))
SMALL = ((37, 16), (16,), (16, 1), (1,))


def _pair(shapes: Any, **more: Any) -> tuple[Any, Any]:
    return _tree(*shapes, **more), _tree(*shapes, name="g", **more)


def _state(shapes: Any) -> tuple[Any, ...]:
    """Return parameters, gradients, and first and second moments."""
    squares = jax.tree.map(np.square, _tree(*shapes, name="v"))
    return _tree(*shapes), _tree(*shapes, name="g", scale=0.1), _tree(*shapes, name="m", scale=0.1), squares


def _global_norm(tree: Any) -> Any:
    return jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(tree)))


@IDIOMS.on(many=(_tree(*MANY),), long=(_tree(*LONG),), empty=(_tree(*EMPTY),), half=(_tree(*MANY, dtype=np.float16),))
def global_norm(tree: Any) -> Any:
    return _global_norm(tree)


@IDIOMS.on(many=(_tree(*MANY),), long=(_tree(*LONG),), dense=(_tree(*DENSE, scale=0.001),))
def clip_by_global_norm(tree: Any) -> Any:
    norm = _global_norm(tree)
    trigger = norm < 1.0
    return jax.tree.map(
        lambda t: lax.select(jnp.broadcast_to(trigger, t.shape), t, (t / norm.astype(t.dtype)) * 1.0), tree
    )


@IDIOMS.on(many=(_tree(*MANY),), long=(_tree(*LONG),))
def clip_by_norm_per_parameter(tree: Any) -> Any:
    def clip(t: Any) -> Any:
        norm = jnp.linalg.norm(t.reshape(-1))
        return t * jnp.minimum(1.0, 2.0 / (norm + 1e-6))

    return jax.tree.map(clip, tree)


@IDIOMS.on(many=(_tree(*MANY),), ints=({"a": integers(64), "b": integers(64, 1, high=9)},))
def clip_by_value(tree: Any) -> Any:
    return jax.tree.map(lambda t: jnp.clip(t, -1, 1), tree)


@IDIOMS.on(many=(_tree(*MANY),), long=(_tree(*LONG),))
def norms_of_many_orders(tree: Any) -> Any:
    return jax.tree.map(
        lambda t: (jnp.abs(t).sum(), jnp.abs(t).max() if t.size else 0.0, (jnp.abs(t) ** 3).sum() ** (1 / 3)), tree
    )


@IDIOMS.on(dense=(_tree(*DENSE, scale=0.1), normal(8, 128)), one=(_tree(*SMALL, scale=0.1), normal(1, 37)))
def l2_regularised_gradient(params: Any, x: Any) -> Any:
    def loss(p: Any) -> Any:
        h = jnp.tanh(x @ p["p0"] + p["p1"])
        out = h @ p["p2"] + p["p3"]
        return jnp.mean(out**2) + 1e-2 * 0.5 * sum(jnp.vdot(w, w) for w in jax.tree.leaves(p))

    return jax.value_and_grad(loss)(params)


@IDIOMS.on(many=_pair(MANY), long=_pair(LONG))
def weight_decay_with_mask(params: Any, grads: Any) -> Any:
    """Weight decay for matrices only, as with a mask in Optax."""
    mask = jax.tree.map(lambda p: p.ndim > 1, params)
    return jax.tree.map(lambda g, p, m: g + 1e-2 * p if m else g, grads, params, mask)


@IDIOMS.on(many=_pair(MANY), long=_pair(LONG), half=_pair(MANY, dtype=np.float16))
def exponential_moving_average(average: Any, new: Any) -> Any:
    return jax.tree.map(lambda a, n: 0.999 * a + (1 - 0.999) * n, average, new)


@IDIOMS.on(many=(*_pair(MANY), jnp.int32(3)), long=(*_pair(LONG), jnp.int32(1000)))
def debiased_moving_average(average: Any, new: Any, count: Any) -> Any:
    average = jax.tree.map(lambda a, n: 0.9 * a + 0.1 * n, average, new)
    return jax.tree.map(lambda a: a / (1 - 0.9 ** (count + 1)), average)


@IDIOMS.on(many=_pair(MANY), long=_pair(LONG))
def sgd(params: Any, grads: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


@IDIOMS.on(many=_state(MANY), long=_state(LONG))
def nesterov_momentum(params: Any, grads: Any, trace: Any, _: Any) -> Any:
    trace = jax.tree.map(lambda g, t: g + 0.9 * t, grads, trace)
    updates = jax.tree.map(lambda g, t: g + 0.9 * t, grads, trace)
    return jax.tree.map(lambda p, u: p - 0.01 * u, params, updates), trace


@IDIOMS.on(many=(*_state(MANY), jnp.int32(7)), long=(*_state(LONG), jnp.int32(1)))
def adam(params: Any, grads: Any, m: Any, v: Any, count: Any) -> Any:
    m = jax.tree.map(lambda g, t: 0.1 * g + 0.9 * t, grads, m)
    v = jax.tree.map(lambda g, t: 0.001 * g**2 + 0.999 * t, grads, v)
    count = count + 1
    m_hat = jax.tree.map(lambda t: t / (1 - 0.9**count), m)
    v_hat = jax.tree.map(lambda t: t / (1 - 0.999**count), v)
    return jax.tree.map(lambda p, a, b: p - 1e-3 * a / (jnp.sqrt(b) + 1e-8), params, m_hat, v_hat), m, v, count


@IDIOMS.on(many=(*_state(MANY), jnp.int32(7)), dense=(*_state(DENSE), jnp.int32(0)))
def adamw_after_clipping(params: Any, grads: Any, m: Any, v: Any, count: Any) -> Any:
    norm = _global_norm(grads)
    grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.5 / jnp.maximum(norm, 1e-6)), grads)
    m = jax.tree.map(lambda g, t: 0.1 * g + 0.9 * t, grads, m)
    v = jax.tree.map(lambda g, t: 0.05 * g * g + 0.95 * t, grads, v)
    c1, c2 = 1 - 0.9 ** (count + 1.0), 1 - 0.95 ** (count + 1.0)

    def update(p: Any, a: Any, b: Any) -> Any:
        return p - 3e-4 * (a / c1 / (jnp.sqrt(b / c2) + 1e-8) + 0.1 * p * (p.ndim > 1))

    return jax.tree.map(update, params, m, v), m, v, norm


@IDIOMS.on(
    square=(normal(64, 48), normal(64, 48, name="g"), uniform(64), uniform(48), jnp.int32(4)),
    column=(normal(64, 1), normal(64, 1, name="g"), uniform(64), uniform(1), jnp.int32(4)),
    row=(normal(1, 64), normal(1, 64, name="g"), uniform(1), uniform(64), jnp.int32(0)),
)
def adafactor(p: Any, g: Any, rows: Any, columns: Any, count: Any) -> Any:
    decay = 1.0 - (count + 1.0) ** -0.8
    squared = g * g + 1e-30
    rows = decay * rows + (1 - decay) * jnp.mean(squared, axis=-1)
    columns = decay * columns + (1 - decay) * jnp.mean(squared, axis=-2)
    row_factor = (rows / jnp.mean(rows, axis=-1, keepdims=True)) ** -0.5
    update = g * row_factor[:, None] * (columns**-0.5)[None, :]
    update = update / jnp.maximum(1.0, jnp.sqrt(jnp.mean(update**2)))
    scale = jnp.maximum(1e-3, jnp.sqrt(jnp.mean(p**2)))
    return p - 1e-2 * scale * update, rows, columns


@IDIOMS.on(many=_state(MANY), long=_state(LONG))
def centred_rmsprop(params: Any, grads: Any, mean: Any, square: Any) -> Any:
    mean = jax.tree.map(lambda g, t: 0.1 * g + 0.9 * t, grads, mean)
    square = jax.tree.map(lambda g, t: 0.1 * g**2 + 0.9 * t, grads, square)
    updates = jax.tree.map(lambda g, a, b: g * lax.rsqrt(jnp.maximum(b - a**2, 0) + 1e-2), grads, mean, square)
    return jax.tree.map(lambda p, u: p - 0.01 * u, params, updates), mean, square


@IDIOMS.on(many=_state(MANY), long=_state(LONG))
def adagrad(params: Any, grads: Any, _: Any, total: Any) -> Any:
    total = jax.tree.map(lambda g, t: g * g + t, grads, total)
    scale = jax.tree.map(lambda t: jnp.where(t > 0, lax.rsqrt(t + 1e-7), 0.0), total)
    return jax.tree.map(lambda p, s, g: p - 0.1 * s * g, params, scale, grads), total


@IDIOMS.on(many=_state(MANY), long=_state(LONG))
def lion(params: Any, grads: Any, m: Any, _: Any) -> Any:
    updates = jax.tree.map(lambda g, t: jnp.sign(0.1 * g + 0.9 * t), grads, m)
    m = jax.tree.map(lambda g, t: 0.01 * g + 0.99 * t, grads, m)
    return jax.tree.map(lambda p, u: p - 1e-4 * (u + 0.1 * p), params, updates), m


@IDIOMS.on(many=_state(MANY), long=_state(LONG), dense=_state(DENSE))
def lamb(params: Any, grads: Any, m: Any, v: Any) -> Any:
    m = jax.tree.map(lambda g, t: 0.1 * g + 0.9 * t, grads, m)
    v = jax.tree.map(lambda g, t: 0.001 * g**2 + 0.999 * t, grads, v)

    def update(p: Any, a: Any, b: Any) -> Any:
        u = a / (jnp.sqrt(b) + 1e-6) + 0.01 * p
        p_norm, u_norm = jnp.linalg.norm(p.ravel()), jnp.linalg.norm(u.ravel())
        ratio = jnp.where((p_norm == 0.0) | (u_norm == 0.0), 1.0, p_norm / u_norm)
        return p - 1e-3 * ratio * u

    return jax.tree.map(update, params, m, v), m, v


@IDIOMS.on(many=_pair(MANY), long=_pair(LONG))
def adaptive_gradient_clipping(params: Any, grads: Any) -> Any:
    """Clipping by the norm of each unit, as in NFNets."""

    def unit_norm(x: Any) -> Any:
        if x.ndim <= 1:
            return jnp.linalg.norm(x)
        return jnp.sqrt(jnp.sum(x * x, axis=tuple(range(x.ndim - 1)), keepdims=True))

    def clip(g: Any, p: Any) -> Any:
        g_norm, limit = unit_norm(g), 0.1 * jnp.maximum(unit_norm(p), 1e-3)
        return jnp.where(g_norm < limit, g, limit * (g / jnp.maximum(g_norm, 1e-6)))

    return jax.tree.map(clip, grads, params)


@IDIOMS.on(many=_pair(MANY), long=_pair(LONG))
def stable_update_where_finite(params: Any, grads: Any) -> Any:
    """Skip the step if a gradient has overflowed, as in loss scaling."""
    grads = jax.tree.map(lambda g: g / 1024.0, grads)
    finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]))
    kept = jax.tree.map(lambda p, g: jnp.where(finite, p - 0.1 * g, p), params, grads)
    return kept, jnp.where(finite, 2048.0, 512.0)


@IDIOMS.on(steps=(np.arange(1000, dtype=np.int32),), one=(jnp.int32(70),))
def warmup_cosine_schedule(step: Any) -> Any:
    warm = 3e-4 * step / 100
    progress = jnp.clip((step - 100) / 800, 0.0, 1.0)
    return jnp.where(step < 100, warm, 1e-5 + 0.5 * (3e-4 - 1e-5) * (1 + jnp.cos(jnp.pi * progress)))


@IDIOMS.on(steps=(np.arange(131, dtype=np.int32),), one=(jnp.int32(3),))
def piecewise_and_exponential_schedules(step: Any) -> Any:
    def piecewise(s: Any) -> Any:
        return 0.1 * jnp.prod(jnp.where(s >= jnp.array([30, 60, 90]), jnp.array([0.1, 0.5, 0.2]), 1.0))

    every = jnp.vectorize(piecewise)(step)
    decay = 0.1 * 0.97 ** jnp.floor(step / 10)
    return every, decay, lax.switch(jnp.clip(step.sum() % 3, 0, 2), [jnp.sin, jnp.cos, jnp.tanh], decay)


@IDIOMS.on(
    four=(_tree(*SMALL), normal(4, 8, 37), normal(4, 8, 1)), one=(_tree(*SMALL), normal(16, 1, 37), normal(16, 1, 1))
)
def gradient_accumulation(params: Any, xs: Any, ys: Any) -> Any:
    def loss(p: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jax.nn.relu(x @ p["p0"] + p["p1"]) @ p["p2"] + p["p3"] - y) ** 2)

    def micro(total: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(jnp.add, total, grads), value

    total, values = lax.scan(micro, jax.tree.map(jnp.zeros_like, params), (xs, ys))
    return jax.tree.map(lambda t: t / xs.shape[0], total), values.mean()


@IDIOMS.on(many=(_tree(*MANY), jax.random.key_data(jax.random.key(3))))
def gradient_noise(grads: Any, key: Any) -> Any:
    leaves, treedef = jax.tree.flatten(grads)
    keys = jax.random.split(jax.random.wrap_key_data(key), len(leaves))
    noisy = [g + 0.01 * jax.random.normal(k, g.shape) for g, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(treedef, noisy)


@IDIOMS.on(
    dense=(_tree(*SMALL), normal(8, 37), jax.tree.map(lambda p: p * 0.1, _tree(*SMALL))),
    one=(_tree(*SMALL), normal(1, 37), jax.tree.map(lambda p: p * 0.1, _tree(*SMALL))),
)
def sharpness_aware_minimisation(params: Any, x: Any, momentum: Any) -> Any:
    def loss(p: Any) -> Any:
        return jnp.mean(jnp.square(jnp.tanh(x @ p["p0"] + p["p1"]) @ p["p2"] + p["p3"] - 1.0))

    grads = jax.grad(loss)(params)
    norm = _global_norm(grads)
    away = jax.tree.map(lambda p, g: p + 0.05 * g / (norm + 1e-12), params, grads)
    value, grads = jax.value_and_grad(loss)(away)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return value, jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum)


@IDIOMS.on(many=_pair(MANY), long=_pair(LONG))
def tree_dot_and_cosine(a: Any, b: Any) -> Any:
    dot = sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    return dot, dot / (_global_norm(a) * _global_norm(b))


@IDIOMS.on(many=(_tree(*MANY),), long=(_tree(*LONG),))
def flatten_parameters_and_back(tree: Any) -> Any:
    flat, unravel = jax.flatten_util.ravel_pytree(tree)
    return flat, unravel(flat / jnp.linalg.norm(flat))


@IDIOMS.on(square=(normal(32, 17), normal(32, 17, name="g")), row=(normal(1, 64), normal(1, 64, name="g")))
def muon_orthogonalised_update(p: Any, g: Any) -> Any:
    x = g / (jnp.linalg.norm(g) + 1e-7)
    x = x.T if g.shape[0] > g.shape[1] else x
    for _ in range(3):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    x = x.T if g.shape[0] > g.shape[1] else x
    return p - 0.02 * x * max(1, g.shape[0] / g.shape[1]) ** 0.5
