"""A step of training of a small GPT on random text."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import jit

LAYERS, WIDTH, HEADS, LENGTH, BATCH, WORDS = 2, 64, 4, 32, 4, 100


def start() -> Any:
    """Return parameters, the state of Adam, and text."""
    keys = iter(jax.random.split(jax.random.key(4), 5 + 4 * LAYERS))

    def matrix(*shape: int) -> Any:
        return 0.02 * jax.random.normal(next(keys), shape)

    def block() -> Any:
        return {
            "norms": jnp.ones((2, WIDTH)),
            "qkv": matrix(WIDTH, 3 * WIDTH),
            "out": matrix(WIDTH, WIDTH),
            "up": matrix(WIDTH, 4 * WIDTH),
            "down": matrix(4 * WIDTH, WIDTH),
        }

    parameters = {
        "words": matrix(WORDS, WIDTH),
        "places": matrix(LENGTH, WIDTH),
        "blocks": [block() for _ in range(LAYERS)],
        "norm": jnp.ones(WIDTH),
    }
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    return parameters, (zeros, zeros, jnp.int32(0)), jax.random.randint(next(keys), (BATCH, LENGTH + 1), 0, WORDS)


def normalize(x: Any, scale: Any) -> Any:
    """Return the layer normalisation of x."""
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale


def attend(x: Any, block: Any) -> Any:
    """Return causal self-attention."""
    q, k, v = (y.reshape(BATCH, LENGTH, HEADS, -1) for y in jnp.split(x @ block["qkv"], 3, axis=-1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (WIDTH / HEADS) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    return mixed.reshape(BATCH, LENGTH, WIDTH) @ block["out"]


def loss(parameters: Any, text: Any) -> Any:
    """Return the mean cross entropy of the next words."""
    x = parameters["words"][text[:, :-1]] + parameters["places"]
    for block in parameters["blocks"]:
        x = x + attend(normalize(x, block["norms"][0]), block)
        x = x + jax.nn.gelu(normalize(x, block["norms"][1]) @ block["up"]) @ block["down"]
    logits = normalize(x, parameters["norm"]) @ parameters["words"].T
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), text[:, 1:, None], axis=-1).mean()


@jit
def step(state: Any) -> Any:
    """Return the state after one step of Adam, and the loss before it."""
    parameters, (first, second, count), text = state
    value, gradient = jax.value_and_grad(loss)(parameters, text)
    count += 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g**2, second, gradient)
    scale = 1e-3 * jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
    parameters = jax.tree.map(lambda p, m, v: p - scale * m / (jnp.sqrt(v) + 1e-8), parameters, first, second)
    return (parameters, (first, second, count), text), value


if __name__ == "__main__":
    state = start()
    for _ in range(20):
        state, value = step(state)
        print(float(value))
