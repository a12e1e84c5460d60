"""Histograms and reductions of segments, for which PyTorch has no decompositions, by indexing and scatters."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["histograms", "segment_reduce"]


def histograms() -> dict[str, Callable[..., Any]]:
    """Return the decompositions of histograms by the name of an op, with its overload if this is not `default`."""
    torch: Any = importlib.import_module("torch")
    table: dict[str, Callable[..., Any]] = {
        "histogram.bins_tensor": _of_edges,
        "histogram.bin_ct": _of_count,
        "_histogramdd_bin_edges": _all_edges,
        "_histogramdd_from_bin_cts": _of_counts,
        "_histogramdd_from_bin_tensors": _of_all_edges,
    }
    return {name: functools.partial(function, torch) for name, function in table.items()}


def _edges(torch: Any, x: Any, bins: int, limits: Sequence[float] | None) -> Any:
    """Return the edges [bins + 1] of bins of equal width, by default between the extreme values of `x`."""
    if limits is not None:
        low, high = limits
        return torch.linspace(low - 0.5 * (low == high), high + 0.5 * (low == high), bins + 1, dtype=x.dtype)
    if not x.numel():
        return torch.linspace(0.0, 1.0, bins + 1, dtype=x.dtype)
    low, high = x.amin(), x.amax()
    margin = torch.where(low == high, 0.5, 0.0).to(x.dtype)
    low, high = low - margin, high + margin
    # Both halves are computed from their own end, as by linspace.
    number, step = torch.arange(bins + 1), (high - low) / bins
    upper = number >= (bins + 1) // 2
    return torch.where(upper, high - (bins - number).to(x.dtype) * step, low + number.to(x.dtype) * step)


def _counted(torch: Any, x: Any, edges: Sequence[Any], weight: Any, density: bool) -> Any:
    """Return the histogram [bins, ...] of `x` [points, dimensions]; the last bins include their upper end."""
    sizes = [e.numel() - 1 for e in edges]
    inside = torch.ones(x.shape[0], dtype=torch.bool)
    place = torch.zeros(x.shape[0], dtype=torch.int64)
    for d, (e, n) in enumerate(zip(edges, sizes, strict=True)):
        column = x[:, d].contiguous()
        inside = inside & (column >= e[0]) & (column <= e[-1])
        number = torch.searchsorted(e.contiguous(), column, right=True) - 1
        place = place * n + number.clamp(0, n - 1)
    total = math.prod(sizes)
    ones = torch.ones(x.shape[0], dtype=x.dtype) if weight is None else weight.reshape(-1).to(x.dtype)
    # What is outside is counted in a bin of its own, which is dropped.
    found = torch.zeros(total + 1, dtype=x.dtype).scatter_add(0, torch.where(inside, place, total), ones)[:total]
    if density:
        volume: Any = torch.ones((), dtype=x.dtype)
        for e in edges:
            volume = (volume[..., None] * e.diff()).reshape(-1)
        found = found / (found.sum() * volume)
    return found.reshape(sizes)


def _of_edges(torch: Any, x: Any, bins: Any, *, weight: Any = None, density: bool = False) -> tuple[Any, Any]:
    return _counted(torch, x.reshape(-1, 1), [bins], weight, density), bins.clone()


def _of_count(
    torch: Any, x: Any, bins: int = 100, *, range: Sequence[float] | None = None, weight: Any = None,
    density: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    edges = _edges(torch, x, bins, range)
    return _counted(torch, x.reshape(-1, 1), [edges], weight, density), edges


def _all_edges(
    torch: Any, x: Any, bins: Sequence[int], *, range: Sequence[float] | None = None, weight: Any = None,
    density: bool = False,
) -> list[Any]:  # fmt: skip
    points = x.reshape(-1, x.shape[-1])
    limits = [None if range is None else range[2 * d : 2 * d + 2] for d, _ in enumerate(bins)]
    return [_edges(torch, points[:, d], n, limits[d]) for d, n in enumerate(bins)]


def _of_counts(
    torch: Any, x: Any, bins: Sequence[int], *, range: Sequence[float] | None = None, weight: Any = None,
    density: bool = False,
) -> Any:  # fmt: skip
    edges = _all_edges(torch, x, bins, range=range)
    return _counted(torch, x.reshape(-1, x.shape[-1]), edges, weight, density)


def _of_all_edges(torch: Any, x: Any, bins: Sequence[Any], *, weight: Any = None, density: bool = False) -> Any:
    return _counted(torch, x.reshape(-1, x.shape[-1]), bins, weight, density)


# ---- segments

_STARTS = {"sum": 0.0, "mean": 0.0, "max": -math.inf, "min": math.inf, "prod": 1.0}
_REDUCTIONS = {"sum": "sum", "mean": "sum", "max": "amax", "min": "amin", "prod": "prod"}


def segment_reduce(
    torch: Any, data: Any, reduce: str, *, lengths: Any = None, indices: Any = None, offsets: Any = None,
    axis: int = 0, unsafe: bool = False, initial: Any = None,
) -> Any:  # fmt: skip
    """Replace `torch.segment_reduce`: reduce runs of elements along an axis, given by their lengths or offsets.

    The result of an empty segment is `initial`, by default that of a reduction of nothing, and NaN for a mean.
    """
    axis = axis % data.dim()
    if reduce not in _STARTS or indices is not None or (lengths is None and offsets is None):
        return torch.segment_reduce(
            data, reduce, lengths=lengths, indices=indices, offsets=offsets, axis=axis, unsafe=unsafe, initial=initial
        )
    if lengths is not None:
        ends, starts = lengths.cumsum(-1), None
        sizes = lengths
    else:
        ends, starts = offsets[..., 1:], offsets[..., :1]
        sizes = offsets.diff(dim=-1)
    segments, n = ends.shape[-1], data.shape[axis]
    number = torch.arange(n, dtype=ends.dtype).expand(*ends.shape[:-1], n).contiguous()
    segment = torch.searchsorted(ends.contiguous(), number, right=True)
    if starts is not None:
        segment = torch.where(number < starts, segments, segment)
    rest = (1,) * (data.dim() - axis - 1)
    start = _STARTS[reduce] if initial is None else initial
    # Elements outside of all segments are added to one more, which is dropped.
    result = data.new_full((*data.shape[:axis], segments + 1, *data.shape[axis + 1 :]), start)
    result = result.scatter_reduce(
        axis, segment.reshape(*segment.shape, *rest).expand(data.shape), data, _REDUCTIONS[reduce]
    )
    result = result.narrow(axis, 0, segments)
    if reduce == "mean":
        count = sizes.reshape(*sizes.shape, *rest).to(data.dtype)
        if initial is None:
            return result / count
        return result / count.clamp(min=1)
    return result
