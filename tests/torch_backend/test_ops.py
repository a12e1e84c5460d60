"""Ops that PyTorch keeps whole in the graphs of `torch.compile`, compiled and beside eager mode."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.torch_backend.compiled import assert_close, compiled, with_gradients


def drawn(*sizes: int, seed: int = 0) -> Any:
    return torch.randn(sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def pixels() -> Any:
    return drawn(2, 3, 7, 5)


SQUARE = drawn(4, 4) + torch.diag(torch.arange(4.0, dtype=torch.float64))
"""A matrix that is not symmetric, so that a transposed result differs."""

PROGRAMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "determinant": (lambda a: torch.linalg.det(a).sin(), (SQUARE,)),
    "determinant_by_columns": (lambda a: torch.linalg.det(a.t()).sin(), (SQUARE,)),
    "log_determinant": (lambda a: torch.linalg.slogdet(a)[1], (SQUARE,)),
    "solve": (lambda a, y: torch.linalg.solve(a, y).sin(), (SQUARE, drawn(4, 2, seed=1))),
    "solve_a_vector": (lambda a, y: torch.linalg.solve(a, y).sin(), (SQUARE, drawn(4, seed=1))),
    "solve_from_the_right": (lambda a, y: torch.linalg.solve(a, y, left=False).sin(), (SQUARE, drawn(2, 4, seed=1))),
    "exponential": (lambda a: torch.linalg.matrix_exp(torch.stack([a / 9, a - a.mT, a * 0])).sin(), (SQUARE,)),
    "antialias_bilinear": (lambda x: F.interpolate(x, size=(3, 8), mode="bilinear", antialias=True).sin(), (pixels(),)),
    "antialias_bicubic": (
        lambda x: F.interpolate(x, size=(3, 8), mode="bicubic", antialias=True, align_corners=True).sin(), (pixels(),),
    ),
    "grid_bilinear": (
        lambda x, g: F.grid_sample(x, g, align_corners=False), (pixels(), drawn(2, 4, 3, 2, seed=2) / 2),
    ),
    "grid_bicubic": (
        lambda x, g: F.grid_sample(x, g, "bicubic", "reflection", align_corners=True),
        (pixels(), drawn(2, 4, 3, 2, seed=2) / 2),
    ),
    "bag_by_maximum": (
        lambda w: F.embedding_bag(torch.tensor([0, 2, 2, 1]), w, torch.tensor([0, 2, 2]), mode="max").sin(),
        (drawn(3, 5),),
    ),
    "bag_by_sum": (lambda w: F.embedding_bag(torch.tensor([[0, 2], [1, 1]]), w, mode="sum").sin(), (drawn(3, 5),)),
    "bag_of_one": (
        lambda w: F.embedding_bag(torch.tensor([2, 0, 1]), w, torch.tensor([0, 2]), mode="sum").sin(), (drawn(3, 5),),
    ),
    "bag_with_padding": (
        lambda w: F.embedding_bag(torch.tensor([[0, 2], [1, 1]]), w, mode="mean", padding_idx=1).sin(), (drawn(3, 5),),
    ),
    "bag_by_frequency": (
        lambda w: F.embedding_bag(torch.tensor([[0, 1], [1, 1]]), w, mode="sum", scale_grad_by_freq=True).sin(),
        (drawn(3, 5),),
    ),
    "limited_embedding": (lambda w: F.embedding(torch.tensor([0, 2]), w * 1, max_norm=1.0).sin(), (drawn(3, 5),)),
    "put": (lambda x, y: x.put(torch.tensor([1, 11, 1]), y, accumulate=True).sin(), (drawn(3, 4), drawn(3, seed=1))),
    "window": (lambda x: x * torch.hamming_window(8, dtype=torch.float64), (drawn(3, 8),)),
    "multilabel_margin": (
        lambda x: F.multilabel_margin_loss(x, torch.tensor([[0, 2, -1, 1], [1, -1, 0, 0], [3, 1, 0, 2]])),
        (drawn(3, 4),),
    ),
    "multilabel_margin_of_a_number": (lambda x: F.multilabel_margin_loss(x, torch.tensor(0)), (drawn(),)),
    "segments_of_lengths": (
        lambda x: [
            torch.segment_reduce(x, r, lengths=torch.tensor([2, 0, 3]), initial=0.5)
            for r in ("sum", "mean", "max", "min", "prod")
        ],
        (drawn(5, 3),),
    ),
    "segments_between_offsets": (
        lambda x: [
            torch.segment_reduce(x, r, offsets=torch.tensor([[0, 1, 5], [0, 3, 5]]), axis=1)
            for r in ("sum", "mean", "max", "min", "prod")
        ],
        (drawn(2, 5, 3),),
    ),
    "eigenvalues": (
        lambda a: [torch.linalg.eigvals(a).abs().sum().sin(), torch.linalg.eig(a)[1].abs().square().sum(0)], (SQUARE,),
    ),
    "triangular_solve": (
        lambda a, y: [
            torch.triangular_solve(y, a, upper, transpose, unit)[0].sin()
            for upper in (False, True) for transpose in (False, True) for unit in (False, True)
        ],
        (SQUARE, drawn(2, 4, 2, seed=1)),
    ),
    "volume_sampler": (
        lambda x, g: torch.grid_sampler_3d(x, g, 0, 1, True), (drawn(1, 2, 3, 4, 5), drawn(1, 2, 3, 2, 3, seed=2) / 2),
    ),
    "forward_derivative_with_zeros": (lambda x: torch.func.jacfwd(lambda v: torch.exp(2 * v[1:]))(x), (drawn(3),)),
    "forward_derivative": (lambda x: torch.func.jacfwd(lambda v: torch.sin(v) * v)(x), (drawn(3),)),
}  # fmt: skip
FAST = ("determinant", "solve_from_the_right", "antialias_bilinear", "bag_by_maximum", "multilabel_margin")
"""Rows of the fast tier; the others are slow because forward and backward pass are compiled."""


def agree(name: str) -> None:
    program, args = PROGRAMS[name]

    class Module(nn.Module):
        def forward(self, *given: Any) -> Any:
            return program(*given)

    module = Module()
    assert_close(with_gradients(module, compiled(module), args), with_gradients(module, module, args), 1e-9)


@pytest.mark.parametrize("name", FAST)
def test_a_selection_agrees_with_eager(name: str) -> None:
    agree(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in FAST])
def test_every_op_agrees_with_eager(name: str) -> None:
    agree(name)


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_fast_path_of_an_encoder_layer(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first, activation="gelu").eval()
    x = drawn(3, 5, 8).float()
    hidden = torch.zeros(3, 5, dtype=torch.bool)
    hidden[0, 3:] = True
    call = compiled(layer)
    with torch.no_grad():
        for options in ({}, {"src_key_padding_mask": hidden}, {"src_mask": torch.triu(torch.ones(5, 5), 1).bool()}):
            assert_close(call(x, **options), layer(x, **options))


def test_the_fast_path_of_attention_returns_its_weights() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = drawn(3, 5, 8).float()
    call = compiled(lambda x: attention(x, x, x, average_attn_weights=False))
    with torch.no_grad():
        assert_close(call(x), attention(x, x, x, average_attn_weights=False))


def test_a_check_of_values_inside_a_training_step() -> None:
    weight = drawn(4, 4)

    def loss(w: Any) -> Any:  # the inverse is an op with an effect: it raises an error for singular matrices
        normal: Any = torch.distributions.Normal(w, w.exp())
        return normal.log_prob(torch.linalg.inv(w + 5 * torch.eye(4))).sum()

    first, second = weight.clone().requires_grad_(), weight.clone().requires_grad_()
    compiled(loss)(first).backward()
    loss(second).backward()
    assert_close(first.grad, second.grad, 1e-9)


def test_the_gradient_uses_the_value_of_a_buffer_once_updated() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.ones(1, dtype=torch.int64))

        def forward(self, x: Any) -> Any:
            self.count += x.shape[0]
            return x.sin() * self.count

    x = drawn(3, 4)
    module, eager = Module(), Module()
    call = compiled(module)
    for _ in range(2):
        assert_close(with_gradients(module, call, (x,)), with_gradients(eager, eager, (x,)), 1e-9)


def test_dropout_of_a_transposed_tensor_draws_the_numbers_of_eager_mode() -> None:
    call = compiled(lambda x: F.dropout(x.transpose(0, 1) * 2, 0.5), fallback_random=True)
    x = torch.ones(6, 5)
    torch.manual_seed(3)
    found = call(x)
    torch.manual_seed(3)
    assert_close(found, F.dropout(x.transpose(0, 1) * 2, 0.5))


def test_numbers_that_depend_on_no_tensor_are_drawn_by_pytorch() -> None:
    call = compiled(lambda x: x + torch.normal(1.0, 2.0, (3, 4)), fallback_random=True)
    torch.manual_seed(3)
    found = call(torch.zeros(3, 4))
    torch.manual_seed(3)
    assert_close(found, torch.normal(1.0, 2.0, (3, 4)))


def test_lists_of_tensors() -> None:
    def f(x: Any) -> Any:
        listed = [x, x[0] * 2]
        torch._foreach_addcdiv_(scaled := torch._foreach_mul(listed, 3.0), listed, torch._foreach_exp(listed), 0.5)
        return torch.stack(torch._foreach_norm(scaled)), torch._foreach_lerp(scaled, listed, 0.25)

    assert_close(compiled(f)(drawn(3, 4)), f(drawn(3, 4)), 1e-12)


def test_clipped_gradients_in_a_compiled_step() -> None:
    module = nn.Linear(4, 3).double()
    eager = copy.deepcopy(module)

    def step(m: Any, x: Any) -> None:
        m(x).square().sum().backward()
        nn.utils.clip_grad_norm_(m.parameters(), 0.1)

    compiled(lambda x: step(module, x))(drawn(5, 4))
    step(eager, drawn(5, 4))
    assert_close([p.grad for p in module.parameters()], [p.grad for p in eager.parameters()], 1e-9)


def test_pytorch_runs_graphs_of_nested_tensors() -> None:
    parts = [drawn(2, 3), drawn(4, 3)]
    given = torch.nested.nested_tensor(parts, layout=torch.jagged)
    with pytest.warns(UserWarning, match="nested tensors"):
        found = compiled(lambda x: (x * 2).sin(), fallback=True)(given)
    assert_close(found.unbind(), [(p * 2).sin() for p in parts])


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_images_of_integers_are_resized_in_floating_point_and_rounded(mode: str, antialias: bool) -> None:
    def resized(x: Any) -> Any:
        return F.interpolate(x, size=(3, 9), mode=mode, antialias=antialias)

    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 2, 5, 6)).astype(np.uint8))
    found = torch.compile(resized, backend="hlogym")(image)
    assert found.dtype is torch.uint8
    # PyTorch computes with weights of 16 bits, and rounds after rows and columns, as we do.
    assert (found.int() - resized(image).int()).abs().max() <= 2


def test_output_padding_larger_than_the_stride() -> None:
    layer = nn.ConvTranspose2d(
        4, 4, (2, 3), stride=(3, 2), padding=(1, 2), output_padding=(2, 3), groups=2, dilation=4
    ).double()
    x = drawn(2, 4, 4, 4)
    found = with_gradients(layer, compiled(layer), (x,))
    layer.zero_grad()
    assert_close(found[:2], with_gradients(layer, layer, (x,))[:2], 1e-9)


@pytest.mark.parametrize("padding", [None, 2])
def test_weights_of_the_rows_of_bags(padding: int | None) -> None:
    index, offsets = torch.tensor([1, 2, 0, 2, 3, 1]), torch.tensor([0, 2, 2])

    def bags(table: Any, weights: Any) -> Any:
        return F.embedding_bag(index, table, offsets, mode="sum", per_sample_weights=weights, padding_idx=padding)

    args = (drawn(4, 3), drawn(6))
    assert_close(with_gradients(nn.Module(), compiled(bags), args), with_gradients(nn.Module(), bags, args), 1e-9)


def test_a_search_through_rows_that_a_permutation_sorts() -> None:
    rows, wanted = drawn(3, 7), drawn(3, 4)
    order = rows.argsort(-1)

    def search(rows: Any, wanted: Any) -> Any:
        return torch.searchsorted(rows, wanted, sorter=order)

    assert_close(compiled(search)(rows, wanted), search(rows, wanted))


@pytest.mark.parametrize("size", [2, 9])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (0, 3)])
def test_indices_of_a_fixed_number_of_elements(shape: tuple[int, ...], size: int) -> None:
    def indices(x: Any) -> Any:
        return torch.nonzero_static(x, size=size, fill_value=-3)

    x = drawn(*shape) > 0
    assert_close(compiled(indices)(x), indices(x))


def test_batch_norm_by_running_statistics() -> None:
    def normalised(x: Any, mean: Any, variance: Any) -> Any:
        return torch._native_batch_norm_legit(x, None, None, mean, variance, False, 0.1, 1e-5)[0], mean + 1

    args = (drawn(4, 3, 5), drawn(3), drawn(3).abs())
    assert_close(compiled(normalised)(*args), normalised(*args), 1e-9)


@pytest.mark.parametrize("function", [torch.hypot, lambda x, y: x.sign() + 2 * y.sign()], ids=["hypot", "sign"])
def test_functions_of_special_numbers(function: Any) -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 3e38, -2.0])
    pairs = torch.cartesian_prod(x, x)
    found, wanted = (f(pairs[:, 0], pairs[:, 1]) for f in (compiled(function), function))
    torch.testing.assert_close(found, wanted, equal_nan=True)
