"""Helpers to compare compiled functions with eager PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree

from compiler.torch_backend import register


def compiled(function: Any, *, dynamic: bool | None = None, **options: Any) -> Any:
    """Compile a function by the hlogym backend; by default an unsupported op is an error."""
    register()
    torch._dynamo.reset()
    return torch.compile(function, backend="hlogym", dynamic=dynamic, options={"fallback": False, **options})


def with_gradients(module: torch.nn.Module, call: Any, args: tuple[Any, ...]) -> list[Any]:
    """Return the outputs of a call, the gradients of parameters and arguments, and the buffers afterwards."""
    given = [
        a.detach().clone(memory_format=torch.preserve_format).requires_grad_() if a.is_floating_point() else a
        for a in args
    ]
    outputs = [o for o in _pytree.tree_leaves(call(*given)) if isinstance(o, torch.Tensor)]
    weights = torch.Generator().manual_seed(1)
    terms = [(o * torch.randn(o.shape, generator=weights, dtype=o.dtype)).sum() for o in outputs if o.requires_grad]
    total: Any = torch.stack(terms).sum()
    total.backward()
    gradients = [p.grad for p in module.parameters()] + [a.grad for a in given if a.requires_grad]
    return [o.detach() for o in outputs] + gradients + list(module.buffers())


def assert_close(found: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    """Check values, shapes, types and strides of tensors in equal structures."""
    first, second = _pytree.tree_leaves(found), _pytree.tree_leaves(wanted)
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
            assert [s for n, s in zip(a.shape, a.stride(), strict=True) if n > 1] == [
                s for n, s in zip(b.shape, b.stride(), strict=True) if n > 1
            ]
