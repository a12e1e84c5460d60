"""Attention in PyTorch: all kinds of masks, positions, caches, encoder layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.idioms.collection import Idioms, booleans, normal

IDIOMS = Idioms()


def _qkv(*dims: int) -> tuple[Any, Any, Any]:
    return normal(*dims, name="q"), normal(*dims, name="k"), normal(*dims, name="v")


@IDIOMS.on(text=_qkv(2, 4, 19, 8), batch_1=_qkv(1, 1, 64, 16), one_token=_qkv(3, 2, 1, 8))
def causal_attention_by_hand(q: Any, k: Any, v: Any) -> Any:
    t = q.size(-2)
    score = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    mask = torch.tril(torch.ones(t, t)).view(1, 1, t, t)
    score = score.masked_fill(mask == 0, float("-inf"))
    return F.softmax(score, dim=-1) @ v


@IDIOMS.on(text=_qkv(2, 4, 19, 8), batch_1=_qkv(1, 1, 64, 16))
def scaled_dot_product_attention(q: Any, k: Any, v: Any) -> Any:
    window = torch.ones(q.size(-2), q.size(-2), dtype=torch.bool).tril().triu(-7)
    bias = torch.full((q.size(-2), q.size(-2)), float("-inf")).triu(1)
    return (
        F.scaled_dot_product_attention(q, k, v),
        F.scaled_dot_product_attention(q, k, v, is_causal=True),
        F.scaled_dot_product_attention(q, k, v, attn_mask=window),
        F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=0.2),
    )


@IDIOMS.on(text=(*_qkv(2, 2, 17, 8), torch.tensor([0, 5])), batch_1=(*_qkv(1, 1, 64, 8), torch.tensor([0])))
def fully_masked_rows(q: Any, k: Any, v: Any, lengths: Any) -> Any:
    """Fully masked rows: NaN with an explicit -inf, zeros with scaled_dot_product_attention, an average with -1e9."""
    mask = (torch.arange(k.size(-2)) < lengths[:, None])[:, None, None, :]
    score = q @ k.transpose(-2, -1)
    return (
        torch.softmax(score.masked_fill(~mask, float("-inf")), -1),
        torch.softmax(score.masked_fill(~mask, -1e9), -1) @ v,
        torch.nan_to_num(torch.softmax(score.masked_fill(~mask, float("-inf")), -1)),
        torch.softmax(score + (~mask) * torch.finfo(score.dtype).min, -1),
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(-1, -1, q.size(-2), -1)),
    )


@IDIOMS.on(
    grouped=(normal(2, 8, 17, 4), normal(2, 2, 17, 4), normal(2, 2, 17, 4, name="v")),
    one=(normal(1, 4, 1, 16), normal(1, 1, 64, 16), normal(1, 1, 64, 16, name="v")),
)
def grouped_query_attention(q: Any, k: Any, v: Any) -> Any:
    groups = q.size(1) // k.size(1)
    repeated = [
        x[:, :, None].expand(-1, -1, groups, -1, -1).reshape(q.size(0), q.size(1), x.size(2), x.size(3)) for x in (k, v)
    ]
    return (
        F.scaled_dot_product_attention(q, *repeated),
        F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        F.scaled_dot_product_attention(q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)),
    )


@IDIOMS.on(text=(normal(2, 4, 17, 8),), batch_1=(normal(1, 1, 128, 64),))
def rotary_embedding(x: Any) -> Any:
    t, d = x.shape[-2:]
    inverse = 1.0 / (10000 ** (torch.arange(0, d, 2).float() / d))
    angle = torch.outer(torch.arange(t).float(), inverse)
    both = torch.cat((angle, angle), dim=-1)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    halves = x * both.cos() + torch.cat((-b, a), dim=-1) * both.sin()
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    return halves, turned


@IDIOMS.on(step=(normal(1, 2, 64, 8), normal(1, 2, 64, 8, name="v"), *_qkv(1, 2, 1, 8), torch.tensor([17])))
def key_value_cache(keys: Any, values: Any, q: Any, k: Any, v: Any, position: Any) -> Any:
    keys = keys.index_copy(2, position, k)
    values = values.index_copy(2, position, v)
    mask = torch.arange(keys.size(2)) <= position
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask[None, None, None]), keys, values


@IDIOMS.on(text=(normal(2, 8, 23, 4), normal(2, 8, 23, 4, name="k")))
def linear_biases(q: Any, k: Any) -> Any:
    heads, t = q.size(1), q.size(2)
    slopes = torch.pow(2.0, -torch.arange(1, heads + 1) * 8.0 / heads)
    distance = torch.arange(t)[None, :] - torch.arange(t)[:, None]
    score = q @ k.transpose(-1, -2) / 2 + slopes[:, None, None] * distance
    return score.masked_fill(distance > 0, float("-inf")).softmax(-1)


@IDIOMS.on(text=(normal(1, 21, 2, 8), normal(32, 2)))
def relative_position_bias(q: Any, table: Any) -> Any:
    t = q.size(1)
    relative = torch.arange(t)[None] - torch.arange(t)[:, None]
    apart = relative.abs()
    far = 8 + (torch.log(apart.float().clamp(min=1) / 8) / math.log(16) * 8).long()
    bucket = (relative > 0).long() * 16 + torch.where(apart < 8, apart, far.clamp(max=15))
    return F.embedding(bucket, table).permute(2, 0, 1).unsqueeze(0) + torch.einsum("bqhd,bkhd->bhqk", q, q)


class Block(nn.Module):
    """A pre-norm transformer block with fused projections, as in GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96, bias=False), nn.Linear(32, 32)
        self.feed = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.Dropout(0.1))
        self.register_buffer("mask", torch.tril(torch.ones(64, 64, dtype=torch.bool)), persistent=False)

    def forward(self, x: Any) -> Any:
        b, t, c = x.size()
        q, k, v = (y.view(b, t, 4, 8).transpose(1, 2) for y in self.qkv(self.norm_1(x)).split(c, dim=2))
        score = (q @ k.transpose(-2, -1)) / math.sqrt(8)
        mask: Any = self.mask
        score = score.masked_fill(~mask[:t, :t], torch.finfo(score.dtype).min)
        x = x + self.out((score.softmax(-1) @ v).transpose(1, 2).contiguous().view(b, t, c))
        return x + self.feed(self.norm_2(x))


