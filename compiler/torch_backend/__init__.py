"""`torch.compile(model, backend="hlogym")`: a backend of PyTorch's compiler, found by its entry point.

Importing this package does not import torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

__all__ = ["hlogym", "register"]


def hlogym(graph_module: Any, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Compile a graph that TorchDynamo captured, with its gradient, and return a function to call in its place.

    `torch.compile(model, backend="hlogym", options={...})` calls this function; see
    `compiler.torch_backend.options.BackendOptions` for the options.
    """
    found: Any = importlib.import_module("compiler.torch_backend.backend")
    return found.compile_graph(graph_module, example_inputs, **kwargs)


def register() -> None:
    """Make the name "hlogym" known to `torch.compile` where the entry point of the package is not installed."""
    registry: Any = importlib.import_module("torch._dynamo.backends.registry")
    if "hlogym" not in registry.list_backends(exclude_tags=()):
        registry.register_backend(hlogym, name="hlogym")
