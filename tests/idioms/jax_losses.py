"""Losses in JAX with their gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.idioms.collection import Idioms, booleans, integers, normal, uniform

IDIOMS = Idioms()


@IDIOMS.on(
    batch_1=(normal(1, 17), integers(1, high=17)),
    batch_32=(normal(32, 10), integers(32, high=10)),
    vocabulary=(normal(2, 1000), integers(2, high=1000)),
)
def cross_entropy_with_integer_labels(logits: Any, labels: Any) -> Any:
    def loss(z: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(z), labels[:, None], axis=-1).mean()

    return jax.value_and_grad(loss)(logits)


@IDIOMS.on(
    batch_32=(normal(32, 31), integers(32, high=31)),
    batch_1=(normal(1, 64), integers(1, high=64)),
    one_class=(normal(64, 1), integers(64, high=1)),
)
def cross_entropy_with_one_hot_labels(logits: Any, labels: Any) -> Any:
    def loss(z: Any) -> Any:
        return jnp.mean(-jnp.sum(jax.nn.one_hot(labels, z.shape[-1]) * jax.nn.log_softmax(z, -1), axis=-1))

    return jax.value_and_grad(loss)(logits)


@IDIOMS.on(
    text=(normal(3, 19, 41), integers(3, 19, high=41), booleans(3, 19, chance=0.7)),
    batch_1=(normal(1, 64, 50), integers(1, 64, high=50), booleans(1, 64, chance=0.7)),
    half=(normal(2, 16, 64, dtype=jnp.bfloat16), integers(2, 16, high=64), booleans(2, 16, chance=0.7)),
)
def masked_token_cross_entropy(logits: Any, tokens: Any, mask: Any) -> Any:
    def loss(z: Any) -> Any:
        z = z.astype(jnp.float32)
        log_z = jax.nn.logsumexp(z, axis=-1)
        picked = jnp.take_along_axis(z, tokens[..., None], axis=-1).squeeze(-1)
        per_token = (log_z - picked) * mask
        return per_token.sum() / jnp.maximum(mask.sum(), 1) + 1e-4 * jnp.mean(log_z**2)

    value, grads = jax.value_and_grad(loss)(logits)
    return value, jnp.exp(value), grads


@IDIOMS.on(
    batch_32=(normal(32, 10), integers(32, high=10)),
    batch_1=(normal(1, 100), integers(1, high=100)),
)
def label_smoothing(logits: Any, labels: Any) -> Any:
    def loss(z: Any) -> Any:
        n = z.shape[-1]
        targets = jax.nn.one_hot(labels, n) * 0.9 + 0.1 / n
        return -(targets * jax.nn.log_softmax(z)).sum(-1).mean()

    return jax.value_and_grad(loss)(logits)


@IDIOMS.on(
    column=(normal(65, 1, scale=5), booleans(65, 1).astype(np.float32)),
    batch_1=(normal(1, 65, scale=5), booleans(1, 65).astype(np.float32)),
    vector=(normal(1000, scale=30), booleans(1000).astype(np.float32)),
)
def sigmoid_binary_cross_entropy(logits: Any, labels: Any) -> Any:
    def loss(z: Any) -> Any:
        each = -labels * jax.nn.log_sigmoid(z) - (1.0 - labels) * jax.nn.log_sigmoid(-z)
        return each.mean(), each

    return jax.value_and_grad(loss, has_aux=True)(logits)


@IDIOMS.on(vector=(normal(129), booleans(129)), batch_1=(normal(1, 33, 3), booleans(1, 33, 3)))
def focal_loss(logits: Any, labels: Any) -> Any:
    def loss(z: Any) -> Any:
        p = jax.nn.sigmoid(z)
        ce = jnp.maximum(z, 0) - z * labels + jnp.log1p(jnp.exp(-jnp.abs(z)))
        p_t = p * labels + (1 - p) * (1 - labels)
        weight = 0.25 * labels + 0.75 * (1 - labels)
        return jnp.sum(weight * ce * (1 - p_t) ** 2.0)

    return jax.value_and_grad(loss)(logits)


@IDIOMS.on(
    vectors=(normal(67), booleans(67), normal(67, name="b")),
    mixed=(normal(64, 1), booleans(64, 1), normal(1, 64)),
)
def hinge_huber_and_log_cosh(x: Any, y: Any, target: Any) -> Any:
    def losses(x: Any) -> Any:
        sign = 2.0 * y - 1.0
        hinge = jnp.maximum(0.0, 1.0 - x * sign)
        error = x.reshape(-1) - target.reshape(-1)
        absolute = jnp.abs(error)
        quadratic = jnp.minimum(absolute, 1.0)
        huber = 0.5 * quadratic**2 + 1.0 * (absolute - quadratic)
        log_cosh = jnp.logaddexp(error, -error) - jnp.log(2.0)
        return hinge.mean() + huber.mean() + log_cosh.sum()

    return jax.value_and_grad(losses)(x)


@IDIOMS.on(
    batch_16=(normal(16, 33), normal(16, 33, name="q")),
    batch_1=(normal(1, 100), normal(1, 100, name="q")),
    single=(normal(64, 1), normal(64, 1, name="q")),
)
def kl_and_jensen_shannon(a: Any, b: Any) -> Any:
    def loss(a: Any) -> Any:
        p, q = jax.nn.softmax(a), jax.nn.softmax(b)
        m = 0.5 * (p + q)
        kl = jnp.sum(jax.scipy.special.kl_div(p, q), -1)
        js = 0.5 * jnp.sum(jax.scipy.special.rel_entr(p, m) + jax.scipy.special.rel_entr(q, m), -1)
        return jnp.mean(kl) + jnp.mean(js)

    return jax.value_and_grad(loss)(a)


@IDIOMS.on(
    latent=(normal(32, 20), normal(32, 20, name="s"), normal(32, 20, name="e")),
    one=(normal(1, 64), normal(1, 64, name="s"), normal(1, 64, name="e")),
)
def variational_lower_bound(mean: Any, log_var: Any, eps: Any) -> Any:
    def loss(mean: Any, log_var: Any) -> Any:
        z = mean + eps * jnp.exp(0.5 * log_var)
        kl = -0.5 * jnp.sum(1 + log_var - mean**2 - jnp.exp(log_var), axis=-1)
        return jnp.mean(kl + jnp.sum(jax.nn.softplus(z), -1))

    return jax.value_and_grad(loss, (0, 1))(mean, log_var)


@IDIOMS.on(
    short=(normal(24, 5), np.array([1, 3, 2, 2], np.int32)),
    long=(normal(64, 9), integers(20, low=1, high=9)),
)
def ctc_forward(logits: Any, labels: Any) -> Any:
    """CTC log likelihood by the forward recursion over labels separated by blanks."""

    def loss(z: Any) -> Any:
        log_p = jax.nn.log_softmax(z)
        n = labels.shape[0]
        states = jnp.zeros(2 * n + 1, labels.dtype).at[1::2].set(labels)
        skip = jnp.concatenate([jnp.zeros(2, bool), (states[2:] != 0) & (states[2:] != states[:-2])])
        start = jnp.full(2 * n + 1, -1e5).at[0].set(log_p[0, 0]).at[1].set(log_p[0, labels[0]])

        def step(alpha: Any, lp: Any) -> Any:
            by_one = jnp.concatenate([jnp.array([-1e5]), alpha[:-1]])
            by_two = jnp.where(skip, jnp.concatenate([jnp.array([-1e5, -1e5]), alpha[:-2]]), -1e5)
            alpha = jnp.logaddexp(jnp.logaddexp(alpha, by_one), by_two) + lp[states]
            return alpha, None

        alpha, _ = lax.scan(step, start, log_p[1:])
        return -jnp.logaddexp(alpha[-1], alpha[-2])

    return jax.value_and_grad(loss)(logits)


@IDIOMS.on(
    pairs=(normal(17, 64), normal(17, 64, name="b")),
    one=(normal(1, 64), normal(1, 64, name="b")),
)
def contrastive_info_nce(a: Any, b: Any) -> Any:
    def loss(a: Any, b: Any) -> Any:
        a = a / jnp.linalg.norm(a, axis=-1, keepdims=True)
        b = b / jnp.linalg.norm(b, axis=-1, keepdims=True)
        logits = a @ b.T / 0.1
        labels = jnp.arange(a.shape[0])
        rows = -jax.nn.log_softmax(logits, 1)[labels, labels].mean()
        columns = -jax.nn.log_softmax(logits, 0)[labels, labels].mean()
        return 0.5 * (rows + columns)

    return jax.value_and_grad(loss)(a, b)


@IDIOMS.on(
    batch=(normal(19, 32), normal(19, 32, name="p"), normal(19, 32, name="n")),
    one=(normal(1, 128), normal(1, 128, name="p"), normal(1, 128, name="n")),
)
def triplet_margin(anchor: Any, positive: Any, negative: Any) -> Any:
    def loss(a: Any, p: Any, n: Any) -> Any:
        near = jnp.sum((a - p) ** 2, axis=-1)
        far = jnp.sum((a - n) ** 2, axis=-1)
        return jnp.mean(jax.nn.relu(near - far + 0.2))

    return jax.value_and_grad(loss, (0, 1, 2))(anchor, positive, negative)


@IDIOMS.on(
    quantiles=(normal(32, 51), normal(32, 51, name="t")),
    one=(normal(1, 51), normal(1, 51, name="t")),
)
def quantile_huber(predicted: Any, target: Any) -> Any:
    """The loss of distributional agents, over all pairs of quantiles."""

    def loss(q: Any) -> Any:
        tau = (jnp.arange(q.shape[-1]) + 0.5) / q.shape[-1]
        delta = target[:, None, :] - q[:, :, None]
        weight = jnp.abs(tau[None, :, None] - (delta < 0).astype(jnp.float32))
        error = jnp.where(jnp.abs(delta) < 1, 0.5 * delta**2, jnp.abs(delta) - 0.5)
        return (weight * error).mean(axis=2).sum(axis=1).mean()

    return jax.value_and_grad(loss)(predicted)


@IDIOMS.on(
    image=(normal(2, 17, 19, 3), integers(2, 17, 19, high=3)),
    batch_1=(normal(1, 32, 32, 1), integers(1, 32, 32, high=1)),
)
def dice_loss(logits: Any, labels: Any) -> Any:
    def loss(z: Any) -> Any:
        p = jax.nn.softmax(z)
        t = jax.nn.one_hot(labels, z.shape[-1])
        overlap = jnp.sum(p * t, axis=(1, 2))
        total = jnp.sum(p, axis=(1, 2)) + jnp.sum(t, axis=(1, 2))
        return 1 - jnp.mean((2 * overlap + 1e-6) / (total + 1e-6))

    return jax.value_and_grad(loss)(logits)


@IDIOMS.on(batch=(normal(23, 4), uniform(23, 4, name="t")), one=(normal(1, 64), uniform(1, 64, name="t")))
def poisson_and_gamma_likelihoods(x: Any, counts: Any) -> Any:
    def loss(x: Any) -> Any:
        rate = jax.nn.softplus(x) + 1e-3
        poisson = rate - counts * jnp.log(rate) + lax.lgamma(counts + 1.0)
        gamma = -(rate - 1) * jnp.log(counts + 0.1) + counts + lax.lgamma(rate)
        return poisson.sum() + gamma.mean()

    return jax.value_and_grad(loss)(x)


@IDIOMS.on(
    boxes=(uniform(37, 2), uniform(37, 2, name="s"), uniform(37, 2, name="t"), uniform(37, 2, name="ts")),
    one=(uniform(1, 2), uniform(1, 2, name="s"), uniform(1, 2, name="t"), uniform(1, 2, name="ts")),
)
def generalised_box_overlap(corner: Any, size: Any, target: Any, target_size: Any) -> Any:
    def loss(corner: Any, size: Any) -> Any:
        a = jnp.concatenate([corner, corner + size], -1)
        b = jnp.concatenate([target, target + target_size], -1)
        overlap = jnp.clip(jnp.minimum(a[:, 2:], b[:, 2:]) - jnp.maximum(a[:, :2], b[:, :2]), 0).prod(-1)
        union = size.prod(-1) + target_size.prod(-1) - overlap
        hull = (jnp.maximum(a[:, 2:], b[:, 2:]) - jnp.minimum(a[:, :2], b[:, :2])).prod(-1)
        return jnp.mean(1 - (overlap / union - (hull - union) / hull))

    return jax.value_and_grad(loss, (0, 1))(corner, size)


@IDIOMS.on(
    images=(uniform(1, 12, 12, 1), uniform(1, 12, 12, 1, name="t")),
    colours=(uniform(2, 16, 15, 3), uniform(2, 16, 15, 3, name="t")),
)
def structural_similarity(x: Any, y: Any) -> Any:
    def mean(v: Any) -> Any:
        return lax.reduce_window(v, 0.0, lax.add, (1, 7, 7, 1), (1, 1, 1, 1), "VALID") / 49

    def loss(x: Any) -> Any:
        mx, my = mean(x), mean(y)
        vx, vy, vxy = mean(x * x) - mx**2, mean(y * y) - my**2, mean(x * y) - mx * my
        score = (2 * mx * my + 1e-4) * (2 * vxy + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4))
        return 1 - jnp.mean(score)

    return jax.value_and_grad(loss)(x)


@IDIOMS.on(batch=(normal(24, 16), normal(24, 16, name="b")), narrow=(normal(64, 1), normal(64, 1, name="b")))
def barlow_twins_and_vicreg(a: Any, b: Any) -> Any:
    def loss(a: Any, b: Any) -> Any:
        n, d = a.shape
        za = (a - a.mean(0)) / (a.std(0) + 1e-4)
        zb = (b - b.mean(0)) / (b.std(0) + 1e-4)
        c = za.T @ zb / n
        on = jnp.sum((jnp.diagonal(c) - 1) ** 2)
        off = jnp.sum(jnp.where(jnp.eye(d, dtype=bool), 0.0, c) ** 2)
        return on + 0.005 * off + jnp.mean(jax.nn.relu(1 - jnp.sqrt(a.var(0) + 1e-4)))

    return jax.value_and_grad(loss, (0, 1))(a, b)


@IDIOMS.on(
    batch=(normal(13, 21), integers(13, 21, high=4).astype(np.float32)),
    one=(normal(1, 64), integers(1, 64, high=4).astype(np.float32)),
)
def listwise_ranking_loss(scores: Any, relevance: Any) -> Any:
    def loss(s: Any) -> Any:
        order = jnp.argsort(-relevance, axis=-1, stable=True)
        s = jnp.take_along_axis(s, order, axis=-1)
        tail = lax.cumlogsumexp(s, axis=1, reverse=True)
        gains = (2.0**relevance - 1) / jnp.log2(2.0 + jnp.argsort(jnp.argsort(-s, axis=-1), axis=-1))
        return jnp.mean(jnp.sum(tail - s, -1)), gains.sum(-1)

    return jax.value_and_grad(loss, has_aux=True)(scores)
