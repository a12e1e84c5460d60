"""Decompositions of ATen ops without a lowering: those of PyTorch, and ours of ops for which it has none."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from compiler.frontends.torch_composites import composites
from compiler.frontends.torch_foreach import foreach_ops
from compiler.frontends.torch_histograms import histograms
from compiler.frontends.torch_program import is_lowered

__all__ = ["decompositions"]


@functools.lru_cache(maxsize=1)
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decomposition of each op that has no lowering, by the overload of the op."""
    tables: Any = importlib.import_module("torch._decomp")
    known = {**_own(), **foreach_ops(), **tables.decomposition_table, **tables.core_aten_decompositions()}
    return {op: f for op, f in known.items() if not is_lowered(op)}


def _own() -> dict[Any, Callable[..., Any]]:
    torch: Any = importlib.import_module("torch")
    table: dict[str, Callable[..., Any]] = {
        "_weight_norm_interface_backward": _weight_norm_backward,
        "max_pool3d_with_indices_backward": functools.partial(_max_pool3d_backward, torch),
        "masked_scatter_backward": functools.partial(_masked_scatter_backward, torch),
        "_pdist_forward": functools.partial(_distances_of_pairs, torch),
        "nonzero_static": functools.partial(_nonzero_static, torch),
        "embedding_renorm": functools.partial(_renormed, torch),
        "_pdist_backward": functools.partial(_distances_of_pairs_backward, torch),
        **composites(),
        **histograms(),
    }
    found: dict[Any, Callable[..., Any]] = {}
    for name, function in table.items():
        packet, _, overload = name.partition(".")
        if hasattr(torch.ops.aten, packet):
            found[getattr(getattr(torch.ops.aten, packet), overload or "default")] = function
    return found


def _renormed(torch: Any, weight: Any, indices: Any, max_norm: float, norm_type: float) -> Any:
    """Scale the rows with these indices whose norm is larger than `max_norm`."""
    norms = torch.linalg.vector_norm(weight, norm_type, dim=1, keepdim=True)
    used = torch.zeros_like(norms, dtype=torch.bool).index_fill(0, indices.reshape(-1), True)
    return torch.where(used & (norms > max_norm), weight * (max_norm / (norms + 1e-7)), weight)


def _nonzero_static(torch: Any, x: Any, *, size: int, fill_value: int = -1) -> Any:
    """Return the indices of the first elements that are not zero, [size, rank], and the fill value beyond them."""
    n = x.numel()
    chosen = (x != 0).reshape(-1)
    places = torch.where(chosen, chosen.cumsum(0) - 1, size).clamp(max=size)
    found = torch.full([size + 1], n, dtype=torch.int64).scatter(0, places, torch.arange(n))[:size]
    columns, step = [found.new_empty([size, 0])], n
    for d in x.shape:
        step //= max(d, 1)
        columns.append(torch.where(found < n, found // max(step, 1) % max(d, 1), fill_value)[:, None])
    return torch.cat(columns, 1)


def _weight_norm_backward(grad: Any, v: Any, g: Any, norms: Any, dim: int) -> tuple[Any, Any]:
    """Return the gradients of direction `v` and length `g` of the weight `v * g / norm(v)`."""
    others = [d for d in range(v.dim()) if d != dim % v.dim()]
    along = (grad * v).sum(others, keepdim=True)
    by_v = g / norms * (grad - v * along / norms**2)
    return by_v, along / norms


def _max_pool3d_backward(torch: Any, grad: Any, x: Any, *rest: Any) -> Any:
    """Add the gradient of each maximum to its place, given by an index into the volume."""
    del torch
    indices, batch = rest[-1], list(x.shape[:-3])
    flat = x.new_zeros([*batch, math.prod(x.shape[-3:])])
    spread = flat.scatter_add(-1, indices.reshape([*batch, -1]), grad.reshape([*batch, -1]))
    return spread.reshape(x.shape)


def _masked_scatter_backward(torch: Any, grad: Any, mask: Any, sizes: Sequence[int]) -> Any:
    """Return the gradient of the source, whose elements were written in order where the mask is true."""
    count = math.prod(sizes)
    chosen = mask.expand(grad.shape).reshape(-1)
    places = torch.where(chosen, chosen.long().cumsum(0) - 1, count)
    return grad.new_zeros([count + 1]).scatter_add(0, places, grad.reshape(-1))[:count].reshape(sizes)


def _pairs(torch: Any, x: Any) -> tuple[Any, Any, Any]:
    rows, columns = torch.triu_indices(x.shape[0], x.shape[0], 1).unbind(0)
    return rows, columns, x[rows] - x[columns]


def _distances_of_pairs(torch: Any, x: Any, p: float = 2.0) -> Any:
    if x.shape[0] < 2:
        return x.new_empty([0])
    return torch.linalg.vector_norm(_pairs(torch, x)[2], p, dim=-1)


def _distances_of_pairs_backward(torch: Any, grad: Any, x: Any, p: float, distances: Any) -> Any:
    if x.shape[0] < 2 or p == 0:
        return torch.zeros_like(x)
    rows, columns, apart = _pairs(torch, x)
    distance = distances[:, None]
    if p == 1:
        slope = apart.sign()
    elif math.isinf(p):
        slope = torch.where(apart.abs() == distance, apart.sign(), 0.0)
    else:
        slope = apart.sign() * (apart.abs() / distance) ** (p - 1)
    share = torch.where(distance == 0, 0.0, slope) * grad[:, None]
    return torch.zeros_like(x).index_add(0, rows, share).index_add(0, columns, -share)
