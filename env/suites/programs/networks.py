"""Families of parts of networks: attention, feed-forward layers, convolutions, pooling, recurrent cells, graphs."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from env.suites.programs.differentiation import gradient, value_and_gradient
from env.suites.programs.family import Families, Members, each_of, integers, normal, sizes, uniform, with_halves

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
def sequence_convolutions() -> Members:
    """Convolutions of one dimension: causal, dilated stacks, wavenet gates, depthwise, and gradients."""

    def conv(x: Array, w: Array, dilation: int = 1) -> Array:
        pad = (w.shape[0] - 1) * dilation
        return lax.conv_general_dilated(
            x, w, (1,), [(pad, 0)], rhs_dilation=(dilation,), dimension_numbers=("NWC", "WIO", "NWC")
        )

    def gates(x: Array, w: Array, v: Array) -> Array:
        return x + jnp.tanh(conv(x, w)) * jax.nn.sigmoid(conv(x, v))

    def stack(x: Array, w: Array, v: Array) -> Array:
        for d in (1, 2, 4):
            x = x + jax.nn.relu(conv(x, w, d))
        return x

    variants: dict[str, Any] = {
        "causal": lambda x, w, v: jax.nn.relu(conv(x, w)),
        "gates": gates,
        "stack": stack,
        "gradient": gradient(gates, 1, 2),
    }
    cases = {}
    for n, length, c in ((1, 64, 8), (4, 256, 16), (8, 512, 32), (2, 4096, 32)):
        w = normal(3, c, c, std=round((3 * c) ** -0.5, 4))
        cases[sizes(n, length, c)] = (normal(n, length, c), w, w)
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


@FAMILIES.add
def recurrent_cells() -> Members:
    """Recurrent cells over sequences: plain, gated, minimal, with layer norm, and gradients."""

    def plain(x: Array, w: Array, u: Array) -> Array:
        def step(h: Array, row: Array) -> tuple[Array, Array]:
            h = jnp.tanh(row @ w[:, : h.shape[1]] + h @ u[:, : h.shape[1]])
            return h, h

        return lax.scan(step, jnp.zeros((x.shape[1], u.shape[0])), x)[1]

    def gru(x: Array, w: Array, u: Array) -> Array:
        def step(h: Array, row: Array) -> tuple[Array, Array]:
            a, b = row @ w, h @ u
            n = h.shape[1]
            z, r = jax.nn.sigmoid(a[:, :n] + b[:, :n]), jax.nn.sigmoid(a[:, n : 2 * n] + b[:, n : 2 * n])
            h = (1 - z) * h + z * jnp.tanh(a[:, 2 * n : 3 * n] + r * b[:, 2 * n : 3 * n])
            return h, h

        return lax.scan(step, jnp.zeros((x.shape[1], u.shape[0])), x)[1]

    def lstm(x: Array, w: Array, u: Array) -> Array:
        def step(carry: tuple[Array, Array], row: Array) -> tuple[tuple[Array, Array], Array]:
            h, c = carry
            i, f, g, o = jnp.split(row @ w + h @ u, 4, axis=-1)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((x.shape[1], u.shape[0]))
        return lax.scan(step, (zero, zero), x)[1]

    variants: dict[str, Any] = {
        "plain": plain,
        "gru": gru,
        "lstm": lstm,
        "plain_gradient": gradient(plain, 1, 2),
        "lstm_gradient": gradient(lstm, 1, 2),
    }
    cases = {}
    for n, b, d, h in ((8, 4, 8, 16), (32, 16, 32, 32), (64, 32, 64, 128), (128, 8, 128, 256)):
        cases[sizes(n, b, d, h)] = (
            normal(n, b, d),
            normal(d, 4 * h, std=round(d**-0.5, 4)),
            normal(h, 4 * h, std=round(h**-0.5, 4)),
        )
    yield from each_of(variants, cases)


@FAMILIES.add
def state_spaces() -> Members:
    """Linear state spaces: diagonal recurrences by scans, selective gates, and gradients."""

    def scan(x: Array, a: Array, b: Array) -> Array:
        def step(h: Array, row: Array) -> tuple[Array, Array]:
            h = h * jax.nn.sigmoid(a) + row[:, None] * b
            return h, jnp.sum(h, -1)

        return lax.scan(step, jnp.zeros(a.shape), x)[1]

    def associative(x: Array, a: Array, b: Array) -> Any:
        decay = jnp.broadcast_to(jax.nn.sigmoid(a[:, 0]), x.shape)

        def join(p: tuple[Array, Array], q: tuple[Array, Array]) -> tuple[Array, Array]:
            return p[0] * q[0], p[1] * q[0] + q[1]

        return lax.associative_scan(join, (decay, x * b[:, 0]))[1]

    def selective(x: Array, a: Array, b: Array) -> Array:
        gates = jax.nn.sigmoid(x)

        def step(h: Array, rows: tuple[Array, Array]) -> tuple[Array, Array]:
            row, gate = rows
            h = h * jnp.exp(-gate[:, None] * jnp.abs(a)) + (gate * row)[:, None] * b
            return h, jnp.sum(h * b, -1)

        return lax.scan(step, jnp.zeros(a.shape), (x, gates))[1]

    variants: dict[str, Any] = {
        "scan": scan,
        "associative": associative,
        "selective": selective,
        "scan_gradient": gradient(scan),
    }
    cases = {
        sizes(n, d, s): (normal(n, d), normal(d, s), normal(d, s, std=0.3))
        for n, d, s in ((32, 16, 4), (128, 64, 16), (512, 256, 16), (1024, 64, 8))
    }
    yield from each_of(variants, cases)


@FAMILIES.add
def graph_networks() -> Members:
    """Layers over graphs: sums and maxima of messages, degrees, edge attention, diffusion, and gradients."""

    def convolve(x: Array, w: Array, a: Array, b: Array) -> Array:
        total = jax.ops.segment_sum((x @ w)[a], b, x.shape[0])
        degree = jax.ops.segment_sum(jnp.ones(a.shape), b, x.shape[0])
        return jax.nn.relu(total / jnp.maximum(degree, 1)[:, None])

    def attend(x: Array, w: Array, a: Array, b: Array) -> Array:
        h = x @ w
        score = jnp.sum(h[a] * h[b], -1) / h.shape[1]
        top = jax.ops.segment_max(score, b, x.shape[0])
        weight = jnp.exp(score - top[b])
        total = jax.ops.segment_sum(weight, b, x.shape[0])
        return jax.ops.segment_sum(h[a] * (weight / total[b])[:, None], b, x.shape[0])

    def diffuse(x: Array, w: Array, a: Array, b: Array) -> Any:
        return lax.fori_loop(0, 5, lambda _, v: 0.9 * v + 0.02 * jnp.zeros_like(v).at[b].add(v[a]), x)

    variants: dict[str, Any] = {
        "convolve": convolve,
        "attend": attend,
        "diffuse": diffuse,
        "edges": lambda x, w, a, b: jax.nn.relu((x[a] - x[b]) @ w),
        "convolve_gradient": gradient(convolve, 0, 1),
        "maximum": lambda x, w, a, b: jnp.full(x.shape, -10.0).at[b].max(x[a]) @ w,
    }
    cases = {
        sizes(n, e, d): (normal(n, d), normal(d, d, std=0.2), integers(0, n, e), integers(0, n, e))
        for n, e, d in ((32, 128, 8), (500, 2000, 32), (5000, 20000, 64), (10000, 100000, 16))
    }
    yield from each_of(variants, cases)


@FAMILIES.add
def tree_models() -> Members:
    """Decision trees and forests on tables: walks by gathers, boosting sums, oblivious trees."""

    def walk(x: Array, feature: Array, threshold: Array) -> Array:
        def descend(row: Array) -> Array:
            def step(_: Array, node: Array) -> Array:
                right = row[feature[node]] > threshold[node]
                return jnp.minimum(2 * node + 1 + right, feature.shape[0] - 1)

            return threshold[lax.fori_loop(0, 6, step, jnp.int32(0))]

        return jax.vmap(descend)(x)

    def oblivious(x: Array, feature: Array, threshold: Array) -> Array:
        bits = (x[:, feature[:6]] > threshold[:6]).astype(jnp.int32)
        return threshold[jnp.sum(bits << jnp.arange(6), -1) % threshold.shape[0]]

    variants: dict[str, Any] = {
        "walk": walk,
        "oblivious": oblivious,
        "stumps": lambda x, f, t: jnp.sum(jnp.where(x[:, f[:16]] > t[:16], 1.0, -1.0) * t[16:32], -1),
        "boost": lambda x, f, t: walk(x, f, t) + 0.1 * walk(x, (f + 1) % x.shape[1], t),
    }
    cases = {
        sizes(m, n): (normal(m, n), integers(0, n, 127), normal(127))
        for m, n in ((64, 8), (1000, 20), (20000, 30), (100000, 16))
    }
    yield from each_of(variants, cases, chaotic=True)


@FAMILIES.add
def embeddings() -> Members:
    """Embedding tables: sums of bags, positions, tied logits, sampled softmax, factorisation machines, gradients."""

    def bag(table: Array, ids: Array) -> Array:
        return jnp.mean(table[ids], axis=1)

    def factorised(table: Array, ids: Array) -> Array:
        rows = table[ids]
        return 0.5 * jnp.sum(jnp.sum(rows, 1) ** 2 - jnp.sum(rows**2, 1), -1)

    variants: dict[str, Any] = {
        "bag": bag,
        "factorised": factorised,
        "lookup": lambda t, i: t[i] * math.sqrt(t.shape[1]),
        "tied": lambda t, i: jax.nn.log_softmax(bag(t, i) @ t.T),
        "gradient": gradient(bag, 0),
        "dot": lambda t, i: jnp.sum(t[i[:, 0]] * t[i[:, 1]], -1),
        "one_hot": lambda t, i: jax.nn.one_hot(i[:, 0], t.shape[0]) @ t,
        "sparse_step": lambda t, i: t.at[i.reshape(-1)].add(-0.01 * t[i.reshape(-1)]),
    }
    cases = {
        sizes(v, d, m, n): (normal(v, d), integers(0, v, m, n))
        for v, d, m, n in ((100, 8, 16, 4), (1000, 64, 64, 16), (10000, 128, 32, 50), (30000, 64, 256, 8))
    }
    yield from each_of(variants, cases)


@FAMILIES.add
def generative_models() -> Members:
    """Parts of generative models: coupling flows, diffusion steps, variational decoders, quantised codes."""

    def coupling(x: Array, w: Array, key: Array) -> tuple[Array, Array]:
        a, b = jnp.split(x, 2, -1)
        s = jnp.tanh(a @ w)
        return jnp.concatenate([a, b * jnp.exp(s) + a], -1), jnp.sum(s, -1)

    def denoise(x: Array, w: Array, key: Array) -> Array:
        noise = jax.random.normal(jax.random.wrap_key_data(key), x.shape)
        a, b = jnp.split(x, 2, -1)
        guess = jnp.concatenate([jnp.tanh(a @ w), jnp.tanh(b @ w)], -1)
        return (x - 0.02 * guess) / 0.99 + 0.1 * noise

    def codes(x: Array, w: Array, key: Array) -> tuple[Array, Array]:
        a = x[:, : w.shape[0]]
        distance = jnp.sum(a * a, -1, keepdims=True) - 2 * a @ w + jnp.sum(w * w, 0)
        code = jnp.argmin(distance, -1)
        return code, a + lax.stop_gradient(w.T[code] - a)

    def latent(x: Array, w: Array, key: Array) -> Array:
        mean, deviation = jnp.split(x, 2, -1)
        return (mean + jnp.exp(0.5 * deviation) * jax.random.normal(jax.random.wrap_key_data(key), mean.shape)) @ w

    variants: dict[str, Any] = {
        "coupling": coupling,
        "denoise": denoise,
        "latent": latent,
        "codes": codes,
        "coupling_gradient": gradient(lambda x, w, k: coupling(x, w, k), 0, 1),
        "many_steps": lambda x, w, k: lax.fori_loop(0, 10, lambda _, v: denoise(v, w, k), x),
    }
    cases = {
        sizes(m, n): (
            normal(m, n),
            normal(n // 2, n // 2, std=round((n // 2) ** -0.5, 4)),
            integers(0, 2**32, 2, dtype="uint32"),
        )
        for m, n in ((16, 16), (128, 64), (1024, 128), (4096, 256))
    }
    yield from each_of({k: v for k, v in variants.items() if k != "codes"}, cases)
    yield from each_of({"codes": codes}, cases, chaotic=True)
