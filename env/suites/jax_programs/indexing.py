"""Sorting and top-k, gather and scatter, graph networks and segment sums, control flow."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from env.suites.jax_programs.collection import Collection, integers, normal, uniform

INDEXING = Collection()
Built = tuple[Any, tuple[Any, ...]]
_ROUGH = np.array([3.0, np.nan, -0.0, 0.0, -np.inf, np.inf, 1.0, -1.0, np.nan, 3.0], np.float32)


@INDEXING.add
def sort_and_argsort() -> Built:
    return (lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1), jnp.argsort(x, descending=True))), (normal("x", 9, 17),)


@INDEXING.add
def sort_with_nan_and_zeros() -> Built:
    return (lambda x: (jnp.sort(x), jnp.argsort(x), jnp.sort(x, descending=True), jnp.argmax(x), jnp.nanmin(x))), (
        _ROUGH,
    )


@INDEXING.add
def sort_by_two_keys_with_payload() -> Built:
    def f(a: Any, b: Any, c: Any) -> Any:
        return lax.sort((a, b, c), num_keys=2)

    return f, (integers("a", 0, 4, 300), integers("b", 0, 5, 300), normal("c", 300))


@INDEXING.add
def lexsort_and_unique() -> Built:
    def f(a: Any, b: Any) -> Any:
        return jnp.lexsort((a, b)), jnp.unique(a, size=6, fill_value=-1), jnp.searchsorted(jnp.sort(a), b)

    return f, (integers("a", 0, 9, 20), integers("b", 0, 9, 20))


@INDEXING.add
def sort_complex_and_bf16() -> Built:
    def f(a: Any, b: Any) -> Any:
        return jnp.sort(a), jnp.sort(b), jnp.argsort(b)

    z = normal("re", 12) + 1j * integers("im", 0, 2, 12)
    return f, (z.astype(np.complex64), normal("b", 12, dtype=jnp.bfloat16))


@INDEXING.add
def top_k_and_approximate_top_k() -> Built:
    return (lambda x: (lax.top_k(x, 5), lax.approx_max_k(x, 3), lax.approx_min_k(x, 3))), (normal("x", 4, 40),)


@INDEXING.add
def median_and_quantiles() -> Built:
    return (lambda x: (jnp.median(x, 0), jnp.quantile(x, jnp.array([0.1, 0.9]), axis=1))), (normal("x", 9, 14),)


@INDEXING.add
def cumulative_operations() -> Built:
    def f(x: Any, n: Any) -> Any:
        return jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.cummax(x, 1, reverse=True), lax.cumlogsumexp(x), jnp.cumsum(n)

    return f, (normal("x", 8, 11), integers("n", -9, 9, 40))


@INDEXING.add
def scatter_of_every_kind() -> Built:
    def f(x: Any, at: Any, u: Any) -> Any:
        return x.at[at].add(u), x.at[at].mul(u), x.at[at].min(u), x.at[at].max(u), x.at[at].apply(jnp.sin)

    return f, (normal("x", 8, 3), integers("at", 0, 8, 10), normal("u", 10, 3))


@INDEXING.add
def scatter_out_of_bounds() -> Built:
    def f(x: Any, at: Any, u: Any) -> Any:
        dropped = x.at[at].set(u, mode="drop", unique_indices=True)
        return dropped, x.at[at].add(u, mode="promise_in_bounds"), x.at[at].get(mode="fill", fill_value=-1)

    return f, (normal("x", 8), np.array([0, 7, 9, 30, 5], np.int32), normal("u", 5))


@INDEXING.add
def gather_of_every_mode() -> Built:
    def f(x: Any, i: Any, j: Any) -> Any:
        return (
            x[i, j],
            x[:, j],
            jnp.take(x, i, axis=0, mode="clip"),
            jnp.take_along_axis(x, i[:4, None] % 5, 1),
            x[1:, i % 3],
        )

    return f, (normal("x", 4, 5), integers("i", -9, 9, 6), integers("j", 0, 5, 6))


@INDEXING.add
def batched_gather_and_its_gradient() -> Built:
    def f(x: Any, i: Any) -> Any:
        return jnp.sum(jnp.sin(jnp.take_along_axis(x, i, 1)) * i)

    return jax.value_and_grad(f), (normal("x", 4, 6, 3), integers("i", 0, 6, 4, 5, 3))


@INDEXING.add
def embedding_gradient() -> Built:
    def loss(table: Any, tokens: Any) -> Any:
        return jnp.sum(jnp.tanh(table[tokens]) ** 2)

    return jax.grad(loss), (normal("t", 11, 4), integers("tok", 0, 11, 3, 7))


@INDEXING.add
def graph_network_layer() -> Built:
    def f(nodes: Any, senders: Any, receivers: Any, w: Any) -> Any:
        messages = jax.nn.relu(nodes[senders] @ w)
        total = jax.ops.segment_sum(messages, receivers, 7)
        count = jax.ops.segment_sum(jnp.ones(len(receivers)), receivers, 7)
        return nodes + total / jnp.maximum(count, 1)[:, None]

    def loss(*args: Any) -> Any:
        return jnp.sum(f(*args) ** 2)

    return jax.grad(loss, (0, 3)), (
        normal("n", 7, 4),
        integers("s", 0, 7, 15),
        integers("r", 0, 7, 15),
        normal("w", 4, 4),
    )


@INDEXING.add
def segment_softmax_and_maximum() -> Built:
    def f(x: Any, segments: Any) -> Any:
        top = jax.ops.segment_max(x, segments, 5)
        e = jnp.exp(x - top[segments])
        return e / jax.ops.segment_sum(e, segments, 5)[segments], jax.ops.segment_prod(x, segments, 5), top

    return f, (normal("x", 20), integers("s", 0, 5, 20))


@INDEXING.add
def dynamic_slices_clamped() -> Built:
    def f(x: Any, i: Any) -> Any:
        return lax.dynamic_slice(x, (i, -i), (3, 2)), lax.dynamic_update_slice(x, x[:2, :2] * 9, (i, i)), x.at[i].set(0)

    return f, (normal("x", 6, 5), np.int32(5))


@INDEXING.add
def histogram_and_bincount() -> Built:
    def f(x: Any, n: Any) -> Any:
        return jnp.histogram(x, 6)[0], jnp.bincount(n, length=9), jnp.digitize(x, jnp.array([-1.0, 0.0, 1.0]))

    return f, (normal("x", 40), integers("n", 0, 9, 40))


@INDEXING.add
def nonzero_and_compress() -> Built:
    def f(x: Any) -> Any:
        return jnp.nonzero(x > 0, size=7, fill_value=-1), jnp.where(x > 0, x, 0).sum(), jnp.argwhere(x < 0, size=3)

    return f, (normal("x", 4, 5),)


@INDEXING.add
def roll_pad_flip_and_triangles() -> Built:
    def f(x: Any) -> Any:
        padded = jnp.pad(x, ((1, 2), (0, 3)), mode="reflect"), jnp.pad(x, 2, mode="edge"), jnp.pad(x, 1, mode="wrap")
        return (
            jnp.roll(x, 2, 1),
            padded,
            jnp.flip(x),
            jnp.triu(x, 1),
            jnp.rot90(x),
            lax.pad(x, 7.0, ((-1, 2, 1), (3, -2, 0))),
        )

    return f, (normal("x", 4, 5),)


@INDEXING.add
def switch_and_cond() -> Built:
    def f(i: Any, x: Any) -> Any:
        a = lax.switch(i, [jnp.sin, jnp.cos, lambda v: v * 2], x)
        b = lax.cond(x.sum() > 0, lambda v: (v + 1, v.sum()), lambda v: (v - 1, v.max()), x)
        return a, b, lax.switch(i + 5, [jnp.sin, jnp.cos], x)

    return f, (np.int32(1), normal("x", 6))


@INDEXING.add
def nested_loops() -> Built:
    def f(n: Any, x: Any) -> Any:
        def outer(i: Any, v: Any) -> Any:
            return lax.while_loop(lambda s: s[0] < i, lambda s: (s[0] + 1, jnp.sin(s[1]) + s[0]), (0, v))[1]

        return lax.fori_loop(0, n, outer, x)

    return f, (np.int32(5), normal("x", 4))


@INDEXING.add
def collatz_and_vectorised_while() -> Built:
    def f(n: Any) -> Any:
        def steps(k: Any) -> Any:
            def body(s: Any) -> Any:
                return jnp.where(s[0] % 2 == 0, s[0] // 2, 3 * s[0] + 1), s[1] + 1

            return lax.while_loop(lambda s: s[0] != 1, body, (k, 0))[1]

        return jax.vmap(steps)(n)

    return f, (np.arange(1, 12, dtype=np.int32),)


@INDEXING.add
def binary_search_and_bisection() -> Built:
    def f(y: Any) -> Any:
        def body(_: Any, s: Any) -> Any:
            low, high = s
            mid = (low + high) / 2
            return jnp.where(mid**3 < y, mid, low), jnp.where(mid**3 < y, high, mid)

        return lax.fori_loop(0, 30, body, (jnp.zeros_like(y), jnp.ones_like(y) * 3))

    return f, (uniform("y", 0, 9, 5),)


@INDEXING.add
def game_of_life() -> Built:
    def f(board: Any) -> Any:
        def step(b: Any, _: Any) -> Any:
            around = sum(jnp.roll(b, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0))
            return ((around == 3) | ((b == 1) & (around == 2))).astype(jnp.int32), jnp.sum(b)

        return lax.scan(step, board, None, length=5)

    return f, (integers("b", 0, 2, 8, 8),)


@INDEXING.add
def edit_distance() -> Built:
    def f(a: Any, b: Any) -> Any:
        def row(previous: Any, letter: Any) -> Any:
            def cell(left: Any, xs: Any) -> Any:
                up, diagonal, other = xs
                value = jnp.minimum(jnp.minimum(left, up) + 1, diagonal + (letter != other))
                return value, value

            first = previous[0] + 1
            _, rest = lax.scan(cell, first, (previous[1:], previous[:-1], b))
            return jnp.concatenate([first[None], rest]), 0

        return lax.scan(row, jnp.arange(len(b) + 1), a)[0][-1]

    return f, (integers("a", 0, 3, 9), integers("b", 0, 3, 7))
