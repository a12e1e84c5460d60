"""A PyTorch model compiled by hlogym.

Run it with `python docs/examples/torch_model.py`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import hlogym
from compiler.frontends.torch import argument_names, arguments, lower


class Block(nn.Module):
    """A transformer's feed-forward block: normalise, expand, activate, contract, add."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.contract(nn.functional.gelu(self.expand(self.norm(x))))
        return x + hidden


def main() -> None:
    torch.manual_seed(0)
    model = Block(64).eval()  # a model is lowered in the mode it is in
    x = torch.randn(32, 64)

    # torch.export traces the model; weights become parameters, before the arguments.
    module = lower(model, x)
    exe = hlogym.compile(module)
    values = arguments(model, x)

    (result,) = exe(*values)
    with torch.no_grad():
        np.testing.assert_allclose(result, model(x).numpy(), rtol=1e-4, atol=1e-5)

    for number, name in argument_names(module).items():
        print(f"{name:18s} {values[number].dtype}{list(values[number].shape)}")
    print(f"{len(exe.kernels)} kernels, result equal to PyTorch's")


if __name__ == "__main__":
    main()
