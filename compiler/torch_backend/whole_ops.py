"""Keeps resampling ops whole while autograd is traced, so that their gradients are ops too.

PyTorch decomposes them into indexing before it differentiates. The gradient is then a scatter whose indices come from
the forward graph, so that nothing is known of them where it is compiled.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

_RESAMPLING = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
)  # fmt: skip


@contextlib.contextmanager
def whole_resampling() -> Iterator[None]:
    """Take PyTorch's Python decompositions of resampling ops out of dispatch within the block."""
    torch: Any = importlib.import_module("torch")
    keys = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
    taken = []
    for op in _overloads(torch):
        taken.append((op, {k: op.py_kernels.pop(k) for k in keys if k in op.py_kernels}))
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, kernels in taken:
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


def _overloads(torch: Any) -> Iterator[Any]:
    for name in _RESAMPLING:
        packet = getattr(torch.ops.aten, name)
        yield from (getattr(packet, overload) for overload in ("default", "vec") if overload in packet.overloads())
