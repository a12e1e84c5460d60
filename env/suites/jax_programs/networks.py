"""Networks with their gradients, attention, recurrent scans, decoding loops with caches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from env.suites.jax_programs.collection import Collection, integers, normal

NETWORKS = Collection()
Built = tuple[Any, tuple[Any, ...]]


def _dense(params: Any, x: Any) -> Any:
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def _layers(name: str, *sizes: int) -> list[tuple[Any, Any]]:
    return [
        (normal(f"{name}w{i}", a, b, scale=a**-0.5), normal(f"{name}b{i}", b))
        for i, (a, b) in enumerate(pairwise(sizes))
    ]


@NETWORKS.add
def mlp_forward() -> Built:
    return _dense, (_layers("mlp", 12, 16, 16, 5), normal("x", 8, 12))


@NETWORKS.add
def mlp_gradient_step() -> Built:
    def step(params: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            return jnp.mean((_dense(p, x) - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    return step, (_layers("mlp", 12, 16, 5), normal("x", 8, 12), normal("y", 8, 5))


@NETWORKS.add
def classifier_with_adam() -> Built:
    def step(params: Any, m: Any, v: Any, x: Any, labels: Any) -> Any:
        def loss(p: Any) -> Any:
            logits = jax.nn.log_softmax(_dense(p, x))
            return -jnp.mean(jnp.take_along_axis(logits, labels[:, None], 1))

        grads = jax.grad(loss)(params)
        m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, m, grads)
        v = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g * g, v, grads)
        return jax.tree.map(lambda p, a, b: p - 1e-2 * a / (jnp.sqrt(b) + 1e-8), params, m, v), m, v

    params = _layers("adam", 6, 10, 4)
    zeros = jax.tree.map(np.zeros_like, params)
    return step, (params, zeros, zeros, normal("x", 9, 6), integers("l", 0, 4, 9))


def _conv(x: Any, w: Any, stride: int = 1, **more: Any) -> Any:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), **more)


@NETWORKS.add
def conv_net_gradient() -> Built:
    def loss(params: Any, x: Any) -> Any:
        w1, w2, w3 = params
        x = jax.nn.relu(_conv(x, w1))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = jax.nn.relu(_conv(x, w2, 2))
        return jnp.sum((jnp.mean(x, (1, 2)) @ w3) ** 2)

    params = (normal("c1", 3, 3, 3, 8, scale=0.3), normal("c2", 3, 3, 8, 6, scale=0.3), normal("c3", 6, 4))
    return jax.value_and_grad(loss), (params, normal("image", 2, 8, 8, 3))


@NETWORKS.add
def depthwise_separable_gradient() -> Built:
    def loss(depth: Any, point: Any, x: Any) -> Any:
        y = _conv(x, depth, feature_group_count=6)
        return jnp.sum(jnp.sin(_conv(y, point)))

    return jax.grad(loss, (0, 1, 2)), (normal("d", 3, 3, 1, 6), normal("p", 1, 1, 6, 4), normal("image", 2, 7, 7, 6))


@NETWORKS.add
def dilated_and_transposed_convolution() -> Built:
    def f(x: Any, w: Any) -> Any:
        a = _conv(x, w, rhs_dilation=(2, 2))
        return lax.conv_transpose(a, w.swapaxes(2, 3), (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    return jax.value_and_grad(lambda x, w: jnp.sum(f(x, w) ** 2)), (normal("x", 1, 6, 6, 3), normal("w", 3, 3, 3, 2))


@NETWORKS.add
def average_pooling_gradient() -> Built:
    def f(x: Any) -> Any:
        total = lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        return jnp.sum(total**3)

    return jax.grad(f), (normal("x", 2, 7, 9, 2),)


@NETWORKS.add
def batch_norm_gradient() -> Built:
    def f(x: Any, scale: Any, offset: Any) -> Any:
        mean, var = jnp.mean(x, 0), jnp.var(x, 0)
        return jnp.sum(jnp.cos((x - mean) * lax.rsqrt(var + 1e-5) * scale + offset))

    return jax.value_and_grad(f, (0, 1, 2)), (normal("x", 16, 5), normal("s", 5), normal("o", 5))


def _attention(q: Any, k: Any, v: Any, causal: bool = True) -> Any:
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1]).astype(np.float32)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)


@NETWORKS.add
def causal_attention_gradient() -> Built:
    def loss(q: Any, k: Any, v: Any) -> Any:
        return jnp.sum(_attention(q, k, v) ** 2)

    return jax.grad(loss, (0, 1, 2)), tuple(normal(n, 2, 3, 6, 4) for n in "qkv")


@NETWORKS.add
def grouped_query_attention_bf16() -> Built:
    def f(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    return f, (
        normal("q", 2, 6, 4, 8, dtype=jnp.bfloat16),
        normal("k", 2, 6, 2, 8, dtype=jnp.bfloat16),
        normal("v", 2, 6, 2, 8, dtype=jnp.bfloat16),
    )


@NETWORKS.add
def transformer_block_gradient() -> Built:
    def norm(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def block(params: Any, x: Any) -> Any:
        wqkv, wo, w1, w2 = params
        q, k, v = jnp.split((norm(x) @ wqkv).reshape(2, 5, 2, 12).transpose(0, 2, 1, 3), 3, -1)
        x = x + _attention(q, k, v).transpose(0, 2, 1, 3).reshape(2, 5, 8) @ wo
        return x + jax.nn.gelu(norm(x) @ w1) @ w2

    params = (normal("qkv", 8, 24), normal("o", 8, 8), normal("1", 8, 16), normal("2", 16, 8))
    return jax.grad(lambda p, x: jnp.sum(block(p, x) ** 2)), (params, normal("x", 2, 5, 8))


@NETWORKS.add
def rotary_embedding_and_rms_norm() -> Built:
    def f(x: Any, weight: Any) -> Any:
        x = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * weight
        angle = jnp.arange(5)[:, None] * (10000.0 ** (-jnp.arange(4) / 4))[None, :]
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)], -1)

    return f, (normal("x", 3, 5, 8), normal("w", 8))


@NETWORKS.add
def lstm_scan_gradient() -> Built:
    def loss(w: Any, u: Any, xs: Any) -> Any:
        def cell(carry: Any, x: Any) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(x @ w + h @ u, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((3, 5))
        return jnp.mean(lax.scan(cell, (zero, zero), xs)[1] ** 2)

    return jax.value_and_grad(loss, (0, 1)), (normal("w", 4, 20), normal("u", 5, 20), normal("xs", 7, 3, 4))


@NETWORKS.add
def gru_over_reversed_sequence() -> Built:
    def f(w: Any, u: Any, xs: Any) -> Any:
        def cell(h: Any, x: Any) -> Any:
            z, r = jnp.split(jax.nn.sigmoid(x @ w[:, :10] + h @ u[:, :10]), 2, -1)
            h = (1 - z) * h + z * jnp.tanh(x @ w[:, 10:] + (r * h) @ u[:, 10:])
            return h, h

        return lax.scan(cell, jnp.zeros((2, 5)), xs, reverse=True)

    return f, (normal("w", 4, 15), normal("u", 5, 15), normal("xs", 6, 2, 4))


@NETWORKS.add
def linear_recurrence_by_associative_scan() -> Built:
    def f(a: Any, b: Any) -> Any:
        return lax.associative_scan(lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), (a, b))

    return f, (normal("a", 13, 4, scale=0.5), normal("b", 13, 4))


@NETWORKS.add
def greedy_decoding_with_cache() -> Built:
    def decode(embed: Any, wq: Any, wk: Any, wv: Any, first: Any) -> Any:
        steps = 6

        def body(i: Any, state: Any) -> Any:
            tokens, keys, vals = state
            x = embed[tokens[i]]
            keys = lax.dynamic_update_slice(keys, (x @ wk)[None], (i, 0))
            vals = lax.dynamic_update_slice(vals, (x @ wv)[None], (i, 0))
            scores = jnp.where(jnp.arange(steps) <= i, keys @ (x @ wq), -1e30)
            out = jax.nn.softmax(scores) @ vals
            return tokens.at[i + 1].set(jnp.argmax(embed @ out).astype(jnp.int32)), keys, vals

        tokens = jnp.zeros(steps + 1, jnp.int32).at[0].set(first)
        zeros = jnp.zeros((steps, 8))
        return lax.fori_loop(0, steps, body, (tokens, zeros, zeros))

    return decode, (normal("e", 11, 8), normal("q", 8, 8), normal("k", 8, 8), normal("v", 8, 8), np.int32(3))


@NETWORKS.add
def beam_search_step() -> Built:
    def step(logits: Any, scores: Any, sequences: Any) -> Any:
        total = scores[:, None] + jax.nn.log_softmax(logits)
        best, flat = lax.top_k(total.reshape(-1), 4)
        beam, token = flat // logits.shape[1], flat % logits.shape[1]
        return best, jnp.concatenate([sequences[beam], token[:, None]], 1)

    return step, (normal("l", 4, 9), normal("s", 4), integers("seq", 0, 9, 4, 3))


@NETWORKS.add
def mixture_of_experts() -> Built:
    def f(x: Any, gate: Any, experts: Any) -> Any:
        weight, chosen = lax.top_k(jax.nn.softmax(x @ gate), 2)
        mask = jax.nn.one_hot(chosen, 4) * weight[..., None]
        return jnp.einsum("nke,nd,edh->nh", mask, x, experts)

    return f, (normal("x", 6, 5), normal("g", 5, 4), normal("e", 4, 5, 3))


@NETWORKS.add
def ragged_experts() -> Built:
    def f(x: Any, w: Any, sizes: Any) -> Any:
        return lax.ragged_dot(x, w, sizes)

    return f, (normal("x", 10, 4), normal("w", 3, 4, 5), np.array([4, 0, 5], np.int32))


@NETWORKS.add
def checkpointed_gradient() -> Built:
    @jax.checkpoint
    def layer(x: Any, w: Any) -> Any:
        return jnp.sin(x @ w)

    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = layer(x, w)
        return jnp.sum(x)

    return jax.grad(loss), ([normal(f"w{i}", 5, 5) for i in range(3)], normal("x", 4, 5))


@NETWORKS.add
def per_example_gradients() -> Built:
    def loss(w: Any, x: Any, y: Any) -> Any:
        return (jnp.tanh(x @ w) - y) ** 2

    return jax.vmap(jax.grad(loss), (None, 0, 0)), (normal("w", 5), normal("x", 7, 5), normal("y", 7))


@NETWORKS.add
def hessian_of_network() -> Built:
    def f(w: Any) -> Any:
        return jnp.sum(jnp.tanh(jnp.outer(w, w)) @ w)

    return jax.hessian(f), (normal("w", 5),)


@NETWORKS.add
def implicit_layer_by_fixed_point() -> Built:
    def f(w: Any, x: Any) -> Any:
        def changed(state: Any) -> Any:
            old, new, n = state
            return (jnp.max(jnp.abs(old - new)) > 1e-5) & (n < 60)

        def body(state: Any) -> Any:
            _, z, n = state
            return z, jnp.tanh(w @ z + x), n + 1

        return lax.while_loop(changed, body, (x + 1, x, 0))[1]

    return f, (normal("w", 5, 5, scale=0.2), normal("x", 5))
