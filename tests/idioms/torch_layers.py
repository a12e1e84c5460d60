"""Layers and networks in PyTorch: dense, convolutional, recurrent, embeddings, pooling, resizing."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.idioms.collection import Idioms, booleans, integers, normal, uniform

IDIOMS = Idioms()


def _tokens(*dims: int, high: int) -> Any:
    return torch.from_numpy(integers(*dims, high=high)).long()


IDIOMS.module(
    "perceptron",
    lambda: nn.Sequential(nn.Linear(33, 64), nn.Tanh(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)),
    batch_1=(normal(1, 33),),
    batch_128=(normal(128, 33),),
    none=(normal(0, 33),),
    vector=(normal(33),),
)
IDIOMS.module(
    "perceptron_in_half",
    lambda: nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 4)).bfloat16(),
    half=(torch.from_numpy(normal(1, 64)).bfloat16(),),
)
IDIOMS.module(
    "perceptron_in_double",
    lambda: nn.Sequential(nn.Linear(17, 9), nn.ELU(), nn.Linear(9, 1)).double(),
    double=(normal(65, 17, dtype="f8"),),
)


class Residual(nn.Module):
    """A residual block with squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
        )
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 2, 1), nn.ReLU(), nn.Conv2d(2, 8, 1), nn.Sigmoid()
        )
        self.short = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8))

    def forward(self, x: Any) -> Any:
        x = self.short(x)
        y = self.body(x)
        return F.relu(x + y * self.gate(y))


IDIOMS.module("residual_block", Residual, batch_1=(normal(1, 3, 9, 7),), line=(normal(2, 3, 1, 33),))
IDIOMS.module("residual_block_in_training", Residual, training=True, batch_2=(normal(2, 3, 8, 8),))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.LeakyReLU(0.1))
        self.middle = nn.Sequential(nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.Mish())
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x: Any) -> Any:
        a = self.down(x)
        b = self.up(self.middle(a))
        return self.out(torch.cat([a, F.interpolate(b, size=a.shape[2:], mode="bilinear", align_corners=False)], dim=1))


IDIOMS.module("u_net", UNet, batch_1=(normal(1, 1, 12, 10),), odd=(normal(2, 1, 9, 17),))
IDIOMS.module(
    "depthwise_separable",
    lambda: nn.Sequential(
        nn.Conv2d(6, 6, 3, 2, 1, groups=6), nn.ReLU6(), nn.Conv2d(6, 4, 1), nn.Hardswish(), nn.Flatten(), nn.Dropout()
    ),
    batch_1=(normal(1, 6, 9, 8),),
    line=(normal(2, 6, 1, 64),),
)
IDIOMS.module(
    "atari_network",
    lambda: nn.Sequential(
        nn.Conv2d(4, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 8, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 6)
    ),
    batch_1=(uniform(1, 4, 36, 36),),
)
IDIOMS.module(
    "temporal_convolutions",
    lambda: nn.Sequential(
        nn.ConstantPad1d((2, 0), 0.0),
        nn.Conv1d(5, 8, 3),
        nn.ReLU(),
        nn.ConstantPad1d((4, 0), 0.0),
        nn.Conv1d(8, 5, 3, dilation=2),
    ),
    batch_1=(normal(1, 5, 64),),
    one_step=(normal(3, 5, 1),),
)
IDIOMS.module(
    "lstm",
    lambda: nn.LSTM(8, 16, batch_first=True),
    batch_1=(normal(1, 17, 8),),
    text=(normal(3, 64, 8),),
    one_step=(normal(1, 1, 8),),
)
IDIOMS.module(
    "stacked_bidirectional_gru", lambda: nn.GRU(4, 8, num_layers=2, bidirectional=True), text=(normal(17, 1, 4),)
)


