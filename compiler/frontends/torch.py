"""PyTorch modules and functions into an HloModule, by way of torch.export and the ATen ops.

Ops are lowered in the `torch_*` files beside this one, each a registry by ATen name (`torch_program.LOWERINGS`); what
none of them has is taken apart by PyTorch's own decompositions where there are any, and is an UnsupportedError that
names the op and its place in the model where there are none.
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
    """The HLO of a PyTorch module or function at the shapes of these arguments.

    Args:
        module_or_fn: a `torch.nn.Module` (in the mode it is in: call `.eval()` first for inference) or a function.
        *args: example arguments, tensors or pytrees of them.
        **kwargs: the same by name.
        freeze: make constants of weights and buffers; else they are parameters, before the arguments.

    Returns:
        A module whose parameters are weights, buffers, then the arguments' leaves, each in torch's order;
        `argument_names` tells the name of each (`layers.0.weight`, `x`), `arguments` the values to call it with. Its
        result is a tuple of the outputs that are tensors, then of the buffers and arguments that the program changes,
        with their new values (running statistics in training mode); `result_names` tells which is which.

        A program that draws random numbers (dropout in training mode) has one parameter more, the last, u64[2]
        `rng_state`, and gives the state after it as its last result: pass it on to the next call. The numbers are
        those of XLA's Threefry generator, of torch's distributions, but not torch's numbers.

        Checks of values that PyTorch makes while it runs (arguments of distributions, variances) are left out.
        `torch.bincount` yields `minlength` counts; larger values are not counted.

    Raises:
        UnsupportedError: the program uses an op that is not lowered, has results whose size depends on the data, or
            decides in Python on values of tensors; the message names the op and where it stands in the model.
        ArgumentError: the arguments do not fit the program's signature.
        BackendError: PyTorch is not installed.
    """
    return lower_program(export(module_or_fn, args, kwargs), freeze)


def arguments(
    module_or_fn: Any, *args: Any, freeze: bool = False, seed: int | None = None, **kwargs: Any
) -> list[NDArray[Any]]:
    """The values that the module made by `lower` of the same takes: weights, buffers, then arguments.

    Args:
        module_or_fn: as given to `lower`.
        *args: the arguments to call it with.
        **kwargs: the same by name.
        freeze: as given to `lower`.
        seed: for a program that draws random numbers: what the generator's first state is made of; appends that state.
    """
    pytree = importlib.import_module("torch.utils._pytree")
    program = export(module_or_fn, args, kwargs)
    return argument_values(program, pytree.tree_leaves((args, kwargs)), freeze, seed)


def argument_values(program: Any, given: Iterable[Any], freeze: bool, seed: int | None) -> list[NDArray[Any]]:
    """The values that the module of an exported program takes, when called with these leaves of arguments."""
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
    """The `rng_state` that a lowered program starts from."""
    return np.array([seed % (1 << 64), 0], np.uint64)
