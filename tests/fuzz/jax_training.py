"""Pieces of random JAX functions: losses, gradients, clipping by norms, optimizer updates."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.fuzz import sizes
from tests.fuzz.jax_composer import Array, Composer, is_float, nesting, piece


def _floats(c: Composer, limit: int = 10_000) -> list[Array]:
    found = [v for v in c.values if is_float(v) and v.size < limit]
    if not found:
        raise ValueError("nothing fits")
    return found


def _tree(c: Composer) -> Any:
    """Return a parameter tree: a list, a dict, or pairs of a matrix and a bias."""
    found = _floats(c)
    parts = [c.pick(found) for _ in range(c.between(1, 4))]
    if c.chance(0.5):
        v = c.pick(parts)
        parts.append(v.reshape(sizes.with_units(c.rng, v.shape)) * 0.5)
    if c.chance(0.3):
        return {f"w{k}": p for k, p in enumerate(parts)}
    return parts


def _scalar(v: Array, kind: int) -> Array:
    """Return a scalar loss of a value."""
    v = v.astype(jnp.float32) if not is_float(v) else v
    forms: tuple[Any, ...] = (
        lambda: jnp.mean(v * v),
        lambda: jnp.sum(jnp.tanh(v)),
        lambda: jnp.mean(jnp.abs(v)),
        lambda: jax.nn.logsumexp(v),
        lambda: jnp.sqrt(jnp.sum(v * v) + 1e-6),
        lambda: jnp.max(v),
        lambda: jnp.mean(jnp.where(jnp.abs(v) < 1, 0.5 * v * v, jnp.abs(v) - 0.5)),
    )
    loss = forms[kind % len(forms)]()
    return loss.reshape(()) if loss.ndim else loss


@piece(9)
@nesting
def gradient(c: Composer) -> Array:
    tree, seed, kinds = _tree(c), c.seed(), [c.between(0, 6) for _ in range(2)]
    others = [v for v in c.values if v.size < 4000][-3:]

    def loss(p: Any) -> Any:
        leaves = jax.tree.leaves(p)
        inner = c.inner([*others, *leaves], seed)
        inner.steps(inner.between(1, 6))
        made = [v for v in inner.values[len(others) :] if is_float(v)]
        total = _scalar(made[-1], kinds[0]).astype(jnp.float32) + _scalar(made[0], kinds[1]).astype(jnp.float32)
        for v in leaves:
            total += 1e-2 * jnp.sum(v.astype(jnp.float32) ** 2)
        return total

    if c.chance(0.5):
        return jax.value_and_grad(loss)(tree)
    grads = jax.grad(loss)(tree)
    if c.chance(0.5):
        return jax.tree.map(lambda p, g: p - jnp.asarray(0.1, p.dtype) * g, tree, grads)
    return grads


@piece(2)
@nesting
def linearised(c: Composer) -> Array:
    """Forward mode, vjp, second derivatives."""
    v, seed = c.pick(_floats(c, 2000)), c.seed()

    def f(x: Any) -> Any:
        inner = c.inner([x], seed)
        inner.steps(inner.between(1, 4))
        return inner.some(is_float)

    kind = c.between(0, 3)
    if kind == 0:
        return jax.jvp(f, (v,), (jnp.ones_like(v),))
    if kind == 1:
        out, back = jax.vjp(f, v)
        return out, back(jnp.ones_like(out))
    if kind == 2:
        return jax.grad(lambda x: jnp.sum(jax.grad(lambda y: jnp.sum(jnp.tanh(f(y))))(x) ** 2))(v)
    if v.size > 12:
        return None
    return c.pick((jax.jacfwd, jax.jacrev, jax.hessian))(f)(v)


def global_norm(tree: Any) -> Array:
    """The square root of the sum of all squares."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(tree)))


@piece(6)
def clip_by_norm(c: Composer) -> Array:
    tree = _tree(c)
    limit = c.pick((0.5, 1.0, 10.0))
    kind = c.between(0, 2)
    if kind == 0:
        norm = global_norm(tree)
        return jax.tree.map(lambda g: g * jnp.minimum(1.0, limit / (norm + 1e-6)), tree), norm
    if kind == 1:
        norm = global_norm(tree)
        return jax.tree.map(lambda g: jnp.where(norm < limit, g, g / norm.astype(g.dtype) * limit), tree)
    return jax.tree.map(lambda g: g / jnp.maximum(jnp.sqrt(jnp.sum(g * g)), 1e-3), tree), global_norm(tree)


