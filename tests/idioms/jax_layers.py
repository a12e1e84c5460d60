"""Layers in JAX with their gradients: dense, convolutional, recurrent, embeddings, dropout."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.idioms.collection import Idioms, booleans, integers, normal, uniform

IDIOMS = Idioms()
NHWC = ("NHWC", "HWIO", "NHWC")


def _gradients(f: Any, *args: Any) -> Any:
    def loss(*inner: Any) -> Any:
        y = f(*inner)
        return jnp.mean(jnp.square(y - 0.5)), y

    (value, y), grads = jax.value_and_grad(loss, tuple(range(len(args))), has_aux=True)(*args)
    return value, y, grads


@IDIOMS.on(
    batch_1=(normal(1, 33), normal(33, 64, scale=0.2), normal(64)),
    batch_128=(normal(128, 17), normal(17, 1, scale=0.2), normal(1)),
    one_input=(normal(64, 1), normal(1, 64), normal(64)),
    half=(normal(8, 32, dtype=jnp.bfloat16), normal(32, 16, scale=0.2, dtype=jnp.bfloat16), np.zeros(16, jnp.bfloat16)),
)
def dense(x: Any, w: Any, b: Any) -> Any:
    return _gradients(lambda x, w, b: jax.nn.relu(jnp.dot(x, w) + b), x, w, b)


@IDIOMS.on(
    all_shapes=(normal(32, 17), normal(1, 64), normal(64, 1), normal(2, 9, 9, 5), normal(3, 1, 40)),
    batch_1=(normal(1, 64), normal(1, 64, name="b"), normal(1, 1), normal(1, 8, 8, 1), normal(1, 64, 1)),
)
def bias_gradients(*cotangents: Any) -> Any:
    """Sums over all but the last dimension, for several layers."""
    return [g.sum(axis=tuple(range(g.ndim - 1))) for g in cotangents], [
        g.reshape(-1, g.shape[-1]).mean(0) for g in cotangents
    ]


@IDIOMS.on(
    image=(normal(1, 9, 9, 3), normal(3, 3, 3, 8, scale=0.2), normal(8)),
    one_channel=(normal(4, 17, 5, 1), normal(3, 3, 1, 1), normal(1)),
    point=(normal(1, 8, 8, 16), normal(1, 1, 16, 4, scale=0.2), normal(4)),
    wide=(normal(2, 1, 64, 4), normal(1, 5, 4, 6, scale=0.2), normal(6)),
)
def convolution(x: Any, w: Any, b: Any) -> Any:
    def f(x: Any, w: Any, b: Any) -> Any:
        return jax.nn.gelu(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC) + b)

    return _gradients(f, x, w, b)


@IDIOMS.on(
    image=(normal(1, 11, 8, 6), normal(3, 3, 1, 6), normal(1, 1, 6, 4)),
    one=(normal(1, 1, 64, 2), normal(1, 3, 1, 4), normal(1, 1, 4, 1)),
)
def depthwise_separable_with_stride(x: Any, depth: Any, point: Any) -> Any:
    def f(x: Any, depth: Any, point: Any) -> Any:
        y = lax.conv_general_dilated(x, depth, (2, 2), "SAME", dimension_numbers=NHWC, feature_group_count=x.shape[-1])
        return lax.conv_general_dilated(jax.nn.relu6(y), point, (1, 1), "VALID", dimension_numbers=NHWC)

    return _gradients(f, x, depth, point)


@IDIOMS.on(
    text=(normal(2, 65, 5), normal(3, 5, 7, scale=0.3)),
    batch_1=(normal(1, 64, 1), normal(4, 1, 3)),
)
def causal_dilated_convolution(x: Any, w: Any) -> Any:
    def f(x: Any, w: Any) -> Any:
        for dilation in (1, 2):
            pad = (w.shape[0] - 1) * dilation
            y = lax.conv_general_dilated(
                x, w, (1,), [(pad, 0)], rhs_dilation=(dilation,), dimension_numbers=("NWC", "WIO", "NWC")
            )
        return jnp.tanh(y)

    return _gradients(f, x, w)


@IDIOMS.on(image=(normal(1, 5, 7, 3), normal(4, 4, 3, 2)), one=(normal(2, 1, 1, 16), normal(3, 3, 16, 1)))
def transposed_convolution(x: Any, w: Any) -> Any:
    return _gradients(lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=NHWC), x, w)


@IDIOMS.on(image=(normal(1, 12, 9, 3),), one_channel=(normal(2, 16, 16, 1),))
def pooling(x: Any) -> Any:
    def f(x: Any) -> Any:
        top = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        ones = lax.reduce_window(jnp.ones_like(x), 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        mean = lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") / ones
        return jnp.concatenate([top, mean], -1) + x.mean((1, 2), keepdims=True).max(-1, keepdims=True)

    return _gradients(f, x)


@IDIOMS.on(
    block=(
        normal(1, 8, 8, 4),
        normal(3, 3, 4, 4, scale=0.2),
        normal(3, 3, 4, 4, scale=0.2, name="b"),
        normal(4, 2),
        normal(2, 4),
    ),
)
def residual_block_with_squeeze_and_excitation(x: Any, w1: Any, w2: Any, squeeze: Any, excite: Any) -> Any:
    def f(x: Any, w1: Any, w2: Any, squeeze: Any, excite: Any) -> Any:
        y = jax.nn.relu(lax.conv_general_dilated(x, w1, (1, 1), "SAME", dimension_numbers=NHWC))
        y = lax.conv_general_dilated(y, w2, (1, 1), "SAME", dimension_numbers=NHWC)
        gate = jax.nn.sigmoid(jax.nn.relu(y.mean((1, 2)) @ squeeze) @ excite)
        return jax.nn.relu(x + y * gate[:, None, None])

    return _gradients(f, x, w1, w2, squeeze, excite)


@IDIOMS.on(
    text=(normal(3, 19, 8), normal(8, 48, scale=0.3), normal(12, 48, scale=0.3), normal(48)),
    batch_1=(normal(1, 64, 1), normal(1, 64), normal(16, 64, scale=0.2), normal(64)),
)
def lstm(x: Any, w_x: Any, w_h: Any, b: Any) -> Any:
    def f(w_x: Any, w_h: Any, b: Any) -> Any:
        def cell(carry: Any, xt: Any) -> Any:
            h, c = carry
            i, g, o, keep = jnp.split(xt @ w_x + h @ w_h + b, 4, axis=-1)
            c = jax.nn.sigmoid(keep + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[0], w_h.shape[0]))
        _, hs = lax.scan(cell, (zeros, zeros), x.swapaxes(0, 1))
        return hs.swapaxes(0, 1)

    return _gradients(f, w_x, w_h, b)


@IDIOMS.on(
    text=(normal(17, 3, 8), booleans(17, 3, chance=0.1), normal(8, 36, scale=0.3), normal(12, 36, scale=0.3)),
    batch_1=(normal(64, 1, 4), booleans(64, 1, chance=0.1), normal(4, 48), normal(16, 48, scale=0.2)),
)
def gru_with_resets(x: Any, done: Any, w_x: Any, w_h: Any) -> Any:
    """A GRU whose carry is set to zero when an episode ends."""

    def f(w_x: Any, w_h: Any) -> Any:
        def cell(h: Any, xs: Any) -> Any:
            xt, d = xs
            h = jnp.where(d[:, None], jnp.zeros_like(h), h)
            xr, xz, xn = jnp.split(xt @ w_x, 3, axis=-1)
            hr, hz, hn = jnp.split(h @ w_h, 3, axis=-1)
            z = jax.nn.sigmoid(xz + hz)
            h = (1 - z) * jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * hn) + z * h
            return h, h

        return lax.scan(cell, jnp.zeros((x.shape[1], w_h.shape[0])), (x, done))[1]

    return _gradients(f, w_x, w_h)


@IDIOMS.on(
    text=(normal(2, 33, 6), uniform(6, 4, low=-2, high=-0.1), normal(6, 4), normal(6, 4, name="c"), normal(6)),
    batch_1=(normal(1, 128, 3), uniform(3, 1, low=-1, high=-0.1), normal(3, 1), normal(3, 1, name="c"), normal(3)),
)
def diagonal_state_space(u: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """A diagonal state space model as an associative scan."""

    def f(a: Any, b: Any, c: Any) -> Any:
        decay = jnp.broadcast_to(jnp.exp(0.1 * a), (*u.shape, a.shape[-1]))
        inputs = 0.1 * u[..., None] * b

        def combine(left: Any, right: Any) -> Any:
            return left[0] * right[0], right[0] * left[1] + right[1]

        _, states = lax.associative_scan(combine, (decay, inputs), axis=1)
        return jnp.einsum("btdn,dn->btd", states, c) + d * u

    return _gradients(f, a, b, c)


@IDIOMS.on(
    text=(
        normal(2, 21, 6),
        normal(6, 6, scale=0.3),
        normal(6, 3),
        normal(6, 3, name="c"),
        uniform(6, 3, low=-1, high=-0.1),
    ),
    batch_1=(normal(1, 64, 2), normal(2, 2), normal(2, 1), normal(2, 1, name="c"), uniform(2, 1, low=-1, high=-0.1)),
)
def selective_state_space(x: Any, w_step: Any, w_b: Any, w_c: Any, a: Any) -> Any:
    def f(w_step: Any, w_b: Any, w_c: Any) -> Any:
        step, b, c = jax.nn.softplus(x @ w_step), x @ w_b, x @ w_c

        def cell(h: Any, xs: Any) -> Any:
            xt, dt, bt, ct = xs
            h = jnp.exp(dt[..., None] * a) * h + (dt * xt)[..., None] * bt[:, None, :]
            return h, jnp.einsum("bdn,bn->bd", h, ct)

        start = jnp.zeros((x.shape[0], x.shape[2], a.shape[1]))
        return lax.scan(cell, start, jax.tree.map(lambda v: v.swapaxes(0, 1), (x, step, b, c)))[1]

    return _gradients(f, w_step, w_b, w_c)


@IDIOMS.on(
    text=(normal(37, 16), integers(3, 19, high=37)),
    batch_1=(normal(1000, 1), integers(1, 64, high=1000)),
    one_word=(normal(1, 64), integers(2, 5, high=1)),
    bytes=(normal(256, 8), integers(1, 40, high=256, dtype=np.uint8)),
)
def embedding_and_its_gradient(table: Any, tokens: Any) -> Any:
    """Gradients of repeated tokens are summed; the logits share the table."""

    def f(table: Any) -> Any:
        x = table[tokens] * jnp.sqrt(table.shape[1]).astype(table.dtype)
        return x.mean(axis=1) @ table.T

    return _gradients(f, table)


@IDIOMS.on(tokens=(normal(37, 16), np.array([[-1, 0, 36, 37, 90, -37, -38]], np.int32)))
def lookups_out_of_range(table: Any, tokens: Any) -> Any:
    """Modes of JAX for indices out of range: fill, clip, wrap negative indices, drop updates."""
    return (
        table[tokens],
        jnp.take(table, tokens, axis=0),
        jnp.take(table, tokens, axis=0, mode="clip"),
        table.at[tokens].get(mode="fill", fill_value=0),
        table.at[tokens].add(1.0),
        table.at[tokens].set(2.0, mode="drop"),
    )


@IDIOMS.on(batch_1=(normal(1, 64), jax.random.key_data(jax.random.key(0))))
def dropout(x: Any, key: Any) -> Any:
    def f(x: Any) -> Any:
        keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, x.shape)
        return jnp.where(keep, x / 0.9, 0.0)

    return _gradients(f, x)


@IDIOMS.on(
    text=(normal(2, 17, 16), normal(16, 40, scale=0.3), normal(16, 40, scale=0.3, name="g"), normal(40, 16, scale=0.2)),
    batch_1=(normal(1, 1, 64), normal(64, 1), normal(64, 1, name="g"), normal(1, 64)),
)
def gated_feed_forward(x: Any, up: Any, gate: Any, down: Any) -> Any:
    return _gradients(lambda up, gate, down: (jax.nn.silu(x @ gate) * (x @ up)) @ down, up, gate, down)


@IDIOMS.on(
    tokens=(normal(19, 8), normal(8, 4), normal(4, 8, 16, scale=0.3), normal(4, 16, 8, scale=0.3)),
    one=(normal(1, 64), normal(64, 2), normal(2, 64, 8, scale=0.2), normal(2, 8, 64, scale=0.2)),
)
def mixture_of_experts(x: Any, router: Any, up: Any, down: Any) -> Any:
    def f(router: Any, up: Any, down: Any) -> Any:
        probabilities = jax.nn.softmax(x @ router)
        weights, chosen = lax.top_k(probabilities, 2)
        weights = weights / weights.sum(-1, keepdims=True)
        gate = jnp.sum(jax.nn.one_hot(chosen, router.shape[-1]) * weights[..., None], axis=1)
        hidden = jax.nn.gelu(jnp.einsum("td,edf->tef", x, up))
        balance = router.shape[-1] * jnp.sum(probabilities.mean(0) * (gate > 0).mean(0))
        return jnp.einsum("tef,efd,te->td", hidden, down, gate) + 0.01 * balance

    return _gradients(f, router, up, down)


@IDIOMS.on(
    graph=(normal(17, 6), integers(2, 64, high=17), normal(6, 8, scale=0.3)),
    one_feature=(normal(64, 1), integers(2, 100, high=64), normal(1, 1)),
)
def graph_convolution(nodes: Any, edges: Any, w: Any) -> Any:
    def f(nodes: Any, w: Any) -> Any:
        senders, receivers = edges
        degree = jax.ops.segment_sum(jnp.ones(senders.shape[0]), receivers, nodes.shape[0])
        scale = lax.rsqrt(jnp.maximum(degree, 1.0))
        messages = (nodes @ w)[senders] * (scale[senders] * scale[receivers])[:, None]
        return jax.nn.relu(jax.ops.segment_sum(messages, receivers, nodes.shape[0]))

    return _gradients(f, nodes, w)


@IDIOMS.on(
    graph=(normal(13, 4), integers(2, 40, high=13), normal(8)),
    one_feature=(normal(64, 1), integers(2, 65, high=64), normal(2)),
)
def graph_attention(nodes: Any, edges: Any, a: Any) -> Any:
    def f(nodes: Any, a: Any) -> Any:
        senders, receivers = edges
        score = jax.nn.leaky_relu(jnp.concatenate([nodes[senders], nodes[receivers]], -1) @ a)
        top = jax.ops.segment_max(score, receivers, nodes.shape[0])
        e = jnp.exp(score - jnp.where(jnp.isfinite(top), top, 0.0)[receivers])
        weight = e / jax.ops.segment_sum(e, receivers, nodes.shape[0])[receivers]
        return jax.ops.segment_sum(weight[:, None] * nodes[senders], receivers, nodes.shape[0])

    return _gradients(f, nodes, a)


@IDIOMS.on(
    image=(normal(1, 16, 16, 3), normal(48, 10, scale=0.2), normal(1, 16, 10)),
    one_channel=(normal(2, 8, 8, 1), normal(16, 64), normal(1, 4, 64)),
)
def patch_embedding(image: Any, w: Any, positions: Any) -> Any:
    def f(w: Any, positions: Any) -> Any:
        n, h, width, c = image.shape
        x = image.reshape(n, h // 4, 4, width // 4, 4, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, -1, 16 * c)
        return x @ w + positions

    return _gradients(f, w, positions)


@IDIOMS.on(times=(uniform(7, low=0, high=1000), normal(32, 16, scale=0.3)), one=(uniform(1, high=1000), normal(128, 1)))
def sinusoidal_time_embedding(t: Any, w: Any) -> Any:
    half = w.shape[0] // 2
    angle = t[:, None] * jnp.exp(-jnp.log(10000.0) * jnp.arange(half) / half)[None]
    x = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)
    return _gradients(lambda w: jax.nn.swish(x @ w), w)


@IDIOMS.on(layers=(normal(5, 3, 17), normal(4, 17, 17, scale=0.2), normal(4, 17)))
def scan_over_layers_with_remat(x: Any, ws: Any, bs: Any) -> Any:
    def f(ws: Any, bs: Any) -> Any:
        @jax.checkpoint
        def layer(h: Any, wb: Any) -> Any:
            w, b = wb
            return h + jax.nn.gelu(h @ w + b), jnp.mean(h)

        h, means = lax.scan(layer, x, (ws, bs))
        return h * means.sum()

    return _gradients(f, ws, bs)


@IDIOMS.on(image=(normal(1, 5, 7, 3),), line=(normal(2, 1, 64, 1),))
def resizing_and_padding(x: Any) -> Any:
    n, h, w, c = x.shape
    return (
        jax.image.resize(x, (n, 2 * h, 2 * w, c), "bilinear"),
        jax.image.resize(x, (n, 2 * h, w, c), "nearest"),
        jnp.pad(x, ((0, 0), (1, 2), (2, 1), (0, 0)), mode="edge"),
        jnp.pad(x, ((0, 0), (0, 0), (2, 1), (0, 0)), mode="wrap"),
        jnp.repeat(jnp.repeat(x, 2, 1), 2, 2),
        x[:, ::-1, :, ::-1],
    )
