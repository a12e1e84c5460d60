"""The update of PPO: advantages, then epochs of minibatches with clipped losses and Adam."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import jit

STEPS, ENVIRONMENTS, FEATURES, ACTIONS, HIDDEN = 64, 16, 8, 4, 64
EPOCHS, MINIBATCHES = 4, 4


class Rollout(NamedTuple):
    """What the environments returned; each array is [time, environment, ...]."""

    observations: Any
    actions: Any
    log_probabilities: Any
    rewards: Any
    ended: Any


def start() -> Any:
    """Return parameters, the state of Adam, a rollout and a key."""
    keys = iter(jax.random.split(jax.random.key(3), 9))

    def layer(a: int, b: int) -> Any:
        return {"w": jax.random.normal(next(keys), (a, b)) / a**0.5, "b": jnp.zeros(b)}

    parameters = {"body": layer(FEATURES, HIDDEN), "policy": layer(HIDDEN, ACTIONS), "value": layer(HIDDEN, 1)}
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    shape = (STEPS, ENVIRONMENTS)
    rollout = Rollout(
        jax.random.normal(next(keys), (*shape, FEATURES)),
        jax.random.randint(next(keys), shape, 0, ACTIONS),
        jnp.full(shape, -jnp.log(float(ACTIONS))),
        jax.random.normal(next(keys), shape),
        jax.random.bernoulli(next(keys), 0.05, shape),
    )
    return parameters, (zeros, zeros, jnp.int32(0)), rollout, next(keys)


def network(parameters: Any, observations: Any) -> Any:
    """Return log probabilities of the actions, and values."""
    hidden = jnp.tanh(observations @ parameters["body"]["w"] + parameters["body"]["b"])
    logits = hidden @ parameters["policy"]["w"] + parameters["policy"]["b"]
    return jax.nn.log_softmax(logits), (hidden @ parameters["value"]["w"] + parameters["value"]["b"])[..., 0]


def advantages(values: Any, rollout: Rollout) -> Any:
    """Return the advantage of each action by generalised advantage estimation."""

    def back(carry: Any, t: Any) -> Any:
        advantage, after = carry
        value, reward, ended = t
        goes_on = 1.0 - ended
        advantage = reward + 0.99 * after * goes_on - value + 0.99 * 0.95 * goes_on * advantage
        return (advantage, value), advantage

    zeros = jnp.zeros(ENVIRONMENTS)
    return jax.lax.scan(back, (zeros, values[-1]), (values, rollout.rewards, rollout.ended), reverse=True)[1]


def loss(parameters: Any, batch: Any) -> Any:
    """Return the loss of a minibatch."""
    observations, actions, before, advantage, target = batch
    every, values = network(parameters, observations)
    now = jnp.take_along_axis(every, actions[:, None], axis=1)[:, 0]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = jnp.exp(now - before)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean()
    entropy = -(jnp.exp(every) * every).sum(-1).mean()
    return -gain + 0.5 * ((values - target) ** 2).mean() - 0.01 * entropy


def adam(parameters: Any, state: Any, gradient: Any) -> Any:
    """Return parameters and the state of Adam after one step, with the gradient's norm clipped."""
    first, second, count = state
    norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(gradient)))
    gradient = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.5 / (norm + 1e-6)), gradient)
    count += 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, second, gradient)
    scale = 3e-4 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    moved = jax.tree.map(lambda p, m, v: p - scale * m / (jnp.sqrt(v) + 1e-8), parameters, first, second)
    return moved, (first, second, count)


@jit
def step(state: Any) -> Any:
    """Return the state after the update, and the losses of its minibatches."""
    parameters, optimizer, rollout, key = state
    values = network(parameters, rollout.observations)[1]
    gains = advantages(values, rollout)
    parts = (rollout.observations, rollout.actions, rollout.log_probabilities, gains, gains + values)
    data = [x.reshape(STEPS * ENVIRONMENTS, *x.shape[2:]) for x in parts]

    def minibatch(carry: Any, batch: Any) -> Any:
        parameters, optimizer = carry
        value, gradient = jax.value_and_grad(loss)(parameters, batch)
        return adam(parameters, optimizer, gradient), value

    def epoch(carry: Any, key: Any) -> Any:
        order = jax.random.permutation(key, STEPS * ENVIRONMENTS)
        batches = [x[order].reshape(MINIBATCHES, -1, *x.shape[1:]) for x in data]
        return jax.lax.scan(minibatch, carry, batches)

    key, *keys = jax.random.split(key, EPOCHS + 1)
    (parameters, optimizer), losses = jax.lax.scan(epoch, (parameters, optimizer), jnp.stack(keys))
    return (parameters, optimizer, rollout, key), losses


if __name__ == "__main__":
    state = start()
    for _ in range(5):
        state, losses = step(state)
        print(float(losses.mean()))
