"""Families of elementwise programs: activations, chains, special functions, conversions, bits, colours."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from env.suites.programs.differentiation import gradient
from env.suites.programs.family import (
    Argument,
    Families,
    Members,
    each_of,
    integers,
    normal,
    sizes,
    uniform,
    with_halves,
)

FAMILIES = Families()
SHAPES = ((1000,), (64, 256), (1 << 16,), (1024, 1024), (1 << 22,))


def arrays(
    count: int, shapes: tuple[tuple[int, ...], ...] = SHAPES, halves: int = 1
) -> dict[str, tuple[Argument, ...]]:
    """Return cases of several normal arrays of one shape."""
    return {
        f"{sizes(*d)}_{t}": tuple(normal(*d, dtype=t) for _ in range(count)) for d, t in with_halves(shapes, halves)
    }


@FAMILIES.add
def activations() -> Members:
    """Activation functions of networks."""
    functions = (
        jax.nn.relu,
        jax.nn.gelu,
        jax.nn.silu,
        jnp.tanh,
        jax.nn.sigmoid,
        jax.nn.softplus,
        jax.nn.elu,
        jax.nn.selu,
        jax.nn.hard_swish,
        jax.nn.mish,
    )
    variants: dict[str, Any] = {f.__name__: f for f in functions}
    yield from each_of(variants, arrays(1))


@FAMILIES.add
def activation_gradients() -> Members:
    """Gradients of activation functions after a bias."""
    functions = (jax.nn.relu, jax.nn.gelu, jax.nn.silu, jnp.tanh, jax.nn.softplus, jax.nn.mish, jax.nn.celu)
    variants: dict[str, Any] = {f.__name__: gradient(lambda x, b, f=f: f(x + b)) for f in functions}
    cases = {sizes(*d): (normal(*d), normal(d[-1])) for d in ((32, 64), (256, 512), (2048, 1024), (4096, 2048))}
    yield from each_of(variants, cases)


@FAMILIES.add
def arithmetic_chains() -> Members:
    """Chains of arithmetic on two or three arrays, without functions."""
    variants: dict[str, Any] = {
        "polynomial": lambda x, y, z: ((x * 0.5 + y) * x - z) * x + 1,
        "limits": lambda x, y, z: jnp.maximum(x * y + x, 0) * (y - x) + jnp.minimum(x, z) * 2 - jnp.abs(y),
        "selects": lambda x, y, z: jnp.where(x > y, x - z, jnp.where(y > z, y * z, z)),
        "blend": lambda x, y, z: jnp.clip(x, 0, 1) * y + (1 - jnp.clip(x, 0, 1)) * z,
        "many_results": lambda x, y, z: (x + y, x - y, x * z, (x + y) * (x - y)),
        "reciprocals": lambda x, y, z: x / (1 + y * y) + z / (2 + jnp.abs(x)),
    }
    yield from each_of(variants, arrays(3))


@FAMILIES.add
def function_chains() -> Members:
    """Chains of elementary functions."""
    variants: dict[str, Any] = {
        "waves": lambda x, y: jnp.sin(x) * jnp.cos(y) + jnp.sin(x + y),
        "exponentials": lambda x, y: jnp.exp(-x * x) * jnp.log1p(jnp.abs(y)),
        "roots": lambda x, y: jnp.sqrt(x * x + y * y + 1e-3) + lax.rsqrt(1 + jnp.abs(x)),
        "powers": lambda x, y: jnp.power(jnp.abs(x) + 0.1, 0.7) + jnp.exp2(y),
        "angles": lambda x, y: jnp.arctan2(x, y) + jnp.arctan(x),
        "hyperbolic": lambda x, y: jnp.sinh(x * 0.3) + jnp.cosh(y * 0.3) - jnp.tanh(x * y),
        "rounding": lambda x, y: jnp.round(x * 4) / 4 + jnp.floor(y) - jnp.ceil(x),
    }
    yield from each_of(variants, arrays(2, SHAPES[:4]))


@FAMILIES.add
def special_functions() -> Members:
    """Error function, gamma functions, digamma and Bessel functions, and gradients."""
    variants: dict[str, Any] = {
        "erf": lambda x: jax.scipy.special.erf(x) + jax.scipy.special.erfc(x * 0.5),
        "erf_inv": lambda x: jax.scipy.special.erfinv(jnp.tanh(x) * 0.99),
        "lgamma": lambda x: jax.scipy.special.gammaln(jnp.abs(x) + 0.5),
        "digamma": lambda x: jax.scipy.special.digamma(jnp.abs(x) + 0.5),
        "i0e": lambda x: jax.scipy.special.i0e(x),
        "ndtri": lambda x: jax.scipy.special.ndtri(jax.nn.sigmoid(x)),
        "log_ndtr": lambda x: jax.scipy.special.log_ndtr(x),
        "logit": lambda x: jax.scipy.special.logit(jax.nn.sigmoid(x)),
        "entropy": lambda x: jax.scipy.special.entr(jax.nn.sigmoid(x)),
    }
    yield from each_of(variants, {sizes(*d): (normal(*d),) for d in ((1000,), (256, 256), (1 << 19,))})


@FAMILIES.add
def conversions() -> Members:
    """Conversions between types: quantisation, dequantisation, packing, half types with wide arithmetic."""
    variants: dict[str, Any] = {
        "quantise": lambda x: jnp.clip(jnp.round(x * 32), -128, 127).astype(jnp.int8),
        "requantise": lambda x: jnp.clip(jnp.round(x * 32), -128, 127).astype(jnp.int8).astype(jnp.float32) / 32,
        "bf16_sum": lambda x: x.astype(jnp.bfloat16) + (x * 2).astype(jnp.bfloat16),
        "through_f16": lambda x: jnp.tanh(x.astype(jnp.float16)).astype(jnp.float32),
        "row_scales": lambda x: (x / (jnp.max(jnp.abs(x), -1, keepdims=True) + 1e-6) * 127).astype(jnp.int8),
        "fraction": lambda x: (x - jnp.floor(x), jnp.floor(x).astype(jnp.int32)),
        "threshold_bits": lambda x: jnp.where(x > 0, 1, 0).astype(jnp.uint8),
    }
    yield from each_of(variants, {sizes(*d): (normal(*d),) for d in ((64, 64), (512, 512), (2048, 2048))})


@FAMILIES.add
def bit_operations() -> Members:
    """Integer hashes, bit counts, shifts and Gray codes."""

    def mix(x: Array, y: Array) -> Any:
        x = x ^ (x >> 16)
        x = x * jnp.uint32(0x7FEB352D)
        x = x ^ (x >> 15)
        return (x * jnp.uint32(0x846CA68B)) ^ (y << 7)

    variants: dict[str, Any] = {
        "mix": mix,
        "population": lambda x, y: lax.population_count(x ^ y) + lax.clz(x),
        "gray": lambda x, y: (x ^ (x >> 1)) + (y & 0xFF),
        "rotate": lambda x, y: (x << 13) | (x >> 19) ^ y,
        "xorshift": lambda x, y: lax.fori_loop(0, 4, lambda _, v: v ^ (v << 13) ^ (v >> 17) ^ (v << 5), x) + y,
        "uniform": lambda x, y: lax.bitcast_convert_type((mix(x, y) >> 9) | 0x3F800000, jnp.float32) - 1,
    }
    cases = {
        sizes(*d): tuple(integers(0, 2**32, *d, dtype="uint32") for _ in range(2))
        for d in ((1000,), (1 << 15,), (1024, 1024), (1 << 22,))
    }
    yield from each_of(variants, cases)


@FAMILIES.add
def colours() -> Members:
    """Colour images: grey, gamma, brightness, saturation, hue, blending, normalisation."""

    def saturate(x: Array) -> Array:
        grey = jnp.sum(x * jnp.array([0.299, 0.587, 0.114]), -1, keepdims=True)
        return jnp.clip(grey + (x - grey) * 1.5, 0, 1)

    def hsv(x: Array) -> Array:
        top, low = x.max(-1), x.min(-1)
        r, g, b = x[..., 0], x[..., 1], x[..., 2]
        span = top - low + 1e-6
        hue = jnp.where(top == r, (g - b) / span, jnp.where(top == g, 2 + (b - r) / span, 4 + (r - g) / span))
        return jnp.stack([hue / 6 % 1.0, span / (top + 1e-6), top], -1)

    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    variants: dict[str, Any] = {
        "grey": lambda x: jnp.sum(x * jnp.array([0.299, 0.587, 0.114]), -1),
        "gamma": lambda x: jnp.power(x + 1e-4, 1 / 2.2),
        "saturate": saturate,
        "normalise": lambda x: (x - jnp.array(mean)) / jnp.array(std),
        "normalise_channels_first": lambda x: ((x - jnp.array(mean)) / jnp.array(std)).transpose(0, 3, 1, 2),
        "hsv": hsv,
        "contrast": lambda x: jnp.clip((x - x.mean((1, 2), keepdims=True)) * 1.3 + 0.5, 0, 1),
        "to_bytes": lambda x: (jnp.clip(x, 0, 1) * 255 + 0.5).astype(jnp.uint8),
    }
    shapes = ((1, 32, 32, 3), (8, 64, 64, 3), (32, 224, 224, 3), (1, 480, 640, 3), (4, 1080, 1920, 3))
    yield from each_of(variants, {sizes(*d): (uniform(0, 1, *d),) for d in shapes})


@FAMILIES.add
def rotary_embeddings() -> Members:
    """Rotary and sinusoidal position embeddings of queries and keys."""

    def rotated(x: Array, interleaved: bool) -> Array:
        _, n, _, d = x.shape
        rate = 10000.0 ** (-jnp.arange(0, d, 2, dtype=jnp.float32) / d)
        angle = (jnp.arange(n, dtype=jnp.float32)[:, None] * rate)[None, :, None, :]
        cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
        if interleaved:
            a, b = x[..., ::2], x[..., 1::2]
            return jnp.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)
        a, b = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def sinusoidal(x: Array) -> Array:
        _, n, _, d = x.shape
        angle = jnp.arange(n)[:, None] * jnp.exp(-math.log(1e4) * jnp.arange(d) / d)
        return x + jnp.where(jnp.arange(d) % 2 == 0, jnp.sin(angle), jnp.cos(angle))[None, :, None, :].astype(x.dtype)

    variants: dict[str, Any] = {
        "halves": lambda x: rotated(x, False),
        "pairs": lambda x: rotated(x, True),
        "sinusoidal": sinusoidal,
        "gradient": gradient(lambda x: rotated(x, False) * x),
    }
    shapes = ((1, 64, 4, 32), (4, 256, 8, 64), (1, 2048, 16, 64), (2, 1024, 32, 128))
    yield from each_of(variants, {f"{sizes(*d)}_{t}": (normal(*d, dtype=t),) for d, t in with_halves(shapes, 1)})


@FAMILIES.add
def data_movement() -> Members:
    """Transposes, concatenations, slices, padding, reversals and interleaving around light arithmetic."""

    def depth_to_space(x: Array) -> Array:
        m, n = x.shape
        return x.reshape(m, n // 4, 2, 2).transpose(0, 2, 1, 3).reshape(m * 2, n // 2)

    variants: dict[str, Any] = {
        "transpose_add": lambda x, y: x.T * 2 + y.T,
        "concatenate": lambda x, y: jnp.concatenate([x, jnp.tanh(y)], 1),
        "rotate_half": lambda x, y: jnp.concatenate([-x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], 1) * y,
        "pad": lambda x, y: jnp.pad(x + y, ((1, 1), (2, 2))),
        "reverse": lambda x, y: jnp.flip(x, 1) + y,
        "interleave": lambda x, y: jnp.stack([x, y], -1).reshape(x.shape[0], -1),
        "depth_to_space": lambda x, y: depth_to_space(x + y),
        "update": lambda x, y: x.at[1:-1, 1:-1].set(y[1:-1, 1:-1] * 0.5),
        "strided": lambda x, y: x[::2, ::2] - y[1::2, 1::2],
        "edges": lambda x, y: jnp.pad(x - y, 1, mode="edge"),
        "tile": lambda x, y: jnp.tile(x[:, :8], (1, 3)) * y[:, :1],
    }
    shapes = ((32, 64), (256, 256), (1024, 1024), (4096, 1024))
    yield from each_of(variants, {sizes(*d): (normal(*d), normal(*d)) for d in shapes})
