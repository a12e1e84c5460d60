"""Training of the network: imitation of the plans that were found, then policy gradient on the predicted time."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from agents.network import GraphBatch, TorchPointerNetwork
from compiler.fusion.state import FusionState
from compiler.learned.features.fusion import FusionFeatures
from compiler.learned.fusion_policy import MOST_DECISIONS, network_shape
from compiler.learned.pointer_network import DecisionGraph, PointerNetwork
from experiments.emulated_gpu.plans import LEAST_GAIN, completed_seconds
from experiments.emulated_gpu.samples import Sample
from experiments.emulated_gpu.settings import EmulatedSettings

__all__ = ["Rollout", "batch_of", "imitate", "make_network", "numpy_network", "reinforce", "roll_out"]

LEAST_WEIGHT = 0.02
"""Weight of a candidate that gains and loses nothing; others have that and the log of the speedup."""


def make_network(settings: EmulatedSettings, seed: int) -> TorchPointerNetwork:
    """Return an untrained network; equal seeds give equal weights."""
    torch.set_num_threads(1)  # networks this small are slower on several threads
    torch.manual_seed(seed)
    network = TorchPointerNetwork(network_shape(settings.hidden, settings.rounds))
    with torch.no_grad():
        network.prior.weight.zero_()
    return network


def numpy_network(network: TorchPointerNetwork) -> PointerNetwork:
    """Return the network that the compiler runs."""
    wanted = network.shape.weights()
    weights = {k: v.detach().numpy().astype(np.float32) for k, v in network.state_dict().items() if k in wanted}
    return PointerNetwork(network.shape, weights)


def batch_of(graphs: Sequence[DecisionGraph]) -> GraphBatch:
    """Return decisions as a batch, padded to the largest of them."""

    def padded(rows: Sequence[npt.NDArray[np.generic]], fill: int, dtype: torch.dtype) -> torch.Tensor:
        longest = max(1, *(len(r) for r in rows))
        out = torch.full((len(rows), longest, rows[0].shape[1]), fill, dtype=dtype)
        for n, r in enumerate(rows):
            out[n, : len(r)] = torch.from_numpy(r)
        return out

    return GraphBatch(
        nodes=padded([g.nodes for g in graphs], 0, torch.float32),
        edges=padded([g.edges for g in graphs], 0, torch.long),
        candidates=padded([g.candidates for g in graphs], 0, torch.float32),
        endpoints=padded([g.endpoints for g in graphs], -1, torch.long),
        globals=torch.from_numpy(np.stack([g.globals for g in graphs])),
        counts=torch.tensor([[len(g.nodes), len(g.edges), len(g.candidates)] for g in graphs]),
    )


def _log_probabilities(network: TorchPointerNetwork, graphs: Sequence[DecisionGraph]) -> torch.Tensor:
    """Return [b, c] log-probabilities, minus infinity in the padding."""
    batch = batch_of(graphs)
    scores, _ = network(batch)
    real = torch.arange(scores.shape[1])[None, :] < batch.counts[:, 2:]
    return torch.log_softmax(scores.masked_fill(~real, -math.inf), dim=1)


def imitate(
    network: TorchPointerNetwork, samples: Sequence[Sample], settings: EmulatedSettings, seed: int
) -> Iterator[tuple[float, float]]:
    """Train on samples; yield the mean loss and the mean regret of decisions after each epoch.

    Each candidate that was tried beside stopping, or beside the choice of the rules, is an example of a logistic
    regression: whether its score exceeds the other's should say whether it gains time. What matters more weighs more.
    The regret is the log of the speedup that a decision forgoes, with candidates of unknown gain counted as zero.
    """
    order = random.Random(seed)
    optimizer = torch.optim.AdamW(network.parameters(), settings.learning_rate, weight_decay=0.01)
    steps = settings.epochs * math.ceil(len(samples) / settings.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.learning_rate, total_steps=steps)
    shuffled = list(samples)
    for _ in range(settings.epochs):
        order.shuffle(shuffled)
        total, regret = 0.0, 0.0
        for start in range(0, len(shuffled), settings.batch):
            part = shuffled[start : start + settings.batch]
            scores, _ = network(batch_of([s.graph for s in part]))
            loss = _regression(scores, part)
            _step(optimizer, network, loss)
            schedule.step()
            total += float(loss.detach()) * len(part)
            regret += sum(_regret(s, scores[n].detach().numpy()) for n, s in enumerate(part))
        yield total / len(shuffled), regret / len(shuffled)


def _regression(scores: torch.Tensor, part: Sequence[Sample]) -> torch.Tensor:
    """Return the logistic loss of the candidates that were tried, weighted by what they gain or lose."""
    pairs = [
        (n, c, s.usual, float(s.gains[c]))
        for n, s in enumerate(part)
        for c in np.flatnonzero(np.isfinite(s.gains)).tolist()
        if c != s.usual
    ]
    rows, columns, others, gains = zip(*pairs, strict=True)
    r, gain = torch.tensor(rows), torch.tensor(gains)
    margin = scores[r, torch.tensor(columns)] - scores[r, torch.tensor(others)]
    weights = (LEAST_WEIGHT + gain.abs()).clamp(max=1.0)
    wanted = (gain > LEAST_GAIN).float()
    each = torch.nn.functional.binary_cross_entropy_with_logits(margin, wanted, weights, reduction="sum")
    return each / len(part)


def _regret(sample: Sample, scores: npt.NDArray[np.float32]) -> float:
    gains = np.nan_to_num(sample.gains)
    return float(gains.max() - gains[int(scores[: len(gains)].argmax())])


def _step(optimizer: torch.optim.Optimizer, network: TorchPointerNetwork, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
    optimizer.step()


@dataclass(frozen=True, eq=False)
class Rollout:
    """One episode of fusion on a program.

    Attributes:
        graphs: of its decisions.
        actions: the candidates that were drawn.
        logs: their log-probabilities then.
        seconds: predicted, of the completed plan.
    """

    graphs: list[DecisionGraph]
    actions: list[int]
    logs: list[float]
    seconds: float


def roll_out(state: FusionState, network: PointerNetwork, completion: str, rng: np.random.Generator) -> Rollout:
    """Draw fusions from the network until it stops, and complete the plan; the state stays as it is."""
    features, start = FusionFeatures(state), len(state.history)
    graphs: list[DecisionGraph] = []
    actions: list[int] = []
    logs: list[float] = []
    while len(graphs) < MOST_DECISIONS:
        offer = features.offer()
        if not offer.entries:
            break
        graph = features.graph(offer)
        scores = network.scores(graph).astype(np.float64)
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        action = int(rng.choice(len(shares), p=shares))
        graphs.append(graph)
        actions.append(action)
        logs.append(float(np.log(shares[action])))
        if action == len(offer.entries):
            break
        state.apply(offer.entries[action].action)
    seconds = completed_seconds(state, completion)
    while len(state.history) > start:
        state.undo()
    return Rollout(graphs, actions, logs, seconds)


def reinforce(
    network: TorchPointerNetwork,
    states: Sequence[tuple[FusionState, float]],
    settings: EmulatedSettings,
    seed: int,
) -> Iterator[float]:
    """Train by policy gradient as in PPO; yield the mean log of the speedup over the rules after each iteration.

    Rewards come at the end of an episode, so lambda is 1: the advantage of each decision is the return of its episode
    against the mean of the episodes of the same program, divided by their deviation.

    Args:
        network: to train.
        states: the start of fusion of each program, and the predicted seconds of the rules.
        settings: of the training.
        seed: of programs and draws.
    """
    order, rng = random.Random(seed), np.random.default_rng(seed)
    optimizer = torch.optim.Adam(network.parameters(), settings.tuning_rate)
    for _ in range(settings.iterations):
        policy = numpy_network(network)
        taken: list[tuple[DecisionGraph, int, float, float]] = []
        returns: list[float] = []
        for state, rules in order.sample(list(states), min(settings.programs, len(states))):
            rolls = [roll_out(state, policy, settings.completion, rng) for _ in range(settings.rollouts)]
            gains = np.array([math.log(rules / r.seconds) for r in rolls])
            returns.append(float(gains.mean()))
            if gains.std() < 1e-4:
                continue
            advantages = (gains - gains.mean()) / (gains.std() + 0.01)
            for r, a in zip(rolls, advantages.tolist(), strict=True):
                taken += [(g, n, p, a) for g, n, p in zip(r.graphs, r.actions, r.logs, strict=True)]
        _improve(network, optimizer, taken, settings, order)
        yield float(np.mean(returns))


def _improve(
    network: TorchPointerNetwork,
    optimizer: torch.optim.Optimizer,
    taken: list[tuple[DecisionGraph, int, float, float]],
    settings: EmulatedSettings,
    order: random.Random,
) -> None:
    for _ in range(settings.reuses):
        order.shuffle(taken)
        for start in range(0, len(taken), settings.batch):
            graphs, actions, logs, advantages = zip(*taken[start : start + settings.batch], strict=True)
            now = _log_probabilities(network, graphs)
            chosen = now.gather(1, torch.tensor(actions)[:, None])[:, 0]
            ratio = torch.exp(chosen - torch.tensor(logs))
            a = torch.tensor(advantages)
            clipped = torch.clamp(ratio, 1 - settings.clip, 1 + settings.clip)
            gain = torch.minimum(ratio * a, clipped * a).mean()
            entropy = -(now.exp() * now.masked_fill(now == -math.inf, 0.0)).sum(dim=1).mean()
            _step(optimizer, network, -gain - settings.entropy * entropy)
