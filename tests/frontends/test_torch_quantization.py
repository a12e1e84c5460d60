"""Fake quantization of PyTorch against eager, with values outside the grid, ties, infinities and NaN."""

from typing import Any

import pytest
import torch

from tests.frontends.test_torch_numbers import same

VALUES = torch.tensor(
    [[-3.0, -0.25, 0.05, 0.15, 0.25, 12.8, 1e30], [torch.nan, torch.inf, -torch.inf, 0.3, 0.0, -0.0, -12.9]]
)


@pytest.mark.parametrize("t", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.1, 0.3, 0.5])
def test_with_one_scale(t: torch.dtype, scale: float) -> None:
    def program(x: Any) -> Any:
        return torch.fake_quantize_per_tensor_affine(x, scale, 3, -128, 127)

    same(program, VALUES.to(t))


def test_with_tensors_for_scale_and_zero_point() -> None:
    scale, zero = torch.tensor([0.2]), torch.tensor([-4], dtype=torch.int32)
    same(lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z, 0, 15), VALUES, scale, zero)


@pytest.mark.parametrize("t", [torch.float32, torch.float64])
@pytest.mark.parametrize("axis", [0, 1])
def test_with_one_scale_per_channel(axis: int, t: torch.dtype) -> None:
    n = VALUES.shape[axis]
    scales, zeros = torch.linspace(0.1, 0.7, n), torch.arange(n, dtype=torch.int32)
    same(lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, axis, -8, 7), VALUES.to(t), scales, zeros)


def test_the_gradient_passes_where_the_integer_is_in_range() -> None:
    def gradient(program: Any) -> torch.Tensor:
        x = torch.tensor([-20.0, -1.0, 0.2, 20.0], requires_grad=True)
        (program(x) * torch.arange(1.0, 5.0)).sum().backward()
        assert x.grad is not None
        return x.grad

    def program(x: Any) -> Any:
        return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)

    compiled = torch.compile(program, backend="hlogym", options={"fallback": False})
    assert torch.equal(gradient(compiled), gradient(program))
