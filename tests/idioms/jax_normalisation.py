"""Normalisation layers in JAX with gradients, also with batch size 1, one channel or one feature."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.idioms.collection import Closeness, Idioms, booleans, normal, uniform

IDIOMS = Idioms()
ZERO = Closeness(5e-5, 5e-5, floor=1.0)
"""For gradients that are zero up to rounding: one feature normalised over itself."""


def _weights(n: int, dtype: Any = np.float32) -> tuple[Any, Any]:
    return uniform(n, low=0.5, high=1.5, dtype=dtype), normal(n, scale=0.1, name="bias", dtype=dtype)


def _gradients(layer: Any, *args: Any) -> Any:
    """Return the output, and the gradients of a loss of it with respect to all arguments."""

    def loss(*inner: Any) -> Any:
        y = layer(*inner).astype(jnp.float32)
        return jnp.sum(jnp.sin(y) * jnp.arange(1.0, y.size + 1).reshape(y.shape) / y.size), y

    (_, y), grads = jax.value_and_grad(loss, tuple(range(len(args))), has_aux=True)(*args)
    return y, grads


@IDIOMS.on(
    batch_1=(normal(1, 64), *_weights(64)),
    text=(normal(2, 17, 32), *_weights(32)),
    long=(normal(3, 1000), *_weights(1000)),
    rows=(normal(128, 1, 48), *_weights(48)),
    double=(normal(5, 33, dtype=np.float64), *_weights(33, np.float64)),
)
def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    def layer(x: Any, scale: Any, bias: Any) -> Any:
        mean = jnp.mean(x, axis=-1, keepdims=True)
        var = jnp.var(x, axis=-1, keepdims=True)
        return (x - mean) * lax.rsqrt(var + 1e-5) * scale + bias

    return _gradients(layer, x, scale, bias)


@IDIOMS.on(ZERO, column=(normal(64, 1), *_weights(1)), row=(normal(1, 1, 1), *_weights(1)))
def layer_norm_of_one_feature(x: Any, scale: Any, bias: Any) -> Any:
    return layer_norm(x, scale, bias)


@IDIOMS.on(
    half=(normal(1, 64, dtype=jnp.bfloat16), *_weights(64)), f16=(normal(2, 17, dtype=np.float16), *_weights(17))
)
def layer_norm_in_half_precision(x: Any, scale: Any, bias: Any) -> Any:
    """Layer norm with statistics in float32, as in Flax."""
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    var = jnp.maximum(0.0, (wide**2).mean(-1, keepdims=True) - mean**2)
    y = (wide - mean) * (lax.rsqrt(var + 1e-6) * scale) + bias
    return y.astype(x.dtype)


@IDIOMS.on(
    batch_1=(normal(1, 64), _weights(64)[0]),
    text=(normal(2, 19, 48), _weights(48)[0]),
    heads=(normal(1, 7, 4, 16), _weights(16)[0]),
    long=(normal(1, 1, 2048), _weights(2048)[0]),
)
def rms_norm(x: Any, weight: Any) -> Any:
    return _gradients(lambda x, w: w * (x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)), x, weight)


@IDIOMS.on(half=(normal(1, 128, dtype=jnp.bfloat16), np.ones(128, jnp.bfloat16)))
def rms_norm_in_half_precision(x: Any, weight: Any) -> Any:
    wide = x.astype(jnp.float32)
    scaled = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return weight * scaled.astype(x.dtype)


@IDIOMS.on(
    batch_32=(normal(32, 17), *_weights(17), normal(17, name="m"), uniform(17, name="v")),
    one_feature=(normal(64, 1), *_weights(1), normal(1, name="m"), uniform(1, name="v")),
    image=(normal(1, 5, 7, 3), *_weights(3), normal(3, name="m"), uniform(3, name="v")),
)
def batch_norm_in_training(x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    axes = tuple(range(x.ndim - 1))

    def layer(x: Any, scale: Any, bias: Any) -> Any:
        mean = x.mean(axes)
        return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(axes) + 1e-5) * scale + bias

    running = 0.9 * mean + 0.1 * x.mean(axes), 0.9 * var + 0.1 * x.var(axes)
    return _gradients(layer, x, scale, bias), running


@IDIOMS.on(ZERO, batch_1=(normal(1, 64), *_weights(64)))
def batch_norm_at_batch_1(x: Any, scale: Any, bias: Any) -> Any:
    def layer(x: Any, scale: Any, bias: Any) -> Any:
        return (x - x.mean(0)) * lax.rsqrt(x.var(0) + 1e-5) * scale + bias

    return _gradients(layer, x, scale, bias)


@IDIOMS.on(
    batch_1=(normal(1, 64), *_weights(64), normal(64, name="m"), uniform(64, name="v")),
    image=(normal(2, 9, 9, 5), *_weights(5), normal(5, name="m"), uniform(5, name="v")),
    one_channel=(normal(1, 1, 64, 1), *_weights(1), normal(1, name="m"), uniform(1, name="v")),
)
def batch_norm_in_inference(x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    return _gradients(lambda x, s, b, m, v: (x - m) / jnp.sqrt(v + 1e-5) * s + b, x, scale, bias, mean, var)


@IDIOMS.on(
    batch_1=(normal(1, 5, 5, 8), *_weights(8)),
    batch_3=(normal(3, 17, 1, 12), *_weights(12)),
    one_pixel=(normal(1, 1, 1, 64), *_weights(64)),
)
def group_norm(x: Any, scale: Any, bias: Any) -> Any:
    def layer(x: Any, scale: Any, bias: Any) -> Any:
        n, h, w, c = x.shape
        g = x.reshape(n, h, w, 4, c // 4)
        mean = g.mean(axis=(1, 2, 4), keepdims=True)
        var = g.var(axis=(1, 2, 4), keepdims=True)
        return ((g - mean) * lax.rsqrt(var + 1e-5)).reshape(x.shape) * scale + bias

    return _gradients(layer, x, scale, bias)


@IDIOMS.on(
    batch_1=(normal(1, 3, 5, 7), normal(1, 3, 1, 1)),
    one_channel=(normal(1, 1, 8, 8), normal(1, 1, 1, 1)),
    line=(normal(2, 3, 1, 67), normal(1, 3, 1, 1)),
)
def instance_norm(x: Any, scale: Any) -> Any:
    """Instance norm with channels first."""

    def layer(x: Any, scale: Any) -> Any:
        mean = jnp.mean(x, axis=(2, 3), keepdims=True)
        return scale * (x - mean) / jnp.sqrt(jnp.var(x, axis=(2, 3), keepdims=True) + 1e-5)

    return _gradients(layer, x, scale)


@IDIOMS.on(
    content=(normal(1, 6, 5, 4), normal(1, 3, 7, 4, name="s")),
    batch_2=(normal(2, 1, 64, 3), normal(2, 64, 1, 3, name="s")),
)
def adaptive_instance_norm(content: Any, style: Any) -> Any:
    """Adaptive instance norm with the statistics of two images of different sizes."""

    def layer(content: Any, style: Any) -> Any:
        cm, cs = content.mean((1, 2), keepdims=True), content.std((1, 2), keepdims=True)
        sm, ss = style.mean((1, 2), keepdims=True), style.std((1, 2), keepdims=True)
        return ss * (content - cm) / (cs + 1e-5) + sm

    return _gradients(layer, content, style)


@IDIOMS.on(
    batch_3=(normal(3, 19, 8), booleans(3, 19, chance=0.8), *_weights(8)),
    batch_1=(normal(1, 64, 1), booleans(1, 64, chance=0.8), *_weights(1)),
)
def masked_batch_norm(x: Any, mask: Any, scale: Any, bias: Any) -> Any:
    def layer(x: Any, scale: Any, bias: Any) -> Any:
        m = mask[..., None]
        count = jnp.maximum(mask.sum(), 1)
        mean = jnp.sum(x, axis=(0, 1), where=m) / count
        var = jnp.sum(jnp.where(m, (x - mean) ** 2, 0), axis=(0, 1)) / count
        return jnp.where(m, (x - mean) * lax.rsqrt(var + 1e-3) * scale + bias, 0.0)

    return _gradients(layer, x, scale, bias)


@IDIOMS.on(
    matrix=(normal(33, 17), normal(33), normal(4, 33)),
    row=(normal(1, 64), normal(1), normal(4, 1)),
    column=(normal(64, 1), normal(64), normal(1, 64)),
)
def spectral_norm(w: Any, u: Any, x: Any) -> Any:
    def layer(w: Any, x: Any) -> Any:
        v = w.T @ u
        v = lax.stop_gradient(v / (jnp.linalg.norm(v) + 1e-12))
        left = w @ v
        left = lax.stop_gradient(left / (jnp.linalg.norm(left) + 1e-12))
        return x @ (w / (left @ w @ v))

    return _gradients(layer, w, x)


@IDIOMS.on(
    matrix=(normal(33, 17), normal(17), normal(4, 33)),
    column=(normal(64, 1), normal(1), normal(1, 64)),
)
def weight_norm(v: Any, g: Any, x: Any) -> Any:
    return _gradients(lambda v, g, x: x @ (g * v / jnp.linalg.norm(v, axis=0, keepdims=True)), v, g, x)


@IDIOMS.on(kernel=(normal(3, 3, 4, 6),), point=(normal(1, 1, 64, 1),), dense=(normal(64, 17),))
def weight_standardisation(w: Any) -> Any:
    def layer(w: Any) -> Any:
        axes = tuple(range(w.ndim - 1))
        mean = w.mean(axes, keepdims=True)
        var = w.var(axes, keepdims=True)
        fan_in = w.size // w.shape[-1]
        return (w - mean) * lax.rsqrt(jnp.maximum(var * fan_in, 1e-4))

    return _gradients(layer, w)


@IDIOMS.on(
    image=(normal(1, 4, 5, 17),),
    one_pixel=(normal(2, 1, 1, 64),),
    one_channel=(normal(1, 8, 8, 1),),
)
def local_response_and_pixel_norm(x: Any) -> Any:
    def layer(x: Any) -> Any:
        squares = lax.reduce_window(x * x, 0.0, lax.add, (1, 1, 1, 5), (1, 1, 1, 1), "SAME")
        local = x / (1.0 + 1e-2 * squares) ** 0.75
        return local + x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-8)

    return _gradients(layer, x)


@IDIOMS.on(
    batch_1=(normal(1, 17, 32), normal(1, 64), normal(64, 64, scale=0.1)),
    batch_3=(normal(3, 5, 16), normal(3, 20), normal(20, 32, scale=0.1)),
)
def conditioned_layer_norm(x: Any, condition: Any, w: Any) -> Any:
    """Layer norm with modulation, as in diffusion transformers."""

    def layer(x: Any, condition: Any, w: Any) -> Any:
        shift, scale = jnp.split(jax.nn.silu(condition) @ w, 2, axis=-1)
        y = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return y * (1 + scale[:, None]) + shift[:, None]

    return _gradients(layer, x, condition, w)


@IDIOMS.on(
    samples=(normal(100, 17),), one=(normal(1, 64),), column=(normal(64, 1),), ints=(np.arange(60).reshape(20, 3),)
)
def standardise_and_scale_columns(x: Any) -> Any:
    low, high = x.min(axis=0), x.max(axis=0)
    std = x.std(axis=0)
    return (x - x.mean(axis=0)) / jnp.where(std == 0, 1.0, std), (x - low) / jnp.where(high > low, high - low, 1)
