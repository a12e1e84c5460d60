"""Families of networks over sequences: convolutions of one dimension, recurrent cells, state spaces."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from env.suites.programs.differentiation import gradient
from env.suites.programs.family import Families, Members, each_of, normal, sizes

FAMILIES = Families()


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
