"""Metrics in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.idioms.collection import Idioms, booleans, integers, normal, uniform

IDIOMS = Idioms()


@IDIOMS.on(
    batch_32=(normal(32, 10), integers(32, high=10)),
    batch_1=(normal(1, 100), integers(1, high=100)),
    one_class=(normal(64, 1), integers(64, high=1)),
    half=(normal(65, 7, dtype=jnp.bfloat16), integers(65, high=7)),
)
def accuracy(logits: Any, labels: Any) -> Any:
    correct = jnp.argmax(logits, -1) == labels
    return jnp.mean(correct), jnp.sum(correct), (logits.argmax(-1) == labels).astype(jnp.float32).mean()


@IDIOMS.on(batch_32=(normal(32, 17), integers(32, high=17)), batch_1=(normal(1, 1000), integers(1, high=1000)))
def top_k_accuracy(logits: Any, labels: Any) -> Any:
    _, top = jax.lax.top_k(logits, 5)
    ranks = jnp.sum(logits > jnp.take_along_axis(logits, labels[:, None], 1), axis=1)
    return jnp.any(top == labels[:, None], axis=-1).mean(), (ranks < 5).mean(), (1.0 / (1 + ranks)).mean()


@IDIOMS.on(
    batch=(integers(100, high=7), integers(100, high=7, name="p")),
    one=(integers(1, high=7), integers(1, high=7, name="p")),
    none=(integers(0, high=7), integers(0, high=7, name="p")),
)
def confusion_matrix(labels: Any, predicted: Any) -> Any:
    matrix = jnp.zeros((7, 7), jnp.int32).at[labels, predicted].add(1)
    counts = jnp.bincount(labels * 7 + predicted, length=49).reshape(7, 7)
    recall = jnp.diagonal(matrix) / jnp.maximum(matrix.sum(1), 1)
    precision = jnp.diag(matrix) / jnp.maximum(matrix.sum(axis=0), 1)
    f1 = jnp.where(precision + recall > 0, 2 * precision * recall / (precision + recall), 0.0)
    expected = jnp.outer(matrix.sum(1), matrix.sum(0)) / jnp.maximum(matrix.sum(), 1)
    return matrix, counts, recall, precision, f1.mean(), expected


@IDIOMS.on(
    batch=(uniform(129), booleans(129)),
    one=(uniform(1), booleans(1)),
    column=(uniform(65, 1), booleans(65, 1)),
)
def precision_recall_and_brier(scores: Any, labels: Any) -> Any:
    predicted = scores > 0.5
    tp, fp = jnp.sum(predicted & labels), jnp.sum(predicted & ~labels)
    fn, tn = jnp.sum(~predicted & labels), jnp.sum(~predicted & ~labels)
    mcc = (tp * tn - fp * fn) / jnp.sqrt(jnp.maximum((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn), 1))
    return tp / jnp.maximum(tp + fp, 1), tp / jnp.maximum(tp + fn, 1), mcc, jnp.mean((scores - labels) ** 2)


@IDIOMS.on(
    batch=(uniform(129), booleans(129)),
    few=(uniform(17), booleans(17)),
    ties=(integers(65, high=4).astype(np.float32), booleans(65)),
)
def area_under_the_curve(scores: Any, labels: Any) -> Any:
    order = jnp.argsort(scores)
    ranks = jnp.zeros(scores.shape[0]).at[order].set(jnp.arange(1.0, scores.shape[0] + 1))
    positive = labels.sum()
    rank_sum = jnp.sum(jnp.where(labels, ranks, 0.0))
    by_ranks = (rank_sum - positive * (positive + 1) / 2) / (positive * (labels.shape[0] - positive))
    down = labels[jnp.argsort(-scores)]
    tpr, fpr = jnp.cumsum(down) / positive, jnp.cumsum(~down) / (~down).sum()
    precision = jnp.cumsum(down) / jnp.arange(1, down.shape[0] + 1)
    return by_ranks, jnp.trapezoid(tpr, fpr), jnp.sum(precision * down) / positive


@IDIOMS.on(
    text=(normal(2, 19, 33), integers(2, 19, high=33), booleans(2, 19, chance=0.8)),
    batch_1=(normal(1, 64, 17), integers(1, 64, high=17), booleans(1, 64, chance=0.8)),
)
def perplexity(logits: Any, tokens: Any, mask: Any) -> Any:
    lp = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], -1)[..., 0]
    total = jnp.sum(lp, where=mask[:, 1:])
    return jnp.exp(-total / mask[:, 1:].sum()), -total / jnp.log(2.0), jnp.exp(-jnp.mean(lp, axis=1, where=mask[:, 1:]))


@IDIOMS.on(
    table=(normal(17, 33), booleans(17, 33)),
    row=(normal(1, 64), booleans(1, 64)),
    column=(normal(64, 1), booleans(64, 1)),
    nothing=(normal(3, 20), np.zeros((3, 20), bool)),
)
def masked_means(x: Any, mask: Any) -> Any:
    count = mask.sum(-1)
    mean = jnp.where(mask, x, 0).sum(-1) / jnp.maximum(count, 1)
    with_nan = jnp.where(mask, x, jnp.nan)
    return (
        mean,
        jnp.mean(x, axis=0, where=mask),
        jnp.nanmean(with_nan, axis=1),
        jnp.nanstd(with_nan),
        jnp.max(x, axis=1, where=mask, initial=-jnp.inf),
        jnp.min(jnp.where(mask, x, jnp.inf), axis=0),
        jnp.nansum(with_nan, 0),
    )


@IDIOMS.on(
    bins=(uniform(100, 4), integers(100, high=4)),
    one=(uniform(1, 17), integers(1, high=17)),
)
def expected_calibration_error(probabilities: Any, labels: Any) -> Any:
    confidence = probabilities.max(-1)
    correct = (probabilities.argmax(-1) == labels).astype(jnp.float32)
    edges = jnp.linspace(0, 1, 11)
    which = jnp.clip(jnp.digitize(confidence, edges) - 1, 0, 9)
    count = jnp.bincount(which, length=10)
    gap = jnp.abs(jnp.bincount(which, weights=confidence, length=10) - jnp.bincount(which, weights=correct, length=10))
    return jnp.sum(gap) / labels.shape[0], count


@IDIOMS.on(
    batch=(normal(67), normal(67, name="t")),
    table=(normal(33, 3), normal(33, 3, name="t")),
    column=(normal(64, 1), normal(64, 1, name="t")),
)
def regression_metrics(predicted: Any, target: Any) -> Any:
    residual = target - predicted
    ss = jnp.sum((target - target.mean(0)) ** 2, 0)
    px, tx = predicted - predicted.mean(0), target - target.mean(0)
    pearson = jnp.sum(px * tx, 0) / jnp.sqrt(jnp.sum(px**2, 0) * jnp.sum(tx**2, 0))
    ranks = [jnp.argsort(jnp.argsort(v, axis=0), axis=0).astype(jnp.float32) for v in (predicted, target)]
    spearman = jnp.mean((ranks[0] - ranks[0].mean(0)) * (ranks[1] - ranks[1].mean(0)), 0) / (
        ranks[0].std(0) * ranks[1].std(0)
    )
    return (
        1 - jnp.sum(residual**2, 0) / ss,
        jnp.sqrt(jnp.mean(residual**2)),
        jnp.abs(residual).mean(),
        pearson,
        spearman,
        jnp.median(jnp.abs(residual), axis=0),
        1 - jnp.var(residual, 0) / jnp.var(target, 0),
    )


@IDIOMS.on(
    images=(booleans(2, 17, 16), booleans(2, 17, 16, name="b")),
    batch_1=(booleans(1, 64, 1), booleans(1, 64, 1, name="b")),
)
def intersection_over_union(a: Any, b: Any) -> Any:
    both, either = (a & b).sum((1, 2)), (a | b).sum((1, 2))
    return jnp.where(either > 0, both / either, 1.0), 2 * both / (a.sum((1, 2)) + b.sum((1, 2))), (a ^ b).mean()


@IDIOMS.on(
    steps=({"loss": jnp.float32(1.5), "correct": jnp.int32(3), "count": jnp.int32(9)}, normal(64), booleans(64)),
)
def accumulated_metrics(state: Any, losses: Any, correct: Any) -> Any:
    state = {
        "loss": state["loss"] + losses.sum(),
        "correct": state["correct"] + correct.sum(),
        "count": state["count"] + losses.size,
    }
    return state, state["loss"] / state["count"], state["correct"] / state["count"]


@IDIOMS.on(
    words=(integers(19, high=6), integers(23, high=6, name="b")),
    short=(integers(1, high=6), integers(64, high=6, name="b")),
)
def edit_distance(a: Any, b: Any) -> Any:
    def row(previous: Any, ch: Any) -> Any:
        change = previous[:-1] + (b != ch)
        drop = previous[1:] + 1
        best = jnp.minimum(change, drop)

        def along(left: Any, v: Any) -> Any:
            left = jnp.minimum(left + 1, v)
            return left, left

        _, rest = jax.lax.scan(along, previous[0] + 1, best)
        return jnp.concatenate([previous[:1] + 1, rest]), None

    last, _ = jax.lax.scan(row, jnp.arange(b.shape[0] + 1), a)
    return last[-1]


@IDIOMS.on(features=(normal(64, 5), normal(40, 5, name="b") + 0.5), one=(normal(64, 1), normal(33, 1, name="b")))
def maximum_mean_discrepancy(a: Any, b: Any) -> Any:
    def kernel(x: Any, y: Any) -> Any:
        apart = jnp.sum((x[:, None] - y[None]) ** 2, -1)
        return sum(jnp.exp(-apart / (2 * s**2)) for s in (0.5, 1.0, 2.0)).mean()  # type: ignore[union-attr]

    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)
