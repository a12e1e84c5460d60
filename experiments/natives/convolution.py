"""Convolutions and pooling, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from experiments.natives.native import Input, Native, Table, normal

__all__ = ["TABLE", "jax_conv", "jax_max_pool"]


def jax_conv(
    x: jax.Array, w: jax.Array, stride: int = 1, pad: int = 0, groups: int = 1, layout: str = "NCHW"
) -> jax.Array:
    """Return the convolution of images; the kernel is OIHW for NCHW images, HWIO for NHWC."""
    numbers = (layout, "OIHW" if layout == "NCHW" else "HWIO", layout)
    window = (stride, stride)
    padding = ((pad, pad), (pad, pad))
    return jax.lax.conv_general_dilated(
        x, w, window, padding, dimension_numbers=numbers, feature_group_count=groups
    )  # fmt: skip


def jax_max_pool(x: jax.Array, size: int, stride: int, pad: int = 0) -> jax.Array:
    """Return the maxima of square windows of NCHW images."""
    padding = ((0, 0), (0, 0), (pad, pad), (pad, pad))
    window, strides = (1, 1, size, size), (1, 1, stride, stride)
    found: jax.Array = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, padding)
    return found


def jax_avg_pool(x: jax.Array, size: int, stride: int) -> jax.Array:
    """Return the means of square windows of NCHW images."""
    total: jax.Array = jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 1, size, size), (1, 1, stride, stride), "VALID")
    return total / (size * size)


def jax_pullback(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return a function that computes the gradients of another for its first arguments; the last is the cotangent."""
    return lambda *a: jax.vjp(function, *a[:count])[1](a[count])


def torch_pullback(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return a function that computes the gradients of another for its first arguments; the last is the cotangent."""
    return lambda *a: torch.func.vjp(function, *a[:count])[1](a[count])


def nhwc(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return the 3x3 convolution of NHWC images by channels-last tensors."""
    return F.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1), padding=1).permute(0, 2, 3, 1)


def jax_residual(x: jax.Array, w1: jax.Array, b1: jax.Array, w2: jax.Array, b2: jax.Array) -> jax.Array:
    """Return a residual block of two convolutions with folded batch norms."""
    y = jax.nn.relu(jax_conv(x, w1, pad=1) + b1[:, None, None])
    return jax.nn.relu(x + jax_conv(y, w2, pad=1) + b2[:, None, None])


def torch_residual(
    x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor, b2: torch.Tensor
) -> torch.Tensor:
    """Return a residual block of two convolutions with folded batch norms."""
    y = F.relu(F.conv2d(x, w1, b1, padding=1))
    return F.relu(x + F.conv2d(y, w2, b2, padding=1))


def weight(*dims: int) -> Input:
    """Return a kernel that keeps the size of its input's values."""
    return normal(*dims, std=0.05)


IMAGE = normal(8, 64, 56, 56)

TABLE: Table = {
    "conv_3x3_nchw_8x64x56x56": Native(
        lambda x, w: jax_conv(x, w, pad=1), lambda x, w: F.conv2d(x, w, padding=1), (IMAGE, weight(64, 64, 3, 3))
    ),
    "conv_3x3_nhwc_8x56x56x64": Native(
        lambda x, w: jax_conv(x, w, pad=1, layout="NHWC"), nhwc, (normal(8, 56, 56, 64), weight(3, 3, 64, 64))
    ),
    "conv_3x3_small_1x16x14x14": Native(
        lambda x, w: jax_conv(x, w, pad=1),
        lambda x, w: F.conv2d(x, w, padding=1),
        (normal(1, 16, 14, 14), weight(32, 16, 3, 3)),
    ),
    "conv_1x1_nchw_8x64x56x56": Native(jax_conv, F.conv2d, (IMAGE, weight(128, 64, 1, 1))),
    "conv_1x1_strided_8x64x56x56": Native(
        lambda x, w: jax_conv(x, w, stride=2), lambda x, w: F.conv2d(x, w, stride=2), (IMAGE, weight(128, 64, 1, 1))
    ),
    "conv_3x3_strided_8x64x56x56": Native(
        lambda x, w: jax_conv(x, w, stride=2, pad=1),
        lambda x, w: F.conv2d(x, w, stride=2, padding=1),
        (IMAGE, weight(128, 64, 3, 3)),
    ),
    "conv_7x7_stem_2x3x224x224": Native(
        lambda x, w: jax_conv(x, w, stride=2, pad=3),
        lambda x, w: F.conv2d(x, w, stride=2, padding=3),
        (normal(2, 3, 224, 224), weight(64, 3, 7, 7)),
    ),
    "conv_depthwise_4x128x56x56": Native(
        lambda x, w: jax_conv(x, w, pad=1, groups=128),
        lambda x, w: F.conv2d(x, w, padding=1, groups=128),
        (normal(4, 128, 56, 56), weight(128, 1, 3, 3)),
    ),
    "conv_grouped_8x64x28x28": Native(
        lambda x, w: jax_conv(x, w, pad=1, groups=8),
        lambda x, w: F.conv2d(x, w, padding=1, groups=8),
        (normal(8, 64, 28, 28), weight(64, 8, 3, 3)),
    ),
    "conv_3x3_grad_8x32x28x28": Native(
        jax_pullback(lambda x, w: jax_conv(x, w, pad=1), 2),
        torch_pullback(lambda x, w: F.conv2d(x, w, padding=1), 2),
        (normal(8, 32, 28, 28), weight(32, 32, 3, 3), normal(8, 32, 28, 28)),
    ),
    "residual_block_4x64x28x28": Native(
        jax_residual,
        torch_residual,
        (normal(4, 64, 28, 28), weight(64, 64, 3, 3), normal(64), weight(64, 64, 3, 3), normal(64)),
    ),
    "max_pool_2x2_8x64x56x56": Native(lambda x: jax_max_pool(x, 2, 2), lambda x: F.max_pool2d(x, 2), (IMAGE,)),
    "max_pool_3x3_8x64x56x56": Native(
        lambda x: jax_max_pool(x, 3, 2, 1), lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,)
    ),
    "avg_pool_2x2_8x64x56x56": Native(lambda x: jax_avg_pool(x, 2, 2), lambda x: F.avg_pool2d(x, 2), (IMAGE,)),
    "avg_pool_3x3_8x64x56x56": Native(lambda x: jax_avg_pool(x, 3, 1), lambda x: F.avg_pool2d(x, 3, 1), (IMAGE,)),
    "max_pool_grad_8x32x56x56": Native(
        jax_pullback(lambda x: jax_max_pool(x, 2, 2), 1),
        torch_pullback(lambda x: F.max_pool2d(x, 2), 1),
        (normal(8, 32, 56, 56), normal(8, 32, 28, 28)),
    ),
    "avg_pool_grad_8x32x56x56": Native(
        jax_pullback(lambda x: jax_avg_pool(x, 2, 2), 1),
        torch_pullback(lambda x: F.avg_pool2d(x, 2), 1),
        (normal(8, 32, 56, 56), normal(8, 32, 28, 28)),
    ),
    "global_avg_pool_8x256x14x14": Native(
        lambda x: x.mean((2, 3)), lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1), (normal(8, 256, 14, 14),)
    ),
}  # fmt: skip
