"""Lowerings of ATen ops that resample, and of their gradients.

Interpolation is linear along each dimension, so its gradient is a product with the transposed matrix of each dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.frontends.torch_along import along
from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder, highest, lowest
from compiler.frontends.torch_indexing import take_at
from compiler.ir import HloInstruction, Opcode, PrimitiveType

LOWERINGS = Lowerings()
H = HloInstruction
Matrix = NDArray[Any]
Weights = Callable[[int, int, float | None, bool], Matrix]
"""Returns the matrix [given, wanted] of one dimension from its sizes, its scale factor and whether corners align."""


def _scale_factors(scales: Sequence[Any], spatial: int) -> list[Any]:
    """Return one factor per dimension, or None, from either of ATen's two signatures."""
    if scales and isinstance(scales[0], list | tuple):
        return list(scales[0])
    return [*scales[:spatial], *[None] * (spatial - len(scales))]


# ---- the nearest pixel


def _places(given: int, wanted: int, factor: float | None, shift: float) -> NDArray[Any]:
    """Return the input pixel of each output pixel, computed in single precision like PyTorch."""
    scale = np.float32(1 / factor) if factor else np.float32(given) / np.float32(wanted)
    at = (np.arange(wanted, dtype=np.float32) + np.float32(shift)) * scale
    places: NDArray[Any] = np.floor(at).astype(np.int64).clip(max=given - 1)
    return places


def _nearest_to(shift: float) -> Weights:
    def matrix(given: int, wanted: int, factor: float | None, _align: bool) -> Matrix:
        found = np.zeros((given, wanted))
        found[_places(given, wanted, factor, shift), np.arange(wanted)] = 1
        return found

    return matrix


def _resampled_to(shift: float) -> Any:
    def lowering(b: TorchBuilder, x: H, _size: Any = None, *scales: Any) -> H:
        """Resample with the input pixel that each output pixel falls into."""
        for dim, factor in enumerate(_scale_factors(scales, x.shape.rank - 2), start=2):
            x = take_at(b, x, _places(x.shape.dimensions[dim], b.out.dimensions[dim], factor, shift), dim)
        return x

    return lowering


# ---- weights of several pixels


def _positions(given: int, wanted: int, factor: float | None, align: bool) -> Matrix:
    """Return the position of each output pixel among the input pixels."""
    if align:
        return np.arange(wanted) * ((given - 1) / (wanted - 1) if wanted > 1 else 0.0)
    return (np.arange(wanted) + 0.5) * (1 / factor if factor else given / wanted) - 0.5


def _linear(given: int, wanted: int, factor: float | None, align: bool) -> Matrix:
    at = np.maximum(_positions(given, wanted, factor, align), 0)
    low = np.minimum(np.floor(at).astype(int), given - 1)
    matrix = np.zeros((given, wanted))
    columns = np.arange(wanted)
    matrix[low, columns] += 1 - (at - low)
    matrix[np.minimum(low + 1, given - 1), columns] += at - low
    return matrix


def _cubic(given: int, wanted: int, factor: float | None, align: bool) -> Matrix:
    """Return the weights of Keys' kernel with a = -3/4; pixels beyond the edge repeat it."""
    at = _positions(given, wanted, factor, align)
    low = np.floor(at).astype(int)
    matrix, a = np.zeros((given, wanted)), -0.75
    for k in range(-1, 3):
        d = np.abs(at - low - k)
        near = (a + 2) * d**3 - (a + 3) * d**2 + 1
        far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
        np.add.at(matrix, (np.clip(low + k, 0, given - 1), np.arange(wanted)), np.where(d <= 1, near, far))
    return matrix


def _resampled(weights: Weights) -> Any:
    def lowering(b: TorchBuilder, x: H, _size: Any, align: bool, *scales: Any) -> H:
        t = x.shape.element_type
        matrices = [
            (d, weights(x.shape.dimensions[d], b.out.dimensions[d], factor, align))
            for d, factor in enumerate(_scale_factors(scales, x.shape.rank - 2), start=2)
        ]
        if t.is_float:
            for d, matrix in matrices:
                x = along(b, x, d, matrix)
            return x
        for d, matrix in reversed(matrices):  # as PyTorch does images of integers: rounded after each dimension
            x = _to_integers(b, along(b, b.convert(x, T.F32), d, matrix), t)
        return x

    return lowering


def _to_integers(b: TorchBuilder, x: H, t: PrimitiveType) -> H:
    """Return numbers rounded to the nearest of a type of integers."""
    x = b.add(Opcode.ROUND_NEAREST_EVEN, x)
    x = b.binary(Opcode.MAXIMUM, x, lowest(t), x.shape.element_type)
    return b.convert(b.binary(Opcode.MINIMUM, x, highest(t), x.shape.element_type), t)


def _gradient(weights: Weights, has_align: bool) -> Any:
    def lowering(b: TorchBuilder, grad: H, size: Any, input_size: Sequence[int], *rest: Any) -> H:
        align, scales = (rest[0], rest[1:]) if has_align else (False, rest)
        for d, factor in enumerate(_scale_factors(scales, grad.shape.rank - 2), start=2):
            grad = along(b, grad, d, weights(int(input_size[d]), grad.shape.dimensions[d], factor, align).T)
        return grad

    return lowering


_NEAREST = {"upsample_nearest": 0.0, "_upsample_nearest_exact": 0.5}
"""The shift of output pixels before they are scaled, by op."""
_WEIGHTS = {
    "upsample_linear1d": _linear,
    "upsample_bilinear2d": _linear,
    "upsample_trilinear3d": _linear,
    "upsample_bicubic2d": _cubic,
}

for _name, _shift in _NEAREST.items():
    for _n in (1, 2, 3):
        LOWERINGS[f"{_name}{_n}d"] = _resampled_to(_shift)
        LOWERINGS[f"{_name}{_n}d_backward"] = _gradient(_nearest_to(_shift), has_align=False)
for _name, _weights in _WEIGHTS.items():
    LOWERINGS[_name] = _resampled(_weights)
    LOWERINGS[f"{_name}_backward"] = _gradient(_weights, has_align=True)
