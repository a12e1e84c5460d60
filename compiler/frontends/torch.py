"""PyTorch frontend: converts modules and functions to an HloModule via torch.export and ATen ops.

Ops are lowered in the `torch_*` modules of this folder, each a registry by ATen name (`torch_program.LOWERINGS`). Ops
without a lowering are decomposed by PyTorch where possible; otherwise an UnsupportedError names the op and its place in
the model.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.frontends.names import argument_names as argument_names
from compiler.frontends.names import result_names as result_names
from compiler.frontends.torch_builder import to_numpy
from compiler.frontends.torch_export import export
from compiler.frontends.torch_program import LOWERINGS as LOWERINGS
from compiler.frontends.torch_program import lower_program, weight
from compiler.ir import HloModule


def lower(module_or_fn: Any, *args: Any, freeze: bool = False, **kwargs: Any) -> HloModule:
    """Lower a PyTorch module or function to HLO for the shapes of these arguments.

    Args:
        module_or_fn: a `torch.nn.Module` in its current mode (call `.eval()` first for inference), or a function.
        *args: example arguments, tensors or pytrees of them.
        **kwargs: the same by name.
        freeze: turn weights and buffers into constants instead of parameters before the arguments.

    Returns:
        A module whose parameters are the weights, the buffers, then the leaves of the arguments, each in torch's order.
        `argument_names` returns their names (`layers.0.weight`, `x`) and `arguments` their values. The result is a
        tuple of the outputs that are tensors, then the new values of the buffers and arguments that the program mutates
        (running statistics in training mode); `result_names` returns their names.

        A program that draws random numbers (dropout in training mode) has an additional last parameter, u64[2]
        `rng_state`, and returns the next state as its last result: pass it to the next call. Numbers come from XLA's
        Threefry generator; they have torch's distributions, but differ from torch's numbers.

        PyTorch's runtime checks of values (arguments of distributions, variances) are omitted. `torch.bincount` returns
        `minlength` counts; larger values are not counted.

    Raises:
        UnsupportedError: the program uses an op without a lowering, has results whose size depends on the data, or
            branches in Python on values of tensors; the message names the op and its place in the model.
        ArgumentError: the arguments do not fit the program's signature.
        BackendError: PyTorch is not installed.
    """
    return lower_program(export(module_or_fn, args, kwargs), freeze)


def arguments(
    module_or_fn: Any, *args: Any, freeze: bool = False, seed: int | None = None, **kwargs: Any
) -> list[NDArray[Any]]:
    """Return the arguments of the module that `lower` returns: weights, buffers, then arguments.

    Args:
        module_or_fn: as passed to `lower`.
        *args: the arguments of the call.
        **kwargs: the same by name.
        freeze: as passed to `lower`.
        seed: for a program that draws random numbers: the seed of the initial state, which is appended.
    """
    pytree = importlib.import_module("torch.utils._pytree")
    program = export(module_or_fn, args, kwargs)
    return argument_values(program, pytree.tree_leaves((args, kwargs)), freeze, seed)


def argument_values(program: Any, given: Iterable[Any], freeze: bool, seed: int | None) -> list[NDArray[Any]]:
    """Return the arguments of the module of an exported program for these leaves of arguments."""
    leaves = iter(given)
    values: list[NDArray[Any]] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            leaf = next(leaves)
            if hasattr(leaf, "detach"):
                values.append(to_numpy(leaf))
        elif spec.kind.name != "TOKEN" and not freeze:
            values.append(to_numpy(weight(program, spec.target)))
    if seed is not None:
        values.append(random_state(seed))
    return values


def random_state(seed: int) -> NDArray[np.uint64]:
    """Return the initial `rng_state` of a lowered program."""
    return np.array([seed % (1 << 64), 0], np.uint64)
