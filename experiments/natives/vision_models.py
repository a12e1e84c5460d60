"""Models of images: a residual network and a U-Net."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from experiments.natives.convolution import jax_conv, jax_max_pool
from experiments.natives.dense_models import layer
from experiments.natives.losses import jax_cross_entropy
from experiments.natives.native import Input, Native, Table, indices, normal, uniform
from experiments.natives.normalisation import jax_batch_norm
from experiments.natives.training import sgd_step

__all__ = ["TABLE"]


def conv(inputs: int, outputs: int, size: int = 3) -> Input:
    """Return the kernel of a convolution."""
    return normal(outputs, inputs, size, size, std=round((2 / (inputs * size * size)) ** 0.5, 4))


# ---- residual network: a stem and three blocks, of which two halve the image


def jax_norm(x: jax.Array, weights: Sequence[jax.Array]) -> jax.Array:
    """Return a batch norm, with the moments of the batch unless moments are given."""
    scale, bias, *moments = weights
    if not moments:
        return jax_batch_norm(x, scale, bias)
    mean, var = moments
    factor = scale * jax.lax.rsqrt(var + 1e-5)
    return x * factor[:, None, None] + (bias - mean * factor)[:, None, None]


def torch_norm(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a batch norm, with the moments of the batch unless moments are given."""
    scale, bias, *moments = weights
    mean, var = moments or (None, None)
    return F.batch_norm(x, mean, var, scale, bias, training=not moments)


WIDTHS = (32, 32, 64, 128)


def resnet_weights(training: bool) -> tuple[Input, ...]:
    """Return the weights of the residual network; without training, norms also have moments."""

    def norm(width: int) -> tuple[Input, ...]:
        moments = () if training else (normal(width, std=0.1), uniform(0.5, 1.5, width))
        return normal(width, std=0.5), normal(width, std=0.1), *moments

    found = [conv(3, WIDTHS[0]), *norm(WIDTHS[0])]
    for n, m in itertools.pairwise(WIDTHS):
        found += [conv(n, m), *norm(m), conv(m, m), *norm(m)]
        found += [conv(n, m, 1), *norm(m)] if n != m else []
    return (*found, *layer(WIDTHS[-1], 10))


def jax_resnet(*a: jax.Array) -> jax.Array:
    """Return the logits of a small residual network."""
    weights, x = list(a[:-1]), a[-1]
    per_norm = 2 if len(weights) == len(resnet_weights(training=True)) else 4

    def unit(x: jax.Array, stride: int, pad: int) -> jax.Array:
        kernel = weights.pop(0)
        norm = [weights.pop(0) for _ in range(per_norm)]
        return jax_norm(jax_conv(x, kernel, stride, pad), norm)

    x = jax.nn.relu(unit(x, 1, 1))
    for n, m in itertools.pairwise(WIDTHS):
        stride = 1 if n == m else 2
        y = unit(jax.nn.relu(unit(x, stride, 1)), 1, 1)
        x = jax.nn.relu(y + (x if n == m else unit(x, stride, 0)))
    return x.mean((2, 3)) @ weights[0] + weights[1]


def torch_resnet(*a: torch.Tensor) -> torch.Tensor:
    """Return the logits of a small residual network."""
    weights, x = list(a[:-1]), a[-1]
    per_norm = 2 if len(weights) == len(resnet_weights(training=True)) else 4

    def unit(x: torch.Tensor, stride: int, pad: int) -> torch.Tensor:
        kernel = weights.pop(0)
        norm = [weights.pop(0) for _ in range(per_norm)]
        return torch_norm(F.conv2d(x, kernel, stride=stride, padding=pad), norm)

    x = F.relu(unit(x, 1, 1))
    for n, m in itertools.pairwise(WIDTHS):
        stride = 1 if n == m else 2
        y = unit(F.relu(unit(x, stride, 1)), 1, 1)
        x = F.relu(y + (x if n == m else unit(x, stride, 0)))
    return torch.addmm(weights[1], F.adaptive_avg_pool2d(x, 1).flatten(1), weights[0])


PHOTOS = normal(16, 3, 32, 32)


# ---- U-Net: two levels down and up, with skip connections


UNET = (
    conv(3, 16), conv(16, 16), conv(16, 32), conv(32, 32), conv(32, 64), conv(64, 64),
    conv(96, 32), conv(32, 32), conv(48, 16), conv(16, 16), conv(16, 4, 1),
)  # fmt: skip


def jax_unet(*a: jax.Array) -> jax.Array:
    """Return the class scores of the pixels by a small U-Net."""
    *w, x = a

    def double(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        return jax.nn.relu(jax_conv(jax.nn.relu(jax_conv(x, first, pad=1)), second, pad=1))

    def up(x: jax.Array) -> jax.Array:
        return jnp.repeat(jnp.repeat(x, 2, axis=2), 2, axis=3)

    high = double(x, w[0], w[1])
    middle = double(jax_max_pool(high, 2, 2), w[2], w[3])
    low = double(jax_max_pool(middle, 2, 2), w[4], w[5])
    middle = double(jnp.concatenate([up(low), middle], axis=1), w[6], w[7])
    high = double(jnp.concatenate([up(middle), high], axis=1), w[8], w[9])
    return jax_conv(high, w[10])


def torch_unet(*a: torch.Tensor) -> torch.Tensor:
    """Return the class scores of the pixels by a small U-Net."""
    *w, x = a

    def double(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return F.relu(F.conv2d(F.relu(F.conv2d(x, first, padding=1)), second, padding=1))

    def up(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=2, mode="nearest")

    high = double(x, w[0], w[1])
    middle = double(F.max_pool2d(high, 2), w[2], w[3])
    low = double(F.max_pool2d(middle, 2), w[4], w[5])
    middle = double(torch.cat([up(low), middle], 1), w[6], w[7])
    high = double(torch.cat([up(middle), high], 1), w[8], w[9])
    return F.conv2d(high, w[10])


SCENES = normal(2, 3, 64, 64)
TARGETS = normal(2, 4, 64, 64)

TABLE: Table = {
    "resnet_forward": Native(jax_resnet, torch_resnet, (*resnet_weights(training=False), PHOTOS)),
    "resnet_train": sgd_step(
        lambda *a: jax_cross_entropy(jax_resnet(*a[:-1]), a[-1]),
        lambda *a: F.cross_entropy(torch_resnet(*a[:-1]), a[-1]),
        resnet_weights(training=True),
        (PHOTOS, indices(10, 16)),
    ),
    "unet_forward": Native(jax_unet, torch_unet, (*UNET, SCENES)),
    "unet_train": sgd_step(
        lambda *a: ((jax_unet(*a[:-1]) - a[-1]) ** 2).mean(),
        lambda *a: F.mse_loss(torch_unet(*a[:-1]), a[-1]),
        UNET,
        (SCENES, TARGETS),
    ),
}  # fmt: skip
