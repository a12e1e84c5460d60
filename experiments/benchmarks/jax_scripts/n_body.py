"""Bodies that attract each other, integrated by the leapfrog method."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import jit

BODIES, STEPS, DT, SOFTENING = 128, 20, 1e-3, 1e-2


def start() -> Any:
    """Return positions, velocities and masses."""
    keys = jax.random.split(jax.random.key(1), 3)
    positions = jax.random.normal(keys[0], (BODIES, 3))
    velocities = 0.1 * jax.random.normal(keys[1], (BODIES, 3))
    return positions, velocities, jax.random.uniform(keys[2], (BODIES,)) / BODIES


def accelerations(positions: Any, masses: Any) -> Any:
    """Return the acceleration of each body."""
    difference = positions[None] - positions[:, None]
    distance = (difference**2).sum(-1) + SOFTENING
    return jnp.einsum("ijk,ij->ik", difference, masses * distance**-1.5)


@jit
def step(state: Any) -> Any:
    """Return the state after STEPS steps, and the kinetic energy."""
    positions, velocities, masses = state

    def leap(carry: Any, _: Any) -> Any:
        x, v = carry
        v = v + 0.5 * DT * accelerations(x, masses)
        x = x + DT * v
        v = v + 0.5 * DT * accelerations(x, masses)
        return (x, v), None

    (positions, velocities), _ = jax.lax.scan(leap, (positions, velocities), None, length=STEPS)
    energy = 0.5 * (masses[:, None] * velocities**2).sum()
    return (positions, velocities, masses), energy


if __name__ == "__main__":
    state = start()
    for _ in range(10):
        state, energy = step(state)
        print(float(energy))
