"""Losses over classes, with and without gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from experiments.natives.native import Native, Table, indices, normal, uniform

__all__ = ["TABLE", "jax_cross_entropy"]


def jax_cross_entropy(x: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean cross-entropy of logits and labels."""
    picked = jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], axis=1)
    return -picked.mean()


def jax_sigmoid_loss(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the mean binary cross-entropy of logits and targets."""
    return (jnp.maximum(x, 0) - x * y + jnp.log1p(jnp.exp(-jnp.abs(x)))).mean()


def jax_focal_loss(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the focal loss of logits and binary targets."""
    p = jax.nn.sigmoid(x)
    loss = -(y * jax.nn.log_sigmoid(x) + (1 - y) * jax.nn.log_sigmoid(-x))
    return (loss * (y * (1 - p) + (1 - y) * p) ** 2).mean()


def torch_focal_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the focal loss of logits and binary targets."""
    p = torch.sigmoid(x)
    loss = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    return (loss * (y * (1 - p) + (1 - y) * p) ** 2).mean()


SOFT = (normal(256, 10000), indices(10000, 256))
MANY = (normal(256, 10000), uniform(0.0, 1.0, 256, 10000))

TABLE: Table = {
    "cross_entropy_128x256": Native(jax_cross_entropy, F.cross_entropy, (normal(128, 256), indices(256, 128))),
    "cross_entropy_256x10000": Native(jax_cross_entropy, F.cross_entropy, SOFT),
    "cross_entropy_grad_256x10000": Native(
        jax.value_and_grad(jax_cross_entropy),
        lambda x, y: torch.func.grad_and_value(F.cross_entropy)(x, y)[::-1],
        SOFT,
    ),
    "sigmoid_loss_grad_256x10000": Native(
        jax.value_and_grad(jax_sigmoid_loss),
        lambda x, y: torch.func.grad_and_value(F.binary_cross_entropy_with_logits)(x, y)[::-1],
        MANY,
    ),
    "sigmoid_loss_grad_128x256": Native(
        jax.value_and_grad(jax_sigmoid_loss),
        lambda x, y: torch.func.grad_and_value(F.binary_cross_entropy_with_logits)(x, y)[::-1],
        (normal(128, 256), uniform(0.0, 1.0, 128, 256)),
    ),
    "focal_loss_grad_256x4096": Native(
        jax.value_and_grad(jax_focal_loss),
        lambda x, y: torch.func.grad_and_value(torch_focal_loss)(x, y)[::-1],
        (normal(256, 4096), uniform(0.0, 1.0, 256, 4096)),
    ),
}
