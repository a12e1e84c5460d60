from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from compiler.errors import UnsupportedError
from compiler.frontends.torch import argument_names, arguments, lower
from compiler.interpreter import evaluate
from compiler.ir.verifier import verify
from compiler.text import parse


def agree(module: Any, *args: Any, freeze: Any = False, tolerance: Any = 2e-5) -> Any:
    """Check that the lowered program, interpreted, agrees with torch, and that its text parses to the same program."""
    if isinstance(module, nn.Module):
        module.eval()
    lowered = lower(module, *args, freeze=freeze)
    verify(lowered)
    assert str(parse(str(lowered))) == str(lowered)
    with torch.no_grad():
        want = module(*args)
    want = list(want) if isinstance(want, tuple | list) else [want]
    got = evaluate(lowered, arguments(module, *args, freeze=freeze))
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.shape == tuple(b.shape)
        np.testing.assert_allclose(a.astype(np.float64), b.double().numpy(), rtol=tolerance, atol=tolerance)
    return lowered


def x(*shape: Any, seed: Any = 0) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def positive(*shape: Any) -> Any:
    return x(*shape).abs() + 0.5


def integers(*shape: Any, high: Any = 5) -> Any:
    return torch.from_numpy(np.random.default_rng(1).integers(0, high, shape))


POINTWISE = {
    "arithmetic": lambda a, b: (a + b * 2 - b / 3, a.add(b, alpha=0.5), 1 - a, torch.rsub(a, b, alpha=2)),
    "transcendental": lambda a, b: (a.exp(), b.abs().log1p(), a.sin(), b.cos(), a.tanh(), a.erf(), torch.expm1(b)),
    "roots_and_powers": lambda a, b: (a.abs().sqrt(), (b.abs() + 1).rsqrt(), a**2, a.abs() ** 1.5, 2.0**b, a.square()),
    "rounding": lambda a, b: (a.floor(), b.ceil(), (a * 3).round(), (b * 3).trunc(), a.sign()),
    "division": lambda a, b: (
        torch.div(a, b, rounding_mode="floor"),
        torch.div(a, b, rounding_mode="trunc"),
        torch.remainder(a, b),
        torch.fmod(a, b),
        a.reciprocal(),
    ),
    "comparison": lambda a, b: (a > b, a <= 0, (a == a) & ~(b != b), torch.where(a > 0, a, b), a.maximum(b)),
    "clamping": lambda a, b: (a.clamp(-0.5, 0.5), a.clamp(min=0), a.masked_fill(b > 0, -1.0), F.hardtanh(a)),
    "arctangents": lambda a, b: (torch.atan2(a, b), a.atan(), torch.log2(b.abs() + 1), torch.log10(b.abs() + 1)),
    "blends": lambda a, b: (torch.lerp(a, b, 0.3), torch.addcmul(a, a, b, value=2), torch.addcdiv(a, a, b.abs() + 1)),
    "tests": lambda a, b: (torch.isnan(a), torch.isinf(a / 0), torch.logical_not(a), torch.logical_xor(a > 0, b > 0)),
}


def together(table: Any) -> Any:
    """Combine all functions of a table into one, because exporting takes most of the time."""

    def every(*args: Any) -> Any:
        results: list[Any] = []
        for f in table.values():
            result = f(*args)
            results += result if isinstance(result, tuple) else [result]
        return tuple(results)

    return every


def test_pointwise() -> None:
    agree(together(POINTWISE), x(3, 4), x(3, 4, seed=1))


def test_broadcasting() -> None:
    agree(together({k: POINTWISE[k] for k in ("arithmetic", "comparison", "clamping")}), x(3, 1), x(4, seed=1))


def test_promotion_and_integers() -> None:
    def program(i: Any, a: Any) -> Any:
        return i + a, i // 2, -i // 3, i % 3, i.float().mean(), (i > 2).sum(), i * True, i.to(torch.int32) & 6

    agree(program, integers(2, 3), x(2, 3))


