"""Models of dense layers: a perceptron, a mixture of experts, a graph network and the update of PPO."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from experiments.natives.losses import jax_cross_entropy
from experiments.natives.native import Input, Native, Table, indices, normal, uniform
from experiments.natives.training import adam_step, sgd_step

__all__ = ["TABLE", "layer"]


def layer(inputs: int, outputs: int) -> tuple[Input, Input]:
    """Return the weight and the bias of a dense layer."""
    return normal(inputs, outputs, std=round(inputs**-0.5, 4)), normal(outputs, std=0.1)


# ---- perceptron


def jax_mlp(*a: jax.Array) -> jax.Array:
    """Return the logits of a perceptron of three layers."""
    w1, b1, w2, b2, w3, b3, x = a
    return jax.nn.relu(jax.nn.relu(x @ w1 + b1) @ w2 + b2) @ w3 + b3


def torch_mlp(*a: torch.Tensor) -> torch.Tensor:
    """Return the logits of a perceptron of three layers."""
    w1, b1, w2, b2, w3, b3, x = a
    return torch.addmm(b3, F.relu(torch.addmm(b2, F.relu(torch.addmm(b1, x, w1)), w2)), w3)


MLP = (*layer(784, 512), *layer(512, 512), *layer(512, 10))
DIGITS = normal(128, 784)


# ---- mixture of experts: every expert computes every token, and the gates of the best two weigh them


def jax_experts(gate: jax.Array, w1: jax.Array, w2: jax.Array, x: jax.Array) -> jax.Array:
    """Return the outputs of the two best of 8 experts per token, weighted by their gates."""
    top, chosen = jax.lax.top_k(x @ gate, 2)
    weights = jnp.einsum("tk,tke->te", jax.nn.softmax(top), jax.nn.one_hot(chosen, gate.shape[1]))
    hidden = jax.nn.gelu(jnp.einsum("td,edh->eth", x, w1))
    return jnp.einsum("te,eth,ehd->td", weights, hidden, w2)


def torch_experts(gate: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the outputs of the two best of 8 experts per token, weighted by their gates."""
    top, chosen = torch.topk(x @ gate, 2)
    weights = x.new_zeros(x.shape[0], gate.shape[1]).scatter(1, chosen, top.softmax(-1))
    hidden = F.gelu(x @ w1, approximate="tanh")
    return ((hidden @ w2) * weights.t().unsqueeze(-1)).sum(0)


EXPERTS = (normal(128, 8, std=0.09), normal(8, 128, 256, std=0.09), normal(8, 256, 128, std=0.06))
TOKENS = normal(512, 128)


