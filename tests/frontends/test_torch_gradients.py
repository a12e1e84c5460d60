"""Gradients of PyTorch's layers, losses and functions through the torch frontend, compared with `torch.func.grad`."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.nn import functional as F

from compiler.frontends.torch import argument_values
from compiler.frontends.torch_export import export
from compiler.frontends.torch_program import lower_program
from compiler.interpreter import evaluate
from compiler.ir.verifier import verify


def x(*shape: int, seed: int = 0) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def whole(*shape: int, high: int) -> Any:
    return torch.from_numpy(np.random.default_rng(1).integers(0, high, shape))


IMAGE = x(2, 4, 9, 8)
SQUARE = x(5, 5) + 5 * torch.eye(5)
GRADIENTS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "conv1d": (lambda v, w: F.conv1d(v, w, stride=3), (x(1, 4, 64), x(5, 4, 4))),
    "conv2d": (lambda v, w, b: F.conv2d(v, w, b, stride=2, padding=1), (IMAGE, x(6, 4, 3, 3), x(6))),
    "conv2d_groups": (
        lambda v, w: F.conv2d(v, w, None, (2, 1), (2, 0), (1, 2), groups=2),
        (IMAGE, x(6, 2, 3, 3)),
    ),
    "conv2d_depthwise": (lambda v, w: F.conv2d(v, w, groups=4), (IMAGE, x(8, 1, 3, 3))),
    "conv3d": (lambda v, w: F.conv3d(v, w, stride=2), (x(1, 2, 5, 5, 5), x(3, 2, 2, 2, 2))),
    "conv_transpose": (
        lambda v, w, b: F.conv_transpose2d(v, w, b, stride=2, padding=1, output_padding=1),
        (IMAGE, x(4, 3, 3, 3), x(3)),
    ),
    "conv_transpose_groups": (
        lambda v, w: F.conv_transpose2d(v, w, stride=2, groups=2, dilation=2),
        (IMAGE, x(4, 3, 3, 3)),
    ),
    "max_pool": (lambda v: F.max_pool2d(v, 3, 2, 1), (IMAGE,)),
    "max_pool1d": (lambda v: F.max_pool1d(v.flatten(2), 3), (IMAGE,)),
    "avg_pool": (lambda v: F.avg_pool2d(v, 3, 2, 1), (IMAGE,)),
    "avg_pool_ceil": (lambda v: F.avg_pool2d(v, 2, ceil_mode=True, count_include_pad=False), (IMAGE,)),
    "adaptive_avg_pool": (lambda v: F.adaptive_avg_pool2d(v, (4, 3)), (IMAGE,)),
    "adaptive_max_pool": (lambda v: F.adaptive_max_pool2d(v, (4, 3)), (IMAGE,)),
    "interpolate_nearest": (lambda v: F.interpolate(v, scale_factor=1.7), (IMAGE,)),
    "interpolate_bilinear": (lambda v: F.interpolate(v, size=(5, 13), mode="bilinear"), (IMAGE,)),
    "interpolate_bilinear_aligned": (
        lambda v: F.interpolate(v, size=(12, 5), mode="bilinear", align_corners=True),
        (IMAGE,),
    ),
    "interpolate_bicubic": (lambda v: F.interpolate(v, scale_factor=2, mode="bicubic"), (IMAGE,)),
    "interpolate_linear": (lambda v: F.interpolate(v.flatten(2), size=50, mode="linear"), (IMAGE,)),
    "pads": (
        lambda v: sum(F.pad(v, (1, 2, 2, 1), mode=m) for m in ("constant", "reflect", "replicate", "circular")),
        (IMAGE,),
    ),
    "unfold": (lambda v: F.unfold(v, 3), (IMAGE,)),
    "fold": (lambda v: F.fold(v, (5, 5), 2), (x(1, 8, 16),)),
    "pixel_shuffle": (lambda v: F.pixel_shuffle(v, 2), (IMAGE,)),
    "layer_norm": (lambda v, w, b: F.layer_norm(v, (8,), w, b), (IMAGE, x(8), x(8, seed=1))),
    "group_norm": (lambda v, w, b: F.group_norm(v, 2, w, b), (IMAGE, x(4), x(4, seed=1))),
    "batch_norm": (lambda v, w, b: F.batch_norm(v, None, None, w, b, True), (IMAGE, x(4), x(4, seed=1))),
    "instance_norm": (lambda v: F.instance_norm(v), (IMAGE,)),
    "rms_norm": (lambda v, w: F.rms_norm(v, (8,), w), (IMAGE, x(8))),
    "embedding": (lambda w, i: F.embedding(i, w), (x(7, 5), whole(3, 9, high=7))),
    "embedding_bag": (lambda w, i: F.embedding_bag(i, w), (x(7, 5), whole(3, 9, high=7))),
    "embedding_bag_sum": (lambda w, i, s: F.embedding_bag(i, w, mode="sum", per_sample_weights=s),
                          (x(7, 5), whole(3, 9, high=7), x(3, 9))),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q * 2, q + 1, is_causal=True), (x(1, 2, 17, 8),)),
    "cross_entropy": (lambda v, t: F.cross_entropy(v, t, label_smoothing=0.1), (x(5, 7), whole(5, high=7))),
    "cross_entropy_2d": (lambda v, t: F.cross_entropy(v, t, ignore_index=1), (x(2, 3, 4, 4), whole(2, 4, 4, high=3))),
    "binary_cross_entropy": (lambda v, t: F.binary_cross_entropy_with_logits(v, t), (x(17), x(17, seed=1).sigmoid())),
    "huber": (lambda v, t: F.huber_loss(v, t) + F.smooth_l1_loss(v, t), (x(17), x(17, seed=1))),
    "kl_div": (lambda v, t: F.kl_div(v.log_softmax(-1), t.softmax(-1)), (x(5, 4), x(5, 4, seed=1))),
    "multi_margin": (lambda v: F.multi_margin_loss(v, torch.tensor([1, 2])), (x(2, 3),)),
    "multilabel_margin": (
        lambda v: F.multilabel_margin_loss(v, torch.tensor([[1, 2, -1], [0, -1, 0]])),
        (x(2, 3),),
    ),
    "triplet": (lambda u, v: F.triplet_margin_loss(u, v, v.flip(0)), (x(4, 3), x(4, 3, seed=1))),
    "ctc": (
        lambda v: F.ctc_loss(
            v.log_softmax(-1), torch.tensor([[1, 2], [2, 1]]), torch.tensor([6, 5]), torch.tensor([2, 2])
        ),
        (x(6, 2, 4),),
    ),
    "gaussian_nll": (lambda v, t, s: F.gaussian_nll_loss(v, t, s.exp()), (x(6), x(6, seed=1), x(6, seed=2))),
    "activations": (
        lambda v: sum(
            f(v)
            for f in (
                F.gelu, F.silu, F.elu, F.leaky_relu, F.softplus, F.mish, F.hardswish, F.selu, F.logsigmoid, F.relu6,
                F.hardtanh, F.celu, F.softsign, F.hardsigmoid, torch.tanh,
            )
        ),
        (x(17),),
    ),
    "glu": (lambda v: F.glu(v), (x(3, 16),)),
    "prelu": (lambda v, w: F.prelu(v, w), (x(3, 4), x(4))),
    "gather": (lambda v, i: v.gather(1, i), (x(5, 7), whole(5, 3, high=7))),
    "index": (lambda v, i: v[i], (x(5, 7), whole(9, high=5))),
    "index_add": (lambda v, i: torch.zeros(9, 7).index_add(0, i, v), (x(5, 7), whole(5, high=9))),
    "order": (lambda v: v.sort(1)[0] + v.max(1, keepdim=True)[0] + v.topk(1)[0] + v.median(1, True)[0], (x(5, 7),)),
    "running": (lambda v: v.cumsum(1) + v.cumprod(0) + v.logcumsumexp(1), (x(5, 7),)),
    "norms": (lambda v: sum(v.norm(p=p, dim=1) for p in (1, 2, 3, float("inf"))), (x(5, 7),)),
    "spread": (lambda v: v.std(1) + v.var(1) + v.logsumexp(1) + v.prod(1) + v.amin(1), (x(5, 7),)),
    "cdist": (lambda u, v: sum(torch.cdist(u, v, p=p) for p in (0.0, 1.0, 2.0, 3.0)), (x(5, 7), x(3, 7, seed=1))),
    "choices": (lambda v: torch.where(v > 0, v, v * 2).masked_fill(v > 1, 0.0).clamp(-1, 0.5), (x(5, 7),)),
    "movement": (lambda v: torch.cat([v, v * 2]).roll(1, 1).flip(0).tril().repeat(2, 1).diff(dim=1), (x(3, 4),)),
    "cholesky": (lambda v: torch.linalg.cholesky(v @ v.T + torch.eye(5)), (SQUARE,)),
    "solve": (torch.linalg.solve, (SQUARE, x(5, 2))),
    "inverse": (torch.linalg.inv, (SQUARE,)),
    "determinant": (lambda v: torch.linalg.slogdet(v)[1] + torch.linalg.det(v / 5), (SQUARE,)),
    "eigenvalues": (lambda v: torch.linalg.eigh(v + v.T)[0], (SQUARE,)),
    "singular_values": (torch.linalg.svdvals, (x(5, 3),)),
    "fourier": (lambda v: torch.fft.rfft(v).abs(), (x(5, 8),)),
    "special": (
        lambda v: torch.lgamma(v.exp()) + torch.digamma(v.exp()) + torch.erf(v) + torch.erfc(v),
        (x(17),),
    ),
}  # fmt: skip
FAST = ("conv2d_groups", "conv_transpose", "avg_pool", "adaptive_max_pool", "interpolate_bicubic", "embedding_bag",
        "attention", "multilabel_margin", "cdist", "determinant")  # fmt: skip
"""Representative rows for the fast tier, combined into one program."""


def slope(name: str) -> Any:
    """Return the gradient of a loss of the function with respect to all floating-point arguments."""
    function, args = GRADIENTS[name]
    places = tuple(n for n, a in enumerate(args) if a.is_floating_point())
    return grad(lambda *inner: function(*inner).sin().sum(), argnums=places)


def agree(program: Any, *args: Any) -> None:
    exported = export(program, args, {})
    module = lower_program(exported, freeze=False)
    verify(module)
    found = evaluate(module, argument_values(exported, args, freeze=False, seed=None))
    wanted = torch.utils._pytree.tree_leaves(program(*args))
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.numpy().dtype, b.numpy().shape)
        size = float(b.abs().median())
        np.testing.assert_allclose(a, b.numpy(), rtol=2e-4, atol=2e-4 * (size or 1.0))


def test_a_selection_of_gradients_agrees_with_eager_torch() -> None:
    counts = [len(GRADIENTS[name][1]) for name in FAST]

    def program(*args: Any) -> Any:
        given = iter(args)
        return [slope(name)(*(next(given) for _ in range(n))) for name, n in zip(FAST, counts, strict=True)]

    agree(program, *(a for name in FAST for a in GRADIENTS[name][1]))


@pytest.mark.slow
@pytest.mark.parametrize("name", GRADIENTS)
def test_every_gradient_agrees_with_eager_torch(name: str) -> None:
    agree(slope(name), *GRADIENTS[name][1])


def test_transforms_within_transforms() -> None:
    def program(v: Any, w: Any) -> Any:
        return (
            hessian(lambda u: torch.tanh(u @ w).sum())(v), jacfwd(lambda u: torch.sin(u @ w))(v),
            jacrev(lambda u: torch.sin(u @ w))(v), jvp(lambda u: torch.sin(u @ w), (v,), (v * 2,)),
            vmap(grad(lambda u: (u.sin() * u).sum()))(w),
        )  # fmt: skip

    agree(program, x(5), x(5, 3))
