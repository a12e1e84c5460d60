"""An LSTM that predicts the next value of noisy sines, trained by Adam."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import jit

HIDDEN, LENGTH, BATCH = 64, 48, 16


def start() -> Any:
    """Return parameters, the state of Adam, and the key of the data."""
    keys = jax.random.split(jax.random.key(0), 4)
    parameters = {
        "input": jax.random.normal(keys[0], (1, 4 * HIDDEN)),
        "hidden": jax.random.normal(keys[1], (HIDDEN, 4 * HIDDEN)) / HIDDEN**0.5,
        "bias": jnp.zeros(4 * HIDDEN),
        "output": jax.random.normal(keys[2], (HIDDEN, 1)) / HIDDEN**0.5,
    }
    moments = jax.tree.map(jnp.zeros_like, parameters), jax.tree.map(jnp.zeros_like, parameters)
    return parameters, moments, jnp.int32(0), keys[3]


def predict(parameters: Any, sequence: Any) -> Any:
    """Return a prediction of the next value at each time; `sequence` is [time, batch, 1]."""

    def cell(carry: Any, x: Any) -> Any:
        h, c = carry
        gates = x @ parameters["input"] + h @ parameters["hidden"] + parameters["bias"]
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h @ parameters["output"]

    zeros = jnp.zeros((sequence.shape[1], HIDDEN))
    return jax.lax.scan(cell, (zeros, zeros), sequence)[1]


def loss(parameters: Any, sequence: Any) -> Any:
    """Return the mean squared error of the predictions."""
    return jnp.mean((predict(parameters, sequence[:-1]) - sequence[1:]) ** 2)


@jit
def step(state: Any) -> Any:
    """Return the state after one step of training, and the loss before it."""
    parameters, (first, second), count, key = state
    key, phases, noise = jax.random.split(key, 3)
    times = jnp.arange(LENGTH)[:, None, None] * 0.3 + jax.random.uniform(phases, (1, BATCH, 1)) * 6.28
    sequence = jnp.sin(times) + 0.01 * jax.random.normal(noise, times.shape)
    value, gradient = jax.value_and_grad(loss)(parameters, sequence)
    count += 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
    second = jax.tree.map(lambda m, g: 0.999 * m + 0.001 * g**2, second, gradient)

    def update(p: Any, m: Any, v: Any) -> Any:
        return p - 1e-2 * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)

    return (jax.tree.map(update, parameters, first, second), (first, second), count, key), value


if __name__ == "__main__":
    state = start()
    for n in range(201):
        state, value = step(state)
        if n % 50 == 0:
            print(n, float(value))
