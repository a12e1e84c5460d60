"""Families of losses with gradients, metrics and regularisers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from env.suites.programs.differentiation import gradient, value_and_gradient
from env.suites.programs.family import Families, Members, each_of, integers, normal, sizes, uniform

FAMILIES = Families()
LOGITS = ((32, 10), (128, 1000), (1024, 1000), (256, 32000), (2048, 512))


def _log_likelihood(logits: Array, labels: Array) -> Array:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1)[:, 0]


@FAMILIES.add
def cross_entropy() -> Members:
    """Cross entropy with integer labels: smoothed, focal, by one-hot vectors, perplexity, and gradients."""

    def smooth(logits: Array, labels: Array) -> Array:
        n = logits.shape[-1]
        target = jax.nn.one_hot(labels, n) * 0.9 + 0.1 / n
        return -jnp.mean(jnp.sum(target * jax.nn.log_softmax(logits), -1))

    def focal(logits: Array, labels: Array) -> Array:
        logp = _log_likelihood(logits, labels)
        return -jnp.mean((1 - jnp.exp(logp)) ** 2 * logp)

    def plain(logits: Array, labels: Array) -> Array:
        return -_log_likelihood(logits, labels)

    variants: dict[str, Any] = {
        "plain": plain,
        "smooth": smooth,
        "focal": focal,
        "perplexity": lambda x, i: jnp.exp(jnp.mean(plain(x, i))),
        "accuracy": lambda x, i: (jnp.mean(jnp.argmax(x, -1) == i), jnp.mean(plain(x, i))),
        "gradient": jax.grad(lambda x, i: jnp.mean(plain(x, i))),
        "smooth_gradient": jax.value_and_grad(smooth),
        "focal_gradient": jax.grad(focal),
    }
    yield from each_of(variants, {sizes(m, n): (normal(m, n), integers(0, n, m)) for m, n in LOGITS})


@FAMILIES.add
def regression_losses() -> Members:
    """Squared, absolute, Huber, log-cosh, quantile and Poisson losses, and gradients."""

    def huber(x: Array, y: Array) -> Array:
        d = jnp.abs(x - y)
        return jnp.mean(jnp.where(d < 1, 0.5 * d * d, d - 0.5))

    base: dict[str, Any] = {
        "squared": lambda x, y: jnp.mean(jnp.square(x - y)),
        "absolute": lambda x, y: jnp.mean(jnp.abs(x - y)),
        "huber": huber,
        "log_cosh": lambda x, y: jnp.mean(jnp.logaddexp(x - y, y - x) - jnp.log(2.0)),
        "quantile": lambda x, y: jnp.mean(jnp.maximum(0.9 * (x - y), -0.1 * (x - y))),
        "poisson": lambda x, y: jnp.mean(jnp.exp(x) - jnp.abs(y) * x),
    }
    variants = base | {f"{name}_gradient": jax.value_and_grad(f, (0, 1)) for name, f in base.items()}
    yield from each_of(variants, {sizes(*d): (normal(*d), normal(*d)) for d in ((128, 16), (1024, 256), (4096, 1024))})


@FAMILIES.add
def contrastive_losses() -> Members:
    """Similarities of embeddings: InfoNCE, triplets, cosine, supervised contrast, and gradients."""

    def unit(x: Array) -> Any:
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    def info_nce(x: Array, y: Array) -> Array:
        scores = unit(x) @ unit(y).T / 0.07
        return -jnp.mean(jnp.diagonal(jax.nn.log_softmax(scores)) + jnp.diagonal(jax.nn.log_softmax(scores.T))) / 2

    def triplet(x: Array, y: Array) -> Array:
        near, far = jnp.sum((x - y) ** 2, -1), jnp.sum((x - jnp.roll(y, 1, 0)) ** 2, -1)
        return jnp.mean(jnp.maximum(near - far + 1, 0))

    def barlow(x: Array, y: Array) -> Array:
        a, b = ((v - v.mean(0)) / (v.std(0) + 1e-4) for v in (x, y))
        c = a.T @ b / x.shape[0]
        return jnp.sum((1 - jnp.diagonal(c)) ** 2) + 0.005 * (jnp.sum(c**2) - jnp.sum(jnp.diagonal(c) ** 2))

    base: dict[str, Any] = {
        "info_nce": info_nce,
        "triplet": triplet,
        "barlow": barlow,
        "cosine": lambda x, y: jnp.mean(1 - jnp.sum(unit(x) * unit(y), -1)),
    }
    variants = base | {f"{name}_gradient": jax.value_and_grad(f, (0, 1)) for name, f in base.items()}
    yield from each_of(variants, {sizes(*d): (normal(*d), normal(*d)) for d in ((32, 64), (256, 128), (1024, 512))})


@FAMILIES.add
def divergences() -> Members:
    """Kullback-Leibler and Jensen-Shannon divergences, distillation, Gaussian latents, binary cross entropy."""

    def kl(x: Array, y: Array) -> Array:
        p, q = jax.nn.log_softmax(x), jax.nn.log_softmax(y)
        return jnp.mean(jnp.sum(jnp.exp(p) * (p - q), -1))

    def js(x: Array, y: Array) -> Array:
        p, q = jax.nn.softmax(x), jax.nn.softmax(y)
        m = jnp.log((p + q) / 2 + 1e-9)
        return jnp.mean(jnp.sum(p * (jnp.log(p + 1e-9) - m) + q * (jnp.log(q + 1e-9) - m), -1)) / 2

    base: dict[str, Any] = {
        "kl": kl,
        "js": js,
        "distillation": lambda x, y: kl(x / 2, y / 2) * 4,
        "latent": lambda x, y: -0.5 * jnp.mean(jnp.sum(1 + y - x * x - jnp.exp(y), -1)),
        "binary": lambda x, y: jnp.mean(jnp.maximum(x, 0) - x * jax.nn.sigmoid(y) + jnp.log1p(jnp.exp(-jnp.abs(x)))),
        "dice": lambda x, y: (
            1 - 2 * jnp.sum(jax.nn.sigmoid(x) * (y > 0)) / (jnp.sum(jax.nn.sigmoid(x)) + jnp.sum(y > 0))
        ),
    }
    variants = base | {f"{name}_gradient": jax.grad(f) for name, f in base.items()}
    yield from each_of(variants, {sizes(*d): (normal(*d), normal(*d)) for d in ((64, 10), (512, 100), (1024, 2048))})


@FAMILIES.add
def connectionist_losses() -> Members:
    """Losses of sequences by dynamic programs: CTC-like alignment, conditional random fields."""

    def alignment(logits: Array, labels: Array) -> Array:
        logp = jax.nn.log_softmax(logits)[:, labels]

        def step(alpha: Array, row: Array) -> tuple[Array, None]:
            moved = jnp.concatenate([jnp.full((1,), -1e9), alpha[:-1]])
            return jnp.logaddexp(alpha, moved) + row, None

        start = jnp.full(labels.shape, -1e9).at[0].set(logp[0, 0])
        return -jax.lax.scan(step, start, logp[1:])[0][-1]

    def field(logits: Array, labels: Array) -> Array:
        n = logits.shape[1]
        table = jnp.sin(jnp.arange(n * n, dtype=jnp.float32)).reshape(n, n)

        def step(alpha: Array, row: Array) -> tuple[Array, None]:
            return jax.nn.logsumexp(alpha[:, None] + table, axis=0) + row, None

        total = jax.nn.logsumexp(jax.lax.scan(step, logits[0], logits[1:])[0])
        return total - jnp.sum(logits[jnp.arange(labels.shape[0]), labels])

    variants: dict[str, Any] = {
        "alignment": alignment,
        "field": field,
        "alignment_gradient": jax.grad(alignment),
        "field_gradient": jax.value_and_grad(field),
    }
    cases = {
        f"{n}x{k}_{m}": (normal(n, k), integers(0, k, m)) for n, k, m in ((32, 8, 10), (100, 30, 20), (500, 64, 100))
    }
    yield from each_of(variants, cases)


@FAMILIES.add
def regularisers() -> Members:
    """Penalties on weights and activations, clipping by norm, weight decay, spectral norms, and gradients."""

    def clip(x: Array, y: Array) -> tuple[Array, Array]:
        norm = jnp.sqrt(jnp.sum(x * x) + jnp.sum(y * y))
        scale = jnp.minimum(1.0, 1.0 / (norm + 1e-6))
        return x * scale, y * scale

    def spectral(x: Array, y: Array) -> Array:
        v = y[0]
        for _ in range(3):
            u = x @ v
            u = u / (jnp.linalg.norm(u) + 1e-9)
            v = x.T @ u
            v = v / (jnp.linalg.norm(v) + 1e-9)
        return x / jnp.dot(u, x @ v)

    penalty: Any = lambda x, y: 1e-4 * jnp.sum(x * x) + 1e-5 * jnp.sum(jnp.abs(y))  # noqa: E731
    variants: dict[str, Any] = {
        "clip": clip,
        "spectral": spectral,
        "penalty": penalty,
        "penalty_gradient": gradient(penalty),
        "soft_threshold": lambda x, y: jnp.sign(x) * jnp.maximum(jnp.abs(x) - 0.1 * jnp.abs(y), 0),
        "smoothness": value_and_gradient(lambda x, y: x[1:] - x[:-1] + y[1:]),
        "orthogonal": gradient(lambda x, y: x.T @ x - jnp.eye(x.shape[1]) + 0 * jnp.sum(y)),
    }
    yield from each_of(variants, {sizes(*d): (normal(*d), normal(*d)) for d in ((64, 32), (512, 256), (2048, 1024))})


@FAMILIES.add
def metrics() -> Members:
    """Metrics of predictions: confusion matrices, F1, ranking, calibration, correlation."""

    def confusion(x: Array, y: Array) -> Array:
        a, b = (x * 10).astype(jnp.int32), (y * 10).astype(jnp.int32)
        return jnp.zeros((10, 10), jnp.int32).at[a, b].add(1)

    def f1(x: Array, y: Array) -> Array:
        p, t = x > 0.5, y > 0.5
        hit = jnp.sum(p & t)
        return 2 * hit / (jnp.sum(p) + jnp.sum(t))

    def calibration(x: Array, y: Array) -> Array:
        bins = jnp.clip((x * 15).astype(jnp.int32), 0, 14)
        count = jnp.zeros(15).at[bins].add(1.0)
        gap = jnp.zeros(15).at[bins].add(x - (y > 0.5))
        return jnp.sum(jnp.abs(gap)) / jnp.sum(count)

    def area(x: Array, y: Array) -> Array:
        order = jnp.argsort(-x)
        hits = jnp.cumsum(y[order] > 0.5)
        return jnp.sum(jnp.where(y[order] > 0.5, 0, hits)) / (hits[-1] * (x.shape[0] - hits[-1]) + 1)

    def correlation(x: Array, y: Array) -> Array:
        a, b = x - x.mean(), y - y.mean()
        return jnp.sum(a * b) / jnp.sqrt(jnp.sum(a * a) * jnp.sum(b * b))

    variants: dict[str, Any] = {
        "confusion": confusion,
        "f1": f1,
        "calibration": calibration,
        "area": area,
        "correlation": correlation,
    }
    cases = {str(n): (uniform(0, 1, n), uniform(0, 1, n)) for n in (1000, 10000, 100000, 1000000)}
    yield from each_of(variants, cases)