ACTIVATIONS = [
    "relu", "relu6", "silu", "gelu", "elu", "leaky_relu", "softplus", "hardswish", "hardsigmoid", "sigmoid", "mish",
    "selu", "tanhshrink", "softsign", "logsigmoid",
]  # fmt: skip


def test_activations() -> None:
    agree(lambda a: (*(getattr(F, n)(a) for n in ACTIVATIONS), F.gelu(a, approximate="tanh")), x(4, 5) * 3)


MOVEMENT = {
    "views": lambda a: (a.view(6, 4), a.reshape(-1), a.unsqueeze(1), a[:, None].squeeze(1), a.flatten(1)),
    "orders": lambda a: (a.permute(2, 0, 1), a.transpose(0, -1), a[0].t(), a.flip(0, 2), a.roll(1, 1)),
    "joins": lambda a: (torch.cat([a, a * 2], 1), torch.stack([a, a], -1), a.repeat(2, 1, 3)),
    "pieces": lambda a: (a[1:, ::2], a[..., -1], a[0, 1], *a.split(1, 1), *a.unbind(0), *a.chunk(2, -1)),
    "spread": lambda a: (a[:, :1].expand(2, 3, 4), F.pad(a, (1, 2, 0, 1)), F.pad(a, (-1, 0)), torch.zeros_like(a)),
    "made": lambda a: (torch.arange(5) + a[0, 0, 0], torch.full((2, 2), 7.0) + a[0, 0, 0], torch.eye(3) + a[0, 0, 0]),
    "triangles": lambda a: (a.tril(), a.triu(1), a.tril(-1)),
    "written": lambda a: (a.slice_scatter(a[:, :1] * 0, 1, 1, 2), a.select_scatter(a[1] * 2, 0, 0)),
}


def test_movement() -> None:
    agree(together(MOVEMENT), x(2, 3, 4))


INDEXING = {
    "embedding": lambda a, i: F.embedding(i, a),
    "index_select": lambda a, i: a.index_select(1, i[0] % 3),
    "index_one": lambda a, i: a[i],
    "index_negative": lambda a, i: a[-1 - i],
    "index_middle": lambda a, i: a[:, i % 3],
    "index_two": lambda a, i: a[i, i % 3],
    "gather": lambda a, i: a.gather(1, i % 3),
    "scatter": lambda a, i: a.scatter(1, i[:, :1] % 3, 9.0),
    "scatter_add": lambda a, i: a.scatter_add(0, i, a[:2]),
}


def test_indexing() -> None:
    agree(together(INDEXING), x(5, 3), integers(2, 3))


REDUCTIONS = {
    "sums": lambda a: (a.sum(), a.sum(1), a.sum((0, 2), keepdim=True), a.mean(-1), a.prod(1)),
    "extremes": lambda a: (a.amax(1), a.amin((0, 1)), *a.max(1), *a.min(2), a.max(), a.argmax(1), a.argmin()),
    "spread": lambda a: (a.var(1), a.std((0, 1), correction=0), torch.linalg.vector_norm(a, dim=1), a.var()),
    "truth": lambda a: ((a > 0).any(1), (a > 0).all(), (a > 0).sum(0)),
    "running": lambda a: (a.cumsum(1), a.cumsum(-1), a.cumprod(0)),
    "softmax": lambda a: (a.softmax(-1), a.log_softmax(1), a.logsumexp(2)),
    "order": lambda a: (*a.sort(1), *a.sort(-1, descending=True), *a.topk(2, 1), a.argsort(0)),
}


def test_reductions() -> None:
    agree(together(REDUCTIONS), x(2, 3, 4))


def test_argmax_takes_the_first_and_nan_wins() -> None:
    agree(lambda a: (a.argmax(1), a.argmin(1)), torch.tensor([[1.0, 1, 0], [0, float("nan"), 2], [-1, -1, -1]]))


