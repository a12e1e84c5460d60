"""The table of module classes with arguments: small for tests, larger for measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from experiments.torch_modules import learning, sequences, vision

__all__ = ["TABLE", "Case"]

Make = Callable[[bool], tuple[nn.Module, tuple[Any, ...]]]


@dataclass(frozen=True)
class Case:
    """A module class and how to make it.

    Attributes:
        build: returns a module and arguments; its argument is True for sizes that are worth measuring.
        checked_in: the type in which its results are compared with those of eager mode.
    """

    build: Make
    checked_in: torch.dtype = torch.float64

    def make(self, large: bool = False, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, tuple[Any, ...]]:
        """Return a module in training mode and its arguments, the same in each call."""
        before = torch.get_default_dtype()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            torch.set_default_dtype(dtype)
            try:
                return self.build(large)
            finally:
                torch.set_default_dtype(before)


def _size(large: bool, small: int, big: int) -> int:
    return big if large else small


def _edges(nodes: int, edges: int) -> torch.Tensor:
    return torch.randint(0, nodes, (2, edges))


def _mlp(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    w = _size(large, 8, 512)
    layers = nn.Sequential(nn.Linear(w, 2 * w), nn.ReLU(), nn.LayerNorm(2 * w), nn.Linear(2 * w, w), nn.Tanh())
    return layers, (torch.randn(_size(large, 4, 128), w),)


def _images(large: bool, channels: int, small: int = 8, big: int = 32) -> torch.Tensor:
    size = _size(large, small, big)
    return torch.randn(_size(large, 2, 16), channels, size, size)


def _tokens(large: bool, width: int) -> torch.Tensor:
    return torch.randn(_size(large, 2, 8), _size(large, 5, 64), width)


def _width(large: bool) -> int:
    return _size(large, 8, 128)


def _conv_net(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    return vision.ConvNet(_size(large, 4, 32)), (_images(large, 3),)


def _residual(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    w = _size(large, 4, 32)
    return vision.ResidualBlock(w), (_images(large, w),)


def _separable(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    w = _size(large, 4, 24)
    return vision.SeparableBlock(w), (_images(large, w),)


def _conv_next(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    w = _size(large, 4, 48)
    return vision.ConvNextBlock(w), (_images(large, w).contiguous(memory_format=torch.channels_last),)


def _unet(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    return vision.UNet(_size(large, 4, 16)), (_images(large, 1),)


def _group_norm(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    return vision.GroupNormNet(_size(large, 8, 32)), (_images(large, 3),)


def _autoencoder(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    return vision.Autoencoder(_size(large, 4, 16)), (_images(large, 1),)


def _vae(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    w, latent, batch = _size(large, 12, 784), _size(large, 4, 64), _size(large, 3, 128)
    return vision.VariationalAutoencoder(w, latent), (torch.randn(batch, w), torch.randn(batch, latent))


def _wavenet(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    return vision.WaveNet(_size(large, 4, 32)), (torch.randn(_size(large, 2, 8), 1, _size(large, 12, 512)),)


def _recurrent(kind: type[Any], **options: Any) -> Make:
    def make(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
        w = _size(large, 6, 64)
        module = sequences.Recurrent(kind, 4, w, **options)
        return module, (torch.randn(_size(large, 3, 16), _size(large, 5, 32), 4),)

    return make


def _encoder_layer(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    w = _width(large)
    return nn.TransformerEncoderLayer(w, 2, 2 * w, dropout=0.0, batch_first=True), (_tokens(large, w),)


def _decoder_layer(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    w = _width(large)
    layer = nn.TransformerDecoderLayer(w, 2, 2 * w, dropout=0.0, batch_first=True, activation="gelu", norm_first=True)
    return layer, (_tokens(large, w), _tokens(large, w))


def _gpt_block(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    w = _width(large)
    return sequences.GptBlock(w, 2), (_tokens(large, w),)


def _gpt(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    time, words = _size(large, 6, 64), _size(large, 11, 256)
    module = sequences.Gpt(words, _width(large), 2, 2, time)
    return module, (torch.randint(0, words, (_size(large, 2, 8), time + 1)),)


def _llama(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    w = _width(large)
    return sequences.LlamaBlock(w, 4, 2), (_tokens(large, w),)


def _attention(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    w = _width(large)
    keys = _tokens(large, w)
    is_padding = torch.zeros(keys.shape[:2], dtype=torch.bool)
    is_padding[0, -2:] = True
    return sequences.MaskedAttention(w, 2), (_tokens(large, w), keys, is_padding)


def _mixer(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    w = _width(large)
    x = _tokens(large, w)
    return sequences.MixerBlock(x.shape[1], w), (x,)


def _graph_layer(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    w, nodes = _size(large, 6, 64), _size(large, 7, 500)
    return sequences.GraphLayer(w), (torch.randn(nodes, w), _edges(nodes, 4 * nodes))


def _graph_attention(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    w, nodes = _size(large, 6, 64), _size(large, 7, 500)
    return sequences.GraphAttention(w), (torch.randn(nodes, w), _edges(nodes, 4 * nodes))


def _recommender(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    rows, batch = _size(large, 10, 1000), _size(large, 3, 128)
    bags = (torch.randint(0, rows, (batch, 4)) for _ in range(2))
    return sequences.Recommender(rows, _size(large, 4, 32)), (torch.randn(batch, 4), *bags)


def _state_space(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    w = _size(large, 6, 64)
    return sequences.StateSpace(w), (torch.randn(_size(large, 2, 16), _size(large, 5, 16), w),)


def _losses(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    n, w, batch = _size(large, 5, 100), _size(large, 7, 64), _size(large, 4, 256)
    return learning.Losses(w, n), (torch.randn(batch, w), torch.randint(0, n, (batch,)), torch.randn(batch, n))


def _similarity(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    w, batch = _size(large, 6, 128), _size(large, 4, 128)
    return learning.SimilarityLoss(w, w), (torch.randn(batch, w), torch.randn(batch, w))


def _actor_critic(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    batch = _size(large, 3, 256)
    return learning.ActorCritic(4, 2), (torch.randn(batch, 4), torch.randint(0, 2, (batch,)))


def _ppo(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    batch = _size(large, 5, 256)
    arguments = torch.randn(batch, 6), torch.randn(batch, 3), torch.randn(batch), torch.randn(batch)
    return learning.PpoLoss(6, 3), arguments


def _energy(large: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    return learning.Energy(_size(large, 4, 16)), (torch.randn(_size(large, 5, 64), 3),)


TABLE: dict[str, Case] = {
    "mlp": Case(_mlp),
    "conv_net": Case(_conv_net),
    "residual_block": Case(_residual),
    "separable_block": Case(_separable),
    "conv_next_block": Case(_conv_next),
    "u_net": Case(_unet),
    "group_norm_net": Case(_group_norm),
    "autoencoder": Case(_autoencoder),
    "vae": Case(_vae),
    "wavenet": Case(_wavenet),
    "rnn": Case(_recurrent(nn.RNN)),
    "lstm": Case(_recurrent(nn.LSTM, num_layers=2)),
    "gru": Case(_recurrent(nn.GRU, bidirectional=True)),
    "encoder_layer": Case(_encoder_layer),
    "decoder_layer": Case(_decoder_layer),
    "gpt_block": Case(_gpt_block),
    "gpt": Case(_gpt),
    "llama_block": Case(_llama),
    "masked_attention": Case(_attention),
    "mixer_block": Case(_mixer),
    "graph_layer": Case(_graph_layer),
    "graph_attention": Case(_graph_attention),
    "recommender": Case(_recommender),
    "state_space": Case(_state_space),
    "losses": Case(_losses),
    "similarity_loss": Case(_similarity),
    "actor_critic": Case(_actor_critic, torch.float32),
    "ppo_loss": Case(_ppo),
    "particle_energy": Case(_energy),
}
