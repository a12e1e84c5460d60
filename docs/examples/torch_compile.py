"""A PyTorch model trained through `torch.compile(backend="hlogym")`.

Run it with `python docs/examples/torch_compile.py`. It imports nothing of hlogym: PyTorch finds the backend by the
entry point of the installed package.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


def make_model() -> nn.Sequential:
    """Return a small classifier with running statistics, which training updates in place."""
    return nn.Sequential(nn.Linear(16, 64, bias=False), nn.BatchNorm1d(64), nn.GELU(), nn.Linear(64, 4))


def train(model: nn.Module, call: Any, steps: int) -> list[float]:
    """Train for some steps and return the losses; `call` is the model, compiled or not."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(1)
    x, labels = torch.randn(256, 16, generator=data), torch.randint(0, 4, (256,), generator=data)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(call(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    torch.manual_seed(0)
    model = make_model()
    other = copy.deepcopy(model)

    compiled = torch.compile(model, backend="hlogym")
    found = train(model, compiled, 20)
    wanted = train(other, other, 20)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)

    print(f"loss {found[0]:.3f} -> {found[-1]:.3f}, as in eager mode")
    torch.testing.assert_close(model[1].running_mean, other[1].running_mean, rtol=1e-3, atol=1e-3)
    print("running statistics equal")


if __name__ == "__main__":
    main()
