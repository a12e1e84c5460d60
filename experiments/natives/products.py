"""Matrix products with what surrounds them: biases, activations, distances, attention, scans of small matrices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from experiments.natives.native import Native, Table, integers, normal

__all__ = ["TABLE", "jax_attention"]


def jax_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None = None, causal: bool = False
) -> jax.Array:
    """Return the attention of heads: batch, heads, positions, features."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    if mask is not None:
        scores = jnp.where(mask != 0, scores, -1e9)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)


def torch_masked_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:  # fmt: skip
    """Return the attention of heads under a mask."""
    bias = torch.zeros(mask.shape).masked_fill(mask == 0, -1e9)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def jax_attention_gradient(q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array) -> tuple[jax.Array, ...]:
    """Return the gradients of causal attention."""
    grads: tuple[jax.Array, ...] = jax.vjp(lambda q, k, v: jax_attention(q, k, v, causal=True), q, k, v)[1](g)
    return grads


def torch_attention_gradient(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of causal attention."""
    pull = torch.func.vjp(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)[1]
    grads: tuple[torch.Tensor, ...] = pull(g)
    return grads


def jax_distances(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the Euclidean distances of all pairs."""
    return jnp.sqrt(((x[:, None, :] - y[None, :, :]) ** 2).sum(-1))


def jax_scan_of_products(x: jax.Array, a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the last state and the means of a batch of small linear recurrences."""

    def step(h: jax.Array, a: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(jnp.einsum("bij,bjk->bik", a, h))
        return h, h.mean((1, 2))

    return jax.lax.scan(step, x, a)


def torch_scan_of_products(x: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the last state and the means of a batch of small linear recurrences."""
    means = []
    for step in a:
        x = torch.tanh(torch.bmm(step, x))
        means.append(x.mean((1, 2)))
    return x, torch.stack(means)


HEADS = (normal(2, 8, 512, 64), normal(2, 8, 512, 64), normal(2, 8, 512, 64))
SHORT = (normal(4, 4, 64, 32), normal(4, 4, 64, 32), normal(4, 4, 64, 32))

TABLE: Table = {
    "product_relu_64x256x128": Native(
        lambda x, w, b: jax.nn.relu(x @ w + b),
        lambda x, w, b: F.relu(torch.addmm(b, x, w)),
        (normal(64, 256), normal(256, 128, std=0.06), normal(128)),
    ),
    "product_gelu_512x512x2048": Native(
        lambda x, w, b: jax.nn.gelu(x @ w + b),
        lambda x, w, b: F.gelu(torch.addmm(b, x, w), approximate="tanh"),
        (normal(512, 512), normal(512, 2048, std=0.05), normal(2048)),
    ),
    "product_bf16_512x512x512": Native(
        lambda x, w: x @ w,
        lambda x, w: x @ w,
        (normal(512, 512, dtype="bfloat16"), normal(512, 512, std=0.05, dtype="bfloat16")),
        2e-2,
    ),
    "product_vector_1x1024x4096": Native(
        lambda x, w: x @ w, lambda x, w: x @ w, (normal(1, 1024), normal(1024, 4096, std=0.03))
    ),
    "batched_product_512x16x16": Native(jnp.matmul, torch.bmm, (normal(512, 16, 16), normal(512, 16, 16))),
    "batched_product_8192x4x4": Native(jnp.matmul, torch.bmm, (normal(8192, 4, 4), normal(8192, 4, 4))),
    "attention_2x8x512x64": Native(jax_attention, F.scaled_dot_product_attention, HEADS),
    "attention_mask_2x8x512x64": Native(
        jax_attention, torch_masked_attention, (*HEADS, integers(0, 2, 2, 1, 512, 512, dtype="int8"))
    ),
    "attention_causal_2x8x512x64": Native(
        lambda q, k, v: jax_attention(q, k, v, causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        HEADS,
    ),
    "attention_4x4x64x32": Native(jax_attention, F.scaled_dot_product_attention, SHORT),
    "attention_grad_2x4x256x64": Native(jax_attention_gradient, torch_attention_gradient, (normal(2, 4, 256, 64),) * 4),
    "pairwise_distances_512x512x32": Native(
        jax_distances,
        lambda x, y: torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist"),
        (normal(512, 32), normal(512, 32)),
    ),
    "scan_of_products_64x256x8x8": Native(
        jax_scan_of_products, torch_scan_of_products, (normal(256, 8, 8), normal(64, 256, 8, 8, std=0.35))
    ),
}
