"""Sampling of images by a diffusion model: a small convolutional network in a loop over noise levels."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import jit

IMAGES, SIZE, CHANNELS, STEPS = 4, 16, 32, 10


def start() -> Any:
    """Return the parameters of the network and a key."""
    keys = jax.random.split(jax.random.key(5), 6)

    def kernel(key: Any, a: int, b: int) -> Any:
        return jax.random.normal(key, (3, 3, a, b)) / (9 * a) ** 0.5

    return {
        "first": kernel(keys[0], 1, CHANNELS),
        "middle": kernel(keys[1], CHANNELS, CHANNELS),
        "last": kernel(keys[2], CHANNELS, 1),
        "time": jax.random.normal(keys[3], (16, CHANNELS)) / 4,
    }, keys[4]


def convolve(x: Any, w: Any) -> Any:
    """Return a convolution that keeps the size of the images."""
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def noise_in(parameters: Any, x: Any, level: Any) -> Any:
    """Return the network's estimate of the noise in images at a level."""
    frequencies = jnp.exp(jnp.linspace(0.0, 4.0, 8)) * level
    embedded = jnp.concatenate([jnp.sin(frequencies), jnp.cos(frequencies)]) @ parameters["time"]
    h = jax.nn.silu(convolve(x, parameters["first"]) + embedded)
    mean, variance = h.mean((1, 2), keepdims=True), h.var((1, 2), keepdims=True)
    h = h + jax.nn.silu(convolve((h - mean) * jax.lax.rsqrt(variance + 1e-5), parameters["middle"]))
    return convolve(h, parameters["last"])


@jit
def step(state: Any) -> Any:
    """Return the state with a new key, and sampled images."""
    parameters, key = state
    key, first, noise = jax.random.split(key, 3)
    levels = jnp.cos(jnp.linspace(1.5, 0.0, STEPS + 1)) ** 2

    def denoise(x: Any, t: Any) -> Any:
        now, after, key = t
        noise = noise_in(parameters, x, now)
        image = jnp.clip((x - jnp.sqrt(1 - now) * noise) / jnp.sqrt(now), -2, 2)
        fresh = 0.1 * jax.random.normal(key, x.shape)
        return jnp.sqrt(after) * image + jnp.sqrt(1 - after) * (0.99 * noise + fresh), image.mean()

    x = jax.random.normal(first, (IMAGES, SIZE, SIZE, 1))
    x, _ = jax.lax.scan(denoise, x, (levels[:-1], levels[1:], jax.random.split(noise, STEPS)))
    return (parameters, key), x


if __name__ == "__main__":
    _, images = step(start())
    print(images.shape, float(images.std()))
