"""Families of networks over graphs, trees and tables, and parts of generative models."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from env.suites.programs.differentiation import gradient
from env.suites.programs.family import Families, Members, each_of, integers, normal, sizes

FAMILIES = Families()


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
