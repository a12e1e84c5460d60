"""Episodes of cart-pole played by a policy network, many at a time."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import jit

ENVIRONMENTS, STEPS, HIDDEN = 64, 100, 32


def start() -> Any:
    """Return the parameters of the policy, the states of the environments, and a key."""
    keys = jax.random.split(jax.random.key(2), 4)
    parameters = [
        (jax.random.normal(keys[0], (4, HIDDEN)) / 2, jnp.zeros(HIDDEN)),
        (jax.random.normal(keys[1], (HIDDEN, 2)) / HIDDEN**0.5, jnp.zeros(2)),
    ]
    return parameters, jax.random.uniform(keys[2], (ENVIRONMENTS, 4), minval=-0.05, maxval=0.05), keys[3]


def policy(parameters: Any, observation: Any) -> Any:
    """Return the logits of pushing left and right."""
    (w, b), (v, c) = parameters
    return jnp.tanh(observation @ w + b) @ v + c


def physics(state: Any, action: Any) -> Any:
    """Return the next state of one cart-pole, and whether the episode has ended."""
    x, speed, angle, rate = state
    force = jnp.where(action == 1, 10.0, -10.0)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    pushed = (force + 0.05 * rate**2 * sine) / 1.1
    turn = (9.8 * sine - cosine * pushed) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
    acceleration = pushed - 0.05 * turn * cosine / 1.1
    state = jnp.stack([x + 0.02 * speed, speed + 0.02 * acceleration, angle + 0.02 * rate, rate + 0.02 * turn])
    return state, (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 0.2095)


@jit
def step(state: Any) -> Any:
    """Return the state after STEPS steps of each environment, and the transitions."""
    parameters, environments, key = state

    def move(carry: Any, key: Any) -> Any:
        environments = carry
        choice, reset = jax.random.split(key)
        logits = policy(parameters, environments)
        actions = jax.random.categorical(choice, logits)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[:, None], axis=1)[:, 0]
        after, ended = jax.vmap(physics)(environments, actions)
        fresh = jax.random.uniform(reset, after.shape, minval=-0.05, maxval=0.05)
        return jnp.where(ended[:, None], fresh, after), (environments, actions, chosen, ended)

    key, *keys = jax.random.split(key, STEPS + 1)
    environments, transitions = jax.lax.scan(move, environments, jnp.stack(keys))
    return (parameters, environments, key), transitions


if __name__ == "__main__":
    state, (observations, actions, _, ended) = step(start())
    print(observations.shape, float(actions.mean()), int(ended.sum()))
