"""Losses in PyTorch with all reductions."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.idioms.collection import Idioms, booleans, integers, normal, uniform

IDIOMS = Idioms()
REDUCTIONS = ("none", "mean", "sum")


def _labels(*dims: int, high: int) -> Any:
    return torch.from_numpy(integers(*dims, high=high)).long()


def _every(loss: Any, *args: Any, **more: Any) -> list[Any]:
    return [loss(*args, reduction=r, **more) for r in REDUCTIONS]


@IDIOMS.on(
    batch_32=(normal(32, 10), _labels(32, high=10)),
    batch_1=(normal(1, 1000), _labels(1, high=1000)),
    one_class=(normal(64, 1), _labels(64, high=1)),
)
def cross_entropy(logits: Any, labels: Any) -> Any:
    return _every(F.cross_entropy, logits, labels), F.cross_entropy(logits, labels, label_smoothing=0.1)


@IDIOMS.on(
    batch_17=(normal(17, 5), _labels(17, high=5), uniform(5)), batch_1=(normal(1, 64), _labels(1, high=64), uniform(64))
)
def cross_entropy_with_weights_and_ignored_labels(logits: Any, labels: Any, weight: Any) -> Any:
    some = torch.where(labels == 2, -100, labels)
    return (
        _every(F.cross_entropy, logits, some, weight=weight),
        _every(F.cross_entropy, logits, some, label_smoothing=0.2, weight=weight),
        F.cross_entropy(logits, labels, ignore_index=1, reduction="none"),
    )


@IDIOMS.on(text=(normal(2, 19, 33), _labels(2, 19, high=33)), batch_1=(normal(1, 64, 7), _labels(1, 64, high=7)))
def token_cross_entropy(logits: Any, tokens: Any) -> Any:
    flat = F.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)), tokens[:, 1:].reshape(-1), ignore_index=0)
    per_token = F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")
    return flat, per_token, torch.exp(flat)


@IDIOMS.on(
    image=(normal(1, 3, 9, 8), _labels(1, 9, 8, high=3), normal(1, 3, 9, 8, name="t")),
    line=(normal(2, 5, 1, 64), _labels(2, 1, 64, high=5), normal(2, 5, 1, 64, name="t")),
)
def segmentation_losses(logits: Any, labels: Any, other: Any) -> Any:
    p = logits.softmax(dim=1)
    onehot = F.one_hot(labels, logits.shape[1]).permute(0, 3, 1, 2).float()
    dice = 1 - (2 * (p * onehot).sum((2, 3)) + 1) / (p.sum((2, 3)) + onehot.sum((2, 3)) + 1)
    return _every(F.cross_entropy, logits, labels), dice.mean(), F.cross_entropy(logits, other.softmax(1))


@IDIOMS.on(batch=(normal(17, 9), _labels(17, high=9)), one=(normal(1, 64), _labels(1, high=64)))
def negative_log_likelihood(logits: Any, labels: Any) -> Any:
    log_p = F.log_softmax(logits, dim=-1)
    return _every(F.nll_loss, log_p, labels), -log_p.gather(1, labels[:, None]).squeeze(1).mean()


@IDIOMS.on(
    column=(normal(65, 1, scale=5), booleans(65, 1).astype("float32"), uniform(1)),
    batch_1=(normal(1, 64, scale=30), booleans(1, 64).astype("float32"), uniform(64)),
)
def binary_cross_entropy(logits: Any, labels: Any, weight: Any) -> Any:
    return (
        _every(F.binary_cross_entropy_with_logits, logits, labels),
        _every(F.binary_cross_entropy, torch.sigmoid(logits / 9), labels),
        _every(F.binary_cross_entropy_with_logits, logits, labels, pos_weight=weight, weight=weight),
    )


@IDIOMS.on(
    vectors=(normal(67), normal(67, name="t")),
    rows=(normal(1, 64), normal(1, 64, name="t")),
    column=(normal(64, 1), normal(64, 1, name="t")),
)
def regression_losses(x: Any, y: Any) -> Any:
    return (
        _every(F.mse_loss, x, y),
        _every(F.l1_loss, x, y),
        _every(F.smooth_l1_loss, x, y, beta=0.5),
        _every(F.huber_loss, x, y, delta=0.7),
        torch.log(torch.cosh(x - y)).mean(),
        torch.maximum(0.9 * (y - x), -0.1 * (y - x)).mean(),
    )


@IDIOMS.on(
    batch=(normal(17, 9), normal(17, 9, name="t")),
    one=(normal(1, 64), normal(1, 64, name="t")),
    single=(normal(64, 1), normal(64, 1, name="t")),
)
def divergences(a: Any, b: Any) -> Any:
    p, q = F.log_softmax(a, -1), F.log_softmax(b, -1)
    m = torch.logsumexp(torch.stack([p, q]), dim=0) - torch.log(torch.tensor(2.0))
    return (
        [F.kl_div(p, q.exp(), reduction=r) for r in (*REDUCTIONS, "batchmean")],
        F.kl_div(p, q, reduction="batchmean", log_target=True),
        0.5 * (F.kl_div(m, p, log_target=True, reduction="sum") + F.kl_div(m, q, log_target=True, reduction="sum")),
    )


@IDIOMS.on(vectors=(normal(64), normal(64, name="t")), rows=(normal(1, 65), normal(1, 65, name="t")))
def margin_losses(x: Any, y: Any) -> Any:
    sign = torch.sign(y)
    return (
        _every(F.hinge_embedding_loss, x, sign),
        _every(F.soft_margin_loss, x, sign),
        _every(F.margin_ranking_loss, x, y, sign, margin=0.3),
        torch.clamp(1 - x * sign, min=0).pow(2).mean(),
    )


@IDIOMS.on(batch=(normal(17, 9), _labels(17, high=9)), one=(normal(1, 64), _labels(1, high=64)))
def multi_class_margins(x: Any, labels: Any) -> Any:
    target = F.one_hot(labels, x.shape[1])
    return (
        _every(F.multi_margin_loss, x, labels),
        _every(F.multilabel_soft_margin_loss, x, target.float()),
        _every(F.multilabel_margin_loss, x, torch.where(torch.arange(x.shape[1]) == 0, labels[:, None], -1)),
    )


@IDIOMS.on(
    batch=(normal(19, 32), normal(19, 32, name="p"), normal(19, 32, name="n")),
    one=(normal(1, 64), normal(1, 64, name="p"), normal(1, 64, name="n")),
)
def metric_learning(a: Any, p: Any, n: Any) -> Any:
    a_unit, p_unit = F.normalize(a, dim=1), F.normalize(p, dim=1)
    logits = a_unit @ p_unit.t() / 0.07
    labels = torch.arange(a.shape[0])
    sign = torch.where(labels % 2 == 0, 1.0, -1.0)
    return (
        _every(F.triplet_margin_loss, a, p, n, margin=0.5),
        _every(F.triplet_margin_loss, a, p, n, swap=True, p=1.0),
        (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2,
        _every(F.cosine_embedding_loss, a, p, sign, margin=0.2),
        F.triplet_margin_with_distance_loss(a, p, n, distance_function=lambda u, v: 1 - F.cosine_similarity(u, v)),
    )


@IDIOMS.on(batch=(normal(17, 5), uniform(17, 5, high=4), uniform(17, 5, low=0.1, name="v")))
def likelihood_losses(x: Any, counts: Any, var: Any) -> Any:
    return (
        _every(F.poisson_nll_loss, x, counts),
        _every(F.poisson_nll_loss, x.exp(), counts, log_input=False, full=True),
        _every(F.gaussian_nll_loss, x, counts, var),
        _every(F.gaussian_nll_loss, x, counts, var[:, :1], full=True),
    )


@IDIOMS.on(batch=(normal(33, 4), booleans(33, 4)), one=(normal(1, 64), booleans(1, 64)))
def focal_loss(logits: Any, labels: Any) -> Any:
    target = labels.to(logits.dtype)
    p = torch.sigmoid(logits)
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p_t = p * target + (1 - p) * (1 - target)
    return ((0.25 * target + 0.75 * (1 - target)) * ce * (1 - p_t) ** 2).mean()


@IDIOMS.on(boxes=(uniform(17, 4), uniform(17, 4, name="t")), one=(uniform(1, 4), uniform(1, 4, name="t")))
def generalised_box_overlap(a: Any, b: Any) -> Any:
    a, b = (torch.cat([v[:, :2], v[:, :2] + v[:, 2:]], dim=1) for v in (a, b))
    area_a, area_b = ((v[:, 2] - v[:, 0]) * (v[:, 3] - v[:, 1]) for v in (a, b))
    low, high = torch.max(a[:, None, :2], b[:, :2]), torch.min(a[:, None, 2:], b[:, 2:])
    wh = (high - low).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    union = area_a[:, None] + area_b - inter
    hull = (torch.max(a[:, None, 2:], b[:, 2:]) - torch.min(a[:, None, :2], b[:, :2])).prod(dim=2)
    return inter / union, inter / union - (hull - union) / hull


@IDIOMS.on(
    images=(uniform(1, 1, 12, 12), uniform(1, 1, 12, 12, name="t")),
    colours=(uniform(2, 3, 11, 13), uniform(2, 3, 11, 13, name="t")),
)
def image_losses(x: Any, y: Any) -> Any:
    mx, my = F.avg_pool2d(x, 7, 1), F.avg_pool2d(y, 7, 1)
    vx, vy = F.avg_pool2d(x * x, 7, 1) - mx**2, F.avg_pool2d(y * y, 7, 1) - my**2
    vxy = F.avg_pool2d(x * y, 7, 1) - mx * my
    ssim = (2 * mx * my + 1e-4) * (2 * vxy + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4))
    variation = (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()
    flat = x.flatten(2)
    gram = flat @ flat.transpose(1, 2) / flat.shape[-1]
    return 1 - ssim.mean(), variation, gram, 10 * torch.log10(1 / F.mse_loss(x, y))


@IDIOMS.on(speech=(normal(30, 2, 6), _labels(2, 5, high=5) + 1, torch.tensor([30, 25]), torch.tensor([5, 3])))
def connectionist_temporal_classification(logits: Any, targets: Any, input_lengths: Any, target_lengths: Any) -> Any:
    """CTC loss by the forward recursion over labels separated by blanks, for sequences of different lengths."""
    log_p = logits.log_softmax(-1)
    time, batch, _ = log_p.shape
    n = targets.shape[1]
    states = torch.zeros(batch, 2 * n + 1, dtype=torch.long)
    states[:, 1::2] = targets
    skip = torch.zeros(batch, 2 * n + 1, dtype=torch.bool)
    skip[:, 2:] = (states[:, 2:] != 0) & (states[:, 2:] != states[:, :-2])
    alpha = torch.full((batch, 2 * n + 1), -1e30)
    alpha[:, 0] = log_p[0, :, 0]
    alpha[:, 1] = log_p[0].gather(1, targets[:, :1]).squeeze(1)
    for t in range(1, time):
        one = F.pad(alpha[:, :-1], (1, 0), value=-1e30)
        two = torch.where(skip, F.pad(alpha[:, :-2], (2, 0), value=-1e30), -1e30)
        new = torch.logsumexp(torch.stack([alpha, one, two]), 0) + log_p[t].gather(1, states)
        alpha = torch.where((t < input_lengths)[:, None], new, alpha)
    last = alpha.gather(1, 2 * target_lengths[:, None])
    before = alpha.gather(1, 2 * target_lengths[:, None] - 1)
    return -torch.logaddexp(last, before).squeeze(1)
