"""Models of sequences: a transformer block, a small GPT, a vision transformer and an LSTM."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from experiments.natives.convolution import jax_conv
from experiments.natives.dense_models import layer
from experiments.natives.losses import jax_cross_entropy
from experiments.natives.native import Input, Native, Table, indices, normal
from experiments.natives.normalisation import jax_layer_norm
from experiments.natives.products import jax_attention
from experiments.natives.training import RATE, adam_step, sgd_step

__all__ = ["TABLE"]

PER_BLOCK = 12
HEAD = 32


def block_weights(width: int) -> tuple[Input, ...]:
    """Return the weights of a pre-norm transformer block."""
    norm = (normal(width, std=0.5), normal(width, std=0.1))
    return (
        *norm, *layer(width, 3 * width), *layer(width, width),
        *norm, *layer(width, 4 * width), *layer(4 * width, width),
    )  # fmt: skip


def jax_block(weights: tuple[jax.Array, ...], x: jax.Array, causal: bool) -> jax.Array:
    """Return the output of a pre-norm transformer block."""
    g1, c1, wqkv, bqkv, wo, bo, g2, c2, w1, b1, w2, b2 = weights
    batch, length, width = x.shape
    qkv = (jax_layer_norm(x, g1, c1) @ wqkv + bqkv).reshape(batch, length, 3, width // HEAD, HEAD)
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    joined = jax_attention(q, k, v, causal=causal).transpose(0, 2, 1, 3).reshape(batch, length, width)
    x = x + joined @ wo + bo
    return x + jax.nn.gelu(jax_layer_norm(x, g2, c2) @ w1 + b1) @ w2 + b2


def torch_block(weights: tuple[torch.Tensor, ...], x: torch.Tensor, causal: bool) -> torch.Tensor:
    """Return the output of a pre-norm transformer block."""
    g1, c1, wqkv, bqkv, wo, bo, g2, c2, w1, b1, w2, b2 = weights
    batch, length, width = x.shape
    qkv = F.layer_norm(x, (width,), g1, c1) @ wqkv + bqkv
    q, k, v = qkv.view(batch, length, 3, width // HEAD, HEAD).permute(2, 0, 3, 1, 4).unbind(0)
    joined = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    x = x + joined.transpose(1, 2).reshape(batch, length, width) @ wo + bo
    return x + F.gelu(F.layer_norm(x, (width,), g2, c2) @ w1 + b1, approximate="tanh") @ w2 + b2


# ---- GPT: 2 layers of width 128 over 1,000 tokens


def jax_gpt(*a: jax.Array) -> jax.Array:
    """Return the logits of a small GPT."""
    embedding, positions, *weights, tokens = a
    x = embedding[tokens] + positions
    for i in range(0, len(weights), PER_BLOCK):
        x = jax_block(tuple(weights[i : i + PER_BLOCK]), x, causal=True)
    return x @ embedding.T


def torch_gpt(*a: torch.Tensor) -> torch.Tensor:
    """Return the logits of a small GPT."""
    embedding, positions, *weights, tokens = a
    x = F.embedding(tokens, embedding) + positions
    for i in range(0, len(weights), PER_BLOCK):
        x = torch_block(tuple(weights[i : i + PER_BLOCK]), x, causal=True)
    return F.linear(x, embedding)


GPT = (normal(1000, 128, std=0.1), normal(128, 128, std=0.1), *block_weights(128) * 2)
TEXT = indices(1000, 4, 128)


def jax_gpt_loss(*a: jax.Array) -> jax.Array:
    """Return the cross-entropy of the next token."""
    return jax_cross_entropy(jax_gpt(*a[:-1]).reshape(-1, 1000), a[-1].reshape(-1))


def torch_gpt_loss(*a: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of the next token."""
    return F.cross_entropy(torch_gpt(*a[:-1]).view(-1, 1000), a[-1].view(-1))


# ---- vision transformer: 64 patches of 8x8, 2 layers of width 192


def jax_vit(*a: jax.Array) -> jax.Array:
    """Return the logits of a small vision transformer."""
    patches, positions, *weights, head, bias, images = a
    x = jax_conv(images, patches, stride=8)
    x = x.reshape(*x.shape[:2], -1).transpose(0, 2, 1) + positions
    for i in range(0, len(weights), PER_BLOCK):
        x = jax_block(tuple(weights[i : i + PER_BLOCK]), x, causal=False)
    return x.mean(1) @ head + bias


