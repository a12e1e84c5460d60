"""Training of the cost model of kernels on a dataset of measured times."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.learned.kernel_model import LearnedKernelCost, priced_amounts
from experiments.kernel_times.matrices import TimesMatrix

__all__ = ["TrainingOptions", "fit_prices", "train"]

NOISE = 0.05
"""Noise of a time that halves its weight."""
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TrainingOptions:
    """The hyperparameters.

    Attributes:
        members: number of networks.
        hidden: units of each of two hidden layers.
        epochs: passes over the rows.
        batch: rows of a step.
        learning_rate: of AdamW at the start; it falls to 0 along a cosine.
        weight_decay: of AdamW.
        dropout: share of hidden units that a step leaves out.
        ratio_weight: weight of the error of the ratio to the default, relative to that of the time itself.
        sampled: share of the kernels that each member sees.
        seed: of weights, samples and batches.
    """

    members: int = 4
    hidden: int = 96
    epochs: int = 80
    batch: int = 512
    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    dropout: float = 0.2
    ratio_weight: float = 3.0
    sampled: float = 0.85
    seed: int = 0


def train(
    data: TimesMatrix, options: TrainingOptions, provenance: Mapping[str, Any], threads: int = 1
) -> LearnedKernelCost:
    """Return a model trained on all rows.

    Raises:
        ValueError: there are no rows.
    """
    if not len(data.log_seconds):
        raise ValueError("there is nothing to train on")
    prices = fit_prices(data)
    mean, deviation = data.features.mean(0), data.features.std(0)
    scale = np.where(deviation > 1e-6, deviation, 0.0).astype(np.float32)
    empty = LearnedKernelCost(prices, mean.astype(np.float32), scale, (), threads)
    linear = np.log(np.maximum(priced_amounts(data.features) @ prices.astype(np.float64), 1e-9))
    inputs = empty.inputs(data.features, linear)
    with _one_thread():
        members = tuple(_member(data, inputs, linear, options, options.seed + m) for m in range(options.members))
    facts = {**provenance, "rows": len(data.log_seconds), "options": asdict(options)}
    return LearnedKernelCost(prices, empty.mean, scale, members, threads, facts)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute on one thread: the networks are too small to be worth more."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fit_prices(data: TimesMatrix) -> Floats:
    """Return the prices of the linear part that minimize the squared relative error; none is negative."""
    from scipy.optimize import nnls

    seconds = np.exp(data.log_seconds)
    amounts = priced_amounts(data.features)
    largest = np.maximum((amounts / seconds[:, None]).max(0), 1e-30)  # columns of like size, for the solver
    found, _ = nnls(amounts / seconds[:, None] / largest, np.ones(len(seconds)), maxiter=20 * amounts.shape[1])
    return np.asarray(found / largest, np.float32)


def _member(
    data: TimesMatrix, inputs: Floats, linear: Doubles, options: TrainingOptions, seed: int
) -> tuple[tuple[Floats, Floats], ...]:
    """Return the layers of one network, trained on a sample of the kernels."""
    import torch
    from torch import nn

    rng = np.random.default_rng(seed)
    kernels = np.unique(data.kernel)
    seen = np.isin(data.kernel, kernels[rng.random(len(kernels)) < options.sampled] if len(kernels) > 4 else kernels)
    rows = np.flatnonzero(seen)
    generator = torch.Generator().manual_seed(seed)
    x = torch.from_numpy(inputs)
    y = torch.from_numpy((data.log_seconds - linear).astype(np.float32))
    ratio = torch.from_numpy((data.log_seconds - data.log_seconds[data.default]).astype(np.float32))
    shift = torch.from_numpy((linear - linear[data.default]).astype(np.float32))
    default = torch.from_numpy(data.default)
    weight, trust = (
        torch.from_numpy(1.0 / (1.0 + (n / NOISE) ** 2)) for n in (data.noise, data.noise + data.noise[data.default])
    )
    width = options.hidden
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        layers = [nn.Linear(x.shape[1], width), nn.Linear(width, width), nn.Linear(width, 1)]
        first, second, last = layers
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        parameters = [p for layer in layers for p in layer.parameters()]
        optimizer = torch.optim.AdamW(parameters, options.learning_rate, weight_decay=options.weight_decay)
        steps = options.epochs * max(1, -(-len(rows) // options.batch))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        drop = nn.Dropout(options.dropout)

        def network(values: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = last(drop(torch.relu(second(drop(torch.relu(first(values)))))))
            return out[:, 0]

        for _ in range(options.epochs):
            order = torch.from_numpy(rows)[torch.randperm(len(rows), generator=generator)]
            for at in torch.split(order, options.batch):
                both = network(torch.cat([x[at], x[default[at]]]))
                own, of_default = both[: len(at)], both[len(at) :]
                absolute = nn.functional.smooth_l1_loss(own, y[at], reduction="none", beta=0.2)
                relative = own - of_default + shift[at]
                error = nn.functional.smooth_l1_loss(relative, ratio[at], reduction="none", beta=0.1)
                loss = (weight[at] * absolute + options.ratio_weight * trust[at] * error).mean()
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                schedule.step()
    return tuple((layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy().copy()) for layer in layers)