IDIOMS.module(
    "transformer_block", Block, text=(normal(2, 17, 32),), batch_1=(normal(1, 64, 32),), one_token=(normal(1, 1, 32),)
)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Any, padding: Any) -> Any:
        t = x.size(1)
        causal = torch.triu(torch.full((t, t), float("-inf")), diagonal=1)
        weights = self.inner(x, x, x, attn_mask=causal)
        return (
            *weights,
            self.inner(x, x, x, key_padding_mask=padding, need_weights=False)[0],
            self.inner(x, x, x, key_padding_mask=padding, average_attn_weights=False)[1],
        )


def _padding(batch: int, time: int) -> Any:
    return np.arange(time)[None] >= np.linspace(1, time, batch, dtype=int)[:, None]


IDIOMS.module(
    "multi_head_attention",
    Attention,
    text=(normal(2, 17, 16), _padding(2, 17)),
    batch_1=(normal(1, 64, 16), _padding(1, 64)),
)
IDIOMS.module(
    "encoder_layer",
    lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
    batch_1=(normal(1, 17, 16),),
    text=(normal(2, 33, 16),),
    one_token=(normal(1, 1, 16),),
)
IDIOMS.module(
    "encoder_layer_with_norm_first",
    lambda: nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", norm_first=True),
    text=(normal(17, 2, 16),),
)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.inner = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Any, padding: Any) -> Any:
        causal = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        return self.inner(x, mask=causal, src_key_padding_mask=padding.float() * -1e9)


IDIOMS.module("encoder_with_masks", Encoder, text=(normal(2, 19, 16), _padding(2, 19)))
IDIOMS.module(
    "decoder_layer",
    lambda: nn.TransformerDecoderLayer(16, 2, 32, batch_first=True),
    text=(normal(1, 9, 16), normal(1, 17, 16)),
)


@IDIOMS.on(text=(normal(3, 40, 8), normal(8), booleans(3, 40)), batch_1=(normal(1, 64, 8), normal(8), booleans(1, 64)))
def attention_pooling(x: Any, query: Any, mask: Any) -> Any:
    score = torch.einsum("btd,d->bt", x, query).masked_fill(~mask, torch.finfo(x.dtype).min)
    pooled = torch.einsum("bt,btd->bd", score.softmax(1), x)
    mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
    top = x.masked_fill(~mask[..., None], float("-inf")).max(dim=1).values
    last = x[torch.arange(x.size(0)), mask.long().cumsum(1).argmax(1)]
    return pooled, mean, top, last


@IDIOMS.on(half=tuple(torch.from_numpy(x).bfloat16() for x in _qkv(1, 2, 17, 8)))
def half_precision_attention(q: Any, k: Any, v: Any) -> Any:
    score = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.size(-1))
    return torch.matmul(F.softmax(score, dim=-1, dtype=torch.float32).to(q.dtype), v)