@piece(4)
def optimizer(c: Composer) -> Array:
    params = jax.tree.leaves(_tree(c))
    grads = [jnp.tanh(p[::-1] if p.ndim else p) for p in params]
    kind = c.between(0, 4)
    if kind == 0:  # Adam
        m = [0.1 * g for g in grads]
        v = [0.001 * g * g for g in grads]
        new = [p - 1e-2 * (a / 0.1) / (jnp.sqrt(b / 0.001) + 1e-8) for p, a, b in zip(params, m, v, strict=True)]
        return new, m, v
    if kind == 1:  # momentum, with decay of the weights
        velocity = [0.9 * p * 0.1 + g for p, g in zip(params, grads, strict=True)]
        return [p * (1 - 1e-3) - 0.1 * v for p, v in zip(params, velocity, strict=True)], velocity
    if kind == 2:  # RMSProp
        return [p - 0.01 * g / (jnp.sqrt(0.1 * g * g) + 1e-6) for p, g in zip(params, grads, strict=True)]
    if kind == 3:  # LAMB's ratio of norms
        ratios = [
            jnp.linalg.norm(p.ravel()) / (jnp.linalg.norm(g.ravel()) + 1e-6) for p, g in zip(params, grads, strict=True)
        ]
        return [p - 0.1 * r * g for p, r, g in zip(params, ratios, grads, strict=True)]
    return [0.99 * p + 0.01 * g for p, g in zip(params, grads, strict=True)], sum(jnp.mean(p) for p in params)


@piece(5)
def loss(c: Composer) -> Array:
    v = c.some_float(lambda v: v.ndim > 0)
    target = c.like(v.shape, v.dtype)
    weights = c.constant((v.shape[-1],), v.dtype)
    kind = c.between(0, 8)
    if kind == 0:
        return jnp.mean((v - target) ** 2)
    if kind == 1:
        labels = jnp.argmax(target, -1)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(v), labels[..., None], -1))
    if kind == 2:
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(v) * jax.nn.softmax(target), -1))
    if kind == 3:
        return jnp.mean(jnp.maximum(v, 0) - v * jax.nn.sigmoid(target) + jnp.log1p(jnp.exp(-jnp.abs(v))))
    if kind == 4:
        d = jnp.abs(v - target)
        return jnp.sum(jnp.where(d < 1, 0.5 * d * d, d - 0.5) * weights)
    if kind == 5:  # PPO's clipped objective
        ratio = jnp.exp(jnp.clip(v - target, -2, 2))
        advantage = (target - jnp.mean(target)) / (jnp.std(target) + 1e-8)
        return -jnp.mean(jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage))
    if kind == 6:
        p, q = jax.nn.softmax(v), jax.nn.softmax(target)
        return jnp.sum(p * (jnp.log(p + 1e-9) - jnp.log(q + 1e-9)), -1)
    if kind == 7:
        return jnp.mean(jnp.maximum(0, 1 - v * jnp.sign(target)))
    return jnp.mean(jnp.argmax(v, -1) == jnp.argmax(target, -1)), -jnp.sum(jax.nn.softmax(v) * jax.nn.log_softmax(v))


@piece(3)
@nesting
def layers(c: Composer) -> Array:
    """One training step of a small network."""
    x = c.some_float(lambda v: v.ndim == 2 and v.size < 5000 and 0 < v.shape[1] < 200)
    width, out = c.pick((1, 4, 17, 33, 64)), c.pick((1, 2, 5))
    dtype = x.dtype
    params = [
        {"w": c.constant((x.shape[1], width), dtype) * 0.3, "b": c.constant((width,), dtype)},
        {"w": c.constant((width, out), dtype) * 0.3, "b": jnp.zeros((out,), dtype)},
    ]
    activation = c.pick((jnp.tanh, jax.nn.relu, jax.nn.gelu))
    kind = c.between(0, 6)
    normalised = c.chance(0.4)

    def loss(p: Any) -> Any:
        h = activation(x @ p[0]["w"] + p[0]["b"])
        if normalised:
            h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-5)
        return _scalar(h @ p[1]["w"] + p[1]["b"], kind)

    value, grads = jax.value_and_grad(loss)(params)
    if c.chance(0.5):
        norm = global_norm(grads)
        grads = jax.tree.map(lambda g: g * jnp.minimum(1, 1 / (norm + 1e-6)).astype(g.dtype), grads)
    return value, jax.tree.map(lambda p, g: p - jnp.asarray(0.1, p.dtype) * g, params, grads)
