"""Softmax, normalisation layers and moments, over rows and over columns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from experiments.natives.native import Native, Table, integers, normal, uniform

__all__ = ["TABLE", "jax_batch_norm", "jax_layer_norm"]

TABLE: Table = {}
SIZES = ((128, 256), (2048, 2048))


def jax_layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """Return the layer normalisation over the last axis."""
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale + bias


def jax_rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the RMS normalisation over the last axis."""
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def jax_batch_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """Return the batch normalisation of NCHW images with the moments of the batch."""
    mean = x.mean((0, 2, 3), keepdims=True)
    var = x.var((0, 2, 3), keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale[:, None, None] + bias[:, None, None]


def jax_masked_softmax(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the softmax over the positions where the mask is not zero."""
    return jax.nn.softmax(jnp.where(mask != 0, x, -1e9), axis=-1)


def torch_masked_softmax(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the softmax over the positions where the mask is not zero."""
    return x.masked_fill(mask == 0, -1e9).softmax(-1)


def torch_moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and the variance of each column."""
    var, mean = torch.var_mean(x, 0, correction=0)
    return mean, var


for m, n in SIZES:
    TABLE |= {
        f"softmax_{m}x{n}": Native(
            lambda x: jax.nn.softmax(x, axis=-1), lambda x: torch.softmax(x, -1), (normal(m, n),)
        ),
        f"column_softmax_{m}x{n}": Native(
            lambda x: jax.nn.softmax(x, axis=0), lambda x: torch.softmax(x, 0), (normal(m, n),)
        ),
        f"masked_softmax_{m}x{n}": Native(
            jax_masked_softmax, torch_masked_softmax, (normal(m, n), integers(0, 2, m, n, dtype="int8"))
        ),
        f"layer_norm_{m}x{n}": Native(
            jax_layer_norm, lambda x, g, b: F.layer_norm(x, g.shape, g, b), (normal(m, n), normal(n), normal(n))
        ),
        f"rms_norm_{m}x{n}": Native(
            jax_rms_norm, lambda x, g: F.rms_norm(x, g.shape, g, 1e-6), (normal(m, n), normal(n))
        ),
        f"column_moments_{m}x{n}": Native(
            lambda x: (x.mean(0), x.var(0)), torch_moments, (uniform(-1.0, 3.0, m, n),)
        ),
    }  # fmt: skip
TABLE["softmax_bf16_2048x2048"] = Native(
    lambda x: jax.nn.softmax(x, axis=-1), lambda x: torch.softmax(x, -1), (normal(2048, 2048, dtype="bfloat16"),), 2e-2
)
TABLE["batch_norm_train_32x64x28x28"] = Native(
    jax_batch_norm,
    lambda x, g, b: F.batch_norm(x, None, None, g, b, training=True),
    (normal(32, 64, 28, 28), normal(64), normal(64)),
)
