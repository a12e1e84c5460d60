"""Families of functions of rows: softmax, normalisations and reductions, with gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from env.suites.programs.family import Families, Member, Members, normal, uniform, with_halves

FAMILIES = Families()
MATRICES = ((256, 512), (2048, 1024), (16, 64), (64, 256), (128, 1000), (1024, 768), (512, 4096), (8192, 128), (4096, 4096))


def sizes(*dims: int) -> str:
    """Return the part of a name that says the sizes."""
    return "x".join(map(str, dims))


@FAMILIES.add
def softmax() -> Members:
    """Softmax and log-softmax along rows and columns, with temperature or mask, and gradients."""

    def masked(x: Array) -> Array:
        keep = jnp.arange(x.shape[1])[None, :] <= jnp.arange(x.shape[0])[:, None]
        return jax.nn.softmax(jnp.where(keep, x, -1e9), axis=-1)

    variants: dict[str, Any] = {
        "rows": lambda x: jax.nn.softmax(x, axis=-1),
        "columns": lambda x: jax.nn.softmax(x, axis=0),
        "log": lambda x: jax.nn.log_softmax(x, axis=-1),
        "tempered": lambda x: jax.nn.softmax(x * 0.125, axis=-1),
        "masked": masked,
    }
    for name, f in variants.items():
        for dims, dtype in with_halves(MATRICES, 1):
            yield Member(f"{name}_{sizes(*dims)}_{dtype}", f, (normal(*dims, dtype=dtype),))
    for dims in MATRICES:
        def gradient(x: Array, c: Array) -> Any:
            return jax.vjp(lambda z: jax.nn.softmax(z, axis=-1), x)[1](c)

        yield Member(f"gradient_{sizes(*dims)}", gradient, (normal(*dims), normal(*dims)))


@FAMILIES.add
def layer_norm() -> Members:
    """Layer normalisation along rows, with residual sums and activations, and gradients."""

    def forward(x: Array, gamma: Array, beta: Array) -> Array:
        mean = jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
        return (x - mean) * lax.rsqrt(variance + 1e-5) * gamma + beta

    def residual(x: Array, y: Array, gamma: Array, beta: Array) -> tuple[Array, Array]:
        total = x + y
        return total, forward(total, gamma, beta)

    def backward(x: Array, gamma: Array, beta: Array, c: Array) -> Any:
        return jax.vjp(forward, x, gamma, beta)[1](c)

    for dims, dtype in with_halves(MATRICES):
        n = dims[-1]
        x, row = normal(*dims, dtype=dtype), (uniform(0.5, 1.5, n, dtype=dtype), normal(n, dtype=dtype))
        name = f"{sizes(*dims)}_{dtype}"
        yield Member(f"forward_{name}", forward, (x, *row))
        yield Member(f"gelu_{name}", lambda x, g, b: jax.nn.gelu(forward(x, g, b)), (x, *row))
        yield Member(f"residual_{name}", residual, (x, x, *row))
        yield Member(f"gradient_{name}", backward, (x, *row, x))
