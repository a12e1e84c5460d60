"""Commonly used modules and functions of PyTorch with example arguments, to test the torch frontend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def x(*shape: int, seed: int = 0) -> Any:
    """Return normally distributed numbers."""
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def positive(*shape: int) -> Any:
    """Return numbers of at least 0.5."""
    return x(*shape).abs() + 0.5


def unit(*shape: int) -> Any:
    """Return numbers in (0.05, 0.95)."""
    return torch.from_numpy(np.random.default_rng(3).uniform(0.05, 0.95, shape).astype(np.float32))


def whole(*shape: int, high: int = 5) -> Any:
    """Return integers from 0 to `high` (exclusive)."""
    return torch.from_numpy(np.random.default_rng(1).integers(0, high, shape))


def spd(n: int) -> Any:
    """Return a symmetric positive definite matrix."""
    a = x(n, n)
    return a @ a.T + n * torch.eye(n)


def mask(*shape: int) -> Any:
    """Return booleans of both values."""
    return x(*shape, seed=7) > 0


@dataclass(frozen=True)
class Row:
    """A callable and its arguments."""

    program: Any
    args: tuple[Any, ...]


class Apply(nn.Module):
    """Return a function that has its own weights."""

    def __init__(self, make: Callable[[], nn.Module], call: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = make()
        self.call = call

    def forward(self, *args: Any) -> Any:
        return self.call(self.inner, *args)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """Return a module with fixed weights in inference mode."""
    torch.manual_seed(0)
    return make().eval()


def _modules() -> dict[str, Row]:
    table: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
        "Linear": (lambda: nn.Linear(4, 3), (x(2, 4),)),
        "Bilinear": (lambda: nn.Bilinear(4, 3, 5), (x(2, 4), x(2, 3))),
        "Conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), (x(2, 4, 9),)),
        "Conv1d_same": (lambda: nn.Conv1d(4, 6, 4, padding="same"), (x(2, 4, 9),)),
        "Conv1d_circular": (lambda: nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular"), (x(2, 4, 9),)),
        "Conv2d": (lambda: nn.Conv2d(4, 6, 3, padding=1), (x(2, 4, 7, 8),)),
        "Conv2d_grouped": (lambda: nn.Conv2d(4, 8, 3, groups=2, dilation=2), (x(1, 4, 9, 9),)),
        "Conv2d_depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4), (x(1, 4, 9, 9),)),
        "Conv2d_reflect": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (x(1, 2, 5, 5),)),
        "Conv2d_unbatched": (lambda: nn.Conv2d(2, 3, 3), (x(2, 5, 5),)),
        "Conv3d": (lambda: nn.Conv3d(2, 3, 2, stride=2), (x(1, 2, 4, 4, 4),)),
        "ConvTranspose1d": (lambda: nn.ConvTranspose1d(3, 2, 4, stride=3), (x(2, 3, 5),)),
        "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), (x(1, 4, 5, 5),)),
        "ConvTranspose3d": (lambda: nn.ConvTranspose3d(2, 3, 2, stride=2), (x(1, 2, 3, 3, 3),)),
        "MaxPool1d": (lambda: nn.MaxPool1d(3, 2, 1), (x(2, 3, 9),)),
        "MaxPool2d": (lambda: nn.MaxPool2d(3, 2, 1), (x(1, 2, 9, 9),)),
        "MaxPool2d_dilated": (lambda: nn.MaxPool2d(2, 2, dilation=2, ceil_mode=True), (x(1, 2, 9, 9),)),
        "MaxPool2d_indices": (lambda: nn.MaxPool2d(3, 2, 1, return_indices=True), (x(2, 2, 7, 6),)),
        "MaxPool3d_indices": (lambda: nn.MaxPool3d(2, return_indices=True), (x(1, 2, 4, 4, 4),)),
        "MaxUnpool2d": (
            lambda: Apply(lambda: nn.MaxUnpool2d(2), lambda m, a: m(*F.max_pool2d(a, 2, return_indices=True))),
            (x(1, 2, 4, 4),),
        ),
        "AvgPool1d": (lambda: nn.AvgPool1d(3, 2, 1), (x(2, 3, 9),)),
        "AvgPool2d_ceil": (lambda: nn.AvgPool2d(2, ceil_mode=True), (x(1, 2, 5, 5),)),
        "AvgPool2d_ceil_no_pad": (lambda: nn.AvgPool2d(3, 2, 1, True, False), (x(1, 2, 6, 6),)),
        "AvgPool3d": (lambda: nn.AvgPool3d(2), (x(1, 2, 4, 4, 4),)),
        "LPPool2d": (lambda: nn.LPPool2d(2, 2), (positive(1, 2, 4, 4),)),
        "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(4), (x(1, 2, 9),)),
        "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d((3, 2)), (x(1, 2, 7, 5),)),
        "AdaptiveAvgPool3d": (lambda: nn.AdaptiveAvgPool3d(2), (x(1, 2, 4, 5, 4),)),
        "AdaptiveMaxPool1d": (lambda: nn.AdaptiveMaxPool1d(3), (x(1, 2, 7),)),
        "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d((3, 2)), (x(1, 2, 7, 5),)),
        "AdaptiveMaxPool2d_indices": (lambda: nn.AdaptiveMaxPool2d(3, return_indices=True), (x(1, 2, 7, 5),)),
        "BatchNorm1d": (lambda: nn.BatchNorm1d(3), (x(4, 3),)),
        "BatchNorm2d": (lambda: nn.BatchNorm2d(3), (x(2, 3, 4, 4),)),
        "BatchNorm3d": (lambda: nn.BatchNorm3d(3, affine=False), (x(2, 3, 2, 2, 2),)),
        "LayerNorm": (lambda: nn.LayerNorm([3, 4]), (x(2, 3, 4),)),
        "RMSNorm": (lambda: nn.RMSNorm(4), (x(2, 3, 4),)),
        "GroupNorm": (lambda: nn.GroupNorm(2, 4), (x(2, 4, 3),)),
        "InstanceNorm1d": (lambda: nn.InstanceNorm1d(3), (x(2, 3, 8),)),
        "InstanceNorm2d": (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (x(2, 3, 4, 4),)),
        "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), (x(2, 4, 3, 3),)),
        "Embedding": (lambda: nn.Embedding(5, 3, padding_idx=0), (whole(2, 4),)),
        "EmbeddingBag": (lambda: nn.EmbeddingBag(5, 3, mode="sum"), (whole(2, 4),)),
        "EmbeddingBag_mean": (lambda: nn.EmbeddingBag(5, 3), (whole(6), torch.tensor([0, 2, 5]))),
        "RNN": (lambda: nn.RNN(4, 3, batch_first=True), (x(2, 5, 4),)),
        "LSTM": (lambda: nn.LSTM(4, 3, num_layers=2), (x(5, 2, 4),)),
        "LSTM_bidirectional": (lambda: nn.LSTM(4, 3, bidirectional=True, batch_first=True), (x(2, 5, 4),)),
        "LSTM_projected": (lambda: nn.LSTM(4, 3, proj_size=2), (x(5, 2, 4),)),
        "GRU": (lambda: nn.GRU(4, 3), (x(5, 2, 4),)),
        "LSTMCell": (lambda: nn.LSTMCell(4, 3), (x(2, 4),)),
        "GRUCell": (lambda: nn.GRUCell(4, 3), (x(2, 4),)),
        "MultiheadAttention": (
            lambda: Apply(lambda: nn.MultiheadAttention(8, 2, batch_first=True), lambda m, a: m(a, a, a)),
            (x(2, 3, 8),),
        ),
        "MultiheadAttention_masked": (
            lambda: Apply(lambda: nn.MultiheadAttention(8, 2), lambda m, a, k: m(a, a, a, key_padding_mask=k)[0]),
            (x(3, 2, 8), torch.tensor([[False, False, True], [False, True, True]])),
        ),
        "TransformerEncoder": (
            lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
            (x(2, 3, 8),),
        ),
        "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(8, 2, 16), (x(3, 2, 8), x(4, 2, 8))),
        "Transformer": (lambda: nn.Transformer(8, 2, 1, 1, 16), (x(4, 2, 8), x(3, 2, 8))),
        "PixelShuffle": (lambda: nn.PixelShuffle(2), (x(1, 8, 3, 3),)),
        "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), (x(1, 2, 4, 4),)),
        "ChannelShuffle": (lambda: nn.ChannelShuffle(2), (x(1, 4, 3, 3),)),
        "Unfold": (lambda: nn.Unfold(3, padding=1, stride=2), (x(1, 2, 6, 5),)),
        "Fold": (lambda: nn.Fold((6, 5), 2), (x(1, 8, 20),)),
        "ReflectionPad1d": (lambda: nn.ReflectionPad1d(2), (x(1, 2, 5),)),
        "ReflectionPad2d": (lambda: nn.ReflectionPad2d((1, 2, 2, 1)), (x(1, 2, 5, 5),)),
        "ReplicationPad2d": (lambda: nn.ReplicationPad2d(2), (x(1, 2, 5, 5),)),
        "CircularPad2d": (lambda: nn.CircularPad2d(2), (x(1, 2, 5, 5),)),
        "ZeroPad2d": (lambda: nn.ZeroPad2d((1, 0, 2, -1)), (x(1, 2, 5, 5),)),
        "CosineSimilarity": (lambda: nn.CosineSimilarity(1), (x(3, 4), x(3, 4, seed=1))),
        "PairwiseDistance": (lambda: nn.PairwiseDistance(), (x(3, 4), x(3, 4, seed=1))),
        "PReLU": (lambda: nn.PReLU(3), (x(2, 3, 4),)),
        "Softmin": (lambda: nn.Softmin(1), (x(2, 3),)),
        "Softmax2d": (lambda: nn.Softmax2d(), (x(1, 2, 3, 3),)),
        "GLU": (lambda: nn.GLU(), (x(2, 6),)),
        "Threshold": (lambda: nn.Threshold(0.1, -2), (x(3, 4),)),
        "Hardshrink": (lambda: nn.Hardshrink(), (x(3, 4),)),
        "Softshrink": (lambda: nn.Softshrink(), (x(3, 4),)),
        "RReLU": (lambda: nn.RReLU(), (x(3, 4),)),
        "CELU": (lambda: nn.CELU(1.3), (x(3, 4),)),
        "Upsample_bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (x(1, 2, 3, 4),)),
        "Flatten": (lambda: nn.Flatten(), (x(2, 3, 4),)),
        "Dropout": (lambda: nn.Sequential(nn.Dropout(0.5), nn.Dropout2d(0.5), nn.AlphaDropout(0.5)), (x(1, 2, 3, 3),)),
        "ParameterList": (
            lambda: Apply(
                lambda: nn.ParameterList([nn.Parameter(x(3)), nn.Parameter(x(3))]), lambda m, a: a * m[0] + m[1]
            ),
            (x(2, 3),),
        ),
        "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (x(2, 4),)),
        "spectral_norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), (x(2, 4),)),
    }
    return {name: Row(seeded(make), args) for name, (make, args) in table.items()}


def _functions() -> dict[str, Row]:
    a, b, c = x(3, 4), x(3, 4, seed=1), x(2, 3, 4)
    q = x(2, 2, 5, 4)
    t = torch
    table: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "attention": (F.scaled_dot_product_attention, (q, q * 2, q + 1)),
        "attention_causal": (lambda v: F.scaled_dot_product_attention(v, v, v, is_causal=True), (q,)),
        "attention_bool_mask": (
            lambda v, m: F.scaled_dot_product_attention(v, v, v, attn_mask=m),
            (q, t.ones(5, 5).tril() > 0),
        ),
        "attention_float_mask": (lambda v, m: F.scaled_dot_product_attention(v, v, v, m, scale=0.3), (q, x(5, 5))),
        "attention_grouped": (
            lambda v, k: F.scaled_dot_product_attention(v, k, k, enable_gqa=True),
            (x(1, 4, 5, 4), x(1, 2, 5, 4)),
        ),
        "einsum_attention": (lambda v: t.einsum("bhqd,bhkd->bhqk", v, v), (q,)),
        "einsum_trace": (lambda v: t.einsum("ii->i", v), (x(4, 4),)),
        "einsum_outer": (lambda u, v: t.einsum("i,j,k->ijk", u, v, u), (x(3), x(4))),
        "einsum_ellipsis": (lambda u, v: t.einsum("...ij,jk->...ik", u, v), (c, x(4, 2))),
        "tensordot": (lambda u, v: t.tensordot(u, v, dims=([1, 2], [0, 1])), (c, x(3, 4, 5))),
        "kron": (t.kron, (x(2, 2), x(2, 3))),
        "outer": (t.outer, (x(3), x(4))),
        "cross": (lambda u, v: t.linalg.cross(u, v), (x(2, 3), x(2, 3, seed=1))),
        "interpolate_nearest1d": (lambda v: F.interpolate(v, size=7), (x(1, 2, 4),)),
        "interpolate_nearest_exact": (lambda v: F.interpolate(v, size=(5, 7), mode="nearest-exact"), (x(1, 2, 3, 4),)),
        "interpolate_nearest3d": (lambda v: F.interpolate(v, scale_factor=2), (x(1, 1, 2, 2, 2),)),
        "interpolate_linear": (lambda v: F.interpolate(v, size=7, mode="linear"), (x(1, 2, 4),)),
        "interpolate_bilinear": (
            lambda v: F.interpolate(v, size=(5, 7), mode="bilinear", align_corners=True),
            (x(1, 2, 3, 4),),
        ),
        "interpolate_antialias": (
            lambda v: F.interpolate(v, size=(3, 3), mode="bilinear", antialias=True),
            (x(1, 2, 6, 6),),
        ),
        "interpolate_bicubic": (lambda v: F.interpolate(v, size=(5, 7), mode="bicubic"), (x(1, 2, 3, 4),)),
        "interpolate_trilinear": (lambda v: F.interpolate(v, size=(3, 3, 3), mode="trilinear"), (x(1, 1, 2, 2, 2),)),
        "grid_sample": (lambda v, g: F.grid_sample(v, g, align_corners=False), (x(1, 2, 4, 4), t.tanh(x(1, 3, 3, 2)))),
        "affine_grid": (lambda v: F.affine_grid(v, [1, 2, 3, 4], align_corners=False), (x(1, 2, 3),)),
        "topk": (lambda v: t.topk(v, 2, 1, largest=False), (a,)),
        "kthvalue": (lambda v: t.kthvalue(v, 2, 1), (a,)),
        "sort_stable": (lambda v: t.sort(v, dim=0, descending=True, stable=True), (a,)),
        "argsort": (lambda v: v.argsort(1, descending=True), (a,)),
        "msort": (t.msort, (a,)),
        "median": (lambda v: (v.median(), *v.median(1)), (x(3, 5),)),
        "quantile": (lambda v: t.quantile(v, 0.3, dim=1), (x(3, 5),)),
        "topk_all": (lambda v: t.topk(v, 4, 1), (a,)),
        "histc": (lambda v: t.histc(v, 4, -1.0, 1.0), (x(8),)),
        "cumsum": (lambda v: (v.cumsum(1), v.cumprod(0), v.cummax(1)[0], v.cummin(0)[1]), (a,)),
        "logcumsumexp": (lambda v: v.logcumsumexp(1), (a,)),
        "diff": (lambda v: v.diff(dim=1), (a,)),
        "scatter": (lambda v, i: v.scatter(1, i, 9.0), (a, whole(3, 2, high=2).sort(1)[0] * t.tensor([[0, 1]]))),
        "scatter_add": (lambda v, i, s: v.scatter_add(1, i, s), (a, whole(3, 4, high=4), b)),
        "scatter_reduce_amax": (lambda v, i, s: v.scatter_reduce(1, i, s, "amax"), (a, whole(3, 4, high=4), b)),
        "scatter_reduce_mean": (lambda v, i, s: v.scatter_reduce(1, i, s, "mean"), (a, whole(3, 4, high=4), b)),
        "scatter_reduce_mean_of_integers": (
            lambda v, i, s: v.scatter_reduce(0, i, s, "mean"),
            (whole(6) - 4, whole(6, high=3), whole(6) - 3),
        ),
        "scatter_reduce_new": (
            lambda v, i, s: v.scatter_reduce(1, i, s, "sum", include_self=False),
            (a, whole(3, 4, high=4), b),
        ),
        "gather": (lambda v, i: v.gather(1, i), (a, whole(3, 2, high=4))),
        "take_along_dim": (lambda v, i: t.take_along_dim(v, i, 1), (a, whole(3, 2, high=4))),
        "take": (t.take, (a, whole(5, high=12))),
        "index_add": (lambda v, i, s: v.index_add(0, i, s, alpha=2), (a, t.tensor([0, 2, 0]), b)),
        "index_copy": (lambda v, i, s: v.index_copy(0, i, s), (a, t.tensor([2, 0, 1]), b)),
        "index_fill": (lambda v, i: v.index_fill(1, i, 7.0), (a, t.tensor([0, 3]))),
        "index_put": (lambda v, i, j, s: v.index_put((i, j), s), (a, t.tensor([0, 2]), t.tensor([1, 3]), x(2))),
        "index_put_accumulate": (lambda v, i, s: v.index_put((i,), s, accumulate=True), (a, t.tensor([0, 2, 0]), b)),
        "index_put_mask": (lambda v, m: v.index_put((m,), t.tensor(3.0)), (a, mask(3, 4))),
        "index_put_row_mask": (lambda v, m, s: v.index_put((m,), s), (a, mask(3), x(4))),
        "setitem_mask": (lambda v, m: _set(v, m, 0.5), (a, mask(3, 4))),
        "setitem_slice": (lambda v, s: _set(v, (slice(None), slice(0, 4, 2)), s), (a, x(3, 2))),
        "index_apart": (lambda v, i, j: v[i, :, j], (c, t.tensor([0, 1]), t.tensor([3, 1]))),
        "index_broadcast": (lambda v, i, j: v[i[:, None], j], (a, t.tensor([0, 2]), t.tensor([3, 1, 0]))),
        "masked_fill": (lambda v, m: v.masked_fill(m, -1e9), (a, mask(3, 4))),
        "masked_scatter": (lambda v, m, s: v.masked_scatter(m, s), (a, mask(3, 4), b)),
        "where": (lambda v, w, m: (t.where(m, v, w), t.where(m, v, 0.0)), (a, b, mask(3, 4))),
        "clip": (lambda v, w: (v.clip(-1, 1), v.clamp(min=w), v.clamp(max=w)), (a, b)),
        "roll": (lambda v: (v.roll(1), v.roll((1, -1), (0, 1))), (a,)),
        "flip": (lambda v: (v.flip(1), v.fliplr(), v.rot90()), (a,)),
        "unfold": (lambda v: v.unfold(1, 2, 1), (a,)),
        "as_strided": (lambda v: v.as_strided((2, 3), (4, 1), 1), (a,)),
        "diagonal": (lambda v: (v.diagonal(1), v.diag_embed() if v.dim() < 3 else v), (a,)),
        "diag": (lambda v: (t.diag(v), t.diag(v[0])), (x(4, 4),)),
        "trace": (t.trace, (x(4, 4),)),
        "tril_indices": (lambda v: v[0, 0] + t.tril_indices(3, 3), (a,)),
        "meshgrid": (lambda u, v: t.meshgrid(u, v, indexing="ij"), (x(3), x(4))),
        "linspace": (lambda v: v + t.linspace(0, 1, 4), (a,)),
        "repeat_interleave": (lambda v: v.repeat_interleave(2, 1), (a,)),
        "tile": (lambda v: v.tile(2, 2), (a,)),
        "one_hot": (lambda i: F.one_hot(i, 5), (whole(4),)),
        "searchsorted": (lambda s, v: t.searchsorted(s, v), (t.arange(4.0), a)),
        "bucketize": (lambda v: t.bucketize(v, t.arange(4.0)), (a,)),
        "isin": (lambda v: t.isin(v, t.tensor([1, 3])), (whole(3, 4),)),
        "norms": (
            lambda v: (v.norm(), t.linalg.vector_norm(v, 1, 1), t.linalg.vector_norm(v, float("inf"), 1), v.norm(3, 1)),
            (a,),
        ),
        "matrix_norm": (lambda v: (t.linalg.matrix_norm(v), t.linalg.matrix_norm(v, 1)), (a,)),
        "normalize": (lambda v: F.normalize(v, dim=1), (a,)),
        "renorm": (lambda v: t.renorm(v, 2, 0, 1.0), (a,)),
        "cdist": (lambda u, v: t.cdist(u, v), (a, x(5, 4))),
        "std_mean": (lambda v: (*t.std_mean(v, 1), *t.var_mean(v)), (a,)),
        "aminmax": (lambda v: t.aminmax(v, dim=1), (a,)),
        "count_nonzero": (lambda v: t.count_nonzero(v > 0, dim=1), (a,)),
        "nan_to_num": (lambda v: (v / 0).nan_to_num(), (a,)),
        "special": (
            lambda v: (t.digamma(v), t.lgamma(v), t.special.erfinv(v / 9), t.special.xlogy(v, v), t.special.erfc(v)),
            (positive(3, 4),),
        ),
        "bessel": (lambda v: (t.special.i0(v), t.special.i0e(v * 9), t.special.i1(v), t.special.i1e(v * 9)), (a,)),
        "scaled_erfc": (
            lambda v: (t.special.erfcx(v), t.special.log_ndtr(v * 9), t.special.spherical_bessel_j0(v)),
            (a,),
        ),
        "eigenvalues": (lambda m: t.linalg.eigvals(m).abs().sort()[0], (spd(3),)),
        "eigenvectors": (_eigenvectors, (x(4, 4),)),
        "ldl_factor": (lambda m: t.linalg.ldl_factor(m)[0], (spd(3),)),
        "reflectors": (
            lambda m, u, v: (
                *t.geqrf(m),
                t.ormqr(*t.geqrf(m), u),
                t.ormqr(*t.geqrf(m), v, left=False, transpose=True),
                t.linalg.householder_product(*t.geqrf(m)),
            ),
            (x(5, 3), x(5, 2), x(2, 5)),
        ),
        "triangular_solve_of_old": (
            lambda m, v: (*t.triangular_solve(v, m), t.triangular_solve(v, m, False, True, True)[0]),
            (spd(3), x(2, 3, 2)),
        ),
        "histogram": (
            lambda v, w: (
                *t.histogram(v, 4),
                *t.histogram(v, 3, range=(-1.0, 1.0), weight=w, density=True),
                *t.histogram(v, t.tensor([-1.0, 0.0, 0.25, 0.25, 2.0])),
                *t.histogram(v * 0, 2),
                *t.histogram(v[:0], 2),
            ),
            (x(5, 8), positive(5, 8)),
        ),
        "histogramdd": (
            lambda v, w: (
                t.histogramdd(v, [2, 3], weight=w, density=True),
                t.histogramdd(v, [t.tensor([-1.0, 0, 1]), t.arange(4.0)]),
                t.histogramdd(v, [2, 2], range=[-1.0, 1.0, 0.0, 2.0]),
            ),
            (x(20, 2), positive(20)),
        ),
        "segments": (
            lambda v, n: [t.segment_reduce(v, r, lengths=n, axis=1) for r in ("sum", "mean", "max", "min", "prod")],
            (x(2, 6, 3), t.tensor([[2, 4], [5, 1]])),
        ),
        "gcd": (lambda i, j: (t.gcd(i - 9, j - 5), t.lcm(i, j)), (whole(7, 9, high=19), whole(9, high=12))),
        "float_steps": (
            lambda u, v: (t.nextafter(u, v), t.nextafter(0 * u, v), *t.frexp(u), *t.frexp(v * 1e-40)),
            (a, b),
        ),
        "trig": (
            lambda v: (v.sinc(), v.deg2rad(), t.hypot(v, v), v.frac(), v.logit(), t.copysign(v, -v)),
            (unit(3, 4),),
        ),
        "unsigned": (
            lambda i: (i.abs(), i.sign(), i.isinf(), i.ceil(), i.bool().sign(), i.bool().isinf()),
            (whole(6).to(t.uint8),),
        ),
        "bits": (lambda i: (i << 1, i >> 1, i ^ 3, ~i, i.bitwise_and(1)), (whole(4),)),
        "complex": (lambda u, v: t.view_as_real(t.complex(u, v) * t.complex(v, u)), (a, b)),
        "complex_parts": (
            lambda u, v: (t.complex(u, v).abs(), t.complex(u, v).angle(), t.complex(u, v).conj().imag),
            (a, b),
        ),
        "complex_to_real": (
            lambda u, v: (
                t.complex(u, v).to(t.float64),
                t.complex(u, v).bool(),
                *t.var_mean(t.complex(u, v), 1)[:1],
                t.view_as_real(t.std_mean(t.complex(u, v), 0)[1]),
                t.view_as_real(t.complex(u, v).log2()),
                t.view_as_real(t.complex(u, v).atan()),
                t.softmax(t.complex(u, v), 1, dtype=t.float64),
            ),
            (a, b),
        ),
        "polar": (lambda u, v: t.view_as_real(t.polar(u.abs(), v)), (a, b)),
        "fft": (
            lambda v: (t.view_as_real(t.fft.fft(v)), t.fft.irfft(t.fft.rfft(v), 4), t.fft.ifft2(t.fft.fft2(v)).real),
            (a,),
        ),
        "solve": (lambda m, v: t.linalg.solve(m, v), (spd(3), x(3, 2))),
        "inverse": (t.linalg.inv, (spd(3),)),
        "det": (lambda m: (t.linalg.det(m), *t.linalg.slogdet(m)), (spd(3),)),
        "cholesky": (t.linalg.cholesky, (spd(3),)),
        "one_triangle": (
            lambda m, v: (
                t.linalg.cholesky(m.triu(), upper=True),
                t.linalg.cholesky(m.tril()),
                t.linalg.pinv(v, hermitian=True),
                t.linalg.eigvalsh(v),
            ),
            (spd(3), x(3, 3)),
        ),
        "cat_of_nothing": (lambda v: t.cat([v[0, :0], v[1, :0]]), (a,)),
        "pdist_of_few": (lambda v: F.pdist(v[:1]), (a,)),
        "cholesky_solve": (lambda m, v: t.cholesky_solve(v, t.linalg.cholesky(m)), (spd(3), x(3, 2))),
        "triangular_solve": (lambda m, v: t.linalg.solve_triangular(m.triu(), v, upper=True), (spd(3), x(3, 2))),
        "qr": (lambda m: (lambda qr: (qr[0] @ qr[1], qr[1].abs()))(t.linalg.qr(m)), (x(4, 3),)),
        "eigh": (lambda m: t.linalg.eigh(m)[0], (spd(3),)),
        "svd": (lambda m: t.linalg.svdvals(m), (x(4, 3),)),
        "matrix_power": (lambda m: t.linalg.matrix_power(m, 3), (x(3, 3),)),
        "int8_product": (
            lambda a, b: torch._int_mm(a, b).float() * 0.01,
            (whole(19, 24, high=250).to(torch.int8), whole(24, 16, high=200).to(torch.int8)),
        ),
        "int8_weight": (
            lambda a, w, s: torch.ops.aten._weight_int8pack_mm(a, w, s),
            (x(5, 32), whole(16, 32, high=200).to(torch.int8), positive(16)),
        ),
        "matmul_ranks": (
            lambda a, m, v, u, c: (a @ m, a @ v, u @ a, c @ a, m.mT @ a.mT, a.mT @ c[:1, 0, :3].mT),
            (x(2, 3, 4), x(4, 5), x(4), x(3), x(5, 1, 6, 3)),
        ),
        "matrix_exp": (t.linalg.matrix_exp, (x(3, 3),)),
        "logsumexp": (lambda v: v.logsumexp((0, 1)), (a,)),
        "softmax_temperature": (lambda v: F.softmax(v / 0.5, 1), (a,)),
        "l1_loss": (lambda u, v: (F.l1_loss(u, v), F.smooth_l1_loss(u, v), F.huber_loss(u, v)), (a, b)),
        "mse_loss": (lambda u, v: (F.mse_loss(u, v), F.mse_loss(u, v, reduction="none")), (a, b)),
        "cross_entropy": (lambda v, i: F.cross_entropy(v, i, label_smoothing=0.1), (a, whole(3, high=4))),
        "cross_entropy_weighted": (
            lambda v, i, w: F.cross_entropy(v, i, w, ignore_index=1),
            (a, whole(3, high=4), positive(4)),
        ),
        "cross_entropy_soft": (lambda v, s: F.cross_entropy(v, s), (a, b.softmax(1))),
        "cross_entropy_2d": (lambda v, i: F.cross_entropy(v, i), (x(2, 3, 4, 4), whole(2, 4, 4, high=3))),
        "nll_loss": (lambda v, i: F.nll_loss(v.log_softmax(1), i, reduction="sum"), (a, whole(3, high=4))),
        "bce": (
            lambda u, v: (F.binary_cross_entropy(u, v), F.binary_cross_entropy_with_logits(u, v, pos_weight=v)),
            (unit(3, 4), unit(3, 4)),
        ),
        "kl_div": (lambda u, v: F.kl_div(u.log_softmax(1), v.softmax(1), reduction="batchmean"), (a, b)),
        "hinge": (lambda u, v: (F.hinge_embedding_loss(u, v.sign()), F.margin_ranking_loss(u, v, v.sign())), (a, b)),
        "cosine_embedding_loss": (lambda u, v, s: F.cosine_embedding_loss(u, v, s), (a, b, t.tensor([1.0, -1.0, 1.0]))),
        "triplet_loss": (lambda u, v: F.triplet_margin_loss(u, v, u + v), (a, b)),
        "poisson_nll": (lambda u, v: F.poisson_nll_loss(u, v), (a, positive(3, 4))),
        "multi_margin": (lambda v, i: F.multi_margin_loss(v, i), (a, whole(3, high=4))),
        "soft_margin": (lambda u, v: F.soft_margin_loss(u, v.sign()), (a, b)),
        "nll_loss_2d": (lambda v, i: F.nll_loss(v.log_softmax(1), i), (x(2, 3, 4, 4), whole(2, 4, 4, high=3))),
        "addr": (lambda v, p, r: t.addr(v, p, r), (a, x(3), x(4))),
        "addmv": (lambda v, m, u: t.addmv(v, m, u), (x(3), a, x(4))),
        "heaviside": (lambda u, v: t.heaviside(u, v), (a, b)),
        "bfloat16": (lambda v: (v.bfloat16() @ v.bfloat16().T).float(), (a,)),
        "float64": (lambda v: v.double().exp(), (a,)),
        "autocast": (_autocast, (a,)),
        "cond": (lambda v: t.cond(v.sum() > 0, lambda u: u.sin(), lambda u: u.cos(), (v,)), (a,)),
        "while_loop": (_while, (a,)),
        "stack_views": (lambda v: (t.hstack([v, v]), t.vstack([v, v]), t.dstack([v, v]), t.column_stack([v, v])), (a,)),
        "movedim": (lambda v: (v.movedim(0, 2), v.swapaxes(0, 1), v.unflatten(2, (2, 2)), v.mT), (c,)),
        "splits": (lambda v: (*v.tensor_split(3, 2), *v.split([1, 3], 2), *v.hsplit([1])), (c,)),
    }
    return {name: Row(program, args) for name, (program, args) in table.items()}


def _set(v: Any, at: Any, value: Any) -> Any:
    v = v.clone()
    v[at] = value
    return v


def _eigenvectors(m: Any) -> Any:
    """Return what does not depend on the order of eigenvalues."""
    values, vectors = torch.linalg.eig(m)
    return torch.view_as_real(m.to(vectors.dtype) @ vectors - vectors * values), vectors.abs().square().sum(0)


def _autocast(v: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (v @ v.T).float()


def _while(v: Any) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    loop: Any = while_loop
    return loop(lambda k, u: k < 3, lambda k, u: (k + 1, u * 0.5), (torch.tensor(0), v))[1]


TABLE: dict[str, Row] = {**_modules(), **_functions()}
