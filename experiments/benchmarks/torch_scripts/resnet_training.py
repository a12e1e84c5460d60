"""Training of a ResNet-18 by stochastic gradient descent with momentum."""

from typing import Any

import torch
from torch.nn import functional as F

from experiments.torch_modules.resnet import resnet18

BATCH, SIZE, CLASSES = 16, 64, 10


def start() -> Any:
    """Return the compiled model, its optimizer, images and labels."""
    torch.manual_seed(0)
    model: Any = resnet18(CLASSES).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    model = torch.compile(model)
    return model, optimizer, torch.randn(BATCH, 3, SIZE, SIZE), torch.randint(CLASSES, (BATCH,))


def step(state: Any) -> Any:
    """Update the model by one batch; return the state and the loss."""
    model, optimizer, images, labels = state
    optimizer.zero_grad()
    loss: Any = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return state, loss.detach()


if __name__ == "__main__":
    state = start()
    for _ in range(5):
        state, loss = step(state)
        print(loss.item())
