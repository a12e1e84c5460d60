"""Functional training code in PyTorch: norms, clipping, update rules, gradients, averages, schedules."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacrev, vmap
from torch.nn import functional as F

from tests.idioms.collection import Idioms, integers, normal

IDIOMS = Idioms()


def _list(*shapes: tuple[int, ...], name: str = "", scale: float = 1.0) -> list[Any]:
    return [torch.from_numpy(normal(*s, name=f"{name}{k}", scale=scale)) for k, s in enumerate(shapes)]


MANY = ((64,), (1, 64), (64, 1), (8, 1, 3, 3), (), (1,), (1, 1, 72), (17, 23))
LONG = ((1000,), (1, 1000), (1000, 1), (1, 1), (10, 100), (100, 10))


def _state(shapes: Any) -> tuple[Any, ...]:
    squares = [v.square() for v in _list(*shapes, name="v")]
    return _list(*shapes), _list(*shapes, name="g"), _list(*shapes, name="m", scale=0.1), squares


@IDIOMS.on(many=(_list(*MANY),), long=(_list(*LONG),))
def clip_gradients_by_norm(grads: Any) -> Any:
    total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g, 2.0) for g in grads]), 2.0)
    scale = torch.clamp(1.0 / (total + 1e-6), max=1.0)
    return total, [g * scale for g in grads]


@IDIOMS.on(many=(_list(*MANY),), long=(_list(*LONG),))
def norms_of_every_order(grads: Any) -> Any:
    infinite = torch.stack([g.abs().max() for g in grads]).max()
    return (
        [(g.norm(), g.norm(1), g.norm(float("inf"))) for g in grads],
        infinite,
        torch.cat([g.flatten() for g in grads]).norm(3),
    )


@IDIOMS.on(many=(_list(*MANY),))
def clip_gradients_by_value(grads: Any) -> Any:
    return [g.clamp(-0.5, 0.5) for g in grads], torch.nn.utils.parameters_to_vector(grads)


@IDIOMS.on(many=_state(MANY), long=_state(LONG))
def sgd_with_momentum(params: Any, grads: Any, momentum: Any, _: Any) -> Any:
    grads = [g.add(p, alpha=0.01) for g, p in zip(grads, params, strict=True)]
    momentum = [m.mul(0.9).add(g) for m, g in zip(momentum, grads, strict=True)]
    return [p.add(g.add(m, alpha=0.9), alpha=-0.1) for p, g, m in zip(params, grads, momentum, strict=True)], momentum


@IDIOMS.on(many=(*_state(MANY), torch.tensor(7.0)), long=(*_state(LONG), torch.tensor(1.0)))
def adam(params: Any, grads: Any, m: Any, v: Any, step: Any) -> Any:
    m = [a.lerp(g, 0.1) for a, g in zip(m, grads, strict=True)]
    v = [b.mul(0.999).addcmul(g, g, value=0.001) for b, g in zip(v, grads, strict=True)]
    c1, c2 = 1 - 0.9**step, 1 - 0.999**step
    denominators = [(b.sqrt() / c2.sqrt()).add(1e-8) for b in v]
    return [p.addcdiv(-1e-3 * a / c1, d) for p, a, d in zip(params, m, denominators, strict=True)], m, v


@IDIOMS.on(many=_state(MANY), long=_state(LONG))
def adamw_in_place(params: Any, grads: Any, m: Any, v: Any) -> Any:
    """AdamW on clones, with the in-place ops that optimizers use."""
    out = []
    for p, g, a, b in zip(params, grads, m, v, strict=True):
        q, a, b = p.clone(), a.clone(), b.clone()
        q.mul_(1 - 1e-3 * 0.1)
        a.mul_(0.9).add_(g, alpha=0.1)
        b.mul_(0.999).addcmul_(g, g, value=0.001)
        q.addcdiv_(a, b.sqrt().add_(1e-8), value=-1e-3)
        out.append((q, a, b))
    return out


@IDIOMS.on(many=_state(MANY))
def rmsprop_adagrad_and_lion(params: Any, grads: Any, m: Any, v: Any) -> Any:
    out = []
    for p, g, a, b in zip(params, grads, m, v, strict=True):
        square = 0.99 * b + 0.01 * g * g
        total = b + g.square()
        out.append(
            (
                p - 0.01 * g / (square.sqrt() + 1e-8),
                p - 0.1 * g / (total.sqrt() + 1e-10),
                p - 1e-4 * torch.sign(0.9 * a + 0.1 * g),
            )
        )
    return out


@IDIOMS.on(many=(_list(*MANY), _list(*MANY, name="n")), long=(_list(*LONG), _list(*LONG, name="n")))
def moving_average_of_parameters(average: Any, new: Any) -> Any:
    return [a.mul(0.999).add(n, alpha=0.001) for a, n in zip(average, new, strict=True)], [
        torch.lerp(a, n, 0.005) for a, n in zip(average, new, strict=True)
    ]


@IDIOMS.on(steps=(torch.arange(1000).float(),))
def learning_rate_schedule(step: Any) -> Any:
    warm = step / 100
    cosine = 0.5 * (1 + torch.cos(math.pi * ((step - 100) / 900).clamp(0, 1)))
    return (
        torch.where(step < 100, warm, cosine) * 3e-4,
        0.1 * 0.5 ** torch.floor(step / 30),
        0.1 * torch.rsqrt(step.clamp(min=1)),
    )


NET = nn.Sequential(nn.Linear(17, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 1)).requires_grad_(False)
PARAMETERS = {name: torch.from_numpy(normal(*p.shape, name=name, scale=0.3)) for name, p in NET.named_parameters()}


@IDIOMS.on(batch_32=(PARAMETERS, normal(32, 17), normal(32, 1)), batch_1=(PARAMETERS, normal(1, 17), normal(1, 1)))
def training_step_of_a_module(params: Any, x: Any, y: Any) -> Any:
    def loss(p: Any) -> Any:
        return F.mse_loss(functional_call(NET, p, (x,)), y)

    grads, value = grad_and_value(loss)(params)
    norm = torch.stack([g.norm() for g in grads.values()]).norm()
    scale = (0.5 / (norm + 1e-6)).clamp(max=1.0)
    return value, norm, {name: p - 0.1 * scale * grads[name] for name, p in params.items()}


@IDIOMS.on(batch=(normal(17, 5), normal(5), normal(9, 17), torch.from_numpy(integers(9, high=5)).long()))
def gradients_by_autograd(w: Any, b: Any, x: Any, labels: Any) -> Any:
    w, b = w.detach().requires_grad_(), b.detach().requires_grad_()
    loss = F.cross_entropy(x @ w + b, labels) + 1e-3 * (w.pow(2).sum() + b.pow(2).sum())
    dw, db = torch.autograd.grad(loss, (w, b))
    return loss.detach(), w.detach() - 0.1 * dw, b.detach() - 0.1 * db


@IDIOMS.on(batch=(normal(17, 5), normal(9, 17), normal(9, 5)))
def gradients_per_example(w: Any, x: Any, y: Any) -> Any:
    def loss(w: Any, x: Any, y: Any) -> Any:
        return (torch.tanh(x @ w) - y).pow(2).sum()

    grads = vmap(grad(loss), in_dims=(None, 0, 0))(w, x, y)
    norms = grads.flatten(1).norm(dim=1)
    return (grads * (1.0 / norms.clamp(min=1.0))[:, None, None]).mean(0), norms


@IDIOMS.on(vector=(normal(7), normal(7, 5)))
def jacobians_and_hessians(v: Any, w: Any) -> Any:
    return jacrev(lambda u: torch.sin(u @ w))(v), hessian(lambda u: torch.tanh(u @ w).sum())(v)


@IDIOMS.on(penalty=(normal(17, 1, scale=0.3), normal(8, 17), normal(8, 17, name="f"), normal(8, 1)))
def gradient_penalty(w: Any, real: Any, fake: Any, mix: Any) -> Any:
    between = mix * real + (1 - mix) * fake
    slopes = vmap(grad(lambda x: torch.tanh(x @ w).sum()))(between)
    return ((slopes.norm(2, dim=1) - 1) ** 2).mean()


@IDIOMS.on(
    convolution=(normal(4, 3, 3, 3), normal(4), normal(1, 3, 9, 8), normal(1, 4, 1, 1)),
    one_channel=(normal(1, 1, 3, 3), normal(1), normal(2, 1, 17, 5), normal(2, 1, 1, 1)),
)
def convolution_gradients(w: Any, b: Any, x: Any, y: Any) -> Any:
    def loss(w: Any, b: Any, x: Any) -> Any:
        h = F.relu(F.conv2d(x, w, b, padding=1))
        return F.mse_loss(F.adaptive_avg_pool2d(F.max_pool2d(h, 2), 1), y)

    return grad_and_value(loss, argnums=(0, 1, 2))(w, b, x)


@IDIOMS.on(
    layers=(normal(5, 1, 64), normal(64), normal(64), normal(3, 4, 6, 6), normal(4), normal(4)),
)
def normalisation_gradients(x: Any, scale: Any, bias: Any, image: Any, image_scale: Any, image_bias: Any) -> Any:
    def loss(x: Any, scale: Any, bias: Any, image: Any, image_scale: Any, image_bias: Any) -> Any:
        a = F.layer_norm(x, (64,), scale, bias)
        b = F.group_norm(image, 2, image_scale, image_bias)
        c = F.batch_norm(image, None, None, image_scale, image_bias, training=True)
        return a.sin().sum() + (b * c).sin().sum()

    return grad(loss, argnums=tuple(range(6)))(x, scale, bias, image, image_scale, image_bias)


@IDIOMS.on(
    attention=(
        normal(1, 2, 17, 8),
        normal(1, 2, 17, 8, name="k"),
        normal(37, 8),
        torch.from_numpy(integers(1, 17, high=37)).long(),
    )
)
def attention_and_embedding_gradients(q: Any, k: Any, table: Any, tokens: Any) -> Any:
    def loss(q: Any, k: Any, table: Any) -> Any:
        v = F.embedding(tokens, table).unsqueeze(1)
        mask = torch.ones(q.size(2), q.size(2)).tril() == 0
        weights = (q @ k.transpose(-1, -2)).masked_fill(mask, float("-inf")).softmax(-1)
        return (weights @ v).pow(2).sum()

    return grad(loss, argnums=(0, 1, 2))(q, k, table)
