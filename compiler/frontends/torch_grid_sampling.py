"""Sampling of images and volumes at given positions (`grid_sample`) by indexing, which has a gradient."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

__all__ = ["grid_sample", "grid_sampler"]

_SAMPLING = ("bilinear", "nearest", "bicubic")
_PADDING = ("zeros", "border", "reflection")


def grid_sample(
    torch: Any, x: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: Any = None
) -> Any:
    """Replace `torch.nn.functional.grid_sample`."""
    if x.dim() not in (4, 5) or mode not in _SAMPLING or padding_mode not in _PADDING:
        return torch.nn.functional.grid_sample(x, grid, mode, padding_mode, align_corners)
    how = (_SAMPLING.index(mode), _PADDING.index(padding_mode), bool(align_corners))
    return grid_sampler(torch, x, grid, *how)


def grid_sampler(torch: Any, x: Any, grid: Any, mode: int, padding_mode: int, align_corners: bool) -> Any:
    """Replace `torch.grid_sampler`."""
    if x.dim() == 5 and mode < 2:
        return _sampled_volumes(torch, x, grid, mode, padding_mode, align_corners)
    if x.dim() != 4:
        return torch.grid_sampler(x, grid, mode, padding_mode, align_corners)
    found: Any = importlib.import_module("torch._decomp.decompositions")._grid_sampler_2d
    return found(x, grid, mode, padding_mode, align_corners, _expand_grid=False)


def _sampled_volumes(torch: Any, x: Any, grid: Any, mode: int, padding_mode: int, align_corners: bool) -> Any:
    """Return [batch, features, depth, height, width] samples of volumes at the positions in `grid`.

    The last dimension of `grid` has the position along width, height and depth, from -1 to 1.
    """
    sizes = x.shape[2:]
    positions = grid.unsqueeze(1)  # the same for all features
    at = [_pixel(torch, positions[..., 2 - d], n, padding_mode, align_corners) for d, n in enumerate(sizes)]
    batch, feature = torch.arange(x.shape[0]).view(-1, 1, 1, 1, 1), torch.arange(x.shape[1]).view(-1, 1, 1, 1)

    def corner(places: Any) -> Any:
        """Return the samples at whole positions; those outside are zero."""
        inside = [(p >= 0) & (p < n) for p, n in zip(places, sizes, strict=True)]
        index = [p.clamp(0, n - 1).long() for p, n in zip(places, sizes, strict=True)]
        return torch.where(inside[0] & inside[1] & inside[2], x[batch, feature, *index], 0)

    if mode == 1:
        return corner([p.round() for p in at])
    low = [p.floor() for p in at]
    total: Any = 0
    for steps in itertools.product((0, 1), repeat=3):
        weight: Any = 1
        for p, first, step in zip(at, low, steps, strict=True):
            weight = weight * (p - first if step else first + 1 - p)
        total = total + corner([f + s for f, s in zip(low, steps, strict=True)]) * weight
    return total


def _pixel(torch: Any, position: Any, size: int, padding_mode: int, align_corners: bool) -> Any:
    """Return a position from -1 to 1 in pixels, brought into the volume if it is padded by its border."""
    at = (position + 1) / 2 * (size - 1) if align_corners else ((position + 1) * size - 1) / 2
    if padding_mode == 2:
        low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        if span == 0:
            return torch.zeros_like(at)
        away = (at - low).abs()
        turns, rest = (away / span).floor(), torch.fmod(away, span)
        at = torch.where(turns % 2 == 0, rest + low, span - rest + low)
    return at.clamp(0, size - 1) if padding_mode else at
