"""Replacements of PyTorch functions that cannot be traced, used during an export.

Some branch in Python on values of tensors only to check them (distributions, `gaussian_nll_loss`) or to choose a faster
algorithm (`TransformerEncoder` checks whether its mask is causal). Some have results whose size depends on the data in
general, but not in common uses (`bincount` with `minlength`).
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from compiler.errors import UnsupportedError
from compiler.frontends.torch_grid_sampling import grid_sample, grid_sampler
from compiler.frontends.torch_histograms import segment_reduce


@contextmanager
def substitutes(torch: Any, differentiable: bool = False) -> Iterator[None]:
    """Replace functions of PyTorch within the block, by differentiable ones if requested."""
    transformer: Any = importlib.import_module("torch.nn.modules.transformer")
    detect = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        with _mode(torch, _table(torch, differentiable)):
            yield
    finally:
        transformer._detect_is_causal_mask = detect


def _mode(torch: Any, table: dict[Any, Callable[..., Any]]) -> Any:
    class Substitutes(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        """Calls the replacement in the table, if any, instead of a function."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return table.get(func, func)(*args, **(kwargs or {}))

    return Substitutes()


def _table(torch: Any, differentiable: bool) -> dict[Any, Callable[..., Any]]:
    functional = torch.nn.functional

    def bincount(x: Any, weights: Any = None, minlength: int = 0) -> Any:
        if minlength <= 0:
            raise UnsupportedError(
                "the size of torch.bincount depends on the data; pass minlength=, which all values must be below"
            )
        ones = torch.ones_like(x) if weights is None else weights
        start = torch.zeros(minlength, dtype=torch.int64 if weights is None else _counted_in(torch, weights))
        return start.scatter_add(0, x.long(), ones.to(start.dtype))

    def ctc_loss(
        log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: str = "mean",
        zero_infinity: bool = False,
    ) -> Any:  # fmt: skip
        steps, lengths = torch.as_tensor(input_lengths), torch.as_tensor(target_lengths)
        loop = _unrolled if differentiable else importlib.import_module("torch._higher_order_ops.while_loop").while_loop
        return _ctc_loss(torch, loop, log_probs, targets, steps, lengths, blank, reduction, zero_infinity)

    def bound(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function without its first parameter; it has a name, which graphs need that PyTorch runs."""
        return functools.update_wrapper(functools.partial(function, torch), function)

    cov, corrcoef = bound(_covariance), bound(_correlation)
    return {
        torch.cov: cov,
        torch.Tensor.cov: cov,
        torch.corrcoef: corrcoef,
        torch.Tensor.corrcoef: corrcoef,
        torch.bincount: bincount,
        torch.Tensor.bincount: bincount,
        torch._is_all_true: lambda _: True,  # used by torch.distributions to check arguments
        functional.gaussian_nll_loss: bound(_gaussian_nll_loss),
        functional.ctc_loss: ctc_loss,
        functional.multi_margin_loss: bound(_multi_margin_loss),
        functional.multilabel_margin_loss: bound(_multilabel_margin_loss),
        functional.grid_sample: bound(grid_sample),
        torch.segment_reduce: bound(segment_reduce),
        **dict.fromkeys(_samplers(torch), bound(grid_sampler)),
    }


def _samplers(torch: Any) -> tuple[Any, ...]:
    return torch.grid_sampler, torch.grid_sampler_2d, torch.grid_sampler_3d


def substitute_calls(graph_module: Any) -> None:
    """Replace calls of a graph of TorchDynamo whose gradients have no decomposition, or a wrong one."""
    torch: Any = importlib.import_module("torch")
    functional = torch.nn.functional
    table = _table(torch, differentiable=True)
    chosen = (
        functional.ctc_loss, functional.multilabel_margin_loss, functional.grid_sample, torch.segment_reduce,
        *_samplers(torch),
    )  # fmt: skip
    for inner in graph_module.modules():
        nodes = [n for n in inner.graph.nodes if n.op == "call_function"] if hasattr(inner, "graph") else []
        changed = [n for n in nodes if n.target in chosen]
        for node in changed:
            node.target = table[node.target]
        if changed:
            inner.recompile()


def _counted_in(torch: Any, weights: Any) -> Any:
    return weights.dtype if weights.dtype in (torch.float32, torch.float64) else torch.float64


def _gaussian_nll_loss(
    torch: Any, x: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Any:
    if not hasattr(var, "shape"):
        var = var * torch.ones_like(x)
    if var.shape != x.shape and x.shape[:-1] == var.shape:
        var = var.unsqueeze(-1)
    with torch.no_grad():
        floor = (eps - var).clamp(min=0)
    var = var + floor  # a lower bound without effect on the gradient of `var`
    loss = 0.5 * (torch.log(var) + (x - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return _reduced(loss, reduction)


def _covariance(torch: Any, x: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """Return the covariance of rows; with too few observations PyTorch warns, and divides by zero as here."""
    rows = x.reshape(1, -1) if x.dim() < 2 else x
    rows = rows if rows.is_floating_point() or rows.is_complex() else rows.to(torch.get_default_dtype())
    weights = fweights if aweights is None else aweights if fweights is None else fweights * aweights
    if weights is None:
        total: Any = rows.shape[1]
        left: Any = max(total - correction, 0)
        mean = rows.mean(1, keepdim=True)
        apart = weighted = rows - mean
    else:
        total = weights.sum()
        mean = (rows * weights).sum(1, keepdim=True) / total
        apart = rows - mean
        weighted = apart * weights
        spread = total if aweights is None else (weights * aweights).sum() / total
        left = (total - correction * (spread if aweights is not None else 1)).clamp(min=0)
    return ((apart @ weighted.conj().T) / left).squeeze()


def _correlation(torch: Any, x: Any) -> Any:
    covariance = _covariance(torch, x)
    if covariance.dim() == 0:
        return covariance / covariance
    deviation = covariance.diagonal().real.sqrt()
    found = covariance / deviation[:, None] / deviation[None, :]
    return found if found.is_complex() else found.clamp(-1, 1)


def _multi_margin_loss(
    torch: Any, x: Any, target: Any, p: int = 1, margin: float = 1.0, weight: Any = None, size_average: Any = None,
    reduce: Any = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    """Return the mean over other classes i of max(0, margin - (x[target] - x[i])) ** p, times the target's weight."""
    rows = x if x.dim() == 2 else x.unsqueeze(0)
    labels = target.view(-1, 1)
    slack = (margin - rows.gather(1, labels) + rows).clamp(min=0)
    if p == 2:
        slack = slack * slack
    if weight is not None:
        slack = slack * weight[labels]
    others = torch.arange(rows.shape[1]) != labels
    loss = torch.where(others, slack, torch.zeros_like(slack)).sum(1) / rows.shape[1]
    return _reduced(loss if x.dim() == 2 else loss.squeeze(0), _reduction(torch, reduction, size_average, reduce))


def _multilabel_margin_loss(
    torch: Any, x: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Any:
    """Return the sum over true classes j and other classes i of max(0, 1 - (x[j] - x[i])), over the number of classes.

    The true classes are at the start of a row, up to the first -1; PyTorch's own decomposition also counts what
    follows.
    """
    if not x.ndim:  # a single number is a row of one class
        x, target = x.reshape(1), target.reshape(1)
    n = x.shape[-1]
    number = torch.arange(n)
    end = torch.where(target == -1, number, n).amin(-1, keepdim=True)
    counts = number < end
    labels = torch.where(counts, target, 0)
    # [..., j, i]: the true class j with every class i.
    is_true = ((labels.unsqueeze(-1) == number) & counts.unsqueeze(-1)).any(-2, keepdim=True)
    slack = (1 - x.gather(-1, labels).unsqueeze(-1) + x.unsqueeze(-2)).clamp(min=0)
    kept = torch.where(counts.unsqueeze(-1) & ~is_true, slack, torch.zeros_like(slack))
    return _reduced(kept.sum((-2, -1)) / n, _reduction(torch, reduction, size_average, reduce))


def _reduction(torch: Any, reduction: str, size_average: Any, reduce: Any) -> str:
    """Return how losses are reduced, given current or deprecated arguments."""
    if size_average is None and reduce is None:
        return reduction
    return str(torch.nn._reduction.legacy_get_string(size_average, reduce))


def _reduced(loss: Any, reduction: str) -> Any:
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def _unrolled(condition: Callable[..., Any], step: Callable[..., Any], state: Any) -> Any:
    """Run a loop while tracing, which requires that its condition is known then."""
    while condition(*state):
        state = step(*state)
    return state


def _ctc_loss(
    torch: Any, while_loop: Any, log_p: Any, targets: Any, steps: Any, lengths: Any, blank: int, reduction: str,
    zero_infinity: bool,
) -> Any:  # fmt: skip
    """Compute the forward recursion of connectionist temporal classification (Graves et al., 2006) over time.

    The states are the labels with blanks in between; `alpha` has the log probability of each state so far.
    """
    batched = log_p.dim() == 3
    if not batched:
        log_p, targets, steps, lengths = log_p.unsqueeze(1), targets.unsqueeze(0), steps.view(1), lengths.view(1)
    if targets.dim() == 1:
        raise UnsupportedError("torch.nn.functional.ctc_loss takes targets as one tensor (batch, length) here")
    time, batch, _ = log_p.shape
    width = 2 * targets.shape[1] + 1
    nothing = torch.full((batch, 1), -torch.inf, dtype=log_p.dtype)
    states = torch.full((batch, width), blank, dtype=torch.int64).slice_scatter(targets.long(), 1, 1, width, 2)
    # Two equal labels require the blank between them.
    skips = torch.cat([torch.zeros((batch, 2), dtype=torch.bool), states[:, 2:] != states[:, :-2]], 1)
    skips = skips & (states != blank)
    first = log_p[0].gather(1, states)
    alpha = torch.where(torch.arange(width) < 2, first, nothing)

    def step(t: Any, alpha: Any) -> tuple[Any, Any]:
        one = torch.cat([nothing, alpha[:, :-1]], 1)
        two = torch.where(skips, torch.cat([nothing, nothing, alpha[:, :-2]], 1), nothing)
        now = (log_p[t] if isinstance(t, int) else log_p.index_select(0, t.view(1))[0]).gather(1, states)
        new = torch.logsumexp(torch.stack([alpha, one, two]), 0) + now
        return t + 1, torch.where((t < steps)[:, None], new, alpha)

    start = 1 if while_loop is _unrolled else torch.ones((), dtype=torch.int64)
    _, alpha = while_loop(lambda t, _: t < time, step, (start, alpha))
    last = alpha.gather(1, 2 * lengths[:, None])
    before = alpha.gather(1, (2 * lengths[:, None] - 1).clamp(min=0))
    before = torch.where(lengths[:, None] > 0, before, nothing)
    loss = -torch.logaddexp(last, before).squeeze(1)
    if zero_infinity:
        loss = torch.where(torch.isinf(loss), torch.zeros_like(loss), loss)
    if reduction == "mean":
        return (loss / lengths.clamp(min=1)).mean()
    return loss.sum() if reduction == "sum" else loss if batched else loss.squeeze(0)