def torch_vit(*a: torch.Tensor) -> torch.Tensor:
    """Return the logits of a small vision transformer."""
    patches, positions, *weights, head, bias, images = a
    x = F.conv2d(images, patches, stride=8).flatten(2).transpose(1, 2) + positions
    for i in range(0, len(weights), PER_BLOCK):
        x = torch_block(tuple(weights[i : i + PER_BLOCK]), x, causal=False)
    return x.mean(1) @ head + bias


VIT = (normal(192, 3, 8, 8, std=0.07), normal(64, 192, std=0.1), *block_weights(192) * 2, *layer(192, 100))
PICTURES = normal(8, 3, 64, 64)


# ---- LSTM: the weights have PyTorch's layout and order of gates


def jax_lstm(*a: jax.Array) -> jax.Array:
    """Return the hidden states of an LSTM over a sequence."""
    wi, wh, bi, bh, x = a
    zeros = jnp.zeros((x.shape[1], wh.shape[1]))

    def step(state: tuple[jax.Array, jax.Array], gates: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h, c = state
        i, f, g, o = jnp.split(gates + h @ wh.T, 4, axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return jax.lax.scan(step, (zeros, zeros), x @ wi.T + bi + bh)[1]


def torch_lstm(*a: torch.Tensor) -> torch.Tensor:
    """Return the hidden states of an LSTM over a sequence."""
    wi, wh, bi, bh, x = a
    zeros = x.new_zeros(1, x.shape[1], wh.shape[1])
    return torch.lstm(x, (zeros, zeros), [wi, wh, bi, bh], True, 1, 0.0, False, False, False)[0]


def torch_lstm_step(*a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the loss and the weights after a step of gradient descent."""
    *weights, x, y = a
    with torch.enable_grad():
        weights = [w.detach().requires_grad_() for w in weights]
        loss = F.mse_loss(torch_lstm(*weights, x), y)
        grads = torch.autograd.grad(loss, weights)
    return loss.detach(), *(w.detach() - RATE * g for w, g in zip(weights, grads, strict=True))


LSTM = (normal(512, 64, std=0.1), normal(512, 128, std=0.09), normal(512, std=0.1), normal(512, std=0.1))
SEQUENCE = normal(64, 32, 64)

BLOCK = block_weights(256)
WORDS = normal(4, 128, 256)

TABLE: Table = {
    "transformer_block_forward": Native(
        lambda *a: jax_block(a[:-1], a[-1], causal=True), lambda *a: torch_block(a[:-1], a[-1], causal=True),
        (*BLOCK, WORDS),
    ),
    "transformer_block_train": sgd_step(
        lambda *a: ((jax_block(a[:-2], a[-2], causal=True) - a[-1]) ** 2).mean(),
        lambda *a: F.mse_loss(torch_block(a[:-2], a[-2], causal=True), a[-1]),
        BLOCK,
        (WORDS, WORDS),
    ),
    "gpt_forward": Native(jax_gpt, torch_gpt, (*GPT, TEXT)),
    "gpt_train": adam_step(jax_gpt_loss, torch_gpt_loss, GPT, (TEXT, TEXT)),
    "vit_forward": Native(jax_vit, torch_vit, (*VIT, PICTURES)),
    "vit_train": sgd_step(
        lambda *a: jax_cross_entropy(jax_vit(*a[:-1]), a[-1]),
        lambda *a: F.cross_entropy(torch_vit(*a[:-1]), a[-1]),
        VIT,
        (PICTURES, indices(100, 8)),
    ),
    "lstm_forward": Native(jax_lstm, torch_lstm, (*LSTM, SEQUENCE)),
    "lstm_train": replace(
        sgd_step(
            lambda *a: ((jax_lstm(*a[:-1]) - a[-1]) ** 2).mean(),
            lambda *a: F.mse_loss(torch_lstm(*a[:-1]), a[-1]),
            LSTM,
            (SEQUENCE, normal(64, 32, 128)),
        ),
        torch=torch_lstm_step,
        compiled=False,  # Inductor 2.13 fails on the gradient of an LSTM
    ),
}  # fmt: skip
