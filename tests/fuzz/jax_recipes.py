"""Pieces of random JAX functions: complete algorithms from typical user code, with random sizes and types."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.fuzz.jax_composer import Array, Composer, nesting, piece
from tests.fuzz.jax_training import global_norm


def _rows(c: Composer, limit: int = 4000, columns: int = 300) -> Array:
    """Return a matrix of floats."""
    v = c.some_float(lambda v: v.ndim > 0 and 0 < v.size < limit)
    return v.reshape(-1, v.shape[-1]) if v.shape[-1] <= columns else v.reshape(-1, 1)


@piece(2)
def generalised_advantages(c: Composer) -> Array:
    """Generalized advantage estimation: a reverse scan over rewards and values."""
    rewards = _rows(c, 3000)
    values = jnp.tanh(rewards) * 0.5
    done = (rewards > 1).astype(rewards.dtype)
    following = jnp.concatenate([values[1:], jnp.zeros_like(values[:1])])
    delta = rewards + 0.99 * following * (1 - done) - values

    def step(carry: Any, x: Any) -> Any:
        d, end = x
        carry = d + 0.95 * 0.99 * (1 - end) * carry
        return carry.astype(d.dtype), carry.astype(d.dtype)

    _, advantages = lax.scan(step, jnp.zeros_like(rewards[0]), (delta, done), reverse=True)
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8), advantages + values


@piece(2)
@nesting
def policy_gradient(c: Composer) -> Array:
    """PPO's loss with its gradient."""
    x = _rows(c, 3000, 100)
    n, d = x.shape
    actions = jnp.argmax(x + c.constant((n, d), x.dtype), -1) % 3
    params = {"w": c.constant((d, 3), x.dtype) * 0.3, "b": jnp.zeros(3, x.dtype), "v": c.constant((d,), x.dtype)}
    old = jax.nn.log_softmax(x @ params["w"] * 0.9)
    advantages = jnp.sin(x.sum(-1))
    masked = c.chance(0.3)

    def loss(p: Any) -> Any:
        logits = x @ p["w"] + p["b"]
        if masked:
            logits = jnp.where(jnp.arange(3) == 2, jnp.finfo(logits.dtype).min / 2, logits)  # type: ignore[no-untyped-call]
        logp = jax.nn.log_softmax(logits)
        taken = jnp.take_along_axis(logp, actions[:, None], 1)[:, 0]
        before = jnp.take_along_axis(old, actions[:, None], 1)[:, 0]
        ratio = jnp.exp(taken - before)
        clipped = jnp.clip(ratio, 0.8, 1.2)
        policy = -jnp.mean(jnp.minimum(ratio * advantages, clipped * advantages))
        value = jnp.mean((x @ p["v"] - advantages) ** 2)
        entropy = -jnp.mean(jnp.sum(jnp.exp(logp) * jnp.where(logp > -20, logp, 0), -1))
        return (policy + 0.5 * value - 0.01 * entropy).astype(jnp.float32)

    value, grads = jax.value_and_grad(loss)(params)
    scale = jnp.minimum(1.0, 0.5 / (global_norm(grads) + 1e-6))
    return value, jax.tree.map(lambda g: g * scale.astype(g.dtype), grads)


@piece(2)
@nesting
def training_loop(c: Composer) -> Array:
    """A few steps of Adam in a scan."""
    x = _rows(c, 1500, 60)
    width = c.pick((1, 5, 17))
    y = jnp.tanh(x.sum(-1, keepdims=True))
    params = [c.constant((x.shape[1], width), x.dtype) * 0.3, c.constant((width, 1), x.dtype) * 0.3]
    rate = c.pick((0.1, 1e-2))
    steps = c.pick((1, 2, 7, 20))

    def loss(p: Any) -> Any:
        return jnp.mean((jax.nn.relu(x @ p[0]) @ p[1] - y) ** 2)

    def step(state: Any, k: Any) -> Any:
        p, m, v = state
        value, g = jax.value_and_grad(loss)(p)
        m = [0.9 * a + 0.1 * b for a, b in zip(m, g, strict=True)]
        v = [0.999 * a + 0.001 * b * b for a, b in zip(v, g, strict=True)]
        fix = (1 - 0.9 ** (k + 1.0)).astype(x.dtype)
        p = [a - rate * b / fix / (jnp.sqrt(s) + 1e-3) for a, b, s in zip(p, m, v, strict=True)]
        return (p, m, v), value

    zeros = [jnp.zeros_like(p) for p in params]
    (params, _, _), losses = lax.scan(step, (params, zeros, zeros), jnp.arange(steps))
    return losses, params


