"""Normalisation layers in PyTorch, in inference and training, also with batch size 1, one channel or one feature."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.idioms.collection import Closeness, Idioms, booleans, normal, uniform

IDIOMS = Idioms()
ZERO = Closeness(5e-5, 5e-5, floor=1.0)
"""For results that are zero up to rounding."""

IDIOMS.module("layer_norm", lambda: nn.LayerNorm(64), batch_1=(normal(1, 64),), text=(normal(2, 17, 64),))
IDIOMS.module("layer_norm_of_several_dimensions", lambda: nn.LayerNorm((3, 1, 20)), batch_1=(normal(1, 3, 1, 20),))
IDIOMS.module("layer_norm_of_one_feature", lambda: nn.LayerNorm(1), ZERO, column=(normal(64, 1),), one=(normal(1, 1),))
IDIOMS.module(
    "layer_norm_in_bfloat16", lambda: nn.LayerNorm(64).bfloat16(), half=(torch.from_numpy(normal(1, 64)).bfloat16(),)
)
IDIOMS.module(
    "layer_norm_without_bias",
    lambda: nn.LayerNorm(33, bias=False),
    batch_1=(normal(1, 33),),
    long=(normal(128, 1, 33),),
)
IDIOMS.module("rms_norm", lambda: nn.RMSNorm(64), batch_1=(normal(1, 64),), text=(normal(2, 17, 64),))
IDIOMS.module(
    "rms_norm_in_bfloat16", lambda: nn.RMSNorm(128).bfloat16(), half=(torch.from_numpy(normal(1, 128)).bfloat16(),)
)
IDIOMS.module(
    "batch_norm_1d",
    lambda: nn.BatchNorm1d(64),
    batch_1=(normal(1, 64),),
    batch_32=(normal(32, 64),),
    text=(normal(2, 64, 17),),
)
IDIOMS.module("batch_norm_1d_in_training", lambda: nn.BatchNorm1d(17), training=True, batch_32=(normal(32, 17),))
IDIOMS.module("batch_norm_of_one_feature", lambda: nn.BatchNorm1d(1), training=True, column=(normal(64, 1),))
IDIOMS.module(
    "batch_norm_2d", lambda: nn.BatchNorm2d(5), batch_1=(normal(1, 5, 9, 7),), one_pixel=(normal(64, 5, 1, 1),)
)
IDIOMS.module(
    "batch_norm_2d_in_training",
    lambda: nn.BatchNorm2d(3),
    training=True,
    batch_1=(normal(1, 3, 9, 7),),
    line=(normal(1, 3, 1, 64),),
)
IDIOMS.module(
    "batch_norm_without_statistics", lambda: nn.BatchNorm1d(8, track_running_stats=False), batch_17=(normal(17, 8),)
)
IDIOMS.module(
    "group_norm",
    lambda: nn.GroupNorm(4, 8),
    batch_1=(normal(1, 8, 5, 5),),
    one_pixel=(normal(1, 8, 1, 1),),
    text=(normal(3, 8, 17),),
    flat=(normal(64, 8),),
)
IDIOMS.module("group_norm_of_one_group", lambda: nn.GroupNorm(1, 64), batch_1=(normal(1, 64),))
IDIOMS.module(
    "instance_norm",
    lambda: nn.InstanceNorm2d(3, affine=True),
    batch_1=(normal(1, 3, 5, 7),),
    line=(normal(2, 3, 1, 64),),
)
IDIOMS.module(
    "instance_norm_with_statistics",
    lambda: nn.InstanceNorm1d(4, track_running_stats=True),
    training=True,
    batch_1=(normal(1, 4, 33),),
)
IDIOMS.module("instance_norm_of_one_channel", lambda: nn.InstanceNorm1d(1), batch_1=(normal(1, 1, 64),))
IDIOMS.module(
    "local_response_norm",
    lambda: nn.LocalResponseNorm(5),
    batch_1=(normal(1, 17, 3, 3),),
    one_pixel=(normal(2, 64, 1, 1),),
)


@IDIOMS.on(batch_1=(normal(1, 33, 64), normal(64)), heads=(normal(2, 4, 7, 16), normal(16)))
def rms_norm_by_hand(x: Any, weight: Any) -> Any:
    scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return (x.float() * scale).type_as(x) * weight, F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


@IDIOMS.on(batch_1=(normal(1, 17, 32), normal(1, 64)), batch_3=(normal(3, 5, 16), normal(3, 32)))
def modulated_layer_norm(x: Any, condition: Any) -> Any:
    shift, scale = condition.chunk(2, dim=-1)
    return F.layer_norm(x, x.shape[-1:]) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


@IDIOMS.on(rows=(normal(17, 33),), one=(normal(1, 64),), column=(normal(64, 1),))
def unit_vectors(x: Any) -> Any:
    return F.normalize(x, dim=-1), F.normalize(x, p=1.0, dim=0), x / x.norm(dim=1, keepdim=True).clamp(min=1e-12)


@IDIOMS.on(
    text=(normal(3, 19, 8), booleans(3, 19, chance=0.8)), batch_1=(normal(1, 64, 1), booleans(1, 64, chance=0.8))
)
def masked_standardisation(x: Any, mask: Any) -> Any:
    m = mask.unsqueeze(-1).to(x.dtype)
    count = m.sum(dim=1, keepdim=True).clamp(min=1.0)
    mean = (x * m).sum(dim=1, keepdim=True) / count
    var = ((x - mean).pow(2) * m).sum(dim=1, keepdim=True) / count
    return (x - mean) * torch.rsqrt(var + 1e-5) * m, mean.squeeze(1), var.squeeze(1)


@IDIOMS.on(batch=(normal(32, 17), normal(17), uniform(17), 100.0), one=(normal(64, 1), normal(1), uniform(1), 9.0))
def running_observation_statistics(batch: Any, mean: Any, var: Any, count: float) -> Any:
    batch_mean, batch_var, n = batch.mean(dim=0), batch.var(dim=0, unbiased=False), batch.shape[0]
    delta, total = batch_mean - mean, count + n
    m2 = var * count + batch_var * n + delta**2 * count * n / total
    mean, var = mean + delta * n / total, m2 / total
    return mean, var, torch.clamp((batch - mean) / torch.sqrt(var + 1e-8), -10.0, 10.0)


@IDIOMS.on(rows=(normal(17, 33),), one=(normal(64),), column=(normal(64, 1),))
def standardise(x: Any) -> Any:
    return (x - x.mean()) / (x.std() + 1e-8), (x - x.amin(0)) / (x.amax(0) - x.amin(0) + 1e-6)
