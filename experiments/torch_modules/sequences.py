"""Networks on sequences, sets and graphs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class GptBlock(nn.Module):
    """A block of GPT: causal attention and a feed-forward network, each after a layer normalization."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> Any:
        batch, time, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """A small GPT with its loss: embeddings, blocks, tied output weights, cross-entropy."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, time: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(time, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> Any:
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = self.tokens(inputs) + self.positions(torch.arange(inputs.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.tokens.weight.T
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class LlamaBlock(nn.Module):
    """A block of Llama: RMS normalization, rotary positions, grouped queries, SwiGLU."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        half = self.size // 2
        rates = 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
        angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * rates
        first, second = x[..., :half], x[..., half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)

    def forward(self, x: torch.Tensor) -> Any:
        batch, time, width = x.shape
        h = self.norm1(x)
        q = self._rotated(self.q(h).view(batch, time, self.heads, self.size).transpose(1, 2))
        k, v = self.kv(h).view(batch, time, 2, self.groups, self.size).permute(2, 0, 3, 1, 4)
        k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (self._rotated(k), v))
        mask = torch.full((time, time), -math.inf, dtype=x.dtype).triu(1)
        weights = (q @ k.transpose(-2, -1) / math.sqrt(self.size) + mask).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, time, width))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class MaskedAttention(nn.Module):
    """Attention of queries to keys of which some are padding."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, queries: torch.Tensor, keys: torch.Tensor, is_padding: torch.Tensor) -> Any:
        return self.attention(queries, keys, keys, key_padding_mask=is_padding, need_weights=True)


class Recurrent(nn.Module):
    """A recurrent network over a sequence and a linear layer on its last state."""

    def __init__(self, kind: type[Any], inputs: int, width: int, **options: Any) -> None:
        super().__init__()
        self.network = kind(inputs, width, batch_first=True, **options)
        self.head = nn.Linear(width * (2 if options.get("bidirectional") else 1), 3)

    def forward(self, x: torch.Tensor) -> Any:
        out, _ = self.network(x)
        return self.head(out[:, -1])


class MixerBlock(nn.Module):
    """A block of MLP-Mixer."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.within = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> Any:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class GraphLayer(nn.Module):
    """A layer of a graph neural network: messages along edges, summed by `index_add`, and their maximum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))
        self.update = nn.GRUCell(width, width)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> Any:
        source, target = edges
        messages = self.message(torch.cat([nodes[source], nodes[target]], -1))
        total = torch.zeros_like(nodes).index_add(0, target, messages)
        degree = torch.zeros_like(nodes[:, 0]).scatter_add(0, target, torch.ones_like(messages[:, 0]))
        return self.update(total / degree.clamp(min=1)[:, None], nodes)


class GraphAttention(nn.Module):
    """Attention along the edges of a graph: a softmax over the incoming edges of each node by scatters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.value, self.score = nn.Linear(width, width), nn.Linear(2 * width, 1)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> Any:
        source, target = edges
        values = self.value(nodes)
        scores = F.leaky_relu(self.score(torch.cat([values[source], values[target]], -1)), 0.2).squeeze(-1)
        highest = scores.new_full((len(nodes),), -1e9).scatter_reduce(0, target, scores.detach(), "amax")
        weights = (scores - highest[target]).exp()
        total = weights.new_zeros(len(nodes)).scatter_add(0, target, weights)
        sent = values[source] * (weights / total[target])[:, None]
        return torch.zeros_like(values).index_add(0, target, sent)


class Recommender(nn.Module):
    """A recommendation model: sums of embeddings, their products, and dense layers."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode=mode) for mode in ("sum", "mean"))
        self.dense = nn.Sequential(nn.Linear(4, width), nn.ReLU())
        self.head = nn.Linear(width + 3, 1)

    def forward(self, numbers: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> Any:
        dense = self.dense(numbers)
        parts = torch.stack([dense, self.bags[0](first), self.bags[1](second)], 1)
        products = parts @ parts.transpose(1, 2)
        rows, columns = torch.triu_indices(3, 3, 1)
        return torch.sigmoid(self.head(torch.cat([dense, products[:, rows, columns]], 1)))


class StateSpace(nn.Module):
    """A gated linear recurrence over time, computed step by step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inputs, self.gates = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> Any:
        gates, values = torch.sigmoid(self.gates(x)), self.inputs(x)
        state, states = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            state = gates[:, t] * state + (1 - gates[:, t]) * values[:, t]
            states.append(state)
        return torch.stack(states, 1)