@piece(2)
def environment(c: Composer) -> Array:
    """A loop over pendulum environments with resets."""
    v = c.some_float(lambda v: 0 < v.size < 5000)
    angle, speed = jnp.tanh(v), jnp.zeros_like(v)
    record = c.chance(0.5)

    def step(state: Any, k: Any) -> Any:
        a, s, total = state
        force = jnp.where(a > 0, -1.0, 1.0).astype(a.dtype) * 0.3
        s = s + (jnp.sin(a) * 0.8 + force) * 0.05
        a = a + s * 0.05
        fell = jnp.abs(a) > 1.1
        total = total + jnp.where(fell, 0, 1)
        a = jnp.where(fell, jnp.asarray(0.1, a.dtype), a)
        s = jnp.where(fell, jnp.zeros_like(s), s)
        return (a, s, total), (jnp.cos(a) if record and v.size < 500 else None)

    start = (angle, speed, jnp.zeros(v.shape, jnp.int32))
    return lax.scan(step, start, jnp.arange(c.pick((3, 10, 50))))


@piece(2)
def decoding(c: Composer) -> Array:
    """Autoregressive decoding with a cache."""
    table = _rows(c, 2500, 40)
    n, d = table.shape
    steps = c.pick((2, 5, 12))
    sampled = c.chance(0.5)
    key = jax.random.key(c.between(0, 99))

    def step(k: Any, state: Any) -> Any:
        tokens, cache = state
        x = table[tokens[k]]
        cache = lax.dynamic_update_index_in_dim(cache, x, k, 0)
        seen = jnp.arange(steps) <= k
        scores = jnp.where(seen, cache @ x / np.sqrt(d).astype(table.dtype), -1e4 if d else 0)
        mixed = jax.nn.softmax(scores.astype(jnp.float32)) @ cache.astype(jnp.float32)
        logits = table.astype(jnp.float32) @ mixed
        if sampled:
            logits = logits + jax.random.gumbel(jax.random.fold_in(key, k), (n,))
        return tokens.at[k + 1].set(jnp.argmax(logits).astype(jnp.int32)), cache

    tokens, cache = jnp.zeros(steps + 1, jnp.int32), jnp.zeros((steps, d), table.dtype)
    return lax.fori_loop(0, steps, step, (tokens, cache))


@piece(1)
def beams(c: Composer) -> Array:
    """Beam search: the best continuations of some sequences."""
    logits = _rows(c, 3000)
    b, n = logits.shape
    k = min(3, n)
    logp = jax.nn.log_softmax(logits)
    best, which = lax.top_k((logp[:k] + jnp.arange(min(k, b), dtype=logp.dtype)[:, None]).ravel(), k)
    threshold = lax.top_k(logits, k)[0][:, -1:]
    kept = jnp.where(logits >= threshold, logits, -1e4)
    order = jnp.argsort(-logits, axis=-1)
    cumulative = jnp.cumsum(jnp.take_along_axis(jax.nn.softmax(logits), order, -1), -1)
    return best, which // n, which % n, jax.nn.softmax(kept), jnp.sum(cumulative < 0.9, -1)


@piece(2)
@nesting
def attention_gradient(c: Composer) -> Array:
    """Causal multi-head attention after a norm, and its gradient."""
    x = _rows(c, 1500, 64)
    t, d = x.shape
    if t > 70:
        x = x[:70]
        t = 70
    heads = c.pick([h for h in (1, 2, 4) if d % h == 0])
    params = [c.constant((d, 3 * d), x.dtype) * 0.2, c.constant((d,), x.dtype)]

    def block(p: Any, x: Any) -> Any:
        h = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * p[1]
        q, k, v = jnp.split((h @ p[0]).reshape(t, heads, -1), 3, axis=-1)
        scores = jnp.einsum("thd,shd->hts", q, k) / np.sqrt(d // heads).astype(x.dtype)
        scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e4)
        return x + jnp.einsum("hts,shd->thd", jax.nn.softmax(scores, -1), v).reshape(t, d)

    return jax.value_and_grad(lambda p: jnp.mean(jnp.sin(block(p, x))).astype(jnp.float32))(params)


@piece(2)
def stencil(c: Composer) -> Array:
    """Diffusion on a grid with different boundary conditions."""
    v = c.some_float(lambda v: v.ndim in (1, 2) and 0 < v.size < 5000)
    kind = c.between(0, 2)

    def step(_: Any, u: Any) -> Any:
        if kind == 0:
            near = sum(jnp.roll(u, s, a) for a in range(u.ndim) for s in (1, -1))
        else:
            p = jnp.pad(u, 1, mode="edge" if kind == 1 else "constant")
            plane = u.ndim == 2
            near = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] if plane else p[:-2] + p[2:]
        return u + jnp.asarray(0.1, u.dtype) * (near - 2 * u.ndim * u)

    return lax.fori_loop(0, c.pick((1, 3, 8)), step, jnp.tanh(v))


@piece(1)
def clusters(c: Composer) -> Array:
    """Two steps of k-means."""
    x = _rows(c, 3000, 20)
    k = min(4, x.shape[0])
    centres = x[:k]
    for _ in range(2):
        distances = jnp.sum((x[:, None] - centres[None]) ** 2, -1)
        nearest = jnp.argmin(distances, -1)
        one_hot = jax.nn.one_hot(nearest, k, dtype=x.dtype)
        centres = (one_hot.T @ x) / jnp.maximum(one_hot.sum(0)[:, None], 1)
    return centres, nearest, jnp.bincount(nearest, length=k)


