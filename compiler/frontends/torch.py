"""PyTorch modules and functions into an HloModule, by way of torch.export and the core ATen ops.

Ops are lowered in `torch_pointwise`, `torch_movement`, `torch_reductions` and `torch_networks`, each a registry by ATen
name; an op that none has is an UnsupportedError that names it.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from compiler.errors import BackendError, UnsupportedError
from compiler.frontends import torch_movement, torch_networks, torch_pointwise, torch_reductions
from compiler.frontends.names import argument_names as argument_names
from compiler.frontends.names import set_argument_name
from compiler.frontends.torch_builder import Registry, TorchBuilder, element_type, to_numpy
from compiler.ir import HloComputation, HloInstruction, HloModule, Literal, Opcode, Shape

LOWERINGS: Registry = {
    **torch_pointwise.LOWERINGS,
    **torch_movement.LOWERINGS,
    **torch_reductions.LOWERINGS,
    **torch_networks.LOWERINGS,
}
"""ATen name without its overload -> how it is lowered."""


def lower(module_or_fn: Any, *args: Any, freeze: bool = False, **kwargs: Any) -> HloModule:
    """The HLO of a PyTorch module or function at the shapes of these arguments.

    Args:
        module_or_fn: a `torch.nn.Module` (in the mode it is in: call `.eval()` first for inference) or a function.
        *args: example arguments, tensors or pytrees of them.
        **kwargs: the same by name.
        freeze: make constants of weights and buffers; else they are parameters, before the arguments.

    Returns:
        A module whose result is a tuple of the outputs. Its parameters are weights, buffers, then the arguments'
        leaves, each in torch's order; `argument_names` tells the name of each (`layers.0.weight`, `x`), `arguments`
        the values to call it with.

    Raises:
        UnsupportedError: the program uses an op that is not lowered; the message names it.
        BackendError: PyTorch is not installed.
    """
    program = _export(module_or_fn, args, kwargs)
    return _Lowering(program, freeze).module()


def arguments(module_or_fn: Any, *args: Any, freeze: bool = False, **kwargs: Any) -> list[NDArray[Any]]:
    """The values that the module made by `lower` of the same takes: weights, buffers, then arguments."""
    program = _export(module_or_fn, args, kwargs)
    pytree = importlib.import_module("torch.utils._pytree")
    leaves = iter(pytree.tree_leaves((args, kwargs)))
    values: list[NDArray[Any]] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            leaf = next(leaves)
            if hasattr(leaf, "detach"):
                values.append(to_numpy(leaf))
        elif not freeze:
            values.append(to_numpy(_weight(program, spec.target)))
    return values


def _export(module_or_fn: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    try:
        torch = importlib.import_module("torch")
        export = importlib.import_module("torch.export")
    except ImportError as e:
        raise BackendError(
            f"this frontend needs PyTorch, which cannot be imported here ({e}); install it with: pip install torch"
        ) from e
    module = module_or_fn if isinstance(module_or_fn, torch.nn.Module) else _as_module(torch, module_or_fn)
    with warnings.catch_warnings():
        # torch warns of its own deprecations while it exports.
        warnings.simplefilter("ignore")
        return export.export(module, tuple(args), kwargs).run_decompositions()


def _as_module(torch: Any, fn: Callable[..., Any]) -> Any:
    module = torch.nn.Module()
    module.forward = fn
    return module


def _weight(program: Any, target: str) -> Any:
    """A parameter, buffer or constant tensor of an exported program by its name."""
    if target in program.state_dict:
        return program.state_dict[target]
    return program.constants[target]


class _Lowering:
    """One exported program on its way into a module."""

    def __init__(self, program: Any, freeze: bool) -> None:
        self.program, self.freeze = program, freeze
        self.result = HloModule("torch")
        self.entry = HloComputation("main")
        self.builder = TorchBuilder(self.result, self.entry)
        self.values: dict[str, Any] = {}

    def module(self) -> HloModule:
        specs = iter(self.program.graph_signature.input_specs)
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self.values[node.name] = self._placeholder(node, next(specs))
            elif node.op == "call_function":
                self.values[node.name] = self._call(node)
            elif node.op == "output":
                self._output(node)
            else:
                raise UnsupportedError(f"torch graph node {node.op} (%{node.name}) is not supported")
        self.result.add(self.entry, entry=True)
        return self.result

    def _placeholder(self, node: Any, spec: Any) -> Any:
        value = node.meta.get("val")
        if not hasattr(value, "dtype"):
            return value  # a Python number, fixed by the export
        weight = spec.kind.name != "USER_INPUT"
        if weight and self.freeze:
            return self.entry.add_constant(Literal.from_array(to_numpy(_weight(self.program, spec.target))))
        shape = Shape(element_type(value.dtype), tuple(int(d) for d in value.shape))
        number = len(self.entry.parameters)
        parameter = self.entry.add_parameter(number, shape, name=f"{node.name}")
        set_argument_name(parameter, spec.target if weight else node.name)
        return parameter

    def _call(self, node: Any) -> Any:
        args = [self._value(a) for a in node.args]
        kwargs = {k: self._value(v) for k, v in node.kwargs.items()}
        name = str(node.target)
        if "getitem" in name:
            return args[0][args[1]]
        base, _, overload = name.removeprefix("aten.").partition(".")
        lowering = LOWERINGS.get(base) if name.startswith("aten.") else None
        if lowering is None:
            raise UnsupportedError(f"PyTorch op {name} (%{node.name}) is not supported by the torch frontend")
        self.builder.start(node.meta.get("val"), f"{name} (%{node.name})", overload)
        return lowering(self.builder, *args, **kwargs)

    def _value(self, arg: Any) -> Any:
        if hasattr(arg, "op") and hasattr(arg, "meta"):
            return self.values[arg.name]
        if isinstance(arg, list | tuple):
            return [self._value(a) for a in arg]
        return arg

    def _output(self, node: Any) -> None:
        specs = self.program.graph_signature.output_specs
        outputs = [
            self.values[arg.name]
            for arg, spec in zip(node.args[0], specs, strict=True)
            if spec.kind.name == "USER_OUTPUT" and hasattr(arg, "name")
        ]
        if not all(isinstance(o, HloInstruction) for o in outputs):
            raise UnsupportedError("an output of this PyTorch program is not a tensor")
        self.entry.root = self.entry.add(Opcode.TUPLE, outputs)
