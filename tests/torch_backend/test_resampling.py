"""Resampling and its gradient by `torch.compile`, compared with eager mode in float64."""

import warnings
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.torch_backend.compiled import assert_close, compiled

IMAGE, LINE, VOLUME = (2, 3, 6, 5), (2, 3, 7), (1, 2, 3, 4, 5)
RESAMPLED: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "nearest_twice": (IMAGE, {"scale_factor": 2}),
    "nearest_by_1.7": (IMAGE, {"scale_factor": 1.7}),
    "nearest_smaller": (IMAGE, {"size": (2, 3)}),
    "nearest_line": (LINE, {"scale_factor": 3}),
    "nearest_volume": (VOLUME, {"scale_factor": (2, 1, 3)}),
    "exact_thrice": (IMAGE, {"scale_factor": 3, "mode": "nearest-exact"}),
    "exact_to_size": (IMAGE, {"size": (7, 3), "mode": "nearest-exact"}),
    "bilinear_twice": (IMAGE, {"scale_factor": 2, "mode": "bilinear"}),
    "bilinear_aligned": (IMAGE, {"size": (9, 11), "mode": "bilinear", "align_corners": True}),
    "bilinear_smaller": (IMAGE, {"size": (4, 1), "mode": "bilinear"}),
    "bicubic_twice": (IMAGE, {"scale_factor": 2, "mode": "bicubic"}),
    "bicubic_aligned": (IMAGE, {"size": (4, 9), "mode": "bicubic", "align_corners": True}),
    "linear": (LINE, {"size": 12, "mode": "linear"}),
    "trilinear": (VOLUME, {"scale_factor": 2, "mode": "trilinear"}),
    "area": (IMAGE, {"size": (4, 3), "mode": "area"}),
    "area_many": ((1, 2, 40, 30), {"size": (3, 2), "mode": "area"}),
}


@pytest.mark.parametrize("name", RESAMPLED)
def test_values_and_gradients_are_those_of_eager_mode(name: str) -> None:
    sizes, options = RESAMPLED[name]
    x = torch.randn(sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def program(x: Any) -> Any:
        return F.interpolate(x, **options).sin()

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning says that PyTorch runs the graph
        found = compiled(program)(x)
        (gradient,) = torch.autograd.grad(found.sum(), x)
    wanted = program(x)
    assert_close(found, wanted, 1e-6)
    assert_close(gradient.contiguous(), torch.autograd.grad(wanted.sum(), x)[0], 1e-6)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_an_infinite_gradient_reaches_its_own_pixels_only(mode: str) -> None:
    x = torch.randn(1, 1, 6, 6, dtype=torch.float64).requires_grad_()
    gradients = torch.ones(1, 1, 9, 9, dtype=torch.float64)
    gradients[0, 0, 4, 4] = float("inf")

    def program(x: Any) -> Any:
        return F.interpolate(x, size=(9, 9), mode=mode)

    (found,) = torch.autograd.grad(compiled(program)(x), x, gradients)
    (wanted,) = torch.autograd.grad(program(x), x, gradients)
    assert torch.equal(found.isfinite(), wanted.isfinite())


def test_dispatch_of_pytorch_is_as_before_after_a_compilation() -> None:
    op = torch.ops.aten.upsample_nearest2d.vec
    before = dict(op.py_kernels)
    compiled(lambda x: F.interpolate(x, scale_factor=2))(torch.randn(1, 1, 2, 2))
    assert op.py_kernels == before


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_samples_of_volumes_are_those_of_eager_mode(mode: str, padding: str, align: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((2, 2, 3, 4, 5), dtype=torch.float64, generator=generator).requires_grad_()
    places = torch.rand((2, 3, 2, 4, 3), dtype=torch.float64, generator=generator) * 4 - 2
    grid = places.requires_grad_(mode == "bilinear")
    inputs = (x, grid) if mode == "bilinear" else (x,)

    def program(x: Any, grid: Any) -> Any:
        return F.grid_sample(x, grid, mode, padding, align_corners=align).sin()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compiled(program)(x, grid)
        gradients = torch.autograd.grad(found.sum(), inputs)
    wanted = program(x, grid)
    assert_close(found, wanted, 1e-9)
    for f, w in zip(gradients, torch.autograd.grad(wanted.sum(), inputs), strict=True):
        assert_close(f.contiguous(), w, 1e-9)


def test_samples_after_an_unsupported_op_are_a_program() -> None:
    x, grid = torch.rand(1, 1, 4, 4), torch.rand(1, 3, 3, 2)

    def program(x: Any, grid: Any) -> Any:
        return F.grid_sample(torch.special.bessel_j0(x), grid, align_corners=False)

    with pytest.warns(UserWarning, match="PyTorch runs 1 of the"):
        found = compiled(program, fallback=True)(x, grid)
    assert_close(found, program(x, grid), 1e-6)
