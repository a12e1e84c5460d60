"""Training of a network with JAX, in which one line is changed: `hlogym.jit` in place of `jax.jit`.

Needs JAX (`pip install 'hlogym[jax]'`). Run it with `python docs/examples/jax_jit.py`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

import hlogym


def predict(parameters: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ parameters["w"] + parameters["b"]) @ parameters["v"]


def loss(parameters: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((predict(parameters, x) - y) ** 2)


@hlogym.jit
def step(parameters: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    value, gradient = jax.value_and_grad(loss)(parameters, x, y)
    return jax.tree.map(lambda p, g: p - 0.02 * g, parameters, gradient), value


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    parameters = {
        "w": jax.random.normal(keys[0], (1, 32)),
        "b": jax.random.normal(keys[1], (32,)),
        "v": jax.random.normal(keys[2], (32,)) / 6,
    }
    x = jnp.linspace(-3, 3, 200)[:, None]
    y = jnp.sin(x[:, 0])
    for n in range(401):
        parameters, value = step(parameters, x, y)
        if n % 200 == 0:
            print(f"step {n}: loss {value:.4f}")

    # The decisions behind the program, and the same function inside JAX's transformations.
    print(f"{len(step.compile(parameters, x, y).kernels)} kernels")
    slope = jax.vmap(jax.grad(hlogym.jit(lambda t: predict(parameters, t[None]))))(jnp.array([0.0, 1.0]))
    print("slope at 0 and 1:", ", ".join(f"{s:.2f}" for s in slope))


if __name__ == "__main__":
    main()
