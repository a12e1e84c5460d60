"""Reinforcement learning, probability and environments in PyTorch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.idioms.collection import Closeness, Idioms, booleans, integers, normal, uniform

IDIOMS = Idioms()
# The methods of torch.distributions have no type annotations.
distributions: Any = torch.distributions
Categorical, Independent, Normal = distributions.Categorical, distributions.Independent, distributions.Normal
kl_divergence = distributions.kl_divergence


def _labels(*dims: int, high: int) -> Any:
    return torch.from_numpy(integers(*dims, high=high)).long()


@IDIOMS.on(
    batch_32=(normal(32, 6), _labels(32, high=6)),
    batch_1=(normal(1, 64), _labels(1, high=64)),
    one_action=(normal(64, 1), _labels(64, high=1)),
)
def categorical_policy(logits: Any, actions: Any) -> Any:
    policy = Categorical(logits=logits)
    other = Categorical(logits=logits * 0.5)
    return policy.log_prob(actions), policy.entropy(), policy.probs, kl_divergence(policy, other), logits.argmax(-1)


@IDIOMS.on(
    batch_32=(normal(32, 6), _labels(32, high=6), booleans(32, 6)),
    batch_1=(normal(1, 64), _labels(1, high=64), booleans(1, 64)),
)
def masked_categorical_policy(logits: Any, actions: Any, mask: Any) -> Any:
    """Invalid actions have the logit -1e8, as in MaskablePPO."""
    logits = torch.where(mask, logits, torch.tensor(-1e8))
    log_p = logits - logits.logsumexp(dim=-1, keepdim=True)
    p_log_p = torch.where(mask, log_p * log_p.exp(), torch.tensor(0.0))
    return log_p.gather(-1, actions.unsqueeze(-1)).squeeze(-1), -p_log_p.sum(-1), log_p.exp()


@IDIOMS.on(
    batch_32=(normal(32, 3), normal(3, scale=0.3), normal(32, 3, name="a")),
    batch_1=(normal(1, 64), normal(64, scale=0.3), normal(1, 64, name="a")),
)
def gaussian_policy(mean: Any, log_std: Any, actions: Any) -> Any:
    policy = Normal(mean, log_std.exp())
    joint = Independent(policy, 1)
    return (
        policy.log_prob(actions).sum(-1),
        policy.entropy().sum(-1),
        joint.log_prob(actions),
        policy.cdf(actions),
        kl_divergence(policy, Normal(mean * 0, log_std.exp() * 2)),
    )


@IDIOMS.on(
    # For an action close to 1, `1 - action**2 + 1e-6` has at most two significant digits.
    Closeness(1e-2, 1e-2),
    batch_32=(normal(32, 4), normal(32, 2, name="e")),
    batch_1=(normal(1, 2), normal(1, 1, name="e")),
)
def squashed_gaussian_policy(out: Any, eps: Any) -> Any:
    mean, log_std = out.chunk(2, dim=-1)
    log_std = torch.tanh(log_std)
    log_std = -5 + 0.5 * (2 + 5) * (log_std + 1)
    pre = mean + log_std.exp() * eps
    action = torch.tanh(pre)
    log_prob = Normal(mean, log_std.exp()).log_prob(pre)
    by_log = log_prob - torch.log(1 - action.pow(2) + 1e-6)
    stable = log_prob - 2 * (math.log(2) - pre - F.softplus(-2 * pre))
    return action, by_log.sum(-1, keepdim=True), stable.sum(-1), torch.tanh(mean)


@IDIOMS.on(
    steps_64=(normal(64), normal(65, name="v"), booleans(64, chance=0.1)),
    batch_1=(normal(20, 1), normal(21, 1, name="v"), booleans(20, 1, chance=0.1)),
)
def generalised_advantages(rewards: Any, values: Any, done: Any) -> Any:
    advantages = torch.zeros_like(rewards)
    last = torch.zeros_like(rewards[0])
    for t in reversed(range(rewards.shape[0])):
        alive = 1.0 - done[t].float()
        delta = rewards[t] + 0.99 * values[t + 1] * alive - values[t]
        last = delta + 0.99 * 0.95 * alive * last
        advantages[t] = last
    return advantages, advantages + values[:-1], (advantages - advantages.mean()) / (advantages.std() + 1e-8)


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.actor, self.critic = nn.Linear(32, 3), nn.Linear(32, 1)

    def forward(self, obs: Any, actions: Any, old: Any, adv: Any, returns: Any) -> Any:
        h = self.body(obs)
        policy = Categorical(logits=self.actor(h))
        values = self.critic(h).flatten()
        ratio = torch.exp(policy.log_prob(actions) - old)
        adv = (adv - adv.mean()) / (adv.std(unbiased=False) + 1e-8)
        loss = -torch.min(adv * ratio, adv * torch.clamp(ratio, 0.8, 1.2)).mean()
        return loss, F.mse_loss(returns, values), -policy.entropy().mean(), ((ratio - 1).abs() > 0.2).float().mean()


IDIOMS.module(
    "ppo_loss",
    ActorCritic,
    batch_32=(normal(32, 8), _labels(32, high=3), uniform(32, low=-2, high=-1), normal(32), normal(32, name="r")),
    batch_1=(normal(1, 8), _labels(1, high=3), uniform(1, low=-2, high=-1), normal(1), normal(1, name="r")),
)


class Dueling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.advantage, self.value = nn.Linear(6, 24), nn.Linear(24, 4), nn.Linear(24, 1)

    def q(self, x: Any) -> Any:
        h = F.relu(self.body(x))
        a = self.advantage(h)
        return self.value(h) + a - a.mean(dim=1, keepdim=True)

    def forward(self, obs: Any, actions: Any, rewards: Any, following: Any, done: Any) -> Any:
        q = self.q(obs).gather(1, actions.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            best = self.q(following).argmax(dim=1, keepdim=True)
            target = rewards + 0.99 * (~done).float() * self.q(following).gather(1, best).squeeze(1)
        return F.smooth_l1_loss(q, target), (target - q).abs() + 1e-6


IDIOMS.module(
    "double_dueling_q_learning",
    Dueling,
    batch_32=(normal(32, 6), _labels(32, high=4), normal(32), normal(32, 6, name="n"), booleans(32)),
    batch_1=(normal(1, 6), _labels(1, high=4), normal(1), normal(1, 6, name="n"), booleans(1)),
)


@IDIOMS.on(
    batch=(normal(9, 11), normal(9, 11, name="t"), normal(9), booleans(9)),
    one=(normal(1, 51), normal(1, 51, name="t"), normal(1), booleans(1)),
)
def categorical_and_quantile_targets(logits: Any, target: Any, rewards: Any, done: Any) -> Any:
    n = logits.shape[1]
    atoms = torch.linspace(-5.0, 5.0, n)
    width = 10.0 / (n - 1)
    moved = (rewards[:, None] + 0.9 * (~done[:, None]).float() * atoms).clamp(-5.0, 5.0)
    b = (moved + 5.0) / width
    low, high = b.floor().long(), b.ceil().long()
    p = target.softmax(-1)
    projected = torch.zeros_like(p)
    projected = projected.scatter_add(1, low, p * (high + (low == high).long() - b))
    projected = projected.scatter_add(1, high.clamp(max=n - 1), p * (b - low))
    tau = (torch.arange(n) + 0.5) / n
    delta = target[:, None, :] - logits[:, :, None]
    quantile = (
        (
            torch.abs(tau[:, None] - (delta.detach() < 0).float())
            * F.huber_loss(delta, torch.zeros_like(delta), reduction="none")
        )
        .mean(2)
        .sum(1)
    )
    return projected, -(projected * F.log_softmax(logits, -1)).sum(-1), quantile


@IDIOMS.on(
    batch_33=(uniform(33, 4, low=-0.3, high=0.3), _labels(33, high=2)),
    batch_1=(uniform(1, 4, low=-3, high=3), _labels(1, high=2)),
)
def cartpole(state: Any, action: Any) -> Any:
    x, x_dot, theta, theta_dot = state.unbind(-1)
    force = torch.where(action == 1, 10.0, -10.0)
    temp = (force + 0.05 * theta_dot**2 * theta.sin()) / 1.1
    acc = (9.8 * theta.sin() - theta.cos() * temp) / (0.5 * (4.0 / 3.0 - 0.1 * theta.cos() ** 2 / 1.1))
    x_acc = temp - 0.05 * acc * theta.cos() / 1.1
    new = torch.stack(
        [x + 0.02 * x_dot, x_dot + 0.02 * x_acc, theta + 0.02 * theta_dot, theta_dot + 0.02 * acc], dim=-1
    )
    done = (new[:, 0].abs() > 2.4) | (new[:, 2].abs() > 12 * 2 * math.pi / 360)
    return torch.where(done[:, None], torch.zeros_like(new), new), (~done).float(), done


@IDIOMS.on(
    batch_17=(uniform(17, 2, low=-9, high=9), uniform(17, 1, low=-3, high=3)),
    batch_1=(uniform(1, 2, low=-9, high=9), uniform(1, 1, low=-3, high=3)),
)
def pendulum(state: Any, action: Any) -> Any:
    theta, speed = state[:, 0], state[:, 1]
    u = action.clamp(-2, 2).squeeze(-1)
    wrapped = torch.remainder(theta + math.pi, 2 * math.pi) - math.pi
    cost = wrapped.pow(2) + 0.1 * speed.pow(2) + 0.001 * u.pow(2)
    speed = (speed + (15 * theta.sin() + 3 * u) * 0.05).clamp(-8, 8)
    theta = theta + speed * 0.05
    return torch.stack([theta, speed], 1), -cost, torch.stack([theta.cos(), theta.sin(), speed], 1)


@IDIOMS.on(
    wrap=(normal(100, 17), _labels(100, high=4), torch.tensor(97), normal(8, 17), _labels(8, high=4)),
    one=(normal(64, 1), _labels(64, high=4), torch.tensor(63), normal(1, 1), _labels(1, high=4)),
)
def replay_buffer(obs: Any, actions: Any, at: Any, new_obs: Any, new_actions: Any) -> Any:
    index = (at + torch.arange(new_obs.shape[0])) % obs.shape[0]
    obs = obs.clone()
    obs[index] = new_obs
    actions = actions.index_put((index,), new_actions)
    picked = (at * torch.arange(5)) % obs.shape[0]
    return obs, actions, obs[picked], actions.index_select(0, picked), torch.roll(obs, -1, 0)


@IDIOMS.on(
    grid=(_labels(19, 2, high=8), _labels(19, high=4), _labels(19, 2, high=8)),
    one=(_labels(1, 2, high=8), _labels(1, high=4), _labels(1, 2, high=8)),
)
def gridworld(position: Any, action: Any, goal: Any) -> Any:
    moves = torch.tensor([[-1, 0], [0, 1], [1, 0], [0, -1]])
    new = torch.clamp(position + moves[action], 0, 7)
    done = (new == goal).all(dim=1)
    grid = torch.zeros(position.shape[0], 2, 8, 8)
    rows = torch.arange(position.shape[0])
    grid[rows, 0, new[:, 0], new[:, 1]] = 1.0
    grid[rows, 1, goal[:, 0], goal[:, 1]] = 1.0
    return new, done, grid, (new - goal).abs().sum(1)


@IDIOMS.on(text=(normal(2, 50), uniform(2, 1)), batch_1=(normal(1, 64), uniform(1, 1)))
def nucleus_and_top_k_sampling(logits: Any, u: Any) -> Any:
    least = torch.topk(logits, 10).values[..., -1, None]
    logits = logits.masked_fill(logits < least, float("-inf"))
    down, at = torch.sort(logits, descending=True)
    total = down.softmax(-1).cumsum(-1)
    remove = total > 0.9
    remove = torch.cat([torch.zeros_like(remove[:, :1]), remove[:, :-1]], dim=-1)
    kept = logits.masked_fill(remove.scatter(1, at, remove), float("-inf"))
    return kept, (kept.softmax(-1).cumsum(-1) < u).sum(-1)


@IDIOMS.on(
    beams=(normal(4, 33), normal(4, 1), _labels(4, 9, high=33)),
    one=(normal(1, 64), normal(1, 1), _labels(1, 9, high=64)),
)
def beam_search_step(logits: Any, scores: Any, tokens: Any) -> Any:
    total = scores + F.log_softmax(logits, dim=-1)
    best, at = total.view(-1).topk(logits.shape[0])
    beam, token = torch.div(at, logits.shape[1], rounding_mode="floor"), at % logits.shape[1]
    return best, torch.cat([tokens[beam], token.unsqueeze(1)], dim=1)
