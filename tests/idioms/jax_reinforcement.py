"""Reinforcement learning in JAX: losses of agents with gradients, returns, advantages."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.idioms.collection import Idioms, booleans, integers, normal, uniform

IDIOMS = Idioms()


def _mlp(*sizes: int, name: str = "") -> list[dict[str, Any]]:
    return [
        {"w": normal(a, b, scale=a**-0.5, name=f"{name}w{k}"), "b": normal(b, scale=0.1, name=f"{name}b{k}")}
        for k, (a, b) in enumerate(pairwise(sizes))
    ]


def _apply(params: Any, x: Any) -> Any:
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def _episode(*dims: int) -> tuple[Any, ...]:
    """Return rewards, values (one more than rewards), and discounts (0 at the end of an episode)."""
    rewards, values = normal(*dims, name="r"), normal(dims[0] + 1, *dims[1:], name="v")
    return rewards, values, 0.99 * (~booleans(*dims, name="d", chance=0.1)).astype(np.float32)


@IDIOMS.on(
    steps_128=_episode(128),
    batch_1=_episode(64, 1),
    batch_17=_episode(33, 17),
    one_step=_episode(1, 64),
)
def generalised_advantages(rewards: Any, values: Any, discounts: Any) -> Any:
    delta = rewards + discounts * values[1:] - values[:-1]

    def step(acc: Any, xs: Any) -> Any:
        d, g = xs
        acc = d + 0.95 * g * acc
        return acc, acc

    _, advantages = lax.scan(step, jnp.zeros_like(values[0]), (delta, discounts), reverse=True)
    targets = advantages + values[:-1]
    return advantages, targets, (advantages - advantages.mean()) / (advantages.std() + 1e-8)


@IDIOMS.on(steps_100=_episode(100), batch_1=_episode(40, 1), batch_17=_episode(21, 17))
def n_step_and_lambda_returns(rewards: Any, values: Any, discounts: Any) -> Any:
    def discounted(carry: Any, xs: Any) -> Any:
        r, g = xs
        carry = r + g * carry
        return carry, carry

    _, returns = lax.scan(discounted, values[-1], (rewards, discounts), reverse=True)
    n = 5
    padded = jnp.concatenate([values[1:], jnp.repeat(values[-1:], n - 1, axis=0)])[n - 1 :]
    r = jnp.concatenate([rewards, jnp.zeros((n - 1, *rewards.shape[1:]))])
    g = jnp.concatenate([discounts, jnp.ones((n - 1, *rewards.shape[1:]))])
    targets = padded[: rewards.shape[0]]
    for k in reversed(range(n)):
        targets = r[k : k + rewards.shape[0]] + g[k : k + rewards.shape[0]] * targets
    return returns, targets


@IDIOMS.on(
    steps_64=(*_episode(64), normal(64, name="l", scale=0.3)), batch_1=(*_episode(48, 1), normal(48, 1, scale=0.3))
)
def v_trace(rewards: Any, values: Any, discounts: Any, log_rhos: Any) -> Any:
    rhos = jnp.exp(log_rhos)
    clipped, cs = jnp.minimum(1.0, rhos), 0.95 * jnp.minimum(1.0, rhos)
    deltas = clipped * (rewards + discounts * values[1:] - values[:-1])

    def body(acc: Any, xs: Any) -> Any:
        delta, discount, c = xs
        acc = delta + discount * c * acc
        return acc, acc

    _, errors = lax.scan(body, jnp.zeros_like(values[-1]), (deltas, discounts, cs), reverse=True)
    targets = errors + values[:-1]
    next_targets = jnp.concatenate([targets[1:], values[-1:]], axis=0)
    return lax.stop_gradient(targets), clipped * (rewards + discounts * next_targets - values[:-1])


@IDIOMS.on(
    steps_50=(
        normal(50, 6),
        normal(50, 6, name="t"),
        integers(50, high=6),
        normal(50),
        uniform(50),
        uniform(50, name="mu"),
    ),
    steps_17=(
        normal(17, 1),
        normal(17, 1, name="t"),
        integers(17, high=1),
        normal(17),
        uniform(17),
        uniform(17, name="mu"),
    ),
)
def retrace(q: Any, q_target: Any, actions: Any, rewards: Any, discounts: Any, mu: Any) -> Any:
    def loss(q: Any) -> Any:
        pi = jax.nn.softmax(q)
        chosen = jnp.take_along_axis(q, actions[:, None], 1)[:, 0]
        traces = 0.9 * jnp.minimum(1.0, jnp.take_along_axis(pi, actions[:, None], 1)[:, 0] / (mu + 0.1))
        expected = jnp.sum(pi * q_target, -1)

        def step(g: Any, xs: Any) -> Any:
            r, gamma, c, v, qa = xs
            g = r + gamma * (v - c * qa + c * g)
            return g, g

        qa = jnp.take_along_axis(q_target, actions[:, None], 1)[:, 0]
        _, targets = lax.scan(step, expected[-1], (rewards, discounts, traces, expected, qa), reverse=True)
        return 0.5 * jnp.mean((lax.stop_gradient(targets) - chosen) ** 2)

    return jax.value_and_grad(loss)(q)


def _ppo_batch(n: int, observations: int, actions: int) -> tuple[Any, ...]:
    return (
        {"actor": _mlp(observations, 32, actions, name="a"), "critic": _mlp(observations, 32, 1, name="c")},
        normal(n, observations),
        integers(n, high=actions),
        uniform(n, low=-2, high=-0.1),
        normal(n, name="adv"),
        normal(n, name="ret"),
        normal(n, name="old"),
    )


@IDIOMS.on(batch_32=_ppo_batch(32, 4, 2), batch_1=_ppo_batch(1, 17, 3), batch_128=_ppo_batch(128, 8, 1))
def ppo_loss(params: Any, obs: Any, actions: Any, old_log_probs: Any, adv: Any, returns: Any, old_values: Any) -> Any:
    def loss(p: Any) -> Any:
        log_probs = jax.nn.log_softmax(_apply(p["actor"], obs))
        values = _apply(p["critic"], obs).squeeze(-1)
        chosen = log_probs[jnp.arange(obs.shape[0]), actions]
        ratio = jnp.exp(chosen - old_log_probs)
        a = (adv - adv.mean()) / (adv.std() + 1e-8)
        policy = -jnp.minimum(ratio * a, jnp.clip(ratio, 0.8, 1.2) * a).mean()
        clipped = old_values + jnp.clip(values - old_values, -0.2, 0.2)
        value = 0.5 * jnp.maximum((values - returns) ** 2, (clipped - returns) ** 2).mean()
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
        kl = ((ratio - 1) - jnp.log(ratio)).mean()
        return policy + 0.5 * value - 0.01 * entropy, (policy, value, entropy, kl, (jnp.abs(ratio - 1) > 0.2).mean())

    value, grads = jax.value_and_grad(loss, has_aux=True)(params)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    return value, jax.tree.map(lambda p, g: p - 0.1 * g * jnp.minimum(1.0, 0.5 / norm), params, grads)


@IDIOMS.on(
    batch_20=(_mlp(6, 24, 5), normal(20, 6), integers(20, high=4), normal(20)),
    batch_1=(_mlp(17, 24, 5), normal(1, 17), integers(1, high=4), normal(1)),
)
def actor_critic_loss(params: Any, obs: Any, actions: Any, returns: Any) -> Any:
    """The loss of one network with a policy head and a value head."""

    def loss(p: Any) -> Any:
        out = _apply(p, obs)
        logits, values = out[:, :-1], out[:, -1]
        log_probs = jax.nn.log_softmax(logits)
        advantage = returns - values
        chosen = jnp.take_along_axis(log_probs, actions[:, None], -1)[:, 0]
        return jnp.mean(-lax.stop_gradient(advantage) * chosen + 0.5 * advantage**2) + 0.01 * jnp.mean(
            jnp.sum(jnp.exp(log_probs) * log_probs, -1)
        )

    return jax.value_and_grad(loss)(params)


@IDIOMS.on(
    batch_32=(
        _mlp(4, 20, 3),
        _mlp(4, 20, 3, name="t"),
        normal(32, 4),
        integers(32, high=3),
        normal(32),
        normal(32, 4),
        booleans(32),
    ),
    batch_1=(
        _mlp(64, 20, 3),
        _mlp(64, 20, 3, name="t"),
        normal(1, 64),
        integers(1, high=3),
        normal(1),
        normal(1, 64),
        booleans(1),
    ),
)
def double_dqn(params: Any, target: Any, obs: Any, actions: Any, rewards: Any, next_obs: Any, done: Any) -> Any:
    def loss(p: Any) -> Any:
        q = jnp.take_along_axis(_apply(p, obs), actions[:, None], axis=1).squeeze(1)
        best = jnp.argmax(_apply(p, next_obs), axis=-1)
        bootstrap = jnp.take_along_axis(_apply(target, next_obs), best[:, None], axis=1).squeeze(1)
        error = rewards + 0.99 * (1 - done) * lax.stop_gradient(bootstrap) - q
        return jnp.mean(jnp.where(jnp.abs(error) <= 1, 0.5 * error**2, jnp.abs(error) - 0.5)), error

    (value, error), grads = jax.value_and_grad(loss, has_aux=True)(params)
    target = jax.tree.map(lambda t, p: 0.995 * t + 0.005 * p, target, params)
    return value, jnp.abs(error) + 1e-6, grads, target


@IDIOMS.on(
    batch_16=(normal(16, 51), normal(16, 51, name="t"), normal(16), uniform(16)),
    batch_1=(normal(1, 51), normal(1, 51, name="t"), normal(1), uniform(1)),
)
def categorical_projection(logits: Any, target_logits: Any, rewards: Any, discounts: Any) -> Any:
    """The distributional Bellman operator of C51."""
    atoms = jnp.linspace(-10.0, 10.0, 51)
    delta = atoms[1] - atoms[0]

    def project(r: Any, g: Any, p: Any) -> Any:
        z = jnp.clip(r + g * atoms, -10.0, 10.0)
        weights = jnp.clip(1 - jnp.abs(z[None, :] - atoms[:, None]) / delta, 0, 1)
        return weights @ p

    target = jax.vmap(project)(rewards, discounts, jax.nn.softmax(target_logits))

    def loss(z: Any) -> Any:
        return -jnp.mean(jnp.sum(lax.stop_gradient(target) * jax.nn.log_softmax(z), -1))

    return target, jax.value_and_grad(loss)(logits)


def _sac(n: int, observations: int, actions: int) -> tuple[Any, ...]:
    return (
        _mlp(observations, 24, 2 * actions, name="pi"),
        _mlp(observations + actions, 24, 1, name="q1"),
        _mlp(observations + actions, 24, 1, name="q2"),
        jnp.float32(-1.2),
        normal(n, observations),
        normal(n, actions, name="eps"),
    )


@IDIOMS.on(batch_32=_sac(32, 5, 2), batch_1=_sac(1, 17, 1))
def soft_actor_critic_policy_loss(actor: Any, q1: Any, q2: Any, log_alpha: Any, obs: Any, eps: Any) -> Any:
    def loss(p: Any, log_alpha: Any) -> Any:
        mean, log_std = jnp.split(_apply(p, obs), 2, axis=-1)
        log_std = jnp.clip(log_std, -5, 2)
        pre = mean + jnp.exp(log_std) * eps
        action = jnp.tanh(pre)
        log_prob = -0.5 * ((pre - mean) / jnp.exp(log_std)) ** 2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
        log_prob = (log_prob - 2 * (jnp.log(2.0) - pre - jax.nn.softplus(-2 * pre))).sum(-1)
        both = jnp.concatenate([obs, action], axis=-1)
        q = jnp.minimum(_apply(q1, both), _apply(q2, both))[:, 0]
        alpha = jnp.exp(log_alpha)
        policy = (lax.stop_gradient(alpha) * log_prob - q).mean()
        temperature = -(alpha * lax.stop_gradient(log_prob + eps.shape[-1])).mean()
        return policy + temperature, -log_prob.mean()

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(actor, log_alpha)


@IDIOMS.on(
    batch_32=(
        _mlp(5, 24, 2, name="pi"),
        _mlp(7, 24, 1),
        _mlp(7, 24, 1, name="t"),
        normal(32, 5),
        normal(32, 2),
        normal(32),
        normal(32, 5, name="n"),
        booleans(32),
        normal(32, 2, name="eps"),
    ),
    batch_1=(
        _mlp(16, 24, 1, name="pi"),
        _mlp(17, 24, 1),
        _mlp(17, 24, 1, name="t"),
        normal(1, 16),
        normal(1, 1),
        normal(1),
        normal(1, 16, name="n"),
        booleans(1),
        normal(1, 1, name="eps"),
    ),
)
def td3_critic_loss(
    actor: Any, critic: Any, target: Any, obs: Any, act: Any, rew: Any, new: Any, done: Any, eps: Any
) -> Any:
    noise = jnp.clip(0.2 * eps, -0.5, 0.5)
    action = jnp.clip(jnp.tanh(_apply(actor, new)) + noise, -1, 1)
    heads = jax.tree.map(lambda a, b: jnp.stack([a, b]), critic, target)
    both = jax.vmap(_apply, in_axes=(0, None))(heads, jnp.concatenate([new, action], -1))
    y = rew + 0.99 * jnp.where(done, 0.0, both.min(axis=0)[:, 0])

    def loss(p: Any) -> Any:
        return jnp.mean(jnp.square(_apply(p, jnp.concatenate([obs, act], -1))[:, 0] - lax.stop_gradient(y)))

    return jax.value_and_grad(loss)(critic)


@IDIOMS.on(batch_128=(normal(128),), one=(normal(1),), column=(normal(64, 1),), long=(normal(4, 1000),))
def advantage_normalisation(adv: Any) -> Any:
    def f(a: Any) -> Any:
        return (a - jnp.mean(a)) / (jnp.std(a) + 1e-8)

    return f(adv), adv / (jnp.abs(adv).max() + 1e-8), (adv - adv.mean(0)) * lax.rsqrt(adv.var(0) + 1e-2)


@IDIOMS.on(
    batch_64=({"mean": normal(17), "var": uniform(17), "count": jnp.float32(100)}, normal(64, 17)),
    batch_1=({"mean": normal(64), "var": uniform(64), "count": jnp.float32(1e-4)}, normal(1, 64)),
    one_feature=({"mean": normal(1), "var": uniform(1), "count": jnp.float32(9)}, normal(128, 1)),
)
def running_observation_statistics(state: Any, batch: Any) -> Any:
    mean, var, n = batch.mean(0), batch.var(0), batch.shape[0]
    delta, total = mean - state["mean"], state["count"] + n
    m2 = state["var"] * state["count"] + var * n + delta**2 * state["count"] * n / total
    state = {"mean": state["mean"] + delta * n / total, "var": m2 / total, "count": total}
    return state, jnp.clip((batch - state["mean"]) / jnp.sqrt(state["var"] + 1e-8), -10, 10)


@IDIOMS.on(
    steps_100=(normal(100, 5), integers(100, high=5), normal(100), booleans(100, chance=0.05)),
    steps_64=(normal(64, 1), integers(64, high=1), normal(64), booleans(64, chance=0.05)),
)
def reinforce_with_baseline(logits: Any, actions: Any, rewards: Any, done: Any) -> Any:
    def back(g: Any, xs: Any) -> Any:
        r, d = xs
        g = r + 0.99 * jnp.where(d, 0.0, g)
        return g, g

    _, returns = lax.scan(back, 0.0, (rewards, done), reverse=True)
    baseline = jnp.cumsum(returns) / jnp.arange(1, returns.shape[0] + 1)

    def loss(z: Any) -> Any:
        chosen = jax.vmap(lambda row, a: jax.nn.log_softmax(row)[a])(z, actions)
        return -jnp.sum(chosen * (returns - baseline)) / done.shape[0]

    return jax.value_and_grad(loss)(logits)


@IDIOMS.on(
    grid=(normal(25, 4), integers(25, 4, high=25), uniform(25)),
    line=(normal(64, 1), integers(64, 1, high=64), uniform(64)),
)
def value_iteration(rewards: Any, successors: Any, start: Any) -> Any:
    def cond(state: Any) -> Any:
        _, change, k = state
        return (change > 1e-4) & (k < 60)

    def body(state: Any) -> Any:
        v, _, k = state
        new = jnp.max(rewards + 0.7 * v[successors], axis=-1)
        return new, jnp.max(jnp.abs(new - v)), k + 1

    values, _, steps = lax.while_loop(cond, body, (start, jnp.inf, 0))
    return values, jnp.argmax(rewards + 0.7 * values[successors], -1), steps
