"""Classification of images by a ResNet-18."""

from typing import Any

import torch

from experiments.torch_modules.resnet import resnet18

BATCH, SIZE = 2, 224


def start() -> Any:
    """Return the compiled model and images."""
    torch.manual_seed(0)
    model: Any = resnet18().eval()
    model = torch.compile(model)
    return model, torch.randn(BATCH, 3, SIZE, SIZE)


@torch.no_grad()
def step(state: Any) -> Any:
    """Return the state, and the logits of the images."""
    model, images = state
    return state, model(images)


if __name__ == "__main__":
    state, logits = step(start())
    print(logits.argmax(1))
