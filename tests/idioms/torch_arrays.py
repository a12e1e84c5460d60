"""Tensors in PyTorch: indexing, sorting, cumulative sums, metrics, distances, linear algebra."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.idioms.collection import Closeness, Idioms, booleans, integers, normal, uniform

IDIOMS = Idioms()


def _labels(*dims: int, high: int, name: str = "") -> Any:
    return torch.from_numpy(integers(*dims, high=high, name=name)).long()


@IDIOMS.on(
    table=(normal(17, 33), _labels(5, high=17), _labels(5, high=33, name="c"), booleans(17, 33)),
    row=(normal(1, 64), _labels(5, high=1), _labels(5, high=64, name="c"), booleans(1, 64)),
)
def indexing(x: Any, rows: Any, columns: Any, mask: Any) -> Any:
    y = x.clone()
    y[rows, columns] = 0.5
    y[:, -1] += 2.0
    y[mask] = -1.0
    y[..., ::2] *= 2
    return (
        x[rows],
        x[:, columns],
        x[rows, columns],
        x[rows][:, columns],
        x.index_select(1, columns),
        x.gather(1, columns.expand(x.size(0), -1)),
        torch.take_along_dim(x, x.argsort(1), 1),
        x[-1, ..., None],
        x[None, :, 3:9],
        x[rows[:, None], columns],
        y,
        x.take(columns),
        x[:, None, [0, 2]],
    )


@IDIOMS.on(
    table=(normal(17, 33), _labels(9, high=17), normal(9, 33, name="s")),
    column=(normal(64, 1), _labels(9, high=64), normal(9, 1, name="s")),
)
def scatters(x: Any, index: Any, source: Any) -> Any:
    wide = index[:, None].expand_as(source)
    return (
        x.index_add(0, index, source),
        x.scatter_add(0, wide, source),
        x.scatter_reduce(0, wide, source, "amax"),
        x.scatter_reduce(0, wide, source, "mean", include_self=False),
        x.index_put((index,), source, accumulate=True),
        x.index_fill(0, index, 3.0),
        torch.zeros(17).scatter_(0, index % 17, 1.0),
        x.scatter_reduce(0, wide, source, "prod"),
        torch.bincount(index, minlength=64),
        x.index_reduce(0, index, source, "amin"),
    )


@IDIOMS.on(rows=(normal(5, 33),), one=(normal(1, 64),), column=(normal(64, 1),))
def sorting(x: Any) -> Any:
    values, order = torch.sort(x, dim=-1, descending=True)
    best, at = x.topk(1, dim=1)
    return (
        values,
        order,
        x.argsort(dim=0),
        order.argsort(-1),
        best,
        at,
        *x.kthvalue(1, dim=1),
        *x.median(dim=-1),
        x.median(),
        *x.min(dim=0),
        *torch.cummax(x, 1),
        torch.quantile(x, 0.3, dim=0),
        torch.quantile(x, torch.tensor([0.1, 0.9]), dim=1),
        x.argmax(),
        *x.aminmax(),
        torch.mode(x.round(), 1).values,
    )


@IDIOMS.on(
    rows=(uniform(5, 67, low=0.8, high=1.2),),
    one=(uniform(1, 64, low=0.8, high=1.2),),
    column=(uniform(64, 1, low=0.5),),
)
def running_sums_and_products(x: Any) -> Any:
    alphas = x.cumprod(dim=1)
    shifted = F.pad(alphas[:, :-1], (1, 0), value=1.0)
    return (
        alphas,
        shifted,
        x.flip(1).cumsum(1).flip(1),
        x.logcumsumexp(1),
        x.diff(dim=1),
        x.cumsum(0),
        x.cummin(0).values,
        x.prod(1),
        torch.cumulative_trapezoid(x, dim=1),
    )


@IDIOMS.on(
    table=(normal(17, 33), booleans(17, 33)),
    row=(normal(1, 64), booleans(1, 64)),
    column=(normal(64, 1), booleans(64, 1)),
    cube=(normal(3, 1, 20), booleans(3, 1, 20)),
)
def reductions(x: Any, mask: Any) -> Any:
    return (
        x.sum(),
        x.mean(0),
        x.std(),
        x.var(1, unbiased=False),
        x.amax(0),
        x.logsumexp(-1),
        x.norm(dim=0),
        torch.linalg.vector_norm(x, 3, dim=-1),
        mask.any(0),
        mask.all(),
        mask.sum(1),
        x.masked_fill(~mask, 0).sum(0),
        (x > 0).float().mean(),
        x.abs().max(),
        torch.nansum(torch.where(mask, x, float("nan")), 1),
        torch.std_mean(x, 0, correction=0),
        torch.nanmean(torch.where(mask, x, float("nan")), 0),
        x.sum(dim=tuple(range(x.dim()))),
        mask.count_nonzero(),
        x.argmin(0),
        torch.linalg.norm(x),
        x.double().sum().float(),
    )


@IDIOMS.on(batch_32=(normal(32, 10), _labels(32, high=10)), batch_1=(normal(1, 1000), _labels(1, high=1000)))
def classification_metrics(logits: Any, labels: Any) -> Any:
    n = logits.shape[1]
    predicted = logits.argmax(dim=1)
    top = logits.topk(5, dim=1).indices
    matrix = torch.zeros(n, n, dtype=torch.long).index_put((labels, predicted), torch.tensor(1), accumulate=True)
    counts = torch.bincount(labels * n + predicted, minlength=n * n).view(n, n)
    precision = matrix.diag() / matrix.sum(0).clamp(min=1)
    recall = matrix.diagonal() / matrix.sum(1).clamp(min=1)
    f1 = torch.where(precision + recall > 0, 2 * precision * recall / (precision + recall), 0.0)
    return (
        (predicted == labels).float().mean(),
        (top == labels[:, None]).any(1).float().mean(),
        matrix,
        counts,
        f1.mean(),
        predicted.eq(labels).sum(),
    )


@IDIOMS.on(batch=(uniform(129), booleans(129)), column=(uniform(65), booleans(65)))
def ranking_metrics(scores: Any, labels: Any) -> Any:
    order = torch.argsort(scores, descending=True)
    hits = labels[order]
    tpr, fpr = hits.cumsum(0) / hits.sum(), (~hits).cumsum(0) / (~hits).sum()
    precision = hits.cumsum(0) / torch.arange(1, hits.numel() + 1)
    gains = hits.float() / torch.log2(torch.arange(2, hits.numel() + 2).float())
    return (
        torch.trapz(tpr, fpr),
        (precision * hits).sum() / hits.sum(),
        gains.sum() / gains.sort(descending=True).values.sum(),
        torch.nn.functional.mse_loss(scores, labels.float()),
    )


@IDIOMS.on(
    points=(normal(17, 3), normal(33, 3, name="b")),
    line=(normal(64, 1), normal(17, 1, name="b")),
    one=(normal(1, 64), normal(1, 64, name="b")),
)
def pairwise_distances(a: Any, b: Any) -> Any:
    direct = (a[:, None] - b[None]).pow(2).sum(-1)
    return (
        torch.cdist(a, b),
        torch.cdist(a, b, p=1),
        direct,
        direct.min(dim=1).values,
        direct.argmin(0),
        F.cosine_similarity(a[:, None], b[None], dim=-1),
        F.normalize(a) @ F.normalize(b).T,
    )


@IDIOMS.on(
    tensors=(normal(3, 5, 17), normal(17, 5, 4), normal(3, 4)), one=(normal(1, 1, 64), normal(64, 1, 3), normal(1, 3))
)
def einsum_of_many_kinds(a: Any, b: Any, c: Any) -> Any:
    return (
        torch.einsum("bik,kij->bj", a, b),
        torch.einsum("bik,kij,bj->b", a, b, c),
        torch.einsum("bik->kb", a),
        torch.einsum("bik->i", a),
        torch.einsum("bik,bjk->bij", a, a),
        torch.tensordot(a, b, dims=([2, 1], [0, 1])),
        torch.einsum("bj,bj->b", c, c),
        torch.outer(c[0], c[0]),
        torch.kron(c, c[:, :1]),
        torch.bmm(a, a.transpose(1, 2)),
        torch.matmul(a, b[:, 0]),
        torch.addmm(c[:, :1], c, c.t()),
        torch.baddbmm(a[:, :, :1], a, a.mT, alpha=0.5),
        torch.dot(c[0], c[0]),
        torch.mv(c, c[0]),
        torch.linalg.multi_dot([c, c.t(), c]),
    )


@IDIOMS.on(values=(normal(65), torch.linspace(-2, 2, 11)), column=(normal(64), torch.linspace(-2, 2, 3)))
def buckets_and_interpolation(x: Any, edges: Any) -> Any:
    index = torch.bucketize(x, edges)
    i = torch.searchsorted(edges, x, right=True).clamp(1, edges.numel() - 1)
    t = (x - edges[i - 1]) / (edges[i] - edges[i - 1])
    counts = torch.zeros(edges.numel() + 1).scatter_add(0, index, torch.ones_like(x))
    return (
        index,
        counts,
        torch.lerp(edges[i - 1], edges[i], t.clamp(0, 1)),
        F.one_hot(index, edges.numel() + 1).sum(0),
        torch.histc(x, 10, -2, 2),
    )


@IDIOMS.on(Closeness(1e-3, 1e-3), matrix=(normal(17, 17), normal(17, 3)), one=(normal(1, 1), normal(1, 64)))
def linear_algebra(a: Any, b: Any) -> Any:
    spd = a @ a.T + a.size(0) * torch.eye(a.size(0))
    factor = torch.linalg.cholesky(spd)
    solved = torch.cholesky_solve(b, factor)
    half = torch.linalg.solve_triangular(factor, b, upper=False)
    log_det = 2 * factor.diagonal().log().sum()
    return (
        solved,
        half,
        log_det,
        torch.linalg.matrix_norm(a),
        torch.trace(spd),
        torch.linalg.matrix_power(spd / 40, 3),
        torch.cat([a, b], 1),
    )


@IDIOMS.on(Closeness(1e-3, 1e-3), matrix=(normal(17, 17), normal(17, 3)), one=(normal(1, 1), normal(1, 64)))
def solves_and_determinants(a: Any, b: Any) -> Any:
    spd = a @ a.T + a.size(0) * torch.eye(a.size(0))
    sign, log_det = torch.linalg.slogdet(spd)
    return (
        torch.linalg.solve(spd, b),
        torch.linalg.inv(spd),
        sign,
        log_det,
        torch.linalg.det(spd / a.size(0)),
        torch.logdet(spd),
    )


@IDIOMS.on(signal=(normal(3, 64),), odd=(normal(2, 37),), one=(normal(1, 100),))
def fft_filters(x: Any) -> Any:
    n = x.shape[-1]
    spectrum = torch.fft.rfft(x)
    low = torch.fft.irfft(torch.where(torch.fft.rfftfreq(n) < 0.21, spectrum, torch.zeros_like(spectrum)), n)
    return low, torch.fft.fft(x).abs().pow(2) / n, torch.fft.fftshift(x, dim=-1), torch.fft.ifft(torch.fft.fft(x)).real


@IDIOMS.on(vector=(normal(33), _labels(33, high=9)), column=(normal(64, 1), _labels(64, 1, high=9)))
def types_and_promotion(x: Any, n: Any) -> Any:
    return (
        x + n,
        n / 2,
        n // 2,
        x.half() + 1,
        x.bfloat16() * 2,
        x.double() + n,
        n.float().mean(),
        (x > 0) + n,
        n.int() * 2.5,
        x.long(),
        (x.abs() * 50).to(torch.uint8),
        n % 3,
        -n // 4,
        torch.true_divide(n, 4),
        n.bool(),
        x.sign() * n,
        n << 2,
        n.to(torch.int16) & 5,
        torch.pow(2, n),
        x.new_zeros(3) + 1,
        torch.floor_divide(n, 3),
        n.float().type_as(x),
    )


@IDIOMS.on(image=(normal(2, 3, 5, 7),), one=(normal(1, 64, 1, 1),))
def shapes_and_views(x: Any) -> Any:
    return (
        x.view(x.size(0), -1),
        x.permute(0, 2, 3, 1).contiguous(),
        x.flatten(1).unsqueeze(-1),
        x.reshape(-1, x.size(-1)),
        torch.stack([x, -x], 1),
        torch.cat([x, x], 1),
        x.expand(2, *x.shape[1:]) if x.size(0) == 1 else x,
        x.repeat(1, 2, 1, 1),
        x.roll(1, -1),
        x.flip(-1),
        x.squeeze(),
        x.swapaxes(1, 2),
        x.unbind(0)[0],
        x.chunk(2, 1)[0],
        *torch.meshgrid(x[0, 0, 0], x[0, :, 0, 0], indexing="ij"),
        torch.tril(x),
        x.rot90(1, (2, 3)),
        x.tile(2),
        torch.broadcast_to(x[:, :1], x.shape),
        x.unflatten(1, (1, -1)),
        x.diagonal(dim1=-2, dim2=-1),
        x.narrow(1, 0, 1),
        x.movedim(1, -1),
        torch.hstack([x, x]),
        x.repeat_interleave(2, dim=1),
        x.T if x.dim() == 2 else x.mT,
    )


@IDIOMS.on(points=(normal(65, 3), normal(4, 3, name="c")), line=(normal(64, 1), normal(5, 1, name="c")))
def k_means_step(x: Any, centres: Any) -> Any:
    mine = torch.cdist(x, centres).argmin(dim=1)
    total = torch.zeros_like(centres).index_add(0, mine, x)
    count = torch.bincount(mine, minlength=centres.size(0)).unsqueeze(1)
    return torch.where(count > 0, total / count.clamp(min=1), centres), mine


@IDIOMS.on(
    noise=(normal(2, 3, 5), _labels(2, high=50), normal(2, 3, 5, name="e")),
    one=(normal(1, 1, 64), _labels(1, high=50), normal(1, 1, 64, name="e")),
)
def diffusion_noise_and_step(x: Any, t: Any, eps: Any) -> Any:
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50), dim=0)
    a = alphas[t].view(-1, 1, 1)
    noisy = a.sqrt() * x + (1 - a).sqrt() * eps
    guess = ((noisy - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-1, 1)
    before = torch.where(t > 0, alphas[(t - 1).clamp(min=0)], torch.tensor(1.0)).view(-1, 1, 1)
    return noisy, before.sqrt() * guess + (1 - before).sqrt() * eps
