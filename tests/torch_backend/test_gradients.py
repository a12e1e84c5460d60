"""Gradients of ops for which PyTorch has no decomposition."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.torch_backend.compiled import assert_close, compiled, with_gradients


def _weight_norm(x: Any) -> Any:
    return torch._weight_norm(x, x.norm(dim=(1, 2), keepdim=True) * 2, 0) * x.cos()


PROGRAMS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "weight_norm": (_weight_norm, (3, 4, 2)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2, return_indices=True)[0].sin(), (1, 2, 4, 4, 4)),
    "masked_scatter": (lambda x: torch.zeros(3, 4, dtype=x.dtype).masked_scatter(x > 0, x * 2).sin(), (3, 4)),
    "pdist_2": (lambda x: F.pdist(x).sin(), (5, 3)),
    "pdist_1": (lambda x: F.pdist(x, 1.0).sin(), (5, 3)),
    "pdist_0": (lambda x: F.pdist(x, 0.0) + F.pdist(x), (5, 3)),
    "pdist_inf": (lambda x: F.pdist(x, float("inf")).sin(), (5, 3)),
    "pdist_3": (lambda x: F.pdist(x, 3.0).sin(), (5, 3)),
    "select_scatter": (lambda x: x.select_scatter(x[0] * 2, 0, 1).sin() + x[1], (3, 4)),
    "embedding_bag": (lambda x: F.embedding_bag(torch.tensor([[0, 2], [1, 1]]), x, mode="mean").sin(), (3, 4)),
    "conv_transpose": (lambda x: nn.functional.conv_transpose2d(x, x.sin(), stride=2).cos(), (2, 2, 3, 3)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x.sin(), x.cos(), is_causal=True), (1, 2, 5, 4)),
    "norms": (lambda x: x.norm() + x.norm(1, dim=0).sum() + torch.linalg.matrix_norm(x), (3, 4)),
    "cumulative": (lambda x: x.cumsum(0).sin() + x.cumprod(1) + x.logcumsumexp(0), (3, 4)),
    "sorting": (lambda x: x.sort(1).values.cos() * x.topk(4, 1).values, (3, 4)),
    "complex_factor": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2j, n=4).sin(), (3, 4)),
    "padding": (lambda x: F.pad(F.pad(x, (1, 2), mode="replicate").sin(), (1, 1), mode="circular").cos(), (1, 3, 4)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_agree_with_eager(name: str) -> None:
    program, sizes = PROGRAMS[name]
    x = torch.randn(sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (wanted,) = torch.autograd.grad(program(x.double()).sum(), x)
    (found,) = torch.autograd.grad(compiled(program)(x).sum(), x)
    assert_close(found.contiguous(), wanted.contiguous(), 1e-9)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize(
    ("shape", "pads"),
    [((2, 3, 7), (3, 2)), ((2, 5, 6), (2, 1, 4, 0)), ((1, 2, 4, 5, 6), (1, 2, 3, 0, 2, 1)), ((2, 9), (-2, 4))],
)
def test_padding_that_mirrors_or_repeats(mode: str, shape: tuple[int, ...], pads: tuple[int, ...]) -> None:
    def padded(x: Any) -> Any:
        return F.pad(x, pads, mode=mode)

    x = torch.randn(shape, dtype=torch.float64)
    found, wanted = (with_gradients(nn.Module(), call, (x,)) for call in (compiled(padded), padded))
    assert_close(found, wanted, 1e-12)
