"""Finds the nodes of a graph of ATen ops that have no lowering, by lowering the graph without them."""

from __future__ import annotations

import importlib
from typing import Any

from compiler.errors import HlogymError, UnsupportedError
from compiler.frontends.torch_builder import TorchBuilder, element_type
from compiler.frontends.torch_program import GraphWalk
from compiler.ir import HloComputation, HloModule, Shape

__all__ = ["is_element", "is_number", "unsupported_nodes"]


class _Missing:
    """The value of a node that no parameter of a program can have."""


def unsupported_nodes(graph_module: Any) -> dict[Any, str]:
    """Return why nodes of a functional graph cannot be lowered, by node; the others can be, if these are given.

    An element of several results is unsupported if the op that returns them is. Updates of inputs (`copy_`) are not
    considered.

    Args:
        graph_module: a `torch.fx.GraphModule` whose nodes have fake tensors as `meta["val"]`.
    """
    walk = GraphWalk(graph_module, TorchBuilder(HloModule("support"), HloComputation("main")))
    found: dict[Any, str] = {}
    for node in graph_module.graph.nodes:
        if node.op == "output" or str(node.target) == "aten.copy_.default":
            continue
        try:
            if node.op == "placeholder":
                walk.values[node.name] = _stand_in(walk, node.meta.get("val"), is_input=True)
                continue
            _check(walk, node)
            walk.step(node)
        except HlogymError as e:
            found[node] = str(e)
            walk.values[node.name] = _stand_in(walk, node.meta.get("val"))
    for node in graph_module.graph.nodes:
        if is_element(node) and node.args[0] in found:
            found[node] = found[node.args[0]]
    return found


def is_number(value: Any) -> bool:
    """Check whether a fake value is a number that the graph computes while it runs."""
    torch: Any = importlib.import_module("torch")
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def is_element(node: Any) -> bool:
    """Check whether a node is one of several results of another one."""
    return node.op == "call_function" and "getitem" in str(node.target)


def _check(walk: GraphWalk, node: Any) -> None:
    """Raise UnsupportedError for a node whose operands or results cannot be those of a program."""
    for operand in node.all_input_nodes:
        if isinstance(walk.values.get(operand.name), _Missing):
            raise UnsupportedError(f"PyTorch op {node.target} (%{node.name}): %{operand.name} is not a dense tensor")
    if is_element(node):
        return
    value = node.meta.get("val")
    if is_number(value) or any(map(is_number, getattr(value, "shape", ()))):
        raise UnsupportedError(f"PyTorch op {node.target} (%{node.name}): a result whose size depends on the data")
    if isinstance(value, list | tuple) and not all(map(is_element, node.users)):
        raise UnsupportedError(f"PyTorch op {node.target} (%{node.name}): a list of tensors as a result")


def _stand_in(walk: GraphWalk, value: Any, is_input: bool = False) -> Any:
    """Return parameters in place of the results of a node, or what says that there can be none.

    Sizes of inputs are known, even if they are symbolic as that of the state of random numbers is.
    """
    if isinstance(value, list | tuple):
        return [_stand_in(walk, v) for v in value]
    if not hasattr(value, "untyped_storage"):
        return _Missing() if is_number(value) else value
    torch: Any = importlib.import_module("torch")
    if value.layout is not torch.strided or (not is_input and any(map(is_number, value.shape))):
        return _Missing()
    entry = walk.builder.entry
    try:
        return entry.add_parameter(
            len(entry.parameters), Shape(element_type(value.dtype), tuple(map(int, value.shape)))
        )
    except UnsupportedError:
        return _Missing()