class Recurrent(nn.Module):
    """A recurrent agent whose carry is set to zero when an episode ends."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(6, 12), nn.Linear(12, 3)

    def forward(self, xs: Any, done: Any, h: Any, c: Any) -> Any:
        out = []
        for x, d in zip(xs, done, strict=True):
            keep = (1 - d.float()).unsqueeze(1)
            h, c = self.cell(x, (h * keep, c * keep))
            out.append(self.head(h))
        return torch.stack(out), h, c


IDIOMS.module(
    "recurrent_agent", Recurrent, batch_1=(normal(8, 1, 6), booleans(8, 1), normal(1, 12), normal(1, 12, name="c"))
)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(37, 16, padding_idx=0)
        self.bag = nn.EmbeddingBag(37, 8, mode="mean")

    def forward(self, tokens: Any) -> Any:
        x = self.table(tokens)
        mask = (tokens != 0).unsqueeze(-1)
        mean = (x * mask).sum(1) / mask.sum(1).clamp(min=1)
        return x, mean, F.linear(mean, self.table.weight), self.bag(tokens)


IDIOMS.module("embeddings", Words, text=(_tokens(3, 19, high=37),), batch_1=(_tokens(1, 64, high=37),))
IDIOMS.module(
    "embedding_bag_of_weighted_sums",
    lambda: nn.EmbeddingBag(37, 8, mode="sum"),
    text=(_tokens(20, high=37), torch.tensor([0, 3, 3, 17]), uniform(20)),
)
IDIOMS.module("embedding_bag_maximum", lambda: nn.EmbeddingBag(37, 8, mode="max"), text=(_tokens(3, 17, high=37),))


@IDIOMS.on(image=(normal(1, 3, 9, 12),), line=(normal(2, 1, 2, 64),))
def pooling_of_every_kind(x: Any) -> Any:
    return (
        F.max_pool2d(x, 2),
        F.max_pool2d(x, (2, 3), stride=(1, 2), padding=1),
        F.avg_pool2d(x, 2),
        F.avg_pool2d(x, 2, ceil_mode=True),
        F.adaptive_avg_pool2d(x, (1, 1)),
        F.adaptive_avg_pool2d(x, (2, 5)),
        F.adaptive_max_pool2d(x, (2, 5)),
        x.mean((2, 3)),
        x.amax((2, 3)),
        F.lp_pool2d(x.abs(), 2, 2),
        F.max_pool1d(x.flatten(2), 3, 2),
        F.avg_pool1d(x.flatten(2), 3, 2, 1),
    )


@IDIOMS.on(image=(normal(1, 3, 5, 7),), one_pixel=(normal(2, 64, 1, 1),))
def resizing_of_every_kind(x: Any) -> Any:
    return (
        F.interpolate(x, scale_factor=2),
        F.interpolate(x, size=(7, 4), mode="bilinear"),
        F.interpolate(x, size=(8, 9), mode="bilinear", align_corners=True),
        F.interpolate(x, scale_factor=(2.0, 1.5), mode="bicubic"),
        F.interpolate(x, size=(3, 3), mode="area"),
        F.interpolate(x, size=(4, 4), mode="nearest-exact"),
        F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2),
        F.interpolate(x.flatten(2), size=9, mode="linear"),
    )


@IDIOMS.on(image=(normal(1, 3, 5, 7),), line=(normal(2, 1, 3, 64),))
def padding_of_every_mode(x: Any) -> Any:
    pad = (2, 1, 1, 2)
    return (
        F.pad(x, pad),
        F.pad(x, pad, value=-1.5),
        F.pad(x, pad, mode="reflect"),
        F.pad(x, pad, mode="replicate"),
        F.pad(x, pad, mode="circular"),
        F.pad(x, (-1, -1, 0, 0)),
        F.pad(x, (0, 0, 0, 0, 1, 2)),
    )


@IDIOMS.on(image=(normal(1, 2, 8, 9),), batch_2=(normal(2, 1, 12, 7),))
def unfold_and_fold(x: Any) -> Any:
    patches = F.unfold(x, kernel_size=3, padding=1, stride=2)
    back = F.fold(patches, output_size=x.shape[2:], kernel_size=3, padding=1, stride=2)
    count = F.fold(torch.ones_like(patches), output_size=x.shape[2:], kernel_size=3, padding=1, stride=2)
    return patches, back / count, x.unfold(2, 4, 2).unfold(3, 4, 2)


@IDIOMS.on(
    text=(normal(2, 17, 32), normal(64, 32), normal(64, 32, name="g"), normal(32, 64)),
    batch_1=(normal(1, 1, 64), normal(1, 64), normal(1, 64, name="g"), normal(64, 1)),
)
def gated_feed_forward(x: Any, up: Any, gate: Any, down: Any) -> Any:
    both = torch.cat([F.linear(x, up), F.linear(x, gate)], dim=-1)
    return (
        F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down),
        F.glu(both, dim=-1),
        F.gelu(both, approximate="tanh"),
    )


@IDIOMS.on(
    tokens=(normal(19, 8), normal(4, 8), normal(4, 8, 16), normal(4, 16, 8)),
    one=(normal(1, 64), normal(3, 64), normal(3, 64, 8), normal(3, 8, 64)),
)
def mixture_of_experts(x: Any, router: Any, up: Any, down: Any) -> Any:
    probabilities = F.softmax(x @ router.t(), dim=-1)
    weights, chosen = torch.topk(probabilities, 2, dim=-1)
    weights = weights / weights.sum(-1, keepdim=True)
    gate = torch.zeros_like(probabilities).scatter(1, chosen, weights)
    hidden = F.gelu(torch.einsum("td,edf->etf", x, up))
    out = torch.einsum("etf,efd,te->td", hidden, down, gate)
    load = F.one_hot(chosen, router.shape[0]).float().mean((0, 1))
    return out, router.shape[0] * (load * probabilities.mean(0)).sum()


@IDIOMS.on(
    vector=(normal(129),),
    special=(torch.tensor([0.0, -0.0, 1e-30, -90.0, 90.0, -1e30, 1e30, float("nan")]),),
)
def activations(x: Any) -> Any:
    return [
        f(x)
        for f in (
            F.relu,
            F.relu6,
            F.silu,
            F.gelu,
            F.elu,
            F.selu,
            F.celu,
            F.leaky_relu,
            F.softplus,
            F.hardswish,
            F.hardsigmoid,
            F.hardtanh,
            F.mish,
            F.tanhshrink,
            F.softsign,
            F.logsigmoid,
            F.softshrink,
            F.hardshrink,
            torch.sigmoid,
            torch.tanh,
        )
    ]


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.position = nn.Parameter(torch.randn(1, 17, 16))
        self.norm = nn.LayerNorm(16, eps=1e-6)
        self.head = nn.Linear(16, 10)

    def forward(self, image: Any) -> Any:
        x = self.project(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.position
        return self.head(self.norm(x)[:, 0])


IDIOMS.module("vision_transformer_stem", Patches, batch_1=(normal(1, 3, 16, 16),), batch_3=(normal(3, 3, 16, 16),))


@IDIOMS.on(graph=(normal(17, 6), _tokens(2, 64, high=17)), one_feature=(normal(64, 1), _tokens(2, 100, high=64)))
def graph_message_passing(x: Any, edges: Any) -> Any:
    source, target = edges
    degree = torch.zeros(x.size(0)).scatter_add_(0, target, torch.ones(target.size(0)))
    total = torch.zeros_like(x).index_add_(0, target, x[source])
    mean = total / degree.clamp(min=1).unsqueeze(-1)
    top = torch.full_like(x, -1e9).scatter_reduce(0, target[:, None].expand(-1, x.size(1)), x[source], "amax")
    return mean, torch.where(degree[:, None] > 0, top, 0.0)


@IDIOMS.on(steps=(torch.tensor([0.0, 3.0, 17.0, 60.0]), normal(32, 16)))
def sinusoidal_time_embedding(t: Any, w: Any) -> Any:
    half = w.shape[0] // 2
    frequency = torch.exp(-torch.log(torch.tensor(10000.0)) * torch.arange(half) / half)
    angle = t[:, None] * frequency[None]
    return F.silu(torch.cat([angle.sin(), angle.cos()], dim=-1) @ w)


@IDIOMS.on(batch=(normal(2, 17, 6), uniform(6, 4, low=-1, high=-0.1), normal(6, 4), normal(6, 4, name="c")))
def state_space_scan(u: Any, a: Any, b: Any, c: Any) -> Any:
    state = torch.zeros(u.size(0), *a.shape)
    out = []
    for t in range(u.size(1)):
        state = torch.exp(0.1 * a) * state + 0.1 * u[:, t, :, None] * b
        out.append((state * c).sum(-1))
    return torch.stack(out, dim=1)
