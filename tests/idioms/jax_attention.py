"""Attention in JAX: all kinds of masks, positions, caches, grouped heads."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.idioms.collection import Closeness, Idioms, booleans, integers, normal

IDIOMS = Idioms()


def _qkv(batch: int, time: int, heads: int, width: int, dtype: Any = np.float32) -> tuple[Any, Any, Any]:
    return tuple(normal(batch, time, heads, width, name=n, dtype=dtype) for n in "qkv")  # type: ignore[return-value]


def _attend(q: Any, k: Any, v: Any, mask: Any = None, bias: Any = 0.0, fill: float = -1e9) -> Any:
    logits = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1]).astype(q.dtype) + bias
    if mask is not None:
        logits = jnp.where(mask, logits, fill)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits, axis=-1), v)


def _with_gradient(f: Any, *args: Any) -> Any:
    def loss(*inner: Any) -> Any:
        y = f(*inner)
        return jnp.sum(y * jnp.cos(y)), y

    (_, y), grads = jax.value_and_grad(loss, tuple(range(len(args))), has_aux=True)(*args)
    return y, grads


@IDIOMS.on(
    text=_qkv(2, 19, 4, 8), batch_1=_qkv(1, 64, 2, 16), one_head=_qkv(1, 128, 1, 32), one_token=_qkv(3, 1, 2, 17)
)
def causal_attention(q: Any, k: Any, v: Any) -> Any:
    mask = jnp.tril(jnp.ones((q.shape[1], q.shape[1]), dtype=bool))
    return _with_gradient(lambda q, k, v: _attend(q, k, v, mask[None, None]), q, k, v)


@IDIOMS.on(text=(*_qkv(2, 19, 4, 8), booleans(2, 19)), batch_1=(*_qkv(1, 64, 2, 8), booleans(1, 64)))
def padding_mask_of_minus_infinity(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _with_gradient(lambda q, k, v: _attend(q, k, v, mask[:, None, None, :], fill=-jnp.inf), q, k, v)


@IDIOMS.on(
    text=(*_qkv(2, 17, 2, 8), np.array([0, 5], np.int32)),
    batch_1=(*_qkv(1, 64, 1, 8), np.array([0], np.int32)),
)
def fully_masked_rows(q: Any, k: Any, v: Any, lengths: Any) -> Any:
    """Fully masked rows: NaN with -inf, a uniform average with -1e9, zeros if the row is corrected afterwards."""
    mask = (jnp.arange(k.shape[1])[None] < lengths[:, None])[:, None, None, :]
    logits = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    safe = jnp.where(mask, jax.nn.softmax(jnp.where(mask, logits, -1e30), axis=-1), 0.0)
    where = jax.nn.softmax(logits, axis=-1, where=jnp.broadcast_to(mask, logits.shape))
    return (
        _attend(q, k, v, mask, fill=-jnp.inf),
        _attend(q, k, v, mask, fill=-1e9),
        _attend(q, k, v, mask, fill=float(np.finfo(np.float32).min)),
        safe,
        where,
    )


@IDIOMS.on(text=_qkv(2, 37, 2, 8), batch_1=_qkv(1, 128, 2, 4), one_token=_qkv(1, 1, 2, 64))
def sliding_window_attention(q: Any, k: Any, v: Any) -> Any:
    at = jnp.arange(q.shape[1])
    mask = (at[:, None] >= at[None]) & (at[:, None] - at[None] < 8)
    return _with_gradient(lambda q, k, v: _attend(q, k, v, mask), q, k, v)


@IDIOMS.on(text=_qkv(1, 23, 4, 8), long=_qkv(1, 100, 8, 4))
def linear_biases(q: Any, k: Any, v: Any) -> Any:
    """Attention with linear biases (ALiBi)."""
    slopes = 2.0 ** (-8.0 * jnp.arange(1, q.shape[2] + 1) / q.shape[2])
    distance = jnp.arange(q.shape[1])[None, :] - jnp.arange(q.shape[1])[:, None]
    bias = slopes[:, None, None] * jnp.where(distance <= 0, distance, -jnp.inf)[None]
    return _with_gradient(lambda q, k, v: _attend(q, k, v, bias=bias[None]), q, k, v)


@IDIOMS.on(text=(*_qkv(1, 21, 2, 8), normal(32, 2)), long=(*_qkv(2, 64, 1, 8), normal(32, 1)))
def relative_position_buckets(q: Any, k: Any, v: Any, table: Any) -> Any:
    """Relative positions as in T5: half of the buckets are exact, the others logarithmic."""
    n = q.shape[1]
    offset = jnp.arange(n)[None, :] - jnp.arange(n)[:, None]
    ahead, apart = jnp.where(offset > 0, 16, 0), jnp.abs(offset)
    far = 8 + (jnp.log(jnp.maximum(apart, 1) / 8) / jnp.log(128 / 8) * 8).astype(jnp.int32)
    bucket = ahead + jnp.where(apart < 8, apart, jnp.minimum(far, 15))
    return _with_gradient(lambda q, t: _attend(q, k, v, bias=t[bucket].transpose(2, 0, 1)[None]), q, table)


@IDIOMS.on(
    grouped=(normal(2, 17, 8, 4), normal(2, 17, 2, 4), normal(2, 17, 2, 4, name="v")),
    one_key_head=(normal(1, 33, 4, 16), normal(1, 33, 1, 16), normal(1, 33, 1, 16, name="v")),
)
def grouped_query_attention(q: Any, k: Any, v: Any) -> Any:
    def f(q: Any, k: Any, v: Any) -> Any:
        b, t, h, d = q.shape
        grouped = q.reshape(b, t, k.shape[2], h // k.shape[2], d)
        logits = jnp.einsum("btkgd,bskd->bkgts", grouped, k) * d**-0.5
        logits = 50.0 * jnp.tanh(logits / 50.0)
        logits = jnp.where(jnp.tril(jnp.ones((t, t), bool)), logits, -2.3819763e38)
        return jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(logits), v).reshape(b, t, h, d)

    return _with_gradient(f, q, k, v)


@IDIOMS.on(
    Closeness(2e-4, 2e-4),  # an angle of 127 has seven bits less for its fraction
    text=(normal(2, 17, 4, 8),), batch_1=(normal(1, 128, 1, 64),), one_token=(normal(1, 1, 2, 16),),
)  # fmt: skip
def rotary_embedding_by_halves(x: Any) -> Any:
    def rotate(x: Any) -> Any:
        half = x.shape[-1] // 2
        frequency = 10000.0 ** (-jnp.arange(half) / half)
        angle = jnp.arange(x.shape[1])[:, None] * frequency
        cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]
        a, b = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    return _with_gradient(rotate, x)


@IDIOMS.on(text=(normal(2, 17, 4, 8), np.int32(3)), batch_1=(normal(1, 1, 1, 64), np.int32(1000)))
def rotary_embedding_interleaved(x: Any, start: Any) -> Any:
    inverse = 1.0 / (10000.0 ** (jnp.arange(0, x.shape[-1], 2, dtype=jnp.float32) / x.shape[-1]))
    angle = jnp.einsum("i,j->ij", start + jnp.arange(x.shape[1], dtype=jnp.float32), inverse)
    sin, cos = (jnp.repeat(f(angle), 2, axis=-1)[None, :, None] for f in (jnp.sin, jnp.cos))
    turned = jnp.stack((-x[..., 1::2], x[..., ::2]), axis=-1).reshape(x.shape)
    return x * cos + turned * sin


@IDIOMS.on(
    step=(normal(1, 64, 2, 8), normal(1, 64, 2, 8, name="v"), *_qkv(1, 1, 2, 8), np.int32(17)),
    last=(normal(2, 33, 2, 8), normal(2, 33, 2, 8, name="v"), *_qkv(2, 1, 2, 8), np.int32(32)),
    beyond=(normal(1, 17, 1, 8), normal(1, 17, 1, 8, name="v"), *_qkv(1, 4, 1, 8), np.int32(15)),
)
def key_value_cache(keys: Any, values: Any, q: Any, k: Any, v: Any, index: Any) -> Any:
    keys = lax.dynamic_update_slice(keys, k, (0, index, 0, 0))
    values = lax.dynamic_update_slice_in_dim(values, v, index, axis=1)
    seen = jnp.arange(keys.shape[1]) < index + q.shape[1]
    return _attend(q, keys, values, seen[None, None, None]), keys, values, index + q.shape[1]


@IDIOMS.on(
    layers=(normal(3, 2, 9, 2, 4), normal(3, 2, 2, 4, name="n"), np.array([2, 8], np.int32)),
)
def cache_of_several_layers(cache: Any, new: Any, positions: Any) -> Any:
    """Each sequence of the batch writes to its own position of the cache."""

    def write(row: Any, value: Any, at: Any) -> Any:
        return lax.dynamic_update_index_in_dim(row, value, at, axis=0)

    per_sequence = jax.vmap(write)
    cache = jax.vmap(per_sequence, in_axes=(0, 0, None))(cache, new, positions)
    scattered = cache.at[:, jnp.arange(cache.shape[1]), positions].add(new)
    return cache, scattered


@IDIOMS.on(
    greedy=(normal(1, 12), normal(12, 16), normal(16, 12, scale=0.5), np.int32(3)),
)
def decode_with_a_cache(state: Any, embed: Any, out: Any, first: Any) -> Any:
    steps = 17

    def body(carry: Any, t: Any) -> Any:
        token, cache = carry
        cache = lax.dynamic_update_slice(cache, embed[token][None], (t, 0))
        score = jnp.where(jnp.arange(steps) <= t, cache @ embed[token], -jnp.inf)
        context = jax.nn.softmax(score) @ cache
        logits = context @ out + state[0]
        token = jnp.argmax(logits).astype(jnp.int32)
        return (token, cache), (token, jax.nn.log_softmax(logits)[token])

    _, (tokens, scores) = lax.scan(body, (first, jnp.zeros((steps, embed.shape[1]))), jnp.arange(steps))
    return tokens, scores


@IDIOMS.on(text=_qkv(1, 24, 2, 8), batch_2=_qkv(2, 64, 1, 4))
def attention_in_chunks(q: Any, k: Any, v: Any) -> Any:
    """Attention with a running maximum and sum, as in memory-efficient attention."""

    def chunk(carry: Any, kv: Any) -> Any:
        top, total, out = carry
        k, v = kv
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        new = jnp.maximum(top, s.max(-1))
        p = jnp.exp(s - new[..., None])
        scale = jnp.exp(top - new)
        return (new, total * scale + p.sum(-1), out * scale[..., None] + jnp.einsum("bhqk,bkhd->bhqd", p, v)), None

    b, t, h, d = q.shape
    chunks = tuple(x.reshape(b, t // 8, 8, h, d).swapaxes(0, 1) for x in (k, v))
    start = (jnp.full((b, h, t), -jnp.inf), jnp.zeros((b, h, t)), jnp.zeros((b, h, t, d)))
    (_, total, out), _ = lax.scan(chunk, start, chunks)
    return out / total[..., None]


@IDIOMS.on(text=_qkv(2, 33, 2, 8), batch_1=_qkv(1, 64, 1, 16))
def linear_attention(q: Any, k: Any, v: Any) -> Any:
    def f(q: Any, k: Any, v: Any) -> Any:
        q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
        states = jnp.cumsum(jnp.einsum("bthd,bthe->bthde", k, v), axis=1)
        norm = jnp.einsum("bthd,bthd->bth", q, jnp.cumsum(k, axis=1))
        return jnp.einsum("bthd,bthde->bthe", q, states) / (norm[..., None] + 1e-6)

    return _with_gradient(f, q, k, v)


@IDIOMS.on(
    bf16=(*_qkv(1, 17, 2, 8, jnp.bfloat16), booleans(1, 17, chance=0.7)),
    f16=(*_qkv(2, 19, 1, 16, np.float16), booleans(2, 19)),
)
def half_precision_attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    logits = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], logits, -1e9)).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


@IDIOMS.on(
    packed=(*_qkv(1, 21, 2, 8), np.sort(integers(1, 21, high=4), axis=1)),
    long=(*_qkv(2, 64, 1, 8), np.sort(integers(2, 64, high=3), axis=1)),
)
def packed_sequences(q: Any, k: Any, v: Any, segments: Any) -> Any:
    same = segments[:, None, :, None] == segments[:, None, None, :]
    starts = jnp.concatenate([jnp.ones_like(segments[:, :1]), (segments[:, 1:] != segments[:, :-1])], axis=1)
    at = jnp.arange(q.shape[1])
    position = at - lax.cummax(jnp.where(starts == 1, at, 0), axis=1)
    return _attend(q, k, v, same & (at[:, None] >= at[None])), position


@IDIOMS.on(pool=(normal(3, 40, 8), normal(8), booleans(3, 40)), batch_1=(normal(1, 64, 8), normal(8), booleans(1, 64)))
def attention_pooling(x: Any, query: Any, mask: Any) -> Any:
    def f(x: Any, query: Any) -> Any:
        score = jnp.where(mask, x @ query, float(np.finfo(np.float32).min))
        return jnp.einsum("bt,btd->bd", jax.nn.softmax(score, axis=1), x)

    return _with_gradient(f, x, query)


@IDIOMS.on(
    text=(normal(2, 17, 32), normal(32, 96, scale=0.2), normal(32, 32, scale=0.2)),
    batch_1=(normal(1, 1, 32), normal(32, 96, scale=0.2), normal(32, 32, scale=0.2)),
)
def multi_head_block(x: Any, w_qkv: Any, w_out: Any) -> Any:
    def f(x: Any, w_qkv: Any, w_out: Any) -> Any:
        b, t, c = x.shape
        y = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        q, k, v = jnp.split((y @ w_qkv).reshape(b, t, 4, 24), 3, axis=-1)
        return x + _attend(q, k, v, jnp.tri(t, dtype=bool)).reshape(b, t, c) @ w_out

    return _with_gradient(f, x, w_qkv, w_out)


@IDIOMS.on(
    heads=(jnp.asarray(normal(1, 9, 2, 4)), normal(1, 17, 2, 4), normal(1, 17, 2, 4, name="v"), normal(1, 2, 9, 17)),
    batch_2=(normal(2, 1, 2, 4), normal(2, 64, 2, 4), normal(2, 64, 2, 4, name="v"), normal(1, 1, 1, 64)),
)
def cross_attention_of_jax_nn(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return _with_gradient(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, bias=bias), q, k, v)
