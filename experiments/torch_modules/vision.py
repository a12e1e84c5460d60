"""Convolutional networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class ConvNet(nn.Module):
    """A classifier of small images with batch normalization and pooling."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        )  # fmt: skip
        self.head = nn.Linear(8 * width, 10)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.features(x).flatten(1))


class ResidualBlock(nn.Module):
    """A block of ResNet that halves the image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, 2 * width, 3, 2, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(2 * width)
        self.conv2 = nn.Conv2d(2 * width, 2 * width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.shortcut = nn.Sequential(nn.Conv2d(width, 2 * width, 1, 2, bias=False), nn.BatchNorm2d(2 * width))

    def forward(self, x: torch.Tensor) -> Any:
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class SeparableBlock(nn.Module):
    """An inverted residual of MobileNet: expansion, depthwise convolution, squeeze-and-excitation, projection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = 4 * width
        self.expand = nn.Sequential(nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.Hardswish())
        self.depthwise = nn.Sequential(
            nn.Conv2d(inner, inner, 5, padding=2, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.Hardswish()
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(inner, width, 1), nn.ReLU(), nn.Conv2d(width, inner, 1), nn.Hardsigmoid()
        )
        self.project = nn.Sequential(nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> Any:
        inner = self.depthwise(self.expand(x))
        return x + self.project(inner * self.squeeze(inner))


class ConvNextBlock(nn.Module):
    """A block of ConvNeXt, with a layer normalization over channels in last place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: torch.Tensor) -> Any:
        inner = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        inner = self.scale * self.down(F.gelu(self.up(inner)))
        return x + inner.permute(0, 3, 1, 2)


class UNet(nn.Module):
    """A U-Net of two levels with a transposed convolution and skip connections."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = self._pair(1, width)
        self.second = self._pair(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.last = self._pair(2 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _pair(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.SiLU(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> Any:
        top = self.first(x)
        below = self.second(F.max_pool2d(top, 2))
        return self.head(self.last(torch.cat([top, self.up(below)], 1)))


class GroupNormNet(nn.Module):
    """Convolutions with group normalization, nearest upsampling and reflection padding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, width, 3, 2, 1, padding_mode="reflect")
        self.norm = nn.GroupNorm(4, width)
        self.up = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> Any:
        inner = F.silu(self.norm(self.down(x)))
        return self.up(F.interpolate(inner, scale_factor=2, mode="nearest"))


class Autoencoder(nn.Module):
    """A convolutional autoencoder with transposed convolutions and instance normalization."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1), nn.InstanceNorm2d(width, affine=True), nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1), nn.ELU(),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.PReLU(width),
            nn.ConvTranspose2d(width, 1, 3, 2, 1, output_padding=1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> Any:
        return self.decoder(self.encoder(x))


class VariationalAutoencoder(nn.Module):
    """A VAE whose noise is an input, with the loss of reconstruction and divergence."""

    def __init__(self, width: int, latent: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, 2 * latent), nn.Tanh(), nn.Linear(2 * latent, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 2 * latent), nn.Softplus(), nn.Linear(2 * latent, width))

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> Any:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        found = self.decoder(mean + noise * torch.exp(0.5 * log_variance))
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(-1).mean()
        return F.binary_cross_entropy_with_logits(found, x.sigmoid()) + divergence


class WaveNet(nn.Module):
    """Dilated causal convolutions over time with gates."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.start = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**k) for k in range(3))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(3))
        self.head = nn.Conv1d(width, 4, 1)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.start(x)
        total = torch.zeros_like(x)
        for k, (gate, skip) in enumerate(zip(self.gates, self.skips, strict=True)):
            value, opened = gate(F.pad(x, (2**k, 0))).chunk(2, 1)
            inner = skip(torch.tanh(value) * torch.sigmoid(opened))
            total, x = total + inner, x + inner
        return self.head(F.relu(total))