@piece(1)
def quantised(c: Composer) -> Array:
    """A product with weights that are quantised to 8 bits per row."""
    w = _rows(c, 5000)
    scale = jnp.max(jnp.abs(w), -1, keepdims=True) / 127 + 1e-6
    q = jnp.clip(jnp.round(w / scale), -127, 127).astype(jnp.int8)
    x = jnp.ones((w.shape[1], c.pick((1, 3))), jnp.int8)
    product = lax.dot_general(q, x, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
    return q, product.astype(jnp.float32) * scale.astype(jnp.float32), jnp.max(jnp.abs(q * scale - w))


@piece(1)
def metrics(c: Composer) -> Array:
    """Metrics that count predictions."""
    logits = _rows(c, 5000)
    n, k = logits.shape
    labels = jnp.arange(n) % k
    predicted = jnp.argmax(logits, -1)
    correct = predicted == labels
    confusion = jnp.zeros((min(k, 20), min(k, 20)), jnp.int32).at[labels, predicted].add(1, mode="drop")
    precision = jnp.sum(correct & (predicted == 0)) / jnp.maximum(jnp.sum(predicted == 0), 1)
    top = jnp.any(lax.top_k(logits, min(k, 3))[1] == labels[:, None], -1)
    return correct.mean(), confusion, precision, top.mean(), jax.nn.logsumexp(logits, -1).mean()


@piece(1)
def moving_statistics(c: Composer) -> Array:
    """Running means, and the batch norms that use them."""
    x = _rows(c, 5000)
    mean, var = x.mean(0), x.var(0)
    running = 0.9 * jnp.zeros_like(mean) + 0.1 * mean
    counts = jnp.maximum(jnp.cumsum(jnp.ones_like(x), 0), 1)
    return (x - mean) / jnp.sqrt(var + 1e-5), running, jnp.cumsum(x, 0) / counts, (x - running) * lax.rsqrt(var + 1e-3)


@piece(1)
@nesting
def recurrent(c: Composer) -> Array:
    """A gated recurrent unit over a sequence, and its gradient."""
    x = _rows(c, 1500, 40)
    d, h = x.shape[1], c.pick((1, 4, 17))
    if x.shape[0] > 60:
        x = x[:60]
    params = [c.constant((d, 3 * h), x.dtype) * 0.3, c.constant((h, 3 * h), x.dtype) * 0.3]

    def run(p: Any) -> Any:
        def step(s: Any, row: Any) -> Any:
            a, b = row @ p[0], s @ p[1]
            z = jax.nn.sigmoid(a[:h] + b[:h])
            r = jax.nn.sigmoid(a[h : 2 * h] + b[h : 2 * h])
            new = jnp.tanh(a[2 * h :] + r * b[2 * h :])
            s = (1 - z) * s + z * new
            return s, s

        return lax.scan(step, jnp.zeros(h, x.dtype), x)

    def loss(p: Any) -> Any:
        return jnp.mean(run(p)[1] ** 2).astype(jnp.float32)

    return jax.value_and_grad(loss)(params) if c.chance(0.6) else run(params)


@piece(1)
def solver(c: Composer) -> Array:
    """Conjugate gradients on a small system until convergence."""
    v = c.some_float(lambda v: v.ndim > 0 and v.dtype in (jnp.float32, jnp.float64) and 0 < v.shape[-1] < 40)
    a = jnp.tanh(v.reshape(-1, v.shape[-1])[:20])
    n = a.shape[1]

    def apply(x: Any) -> Any:
        return a.T @ (a @ x) / 20 + 2 * x

    b = jnp.ones(n, v.dtype)

    def more(s: Any) -> Any:
        return (s[4] < 12) & (jnp.vdot(s[1], s[1]) > 1e-9)

    def step(s: Any) -> Any:
        x, r, p, rr, k = s
        q = apply(p)
        alpha = rr / jnp.vdot(p, q)
        x, r = x + alpha * p, r - alpha * q
        new = jnp.vdot(r, r)
        return x, r, r + new / rr * p, new, k + 1

    x, _, _, _, _ = lax.while_loop(more, step, (jnp.zeros_like(b), b, b, jnp.vdot(b, b), 0))
    return x


@piece(1)
def augmented(c: Composer) -> Array:
    """Random flips, crops and shifts of images."""
    v = c.some_float(lambda v: v.ndim >= 2 and 0 < v.size < 4000 and min(v.shape[-2:]) > 2)
    x = v.reshape(-1, *v.shape[-2:])
    key = jax.random.key(c.between(0, 99))
    a, b, k = jax.random.split(key, 3)
    flipped = jnp.where(jax.random.bernoulli(a, 0.5, (x.shape[0], 1, 1)), x[..., ::-1], x)
    at = jax.random.randint(b, (2,), 0, 3)
    padded = jnp.pad(flipped, ((0, 0), (1, 1), (1, 1)), mode="reflect")
    cropped = lax.dynamic_slice(padded, (0, at[0], at[1]), x.shape)
    noise = jax.random.normal(k, x.shape[1:], x.dtype)
    return cropped + 0.1 * noise, (cropped - cropped.min()) / (cropped.max() - cropped.min() + 1e-6)
