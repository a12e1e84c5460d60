"""A JAX function compiled by hlogym, its gradient included.

Needs JAX (`pip install 'hlogym[jax]'`). Run it with `python docs/examples/jax_function.py`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import hlogym
from compiler.frontends.jax import argument_names, lower


def loss(weights: dict[str, jax.Array], x: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean cross entropy of a network with one hidden layer."""
    hidden = jax.nn.gelu(x @ weights["in"])
    logits = hidden @ weights["out"]
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels])


def main() -> None:
    rng = np.random.default_rng(0)
    weights = {
        "in": rng.normal(size=(64, 128)).astype(np.float32) / 8,
        "out": rng.normal(size=(128, 10)).astype(np.float32) / 11,
    }
    x = rng.normal(size=(256, 64)).astype(np.float32)
    labels = rng.integers(0, 10, size=256).astype(np.int32)

    # JAX traces the function, hlogym takes the HLO from there. XLA compiles nothing here.
    function = jax.value_and_grad(loss)
    module = lower(function, weights, x, labels)
    exe = hlogym.compile(module)

    # Arguments and results are the leaves of JAX's pytrees, in JAX's order.
    leaves = jax.tree_util.tree_leaves((weights, x, labels))
    results = exe(*leaves)
    expected = jax.tree_util.tree_leaves(function(weights, x, labels))
    for got, want in zip(results, expected, strict=True):
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-3, atol=1e-5)

    print("parameters:", ", ".join(argument_names(module).values()))
    print(f"{len(exe.kernels)} kernels, loss {results[0]:.4f}, gradients equal to JAX's")


if __name__ == "__main__":
    main()
