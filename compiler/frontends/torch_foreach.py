"""Decompositions of ATen ops on lists of tensors (`_foreach_*`), by which optimizers and clipping are written."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["foreach_ops"]

_NAMED = [
    "abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "ceil", "clamp_max", "clamp_min", "clone", "cos",
    "cosh", "div", "erf", "erfc", "exp", "expm1", "floor", "frac", "lerp", "lgamma", "log", "log10", "log1p", "log2",
    "maximum", "minimum", "mm", "mul", "neg", "pow", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh",
    "sqrt", "sub", "tan", "tanh", "trunc",
]  # fmt: skip
"""Ops that apply the function of the same name to each tensor."""


def foreach_ops() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by the overload of an op."""
    torch: Any = importlib.import_module("torch")
    table: dict[str, Callable[..., Any]] = {name: getattr(torch, name) for name in _NAMED}
    table |= {
        "addcdiv": lambda x, a, b, value=1: x + value * (a / b),
        "addcmul": lambda x, a, b, value=1: x + value * (a * b),
        "clamp_max": lambda x, bound: torch.clamp(x, max=bound),
        "clamp_min": lambda x, bound: torch.clamp(x, min=bound),
        "copy": lambda x, source, *_: source.to(x.dtype).expand(x.shape).clone(),
        "max": torch.amax,
        "maximum": lambda x, bound: torch.clamp(x, min=bound),
        "minimum": lambda x, bound: torch.clamp(x, max=bound),
        "norm": lambda x, order=2, dtype=None: torch.linalg.vector_norm(x, order, dtype=dtype),
        "zero": torch.zeros_like,
    }
    found: dict[Any, Callable[..., Any]] = {}
    for name, function in table.items():
        packet = getattr(torch.ops.aten, f"_foreach_{name}", None)
        for overload in packet.overloads() if packet is not None else ():
            if "out" not in overload:
                found[getattr(packet, overload)] = functools.partial(_each, function, "Tensor" in overload)
    return found


def _each(function: Callable[..., Any], by_tensor: bool, *args: Any, **kwargs: Any) -> list[Any]:
    """Apply a function to the elements of lists; other arguments, and the elements of a tensor of scalars, recur."""
    count = len(next(a for a in args if isinstance(a, list | tuple)))
    given = list(args)
    if by_tensor and len(given) == 4:  # one value for each tensor
        given[3] = given[3].unbind(0)
    return [function(*[a[i] if isinstance(a, list | tuple) else a for a in given], **kwargs) for i in range(count)]
