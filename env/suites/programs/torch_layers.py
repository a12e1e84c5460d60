"""Families written in PyTorch: functions with their gradients, layers and small models with their weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from env.suites.programs.family import Families, Member, Members, each_of, integers, normal, sizes, uniform

FAMILIES = Families()


def _with_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the mean square of a function's result and its gradient with respect to its arguments."""

    def of(*args: Tensor) -> Any:
        found: Any = torch.func.vjp(lambda *a: f(*a).square().mean(), *args)
        return found[0], found[1](torch.ones_like(found[0]))

    return of


def _modules(cases: dict[str, Any]) -> Members:
    for name, (make, arguments) in cases.items():
        torch.manual_seed(0)
        yield Member(name, make().eval(), arguments)


@FAMILIES.add
def torch_pointwise() -> Members:
    """Elementwise functions of PyTorch, with gradients."""
    base: dict[str, Any] = {
        "gelu": lambda x, y: F.gelu(x + y),
        "tanh_gelu": lambda x, y: F.gelu(x, approximate="tanh") * y,
        "mix": lambda x, y: torch.lerp(torch.tanh(x), torch.sigmoid(y), 0.3),
        "glu": lambda x, y: F.glu(torch.cat([x, y], -1)),
        "clamp": lambda x, y: torch.clamp(x * y, -1, 1) + torch.where(x > y, x, y),
        "softsign": lambda x, y: F.softsign(x) + F.hardswish(y),
        "distance": lambda x, y: torch.sqrt((x - y) ** 2 + 1e-3),
    }
    variants = base | {f"{k}_gradient": _with_gradient(base[k]) for k in ("gelu", "mix", "distance")}
    yield from each_of(variants, {sizes(*d): (normal(*d), normal(*d)) for d in ((32, 64), (256, 1024), (2048, 2048))})


@FAMILIES.add
def torch_rows() -> Members:
    """Normalisations, softmax and reductions of PyTorch, with gradients."""
    base: dict[str, Any] = {
        "layer_norm": lambda x, w: F.layer_norm(x, x.shape[-1:], w),
        "rms_norm": lambda x, w: F.rms_norm(x, x.shape[-1:], w),
        "softmax": lambda x, w: F.softmax(x * w, -1),
        "log_softmax": lambda x, w: F.log_softmax(x, -1) + w,
        "logsumexp": lambda x, w: torch.logsumexp(x * w, -1),
        "normalise": lambda x, w: F.normalize(x, dim=-1) * w,
        "moments": lambda x, w: (x - x.mean(0)) / (x.std(0) + 1e-5) * w,
    }
    variants = base | {f"{k}_gradient": _with_gradient(base[k]) for k in ("layer_norm", "softmax", "logsumexp")}
    cases = {sizes(*d): (normal(*d), uniform(0.5, 1.5, d[-1])) for d in ((16, 64), (256, 768), (2048, 1024))}
    yield from each_of(variants, cases)


@FAMILIES.add
def torch_losses() -> Members:
    """Losses of PyTorch, with gradients."""
    base: dict[str, Any] = {
        "mse": F.mse_loss,
        "smooth_l1": F.smooth_l1_loss,
        "kl": lambda x, y: F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean"),
        "bce": lambda x, y: F.binary_cross_entropy_with_logits(x, torch.sigmoid(y)),
        "cosine": lambda x, y: 1 - F.cosine_similarity(x, y).mean(),
    }
    variants = base | {f"{k}_gradient": _with_gradient(f) for k, f in base.items()}
    yield from each_of(variants, {sizes(*d): (normal(*d), normal(*d)) for d in ((32, 10), (256, 1000), (2048, 1024))})
    for m, n in ((32, 10), (512, 1000)):
        yield Member(
            f"cross_entropy_{m}x{n}",
            lambda x, i: F.cross_entropy(x, i),
            (normal(m, n), integers(0, n, m, dtype="int64")),
        )


@FAMILIES.add
def torch_attention() -> Members:
    """Attention of PyTorch: scaled dot products, causal, with heads of a layer, and gradients."""

    def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v

    variants: dict[str, Any] = {
        "plain": F.scaled_dot_product_attention,
        "causal": causal,
        "by_hand": by_hand,
        "gradient": _with_gradient(by_hand),
    }
    yield from each_of(
        variants, {sizes(*d): (normal(*d),) * 3 for d in ((1, 2, 16, 32), (2, 8, 128, 64), (1, 12, 512, 64))}
    )
    for n, d, h in ((16, 32, 4), (128, 256, 8)):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(d, h, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        yield Member(f"encoder_{n}x{d}", layer.train(), (normal(1, n, d),))


@FAMILIES.add
def torch_perceptrons() -> Members:
    """Stacks of linear layers of PyTorch with activations, norms and dropout in evaluation mode."""
    cases: dict[str, Any] = {}
    for m, d, h, n in ((1, 8, 32, 2), (32, 64, 128, 10), (256, 784, 512, 10), (128, 1024, 1024, 256)):
        for kind, act in {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}.items():
            cases[f"{kind}_{sizes(m, d, h, n)}"] = (
                lambda d=d, h=h, n=n, act=act: nn.Sequential(
                    nn.Linear(d, h), act(), nn.Dropout(0.1), nn.Linear(h, h), act(), nn.Linear(h, n)
                ),
                (normal(m, d),),
            )
        cases[f"norm_{sizes(m, d, h, n)}"] = (
            lambda d=d, h=h, n=n: nn.Sequential(
                nn.Linear(d, h), nn.LayerNorm(h), nn.Tanh(), nn.Linear(h, n), nn.Softmax(-1)
            ),
            (normal(m, d),),
        )
    yield from _modules(cases)


@FAMILIES.add
def torch_convolutions() -> Members:
    """Convolutional networks of PyTorch: blocks with norm and pooling, residual, depthwise, transposed."""

    class Residual(nn.Module):
        def __init__(self, c: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, c, 3, padding=1)
            )

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x + self.body(x))

    cases: dict[str, Any] = {}
    for n, c, h in ((1, 8, 8), (4, 16, 28), (2, 32, 56), (8, 64, 14)):
        x = (normal(n, c, h, h),)
        name = sizes(n, c, h, h)
        cases[f"block_{name}"] = (
            lambda c=c: nn.Sequential(
                nn.Conv2d(c, 2 * c, 3, padding=1), nn.BatchNorm2d(2 * c), nn.ReLU(), nn.MaxPool2d(2)
            ),
            x,
        )
        cases[f"residual_{name}"] = (lambda c=c: Residual(c), x)
        cases[f"depthwise_{name}"] = (
            lambda c=c: nn.Sequential(nn.Conv2d(c, c, 3, padding=1, groups=c), nn.Hardswish(), nn.Conv2d(c, 2 * c, 1)),
            x,
        )
        cases[f"strided_{name}"] = (
            lambda c=c: nn.Sequential(nn.Conv2d(c, c, 3, stride=2, padding=1), nn.GroupNorm(4, c), nn.SiLU()),
            x,
        )
        cases[f"transposed_{name}"] = (
            lambda c=c: nn.Sequential(nn.ConvTranspose2d(c, c // 2, 2, stride=2), nn.LeakyReLU()),
            x,
        )
        cases[f"head_{name}"] = (lambda c=c: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 10)), x)
    yield from _modules(cases)


