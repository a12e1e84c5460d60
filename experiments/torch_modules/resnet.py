"""ResNet-18 with the layers, names and initial values of torchvision's `resnet18`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["ResNet", "resnet18"]


class BasicBlock(nn.Module):
    """Two convolutions of 3x3 and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )  # fmt: skip

    def forward(self, x: torch.Tensor) -> Any:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    """A residual network of basic blocks; images are [batch, 3, height, width], logits [batch, classes]."""

    def __init__(self, blocks: tuple[int, ...], classes: int, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        layers, inputs = [], width
        for k, count in enumerate(blocks):
            outputs = width << k
            strides = [1 if k == 0 else 2, *[1] * (count - 1)]
            made = [BasicBlock(inputs if n == 0 else outputs, outputs, s) for n, s in enumerate(strides)]
            layers.append(nn.Sequential(*made))
            inputs = outputs
        self.layer1, self.layer2, self.layer3, self.layer4 = layers
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inputs, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> Any:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet18(num_classes: int = 1000) -> ResNet:
    """Return a ResNet-18 with random weights, in training mode."""
    return ResNet((2, 2, 2, 2), num_classes)
