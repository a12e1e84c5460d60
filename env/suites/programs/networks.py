"""Families of parts of networks: attention, feed-forward layers, convolutions, pooling."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from env.suites.programs.differentiation import gradient, value_and_gradient
from env.suites.programs.family import Families, Members, each_of, normal, sizes, uniform, with_halves

FAMILIES = Families()


@FAMILIES.add
def attention() -> Members:
    """Attention of several heads: causal, windowed, biased, grouped, linear, of one query, and gradients."""

    def full(q: Array, k: Array, v: Array, mask: Any = None) -> Array:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
        if mask is not None:
            scores = jnp.where(mask, scores, jnp.asarray(-1e4, q.dtype))
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)

    def causal(q: Array, k: Array, v: Array) -> Array:
        return full(q, k, v, jnp.tri(q.shape[2], dtype=bool))

    def windowed(q: Array, k: Array, v: Array) -> Array:
        i = jnp.arange(q.shape[2])
        return full(q, k, v, jnp.abs(i[:, None] - i[None, :]) < 16)

    def biased(q: Array, k: Array, v: Array) -> Array:
        i = jnp.arange(q.shape[2], dtype=jnp.float32)
        slope = 2.0 ** -jnp.arange(1, q.shape[1] + 1, dtype=jnp.float32)
        bias = -jnp.abs(i[:, None] - i[None, :]) * slope[:, None, None]
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1]) + bias.astype(q.dtype)
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)

    def linear(q: Array, k: Array, v: Array) -> Array:
        q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
        state, total = jnp.einsum("bhkd,bhke->bhde", k, v), jnp.sum(k, 2)
        return jnp.einsum("bhqd,bhde->bhqe", q, state) / jnp.einsum("bhqd,bhd->bhq", q, total)[..., None]

    variants: dict[str, Any] = {
        "full": full,
        "causal": causal,
        "windowed": windowed,
        "biased": biased,
        "linear": linear,
        "decode": lambda q, k, v: full(q[:, :, :1], k, v),
        "shared_keys": lambda q, k, v: full(q, k[:, :1], v[:, :1]),
        "gradient": gradient(full),
        "causal_gradient": gradient(causal),
    }
    shapes = ((1, 2, 16, 32), (4, 2, 128, 64), (1, 8, 512, 64), (2, 12, 256, 64), (8, 4, 64, 32))
    yield from each_of(variants, {f"{sizes(*d)}_{t}": (normal(*d, dtype=t),) * 3 for d, t in with_halves(shapes, 1)})


@FAMILIES.add
def transformer_blocks() -> Members:
    """Blocks of transformers: norm, attention, feed-forward layer and residual sums, and gradients."""

    def norm(x: Array) -> Array:
        c = x - x.mean(-1, keepdims=True)
        return c * lax.rsqrt(jnp.mean(c * c, -1, keepdims=True) + 1e-5)

    def attend(x: Array, w: Array, o: Array, heads: int) -> Array:
        n, width = x.shape
        q, k, v = jnp.split((x @ w).reshape(n, heads, -1), 3, axis=-1)
        weights = jax.nn.softmax(jnp.einsum("qhd,khd->hqk", q, k) / math.sqrt(width // heads))
        return jnp.einsum("hqk,khd->qhd", weights, v).reshape(n, width) @ o

    def before(x: Array, w: Array, o: Array, up: Array, down: Array) -> Array:
        x = x + attend(norm(x), w, o, 4)
        return x + jax.nn.gelu(norm(x) @ up) @ down

    def after(x: Array, w: Array, o: Array, up: Array, down: Array) -> Array:
        x = norm(x + attend(x, w, o, 2))
        return norm(x + jax.nn.relu(x @ up) @ down)

    def parallel(x: Array, w: Array, o: Array, up: Array, down: Array) -> Array:
        h = norm(x)
        return x + attend(h, w, o, 4) + jax.nn.silu(h @ up) @ down

    variants: dict[str, Any] = {
        "before": before,
        "after": after,
        "parallel": parallel,
        "before_gradient": value_and_gradient(before),
        "two": lambda *a: before(before(*a), *a[1:]),
    }
    cases = {}
    for n, d in ((16, 32), (64, 128), (128, 256), (256, 512), (512, 768)):
        s = round(d**-0.5, 4)
        weights = (normal(d, 3 * d, std=s), normal(d, d, std=s), normal(d, 4 * d, std=s), normal(4 * d, d, std=s / 2))
        cases[sizes(n, d)] = (normal(n, d), *weights)
    yield from each_of(variants, cases)


@FAMILIES.add
def multilayer_perceptrons() -> Members:
    """Multilayer perceptrons: forward, with dropout masks, training steps, gradients per example."""

    def forward(x: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
        return jax.nn.relu(x @ w1 + b1) @ w2 + b2

    def tanh(x: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
        return jnp.tanh(jnp.tanh(x @ w1 + b1) @ w2 + b2)

    def step(x: Array, *weights: Array) -> Any:
        gradients = jax.grad(lambda w: jnp.mean(jnp.square(forward(x, *w))))(weights)
        return tuple(w - 0.01 * g for w, g in zip(weights, gradients, strict=True))

    def examples(x: Array, *weights: Array) -> Any:
        return jax.vmap(lambda r: jax.grad(lambda w: jnp.sum(forward(r, *w) ** 2))(weights[0:1] + weights[1:]))(x[:8])

    variants: dict[str, Any] = {
        "forward": forward,
        "tanh": tanh,
        "step": step,
        "examples": examples,
        "gradient": value_and_gradient(forward),
        "residual": lambda x, w1, b1, w2, b2: forward(x, w1, b1, w2, b2)[:, : x.shape[1]].sum(-1, keepdims=True) + x,
    }
    cases = {}
    for m, k, h, n in (
        (8, 4, 32, 2),
        (32, 64, 64, 10),
        (128, 256, 512, 10),
        (256, 784, 256, 10),
        (512, 1024, 2048, 256),
    ):
        cases[sizes(m, k, h, n)] = (
            normal(m, k),
            normal(k, h, std=round(k**-0.5, 4)),
            normal(h, std=0.1),
            normal(h, n, std=round(h**-0.5, 4)),
            normal(n, std=0.1),
        )
    yield from each_of(variants, cases)


@FAMILIES.add
def gated_layers() -> Members:
    """Gated feed-forward layers, highway layers, mixtures of experts, low-rank adapters, and gradients."""

    def swiglu(x: Array, a: Array, b: Array, c: Array) -> Array:
        return (jax.nn.silu(x @ a) * (x @ b)) @ c

    def highway(x: Array, a: Array, b: Array, c: Array) -> Array:
        gate = jax.nn.sigmoid((x @ a) @ c)
        return gate * jnp.tanh((x @ b) @ c) + (1 - gate) * x

    def experts(x: Array, a: Array, b: Array, c: Array) -> Array:
        route = jax.nn.softmax((x @ a)[:, :2])
        return route[:, :1] * (jax.nn.relu(x @ a) @ c) + route[:, 1:] * (jax.nn.relu(x @ b) @ c)

    def adapter(x: Array, a: Array, b: Array, c: Array) -> Array:
        return x @ a @ c + 0.5 * (x @ b[:, :8]) @ c[:8]

    variants: dict[str, Any] = {
        "swiglu": swiglu,
        "geglu": lambda x, a, b, c: (jax.nn.gelu(x @ a) * (x @ b)) @ c,
        "highway": highway,
        "experts": experts,
        "adapter": adapter,
        "swiglu_gradient": gradient(swiglu),
    }
    cases = {}
    for (m, d, h), t in with_halves(((8, 32, 64), (64, 128, 512), (256, 512, 1024), (512, 768, 2048)), 1):
        s = round(d**-0.5, 4)
        weights = (
            normal(d, h, std=s, dtype=t),
            normal(d, h, std=s, dtype=t),
            normal(h, d, std=round(h**-0.5, 4), dtype=t),
        )
        cases[f"{sizes(m, d, h)}_{t}"] = (normal(m, d, dtype=t), *weights)
    yield from each_of(variants, cases)


def _conv(x: Array, w: Array, stride: int = 1, groups: int = 1, dilation: int = 1) -> Array:
    return lax.conv_general_dilated(
        x,
        w,
        (stride, stride),
        "SAME",
        rhs_dilation=(dilation, dilation),
        feature_group_count=groups,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


@FAMILIES.add
def convolution_blocks() -> Members:
    """Convolutions with bias, norm and activation: strided, dilated, residual, squeezed, and gradients."""

    def block(x: Array, w: Array, g: Array) -> Array:
        return jax.nn.relu(_conv(x, w) * g)

    def residual(x: Array, w: Array, g: Array) -> Array:
        return jax.nn.relu(x + _conv(block(x, w, g), w) * g)

    def normed(x: Array, w: Array, g: Array) -> Array:
        y = _conv(x, w)
        return jax.nn.relu((y - y.mean((0, 1, 2))) * lax.rsqrt(y.var((0, 1, 2)) + 1e-5) * g)

    def squeeze(x: Array, w: Array, g: Array) -> Array:
        y = _conv(x, w)
        return y * jax.nn.sigmoid(y.mean((1, 2), keepdims=True) * g)

    variants: dict[str, Any] = {
        "block": block,
        "residual": residual,
        "normed": normed,
        "squeeze": squeeze,
        "strided": lambda x, w, g: jax.nn.silu(_conv(x, w, 2) + g),
        "dilated": lambda x, w, g: jax.nn.gelu(_conv(x, w, dilation=2) + g),
        "block_gradient": gradient(block),
        "residual_gradient": gradient(residual),
    }
    cases = {}
    for n, h, c in ((1, 8, 8), (4, 16, 16), (1, 28, 32), (8, 14, 64), (2, 56, 32)):
        cases[sizes(n, h, h, c)] = (
            normal(n, h, h, c),
            normal(3, 3, c, c, std=round((9 * c) ** -0.5, 4)),
            uniform(0.5, 1.5, c),
        )
    yield from each_of(variants, cases)


@FAMILIES.add
def separable_convolutions() -> Members:
    """Depthwise and pointwise convolutions, inverted bottlenecks, and gradients."""

    def depthwise(x: Array, w: Array, p: Array) -> Array:
        return jax.nn.relu6(_conv(x, w, groups=x.shape[-1]))

    def separable(x: Array, w: Array, p: Array) -> Array:
        return jax.nn.relu(jnp.einsum("nhwc,cd->nhwd", depthwise(x, w, p), p))

    variants: dict[str, Any] = {
        "depthwise": depthwise,
        "separable": separable,
        "pointwise": lambda x, w, p: jax.nn.silu(x @ p),
        "inverted": lambda x, w, p: x + jax.nn.hard_swish(x @ p) @ p.T,
        "gradient": gradient(separable),
        "strided": lambda x, w, p: _conv(x, w, 2, x.shape[-1]) @ p,
    }
    cases = {}
    for n, h, c in ((1, 8, 16), (2, 28, 32), (1, 56, 64), (8, 14, 96), (4, 7, 192)):
        cases[sizes(n, h, h, c)] = (
            normal(n, h, h, c),
            normal(3, 3, 1, c, std=0.3),
            normal(c, 2 * c, std=round(c**-0.5, 4)),
        )
    yield from each_of(variants, cases)


@FAMILIES.add
def pooling() -> Members:
    """Maximum and average pooling, global pooling, upsampling, and gradients."""

    def maximum(x: Array, k: int = 2, s: int = 2) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, k, k, 1), (1, s, s, 1), "SAME")

    def average(x: Array, k: int = 2) -> Any:
        return lax.reduce_window(x, 0.0, lax.add, (1, k, k, 1), (1, k, k, 1), "VALID") / (k * k)

    variants: dict[str, Any] = {
        "maximum": maximum,
        "maximum_3": lambda x: maximum(x, 3, 2),
        "average": average,
        "average_3": lambda x: average(x, 3),
        "whole": lambda x: (x.mean((1, 2)), x.max((1, 2))),
        "nearest": lambda x: jnp.repeat(jnp.repeat(x, 2, 1), 2, 2),
        "difference": lambda x: x - average(maximum(x, 3, 1), 1),
        "maximum_gradient": jax.grad(lambda x: jnp.sum(maximum(x) ** 2)),
        "average_gradient": jax.grad(lambda x: jnp.sum(average(x) ** 2)),
        "bilinear": lambda x: jax.image.resize(x, (x.shape[0], x.shape[1] * 2, x.shape[2] * 2, x.shape[3]), "bilinear"),
    }
    shapes = ((1, 8, 8, 4), (4, 28, 28, 16), (8, 56, 56, 32), (2, 112, 112, 64))
    yield from each_of(variants, {sizes(*d): (normal(*d),) for d in shapes})
