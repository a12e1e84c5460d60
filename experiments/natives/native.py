"""A program written twice, for JAX and for PyTorch, and the arrays that it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from env.suites import InputSpec, Normal, Randint, Uniform

__all__ = ["Input", "Native", "Table", "indices", "integers", "normal", "uniform"]


@dataclass(frozen=True)
class Input:
    """One array argument.

    Attributes:
        dims: its dimensions.
        dtype: its element type, by NumPy's name.
        spec: the distribution that its values are drawn from.
        index: whether it holds indices, which PyTorch takes as int64.
    """

    dims: tuple[int, ...]
    dtype: str
    spec: InputSpec
    index: bool = False


@dataclass(frozen=True)
class Native:
    """A program in the idiom of each peer. Both functions take the inputs in order and return one array or a tuple.

    Attributes:
        jax: function of JAX arrays.
        torch: function of tensors.
        inputs: the arguments.
        rtol: how far the outputs of two compilers may differ, relative to the size of the output's elements.
        compiled: whether Inductor compiles the PyTorch function; otherwise it runs in eager mode.
    """

    jax: Callable[..., Any]
    torch: Callable[..., Any]
    inputs: tuple[Input, ...]
    rtol: float = 1e-3
    compiled: bool = True


Table = dict[str, Native]


def normal(*dims: int, std: float = 1.0, dtype: str = "float32") -> Input:
    """Return an input with normal values."""
    return Input(dims, dtype, Normal(0.0, std))


def uniform(low: float, high: float, *dims: int, dtype: str = "float32") -> Input:
    """Return an input with uniform values in [low, high)."""
    return Input(dims, dtype, Uniform(low, high))


def integers(low: int, high: int, *dims: int, dtype: str = "int32") -> Input:
    """Return an input with integers from low to high - 1."""
    return Input(dims, dtype, Randint(low, high))


def indices(count: int, *dims: int) -> Input:
    """Return an input with indices below a count."""
    return Input(dims, "int32", Randint(0, count), index=True)