def jax_experts_loss(gate: jax.Array, w1: jax.Array, w2: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the mean squared error of a mixture of experts."""
    return ((jax_experts(gate, w1, w2, x) - y) ** 2).mean()


def torch_experts_loss(
    gate: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """Return the mean squared error of a mixture of experts."""
    return F.mse_loss(torch_experts(gate, w1, w2, x), y)


# ---- graph network: two rounds of messages along edges


def jax_graph(*a: jax.Array) -> jax.Array:
    """Return the features of nodes after two rounds of messages along edges."""
    weights, (x, source, target) = a[:8], a[8:]
    for wm, bm, wu, bu in (weights[:4], weights[4:]):
        message = jax.nn.relu(jnp.concatenate([x[source], x[target]], axis=1) @ wm + bm)
        received = jax.ops.segment_sum(message, target, num_segments=x.shape[0])
        x = x + jax.nn.relu(jnp.concatenate([x, received], axis=1) @ wu + bu)
    return x


def torch_graph(*a: torch.Tensor) -> torch.Tensor:
    """Return the features of nodes after two rounds of messages along edges."""
    weights, (x, source, target) = a[:8], a[8:]
    for wm, bm, wu, bu in (weights[:4], weights[4:]):
        message = F.relu(torch.addmm(bm, torch.cat([x[source], x[target]], 1), wm))
        received = torch.zeros_like(x).index_add(0, target, message)
        x = x + F.relu(torch.addmm(bu, torch.cat([x, received], 1), wu))
    return x


GRAPH = (*layer(128, 64), *layer(128, 64)) * 2
NODES = (normal(2048, 64), indices(2048, 16384), indices(2048, 16384))


# ---- PPO


def jax_policy(*a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the logits of a policy and its values of observations."""
    w1, b1, w2, b2, wp, bp, wv, bv, x = a
    h = jnp.tanh(jnp.tanh(x @ w1 + b1) @ w2 + b2)
    return h @ wp + bp, (h @ wv + bv)[:, 0]


def torch_policy(*a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of a policy and its values of observations."""
    w1, b1, w2, b2, wp, bp, wv, bv, x = a
    h = torch.tanh(torch.addmm(b2, torch.tanh(torch.addmm(b1, x, w1)), w2))
    return torch.addmm(bp, h, wp), torch.addmm(bv, h, wv)[:, 0]


def jax_ppo_loss(*a: jax.Array) -> jax.Array:
    """Return the clipped loss of PPO with a value loss and an entropy bonus."""
    *net, actions, old, advantages, returns = a
    logits, values = jax_policy(*net)
    log_p = jax.nn.log_softmax(logits)
    ratio = jnp.exp(jnp.take_along_axis(log_p, actions[:, None], axis=1)[:, 0] - old)
    adv = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    gain = jnp.minimum(ratio * adv, jnp.clip(ratio, 0.8, 1.2) * adv).mean()
    entropy = -(jnp.exp(log_p) * log_p).sum(-1).mean()
    return -gain + 0.5 * ((values - returns) ** 2).mean() - 0.01 * entropy


def torch_ppo_loss(*a: torch.Tensor) -> torch.Tensor:
    """Return the clipped loss of PPO with a value loss and an entropy bonus."""
    *net, actions, old, advantages, returns = a
    logits, values = torch_policy(*net)
    log_p = F.log_softmax(logits, -1)
    ratio = torch.exp(log_p.gather(1, actions[:, None])[:, 0] - old)
    adv = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    gain = torch.minimum(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv).mean()
    entropy = -(log_p.exp() * log_p).sum(-1).mean()
    return -gain + 0.5 * F.mse_loss(values, returns) - 0.01 * entropy


POLICY = (*layer(16, 64), *layer(64, 64), *layer(64, 6), *layer(64, 1))
ROLLOUT = (normal(1024, 16), indices(6, 1024), uniform(-2.5, -1.0, 1024), normal(1024), normal(1024))

TABLE: Table = {
    "mlp_classifier_forward": Native(jax_mlp, torch_mlp, (*MLP, DIGITS)),
    "mlp_classifier_train": adam_step(
        lambda *a: jax_cross_entropy(jax_mlp(*a[:-1]), a[-1]),
        lambda *a: F.cross_entropy(torch_mlp(*a[:-1]), a[-1]),
        MLP,
        (DIGITS, indices(10, 128)),
    ),
    "mixture_of_experts_forward": Native(jax_experts, torch_experts, (*EXPERTS, TOKENS)),
    "mixture_of_experts_train": sgd_step(
        jax_experts_loss, torch_experts_loss, EXPERTS, (TOKENS, normal(512, 128))
    ),
    "graph_network_forward": Native(jax_graph, torch_graph, (*GRAPH, *NODES)),
    "graph_network_train": sgd_step(
        lambda *a: ((jax_graph(*a[:-1]) - a[-1]) ** 2).mean(),
        lambda *a: F.mse_loss(torch_graph(*a[:-1]), a[-1]),
        GRAPH,
        (*NODES, normal(2048, 64)),
    ),
    "ppo_policy_forward": Native(jax_policy, torch_policy, (*POLICY, ROLLOUT[0])),
    "ppo_update": adam_step(jax_ppo_loss, torch_ppo_loss, POLICY, ROLLOUT),
}  # fmt: skip