@FAMILIES.add
def torch_recurrent() -> Members:
    """Recurrent layers of PyTorch unrolled by hand: cells over short sequences."""

    class Unrolled(nn.Module):
        def __init__(self, kind: str, d: int, h: int) -> None:
            super().__init__()
            self.h = h
            self.x, self.u = nn.Linear(d, 4 * h), nn.Linear(h, 4 * h)
            self.kind = kind

        def forward(self, x: Tensor) -> Tensor:
            h = c = x.new_zeros(x.shape[1], self.h)
            for row in x.unbind(0):
                i, f, g, o = (self.x(row) + self.u(h)).chunk(4, -1)
                if self.kind == "lstm":
                    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                    h = torch.sigmoid(o) * torch.tanh(c)
                else:
                    h = torch.sigmoid(i) * h + (1 - torch.sigmoid(i)) * torch.tanh(g)
            return h

    cases: dict[str, Any] = {}
    for t, b, d, h in ((4, 1, 8, 16), (8, 16, 32, 64), (8, 64, 128, 256), (16, 8, 64, 64)):
        for kind in ("lstm", "gate"):
            cases[f"{kind}_{sizes(t, b, d, h)}"] = (lambda k=kind, d=d, h=h: Unrolled(k, d, h), (normal(t, b, d),))
    yield from _modules(cases)


@FAMILIES.add
def torch_indexing() -> Members:
    """Indexing of PyTorch: gathers, scatters, sorting, masks, embeddings, cumulative sums."""
    variants: dict[str, Any] = {
        "select": lambda x, i: x.index_select(0, i) * 2,
        "embedding": lambda x, i: F.embedding(i, x).tanh(),
        "add": lambda x, i: x.index_add(0, i, x[i]),
        "gather": lambda x, i: torch.gather(x, 0, i[:, None].expand(-1, x.shape[1])),
        "top": lambda x, i: torch.topk(x, 4, -1)[0] + x[i[:1]][:, :4],
        "sorted": lambda x, i: torch.sort(x, -1)[0] - x.mean(),
        "sums": lambda x, i: torch.cumsum(x, 0)[i],
        "masked": lambda x, i: x.masked_fill(x < 0, -1.0)[i],
        "one_hot": lambda x, i: F.one_hot(i, x.shape[0]).float() @ x,
        "roll": lambda x, i: torch.roll(x, 1, 0) + torch.flip(x, [1]),
    }
    cases = {
        sizes(m, n, k): (normal(m, n), integers(0, m, k, dtype="int64"))
        for m, n, k in ((16, 8, 32), (500, 64, 256), (4096, 128, 2048))
    }
    yield from each_of(variants, cases)


@FAMILIES.add
def torch_mathematics() -> Members:
    """Numerical functions of PyTorch: simulators, distances, statistics, filters."""

    def heat(x: Tensor, y: Tensor) -> Tensor:
        for _ in range(4):
            x = x + 0.1 * (
                torch.roll(x, 1, 0) + torch.roll(x, -1, 0) + torch.roll(x, 1, 1) + torch.roll(x, -1, 1) - 4 * x
            )
        return x * y

    variants: dict[str, Any] = {
        "heat": heat,
        "waves": lambda x, y: torch.sin(x) * torch.cos(y) + torch.atan2(x, y),
        "covariance": lambda x, y: (x - x.mean(0)).T @ (y - y.mean(0)) / x.shape[0],
        "distances": lambda x, y: (x[:32, None] - y[None, :32]).square().sum(-1).sqrt(),
        "adam": lambda x, y: x - 1e-3 * (0.9 * y) / (torch.sqrt(0.999 * y * y + 1e-3) + 1e-8),
        "polynomial": lambda x, y: ((0.1 * x + y) * x - 0.5) * x + 1,
        "heat_gradient": _with_gradient(heat),
    }
    yield from each_of(variants, {sizes(*d): (normal(*d), normal(*d)) for d in ((64, 32), (512, 256), (2048, 1024))})
