"""Families of functions of rows and columns: softmax, normalisations, reductions, running sums."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from env.suites.programs.differentiation import gradient
from env.suites.programs.family import (
    Argument,
    Families,
    Members,
    each_of,
    integers,
    normal,
    sizes,
    uniform,
    with_halves,
)

FAMILIES = Families()
MATRICES = ((256, 512), (2048, 1024), (16, 64), (128, 1000), (1024, 768), (512, 4096), (8192, 128), (4096, 4096))


def matrices(halves: int = 1) -> dict[str, tuple[Argument, ...]]:
    """Return cases of one normal matrix."""
    return {f"{sizes(*d)}_{t}": (normal(*d, dtype=t),) for d, t in with_halves(MATRICES, halves)}


@FAMILIES.add
def softmax() -> Members:
    """Softmax and log-softmax along rows and columns, with temperature or mask, and gradients."""

    def masked(x: Array) -> Array:
        keep = jnp.arange(x.shape[1])[None, :] <= jnp.arange(x.shape[0])[:, None]
        return jax.nn.softmax(jnp.where(keep, x, -1e4), axis=-1)

    variants: dict[str, Any] = {
        "rows": lambda x: jax.nn.softmax(x, axis=-1),
        "columns": lambda x: jax.nn.softmax(x, axis=0),
        "log": lambda x: jax.nn.log_softmax(x, axis=-1),
        "tempered": lambda x: jax.nn.softmax(x * 0.125, axis=-1),
        "masked": masked,
        "gradient": gradient(lambda x: jax.nn.softmax(x, axis=-1) * x),
    }
    yield from each_of(variants, matrices())


@FAMILIES.add
def layer_norm() -> Members:
    """Layer normalisation along rows, with residual sums and activations, and gradients."""

    def forward(x: Array, gamma: Array, beta: Array) -> Array:
        mean = jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
        return (x - mean) * lax.rsqrt(variance + jnp.asarray(1e-5, x.dtype)) * gamma + beta

    variants: dict[str, Any] = {
        "forward": forward,
        "gelu": lambda x, g, b: jax.nn.gelu(forward(x, g, b)),
        "residual": lambda x, g, b: (x + jnp.tanh(x), forward(x + jnp.tanh(x), g, b)),
        "gradient": gradient(forward),
    }
    cases = {
        f"{sizes(*d)}_{t}": (normal(*d, dtype=t), uniform(0.5, 1.5, d[-1], dtype=t), normal(d[-1], dtype=t))
        for d, t in with_halves(MATRICES, 2)
    }
    yield from each_of(variants, cases)


@FAMILIES.add
def rms_norm() -> Members:
    """Division by the root mean square of rows, gated or with a residual sum, and gradients."""

    def forward(x: Array, gamma: Array) -> Array:
        return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + jnp.asarray(1e-6, x.dtype)) * gamma

    variants: dict[str, Any] = {
        "forward": forward,
        "gated": lambda x, g: forward(x, g) * jax.nn.silu(x),
        "wide": lambda x, g: forward(x.astype(jnp.float32), g.astype(jnp.float32)).astype(x.dtype),
        "gradient": gradient(forward),
    }
    cases = {
        f"{sizes(*d)}_{t}": (normal(*d, dtype=t), uniform(0.5, 1.5, d[-1], dtype=t)) for d, t in with_halves(MATRICES)
    }
    yield from each_of(variants, cases)


@FAMILIES.add
def batch_norm() -> Members:
    """Batch, group and instance normalisation of images, with running statistics, and gradients."""

    def batch(x: Array, g: Array, b: Array) -> Array:
        mean, variance = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
        return (x - mean) * lax.rsqrt(variance + 1e-5) * g + b

    def running(x: Array, g: Array, b: Array) -> tuple[Array, Array, Array]:
        mean, variance = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
        return jax.nn.relu(batch(x, g, b)), 0.9 * b + 0.1 * mean, 0.9 * g + 0.1 * variance

    def group(x: Array, g: Array, b: Array) -> Array:
        n, h, w, c = x.shape
        parts = x.reshape(n, h, w, 4, c // 4)
        mean, variance = jnp.mean(parts, (1, 2, 4), keepdims=True), jnp.var(parts, (1, 2, 4), keepdims=True)
        return ((parts - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape) * g + b

    def instance(x: Array, g: Array, b: Array) -> Array:
        mean, variance = jnp.mean(x, (1, 2), keepdims=True), jnp.var(x, (1, 2), keepdims=True)
        return (x - mean) * lax.rsqrt(variance + 1e-5) * g + b

    variants: dict[str, Any] = {
        "batch": batch,
        "running": running,
        "group": group,
        "instance": instance,
        "batch_gradient": gradient(batch),
        "group_gradient": gradient(group),
    }
    shapes = ((2, 8, 8, 16), (8, 28, 28, 32), (16, 14, 14, 64), (32, 32, 32, 16), (8, 56, 56, 64), (64, 7, 7, 256))
    cases = {sizes(*d): (normal(*d), uniform(0.5, 1.5, d[-1]), normal(d[-1])) for d in shapes}
    yield from each_of(variants, cases)


@FAMILIES.add
def moments() -> Members:
    """Means, variances, skewness, norms and standard scores along rows and columns."""

    def higher(x: Array) -> tuple[Array, ...]:
        mean = jnp.mean(x, 0)
        c = x - mean
        variance = jnp.mean(c * c, 0)
        return mean, variance, jnp.mean(c**3, 0) / variance**1.5, jnp.mean(c**4, 0) / variance**2 - 3

    variants: dict[str, Any] = {
        "higher": higher,
        "row_variance": lambda x: jnp.var(x, -1),
        "scores": lambda x: (x - x.mean(0)) / (x.std(0) + 1e-6),
        "norms": lambda x: (jnp.sqrt(jnp.sum(x * x, -1)), jnp.sum(jnp.abs(x), -1), jnp.max(jnp.abs(x), -1)),
        "column_range": lambda x: jnp.max(x, 0) - jnp.min(x, 0),
        "unit_rows": lambda x: x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-6),
        "whole": lambda x: (jnp.mean(x), jnp.var(x), jnp.max(x), jnp.argmax(x)),
    }
    yield from each_of(variants, {sizes(*d): (normal(*d),) for d in MATRICES})


@FAMILIES.add
def running_sums() -> Members:
    """Cumulative sums, products and maxima, moving averages and exponential smoothing."""

    def smooth(x: Array) -> Any:
        def step(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
            return a[0] * b[0], a[1] * b[0] + b[1]

        return lax.associative_scan(step, (jnp.full_like(x, 0.9), 0.1 * x), axis=1)[1]

    def window(x: Array) -> Array:
        total = jnp.cumsum(x, axis=1)
        return (total[:, 8:] - total[:, :-8]) / 8

    variants: dict[str, Any] = {
        "sum_rows": lambda x: jnp.cumsum(x, 1),
        "sum_columns": lambda x: jnp.cumsum(x, 0),
        "maximum": lambda x: lax.cummax(x, 1),
        "drawdown": lambda x: lax.cummax(jnp.cumsum(x, 1), 1) - jnp.cumsum(x, 1),
        "smooth": smooth,
        "window": window,
        "logsumexp": lambda x: lax.cumlogsumexp(x, 1),
        "product": lambda x: jnp.cumprod(1 + 0.001 * x, 1),
    }
    shapes = ((8, 100), (64, 256), (1, 10000), (512, 512), (2048, 512), (100, 20000))
    yield from each_of(variants, {sizes(*d): (normal(*d),) for d in shapes})


@FAMILIES.add
def integer_reductions() -> Members:
    """Reductions of integers and booleans: counts, extremes, bitwise sums, majority."""
    variants: dict[str, Any] = {
        "count": lambda x: jnp.sum(x > 0, -1),
        "any_all": lambda x: (jnp.any(x > 90, -1), jnp.all(x > 2, -1)),
        "xor": lambda x: lax.reduce(x, jnp.zeros((), x.dtype), lax.bitwise_xor, (1,)),
        "sum_columns": lambda x: jnp.sum(x, 0),
        "argmin": lambda x: (jnp.argmin(x, -1), jnp.min(x, -1)),
        "parity": lambda x: jnp.sum((x & 1) * 2 - 1, 0) * jnp.max(x),
    }
    cases = {
        f"{sizes(*d)}_{t}": (integers(0, 100, *d, dtype=t),)
        for d in ((16, 64), (256, 512), (2048, 1024), (100, 10000))
        for t in ("int32", "uint8")
    }
    yield from each_of(variants, cases)
