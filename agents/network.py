"""The pointer network in torch: the same function as `compiler.learned.pointer_network`, in batches, with a value."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from compiler.learned.pointer_network import NetworkShape

__all__ = ["GraphBatch", "TorchPointerNetwork"]


class GraphBatch(NamedTuple):
    """A batch of decision graphs, padded to the largest among them.

    Attributes:
        nodes: [b, n, node features].
        edges: [b, e, 2] long.
        candidates: [b, c, candidate features].
        endpoints: [b, c, 2] long, -1 for none.
        globals: [b, global features].
        counts: [b, 3] long: numbers of nodes, edges and candidates without padding.
    """

    nodes: torch.Tensor
    edges: torch.Tensor
    candidates: torch.Tensor
    endpoints: torch.Tensor
    globals: torch.Tensor
    counts: torch.Tensor

    def trimmed(self) -> GraphBatch:
        """Return the batch without padding that no graph needs; most programs are much smaller than the limits."""
        n, e, c = (max(1, int(m)) for m in self.counts.max(dim=0).values)
        return GraphBatch(
            self.nodes[:, :n],
            self.edges[:, :e],
            self.candidates[:, :c],
            self.endpoints[:, :c],
            self.globals,
            self.counts,
        )


class TorchPointerNetwork(nn.Module):
    """Scores of candidates and the value of the state.

    The names of all parameters except `value.*` are those of `NetworkShape.weights`.
    """

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        h = shape.hidden
        self.embed = nn.Linear(shape.node_features, h)
        self.rounds = nn.ModuleList(nn.Linear(3 * h, h) for _ in range(shape.rounds))
        self.pool = nn.Linear(2 * h + shape.global_features, h)
        self.join = nn.Linear(3 * h + shape.candidate_features, h)
        self.score = nn.Linear(h, 1, bias=False)
        self.prior = nn.Linear(shape.candidate_features, 1, bias=False)
        self.value = nn.Sequential(nn.Linear(2 * h, h), nn.ReLU(), nn.Linear(h, 1))

    def forward(self, batch: GraphBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores [b, c], which are meaningless in the padding, and values [b, 1]."""
        candidates = batch.candidates
        real_nodes = _mask(batch.counts[:, 0], batch.nodes.shape[1])
        h = torch.relu(self.embed(batch.nodes)) * real_nodes
        adjacency = _Neighbours(batch.edges, batch.counts[:, 1], h.shape[1])
        for layer in self.rounds:
            seen = torch.cat([h, adjacency.operands(h), adjacency.users(h)], dim=2)
            h = (h + torch.relu(layer(seen))) * real_nodes
        mean = h.sum(dim=1) / real_nodes.sum(dim=1).clamp(min=1)
        # h is never negative, so padding never is the maximum.
        pooled = torch.cat([mean, h.amax(dim=1), batch.globals], dim=1)
        whole = torch.relu(self.pool(pooled))
        h_size = self.shape.hidden
        # The layer over [producer, consumer, whole, candidate] in parts: there are far fewer nodes than candidates.
        producer, consumer, context, own = torch.split(
            self.join.weight, [h_size, h_size, h_size, candidates.shape[2]], dim=1
        )
        joined = torch.relu(
            _pick(h @ producer.T, batch.endpoints[:, :, 0])
            + _pick(h @ consumer.T, batch.endpoints[:, :, 1])
            + (whole @ context.T).unsqueeze(1)
            + candidates @ own.T
            + self.join.bias
        )
        scores = (self.score(joined) + self.prior(candidates)).squeeze(2)
        real = _mask(batch.counts[:, 2], joined.shape[1])
        best = (joined * real).amax(dim=1)
        return scores, self.value(torch.cat([whole, best], dim=1))


class _Neighbours:
    """Means over operands and users, as scatter-adds over the padded edge list."""

    def __init__(self, edges: torch.Tensor, counts: torch.Tensor, nodes: int) -> None:
        self._real = _mask(counts, edges.shape[1])
        self._operand, self._user = edges[:, :, 0], edges[:, :, 1]
        self._nodes = nodes

    def operands(self, h: torch.Tensor) -> torch.Tensor:
        return self._mean(h, self._operand, self._user)

    def users(self, h: torch.Tensor) -> torch.Tensor:
        return self._mean(h, self._user, self._operand)

    def _mean(self, h: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        messages = _gather(h, source) * self._real
        into = target.unsqueeze(2)
        sums = h.new_zeros(h.shape).scatter_add_(1, into.expand(-1, -1, h.shape[2]), messages)
        degrees = h.new_zeros(h.shape[0], self._nodes, 1).scatter_add_(1, into, self._real)
        return sums / degrees.clamp(min=1)


def _mask(counts: torch.Tensor, size: int) -> torch.Tensor:
    """Return [b, size, 1], which is one for the first `count` entries of each row."""
    return (torch.arange(size, device=counts.device)[None, :] < counts[:, None]).unsqueeze(2).float()


def _gather(h: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return h.gather(1, index.unsqueeze(2).expand(-1, -1, h.shape[2]))


def _pick(h: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return rows by index, and zeros for -1."""
    return _gather(h, index.clamp(min=0)) * (index >= 0).unsqueeze(2).float()