PRODUCTS = {
    "mm": lambda a, b: a[0] @ b[0],
    "bmm": lambda a, b: a @ b,
    "broadcast": lambda a, b: a[0] @ b,
    "vector": lambda a, b: (a[0] @ b[0, :, 0], a[0, 0] @ b[0, :, 0]),
    "einsum": lambda a, b: torch.einsum("bij,bjk->ki", a, b),
    "baddbmm": lambda a, b: torch.baddbmm(a @ b, a, b, beta=0.5, alpha=2),
    "attention": lambda a, b: F.scaled_dot_product_attention(a, a * 2, a + 1),
}


def test_products() -> None:
    agree(together(PRODUCTS), x(2, 3, 4), x(2, 4, 5))


CONVOLUTIONS = [
    (nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
    (nn.Conv2d(4, 6, 3, stride=2, padding=1), (1, 4, 9, 8)),
    (nn.Conv2d(4, 8, 3, dilation=2, groups=2, bias=False), (1, 4, 9, 9)),
    (nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4)),
    (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), (1, 4, 5, 5)),
    (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, dilation=2), (1, 4, 5, 5)),
    (nn.ConvTranspose1d(3, 2, 4, stride=3), (2, 3, 5)),
]


class Several(nn.Module):
    """Runs several modules, each on its own input."""

    def __init__(self, modules: Any) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self, *inputs: Any) -> Any:
        return tuple(part(value) for part, value in zip(self.parts, inputs, strict=True))


def test_convolutions() -> None:
    agree(Several([m for m, _ in CONVOLUTIONS]), *(x(*shape) for _, shape in CONVOLUTIONS), tolerance=1e-4)


LAYERS = [
    (nn.LayerNorm([3, 4]), (2, 3, 4)),
    (nn.GroupNorm(2, 4), (2, 4, 3)),
    (nn.BatchNorm2d(3), (2, 3, 4, 4)),
    (nn.MaxPool2d(3, 2, 1), (1, 2, 9, 9)),
    (nn.MaxPool2d(2, ceil_mode=True), (1, 2, 5, 5)),
    (nn.AvgPool2d(2, padding=1, count_include_pad=False), (1, 2, 6, 6)),
    (nn.AvgPool2d(3, stride=1), (1, 2, 6, 6)),
    (nn.AdaptiveAvgPool2d(1), (1, 2, 6, 6)),
    (nn.AdaptiveAvgPool2d((3, 2)), (1, 2, 6, 6)),
    (nn.Upsample(scale_factor=2), (1, 2, 3, 3)),
    (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 3, 8)),
    (nn.Dropout(0.5), (2, 3)),
]


def test_layers() -> None:
    agree(Several([m for m, _ in LAYERS]), *(x(*shape) for _, shape in LAYERS))


def test_multi_head_attention() -> None:
    module = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    agree(lambda a: module(a, a, a, need_weights=False)[0], x(2, 3, 8))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, inputs: Any) -> Any:
        return self.layers(inputs).log_softmax(-1) * self.scale


def test_weights_are_parameters_with_their_names() -> None:
    lowered = agree(Network(), x(3, 4))
    names = argument_names(lowered)
    assert list(names.values()) == [
        "layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias", "scale", "inputs",
    ]  # fmt: skip
    assert list(names) == list(range(6))


def test_frozen_weights_are_constants() -> None:
    lowered = agree(Network(), x(3, 4), freeze=True)
    assert argument_names(lowered) == {0: "inputs"}


def test_half_precision() -> None:
    module = Network().to(torch.bfloat16)
    lowered = lower(module, x(3, 4).to(torch.bfloat16))
    verify(lowered)
    got = evaluate(lowered, arguments(module, x(3, 4).to(torch.bfloat16)))[0]
    with torch.no_grad():
        want = module(x(3, 4).to(torch.bfloat16)).float().numpy()
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=0.05, atol=0.05)


def test_an_op_without_a_lowering_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"aten\.linalg_ldl_factor"):
        lower(lambda a: torch.linalg.ldl_factor(a)[0].abs(), x(8, 8))
