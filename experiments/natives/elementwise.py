"""Elementwise programs, and programs that move data: transposes, concatenation, padding."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from experiments.natives.native import Native, Table, indices, integers, normal, uniform

__all__ = ["TABLE"]

TABLE: Table = {}
SIZES = ((128, 256), (2048, 2048))
RATE, B1, B2, EPS = 1e-3, 0.9, 0.999, 1e-8


def jax_adam(p: jax.Array, g: jax.Array, m: jax.Array, v: jax.Array) -> tuple[jax.Array, ...]:
    """Return the parameters and moments after the tenth step of Adam."""
    m = B1 * m + (1 - B1) * g
    v = B2 * v + (1 - B2) * g * g
    step = RATE * (m / (1 - B1**10)) / (jnp.sqrt(v / (1 - B2**10)) + EPS)
    return p - step, m, v


def torch_adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the parameters and moments after the tenth step of Adam."""
    m = torch.lerp(m, g, 1 - B1)
    v = v * B2 + (1 - B2) * g * g
    denominator = v.sqrt() / math.sqrt(1 - B2**10) + EPS
    return p - RATE / (1 - B1**10) * m / denominator, m, v


def jax_chain(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return a chain of arithmetic that takes no functions."""
    return jnp.maximum(x * y + x, 0) * (y - x) + jnp.minimum(x, y) * 2 - jnp.abs(y)


def torch_chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return a chain of arithmetic that takes no functions."""
    return torch.relu(x * y + x) * (y - x) + torch.minimum(x, y) * 2 - y.abs()


def jax_functions(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return a chain of elementary functions."""
    return jnp.tanh(x) * jax.nn.sigmoid(y) + jnp.sin(x) * jnp.log1p(jnp.exp(-jnp.abs(y)))


def torch_functions(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return a chain of elementary functions."""
    return torch.tanh(x) * torch.sigmoid(y) + torch.sin(x) * torch.log1p(torch.exp(-y.abs()))


def jax_dropout(x: jax.Array, bits: jax.Array) -> jax.Array:
    """Return dropout with probability 1/4 by random bits."""
    keep = bits.astype(jnp.uint32) >= jnp.uint32(1 << 30)
    return jnp.where(keep, x / 0.75, 0)


def torch_dropout(x: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Return dropout with probability 1/4 by random bits."""
    keep = (bits < 0) | (bits >= 1 << 30)
    return torch.where(keep, x / 0.75, 0.0)


for m, n in SIZES:
    two = (normal(m, n), normal(m, n))
    TABLE |= {
        f"bias_gelu_{m}x{n}": Native(
            lambda x, b: jax.nn.gelu(x + b, approximate=True),
            lambda x, b: F.gelu(x + b, approximate="tanh"),
            (normal(m, n), normal(n)),
        ),
        f"bias_gelu_erf_{m}x{n}": Native(
            lambda x, b: jax.nn.gelu(x + b, approximate=False), lambda x, b: F.gelu(x + b), (normal(m, n), normal(n))
        ),
        f"chain_f32_{m}x{n}": Native(jax_chain, torch_chain, two),
        f"functions_f32_{m}x{n}": Native(jax_functions, torch_functions, two),
        f"transposed_store_{m}x{n}": Native(
            lambda x, y: (x * 2.0 + y).T, lambda x, y: (x * 2.0 + y).t().contiguous(), two
        ),
        f"transpose_add_{m}x{n}": Native(
            lambda x, y: x.T * 2.0 + y, lambda x, y: x.t() * 2.0 + y, (normal(n, m), normal(m, n))
        ),
    }
MOMENTS = (normal(2048 * 2048), normal(2048 * 2048), normal(2048 * 2048), uniform(0.0, 1.0, 2048 * 2048))
TABLE |= {
    "chain_bf16_2048x2048": Native(
        jax_chain, torch_chain, (normal(2048, 2048, dtype="bfloat16"), normal(2048, 2048, dtype="bfloat16")), 4e-2
    ),
    "chain_int32_2048x2048": Native(
        jax_chain, torch_chain, (integers(-1000, 1000, 2048, 2048), integers(-1000, 1000, 2048, 2048))
    ),
    "adam_64k": Native(
        jax_adam, torch_adam, (normal(1 << 16), normal(1 << 16), normal(1 << 16), uniform(0.0, 1.0, 1 << 16))
    ),
    "adam_4m": Native(jax_adam, torch_adam, MOMENTS),
    "dropout_bits_2048x2048": Native(
        jax_dropout, torch_dropout, (normal(2048, 2048), integers(-(1 << 31), 1 << 31, 2048, 2048))
    ),
    "transpose_0213_8x512x8x64": Native(
        lambda x: x.transpose(0, 2, 1, 3) * 0.125,
        lambda x: (x.transpose(1, 2) * 0.125).contiguous(),
        (normal(8, 512, 8, 64),),
    ),
    "concat_slice_pad_1024x1024": Native(
        lambda x, y: jnp.pad(jnp.concatenate([x[:, 256:], jnp.tanh(y)[:, :512]], axis=1), ((2, 2), (3, 5))),
        lambda x, y: F.pad(torch.cat([x[:, 256:], torch.tanh(y)[:, :512]], 1), (3, 5, 2, 2)),
        (normal(1024, 1024), normal(1024, 1024)),
    ),
    "one_hot_4096x1000": Native(
        lambda i: jax.nn.one_hot(i, 1000) * 0.9 + 1e-4,
        lambda i: F.one_hot(i, 1000).float() * 0.9 + 1e-4,
        (indices(1000, 4096),),
    ),
}
