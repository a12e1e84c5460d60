"""Sorting, selection, gathers and scatters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from experiments.natives.native import Native, Table, indices, normal

__all__ = ["TABLE"]


def jax_embedding_gradient(i: jax.Array, g: jax.Array) -> jax.Array:
    """Return the gradient of a table of 10,000 rows that was looked up."""
    return jnp.zeros((10000, g.shape[-1])).at[i].add(g)


def torch_embedding_gradient(i: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a table of 10,000 rows that was looked up."""
    table: torch.Tensor = torch.ops.aten.embedding_dense_backward(g, i, 10000, -1, False)
    return table


def jax_segment_sum(x: jax.Array, i: jax.Array) -> jax.Array:
    """Return the sums of rows by segment."""
    return jax.ops.segment_sum(x, i, num_segments=512)


def torch_segment_sum(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    """Return the sums of rows by segment."""
    return x.new_zeros(512, x.shape[1]).index_add(0, i, x)


TABLE: Table = {
    "top_k_8_of_1024x1024": Native(
        lambda x: jax.lax.top_k(x, 8), lambda x: tuple(torch.topk(x, 8)), (normal(1024, 1024),)
    ),
    "top_k_50_of_16x32000": Native(
        lambda x: jax.lax.top_k(x, 50), lambda x: tuple(torch.topk(x, 50)), (normal(16, 32000),)
    ),
    "top_k_2_of_8192x16": Native(
        lambda x: jax.lax.top_k(x, 2), lambda x: tuple(torch.topk(x, 2)), (normal(8192, 16),)
    ),
    "sort_256x4096": Native(lambda x: jnp.sort(x, axis=1), lambda x: torch.sort(x, 1).values, (normal(256, 4096),)),
    "sort_bf16_512x1024": Native(
        lambda x: jnp.sort(x, axis=1), lambda x: torch.sort(x, 1).values, (normal(512, 1024, dtype="bfloat16"),)
    ),
    "argsort_1024x512": Native(
        lambda x: jnp.argsort(x, axis=1), lambda x: torch.argsort(x, dim=1, stable=True), (normal(1024, 512),)
    ),
    "gather_rows_4096x256": Native(
        lambda t, i: t[i], lambda t, i: F.embedding(i, t), (normal(10000, 256), indices(10000, 4096))
    ),
    "take_along_rows_2048x512": Native(
        lambda x, i: jnp.take_along_axis(x, i, axis=1),
        lambda x, i: torch.gather(x, 1, i),
        (normal(2048, 512), indices(512, 2048, 128)),
    ),
    "embedding_grad_4096x256": Native(
        jax_embedding_gradient, torch_embedding_gradient, (indices(10000, 4096), normal(4096, 256))
    ),
    "segment_sum_16384x64": Native(jax_segment_sum, torch_segment_sum, (normal(16384, 64), indices(512, 16384))),
    "scatter_add_65536_to_1024": Native(
        lambda x, i: jnp.zeros(1024).at[i].add(x),
        lambda x, i: x.new_zeros(1024).scatter_add(0, i, x),
        (normal(65536), indices(1024, 65536)),
    ),
}  # fmt: skip
