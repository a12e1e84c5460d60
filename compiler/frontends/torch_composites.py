"""Decompositions of large ATen ops for which PyTorch has none: fast paths of attention, resampling, exponentials."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["composites"]


def composites() -> dict[str, Callable[..., Any]]:
    """Return the decompositions by the name of an op, with its overload if this is not `default`."""
    torch: Any = importlib.import_module("torch")
    table: dict[str, Callable[..., Any]] = {
        "_native_multi_head_attention": functools.partial(_attention, torch),
        "_transformer_encoder_layer_fwd": functools.partial(_encoder_layer, torch),
        "linalg_matrix_exp": functools.partial(_matrix_exponential, torch),
        "put": _put,
    }
    for name, weight in (("bilinear", _triangle), ("bicubic", _cubic)):
        table[f"_upsample_{name}2d_aa"] = functools.partial(_resampled, torch, weight)
        table[f"_upsample_{name}2d_aa_backward"] = functools.partial(_resampled_backward, torch, weight)
    return table


# ---- inference of attention and encoder layers, which PyTorch computes by one op each


def _attention(
    torch: Any, query: Any, key: Any, value: Any, width: int, heads: int, qkv_weight: Any, qkv_bias: Any,
    out_weight: Any, out_bias: Any, mask: Any = None, need_weights: bool = True, average: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Return the result of multi-head attention, and its weights if requested.

    The mask is true where a position is hidden: [time, time] for type 0, [batch, time] for type 1, and for type 2
    [batch, heads, time, time].
    """
    linear = torch.nn.functional.linear
    if query is key and key is value:
        parts = linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        pairs = zip(qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
        parts = [linear(x, w, bias) for x, (w, bias) in zip((query, key, value), pairs, strict=True)]
    batch = query.shape[0]
    q, k, v = (p.view(batch, p.shape[1], heads, width // heads).transpose(1, 2) for p in parts)
    weights = (q / math.sqrt(width // heads)) @ k.transpose(-2, -1)
    if mask is not None:
        hidden = mask.to(torch.bool)
        hidden = hidden[:, None, None, :] if mask_type == 1 else hidden
        weights = weights.masked_fill(hidden, -math.inf)
    weights = weights.softmax(-1)
    mixed = (weights @ v).transpose(1, 2).reshape(batch, query.shape[1], width)
    found = linear(mixed, out_weight, out_bias)
    if not need_weights:
        return found, None
    return found, weights.mean(1) if average else weights


def _encoder_layer(
    torch: Any, x: Any, width: int, heads: int, qkv_weight: Any, qkv_bias: Any, out_weight: Any, out_bias: Any,
    use_gelu: bool, norm_first: bool, eps: float, scale_1: Any, shift_1: Any, scale_2: Any, shift_2: Any,
    up_weight: Any, up_bias: Any, down_weight: Any, down_bias: Any, mask: Any = None, mask_type: int | None = None,
) -> Any:  # fmt: skip
    """Return the result of a layer of a transformer encoder without dropout."""
    functional = torch.nn.functional

    def attend(y: Any) -> Any:
        return _attention(
            torch, y, y, y, width, heads, qkv_weight, qkv_bias, out_weight, out_bias, mask, False, True, mask_type
        )[0]

    def feed_forward(y: Any) -> Any:
        inner = functional.linear(y, up_weight, up_bias)
        inner = functional.gelu(inner) if use_gelu else functional.relu(inner)
        return functional.linear(inner, down_weight, down_bias)

    first = functools.partial(functional.layer_norm, normalized_shape=(width,), weight=scale_1, bias=shift_1, eps=eps)
    second = functools.partial(functional.layer_norm, normalized_shape=(width,), weight=scale_2, bias=shift_2, eps=eps)
    if norm_first:
        x = x + attend(first(x))
        return x + feed_forward(second(x))
    x = first(x + attend(x))
    return second(x + feed_forward(x))


# ---- resampling with a filter as wide as the step (antialias=True)


def _triangle(torch: Any, x: Any) -> Any:
    return (1 - x.abs()).clamp(min=0)


def _cubic(torch: Any, x: Any, a: float = -0.5) -> Any:
    """Return the cubic convolution kernel (Keys, 1981), with the parameter of antialiased filters."""
    x = x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def _filter(torch: Any, weight: Any, like: Any, inputs: int, outputs: int, aligned: bool, scale: float | None) -> Any:
    """Return the matrix [outputs, inputs] that resamples one dimension."""
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    if aligned:
        step = (inputs - 1) / (outputs - 1) if outputs > 1 else 0.0
    else:
        step = 1 / scale if scale else inputs / outputs
    wide = max(step, 1.0)
    reach = (2.0 if weight is _cubic else 1.0) * wide
    center = (torch.arange(outputs, dtype=dtype)[:, None] + 0.5) * step
    first = (center - reach + 0.5).clamp(min=0).floor()
    end = (center + reach + 0.5).floor().clamp(max=inputs)
    places = torch.arange(inputs, dtype=dtype)
    found = weight(torch, (places - center + 0.5) / wide)
    found = torch.where((places >= first) & (places < end), found, 0.0)
    return (found / found.sum(1, keepdim=True)).to(like.dtype)


def _filters(torch: Any, weight: Any, like: Any, inputs: Any, outputs: Any, aligned: bool, scales: Any) -> list[Any]:
    given = [*scales, None, None][:2]
    return [
        _filter(torch, weight, like, int(n), int(m), aligned, s)
        for n, m, s in zip(inputs[-2:], outputs, given, strict=True)
    ]


def _resampled(torch: Any, weight: Any, x: Any, output_size: Sequence[int], aligned: bool, *scales: Any) -> Any:
    if x.is_floating_point():
        rows, columns = _filters(torch, weight, x, x.shape, output_size, aligned, scales)
        return rows @ (x @ columns.mT)
    rows, columns = _filters(torch, weight, x.float(), x.shape, output_size, aligned, scales)
    limits = torch.iinfo(x.dtype)
    wide = (x.float() @ columns.mT).round().clamp(limits.min, limits.max)  # PyTorch rounds after columns and rows
    return (rows @ wide).round().clamp(limits.min, limits.max).to(x.dtype)


def _resampled_backward(
    torch: Any, weight: Any, grad: Any, output_size: Sequence[int], input_size: Sequence[int], aligned: bool,
    *scales: Any,
) -> Any:  # fmt: skip
    rows, columns = _filters(torch, weight, grad, input_size, output_size, aligned, scales)
    return rows.mT @ (grad @ columns)


# ---- others

_SQUARINGS = 16


def _matrix_exponential(torch: Any, x: Any) -> Any:
    """Return the exponential of matrices by scaling and squaring of a Taylor polynomial of degree 15.

    A matrix is halved until its norm is at most 1/2, which is enough up to a norm of 2^15.
    """
    if x.shape[-1] == 0:
        return x.clone()
    norm = x.abs().sum(-2).amax(-1)[..., None, None]
    halvings = torch.log2(norm.clamp(min=0.5) * 2).ceil().clamp(max=_SQUARINGS)
    scaled = x * torch.exp2(-halvings)
    powers = [torch.eye(x.shape[-1], dtype=x.dtype).expand(x.shape), scaled]
    powers += [scaled @ scaled]
    powers += [powers[2] @ scaled, powers[2] @ powers[2]]
    found: Any = None
    for block in (12, 8, 4, 0):  # a polynomial in the fourth power, whose coefficients have degree 3
        part = sum(powers[k] / math.factorial(block + k) for k in range(4))
        found = part if found is None else found @ powers[4] + part
    for k in range(_SQUARINGS):
        found = torch.where(k < halvings, found @ found, found)
    return found


def _put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    flat = x.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate)
    return flat.reshape(x.shape)
