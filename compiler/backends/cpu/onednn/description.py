"""Descriptions of oneDNN primitives: dataclasses here, JSON in saved programs, and a C structure for the calls."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compiler.ir.types import PrimitiveType as T

MAX_RANK, MAX_SPACE, MAX_TENSORS, MAX_POSTS = 6, 3, 8, 6
OPERATIONS = ("convolution", "deconvolution", "weights-gradient", "product", "max-pool", "sum-pool")
"""The operations in the order of `enum operation` in api.c."""

ELEMENT_TYPES = {T.F16: 1, T.BF16: 2, T.F32: 3, T.S32: 4, T.S8: 5, T.U8: 6}
"""oneDNN's number for each element type."""

POST_OPS = {
    "max-zero": 0x10000, "relu": 32, "tanh": 33, "square": 35, "abs": 36, "sqrt": 37, "linear": 38, "gelu-tanh": 43,
    "add": 0x1FFF0, "multiply": 0x1FFF1, "divide": 0x1FFF4, "subtract": 0x1FFF5,
}  # fmt: skip
"""oneDNN's number for each operation that can follow a primitive; "max-zero" is made of others in onednn.c."""


@dataclass(frozen=True)
class Tensor:
    """An array in oneDNN's order of dimensions.

    Attributes:
        element_type: type of the elements.
        dims: sizes, for example batch, features and space.
        strides: distance of neighbours in each dimension, in elements.
        free: whether the primitive may work on another memory layout, at the price of a reorder.
    """

    element_type: T
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    free: bool = False


def row_major(dims: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of an array without gaps whose last dimension is contiguous."""
    return tuple(math.prod(dims[d + 1 :]) for d in range(len(dims)))


@dataclass(frozen=True)
class PostOp:
    """An elementwise operation on the result of a primitive.

    Attributes:
        kind: a name in `POST_OPS`.
        operand: number of the tensor that a binary operation reads, or -1 for an operation with one operand.
        alpha, beta: parameters of the operation in oneDNN's terms.
    """

    kind: str
    operand: int = -1
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Space:
    """The window along one spatial dimension, in oneDNN's terms (`dilation` is 0 for neighbouring elements)."""

    kernel: int
    stride: int
    dilation: int
    low: int
    high: int


@dataclass(frozen=True)
class Description:
    """One primitive.

    Attributes:
        operation: a name in `OPERATIONS`.
        tensors: source, weights, bias if there is one, operands of `posts`; last the result.
        has_bias: whether the third tensor is a bias.
        posts: operations on the result, in order.
        space: the window, one entry per spatial dimension.
        one_thread: whether the work is too small to be divided among threads.
    """

    operation: str
    tensors: tuple[Tensor, ...]
    has_bias: bool = False
    posts: tuple[PostOp, ...] = ()
    space: tuple[Space, ...] = ()
    one_thread: bool = False

    @property
    def is_pooling(self) -> bool:
        """Whether the operation is a pooling, which has no weights."""
        return self.operation in ("max-pool", "sum-pool")

    def with_free_layouts(self) -> Description:
        """Return the description with the layouts of source, weights and result left to oneDNN; products stay."""
        if self.operation == "product":
            return self
        last = len(self.tensors) - 1
        tensors = (replace(t, free=t.free or n in (0, 1, last)) for n, t in enumerate(self.tensors))
        return replace(self, tensors=tuple(tensors))

    def to_json(self) -> dict[str, Any]:
        """Return the description as JSON data."""
        return {
            "operation": self.operation,
            "tensors": [[t.element_type.text, [*t.dims], [*t.strides], t.free] for t in self.tensors],
            "has_bias": self.has_bias,
            "posts": [[p.kind, p.operand, p.alpha, p.beta] for p in self.posts],
            "space": [[s.kernel, s.stride, s.dilation, s.low, s.high] for s in self.space],
            "one_thread": self.one_thread,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Description:
        """Return the description that `to_json` wrote; raise ValueError if it is not one."""
        types = {t.text: t for t in ELEMENT_TYPES}
        try:
            return Description(
                str(data["operation"]),
                tuple(
                    Tensor(types[t], tuple(dims), tuple(strides), free) for t, dims, strides, free in data["tensors"]
                ),
                bool(data["has_bias"]),
                tuple(PostOp(*p) for p in data["posts"]),
                tuple(Space(*s) for s in data["space"]),
                bool(data["one_thread"]),
            )
        except (KeyError, TypeError) as e:
            raise ValueError(f"not the description of a primitive: {e!r}") from e


class _Tensor(ctypes.Structure):
    """`struct tensor` of api.c."""

    _fields_ = [  # ctypes requires a list
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("free", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("dims", ctypes.c_int64 * MAX_RANK),
        ("strides", ctypes.c_int64 * MAX_RANK),
    ]


class _Post(ctypes.Structure):
    """`struct post` of api.c."""

    _fields_ = [  # ctypes requires a list
        ("algorithm", ctypes.c_int32),
        ("operand", ctypes.c_int32),
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
    ]


class CDescription(ctypes.Structure):
    """`struct description` of api.c."""

    _fields_ = [  # ctypes requires a list
        ("operation", ctypes.c_int32),
        ("tensors", ctypes.c_int32),
        ("has_bias", ctypes.c_int32),
        ("posts", ctypes.c_int32),
        ("tensor", _Tensor * MAX_TENSORS),
        ("post", _Post * MAX_POSTS),
        ("one_thread", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("kernel", ctypes.c_int64 * MAX_SPACE),
        ("stride", ctypes.c_int64 * MAX_SPACE),
        ("dilation", ctypes.c_int64 * MAX_SPACE),
        ("low", ctypes.c_int64 * MAX_SPACE),
        ("high", ctypes.c_int64 * MAX_SPACE),
    ]


def pack(d: Description) -> CDescription:
    """Return a description as the C structure; raise ValueError if it does not fit."""
    if len(d.tensors) > MAX_TENSORS or len(d.posts) > MAX_POSTS or len(d.space) > MAX_SPACE:
        raise ValueError("too many tensors, operations or spatial dimensions for one primitive")
    tensors = [
        _Tensor(ELEMENT_TYPES[t.element_type], len(t.dims), t.free, 0, _sizes(t.dims), _sizes(t.strides))
        for t in d.tensors
    ]
    posts = [_Post(POST_OPS[p.kind], p.operand, p.alpha, p.beta) for p in d.posts]
    return CDescription(
        OPERATIONS.index(d.operation), len(tensors), d.has_bias, len(posts),
        (_Tensor * MAX_TENSORS)(*tensors), (_Post * MAX_POSTS)(*posts), d.one_thread, 0,
        _spatial([s.kernel for s in d.space]), _spatial([s.stride for s in d.space]),
        _spatial([s.dilation for s in d.space]), _spatial([s.low for s in d.space]),
        _spatial([s.high for s in d.space]),
    )  # fmt: skip


def _sizes(values: Sequence[int]) -> Any:
    if len(values) > MAX_RANK:
        raise ValueError(f"a tensor has at most {MAX_RANK} dimensions")
    return (ctypes.c_int64 * MAX_RANK)(*values)


def _spatial(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * MAX_SPACE)(*values)
