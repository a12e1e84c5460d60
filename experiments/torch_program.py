"""Translation of HLO to PyTorch, to time eager PyTorch and Inductor on the same programs.

It covers the ops of the quickstart suite; a program with another op raises `BackendError`. Loops run in Python, as a
PyTorch user would write them; for Inductor, their bodies are compiled.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import fx

from compiler.analysis.trip_count import trip_count_of
from compiler.errors import BackendError
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode

__all__ = ["to_torch"]

Function: TypeAlias = Callable[..., Any]

_SIMPLE: Mapping[str, Function] = {
    "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "divide": torch.div, "maximum": torch.maximum,
    "minimum": torch.minimum, "power": torch.pow, "negate": torch.neg, "abs": torch.abs, "exponential": torch.exp,
    "log": torch.log, "log-plus-one": torch.log1p, "exponential-minus-one": torch.expm1, "sine": torch.sin,
    "cosine": torch.cos, "tanh": torch.tanh, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sign": torch.sign,
    "logistic": torch.sigmoid, "floor": torch.floor, "ceil": torch.ceil, "and": torch.bitwise_and,
    "or": torch.bitwise_or, "xor": torch.bitwise_xor, "not": torch.bitwise_not, "select": torch.where,
    "is-finite": torch.isfinite, "clamp": lambda low, x, high: torch.clamp(x, low, high), "copy": torch.clone,
}  # fmt: skip
_COMPARISONS: Mapping[str, Function] = {
    "EQ": torch.eq, "NE": torch.ne, "LT": torch.lt, "LE": torch.le, "GT": torch.gt, "GE": torch.ge,
}  # fmt: skip
_REDUCTIONS: Mapping[Opcode, Function] = {
    Opcode.ADD: torch.sum, Opcode.MAXIMUM: torch.amax, Opcode.MINIMUM: torch.amin,
    Opcode.AND: lambda x, dim: torch.all(x, dim=dim), Opcode.OR: lambda x, dim: torch.any(x, dim=dim),
}  # fmt: skip

_JOINED: Mapping[Opcode, Function] = {
    Opcode.ADD: torch.add, Opcode.MAXIMUM: torch.maximum, Opcode.MINIMUM: torch.minimum,
}  # fmt: skip


def to_torch(module: HloModule, compiled: bool) -> Function:
    """Translate a module to a function that takes tensors and returns the leaves of the entry's result.

    Args:
        module: the module to translate.
        compiled: whether to compile the function with Inductor.

    Raises:
        BackendError: an op is not supported, or PyTorch lacks an element type.
    """
    graph = _Translator(compiled).graph(module.entry)
    has_loop = any(i.opcode is Opcode.WHILE for i in module.entry.instructions)
    # A graph that contains a loop is not compiled as a whole; only the loop's body is.
    run: Function = torch.compile(graph) if compiled and not has_loop else graph

    def flat(*tensors: torch.Tensor) -> list[torch.Tensor]:
        found = run(*tensors)
        return list(found) if isinstance(found, tuple) else [found]

    return flat


class _Translator:
    def __init__(self, compiled: bool) -> None:
        self._compiled = compiled

    def graph(self, computation: HloComputation) -> fx.GraphModule:
        """Translate a computation to a graph module with one placeholder per parameter."""
        graph = fx.Graph()
        constants: dict[str, torch.Tensor] = {}
        values: dict[HloInstruction, Any] = {
            p: graph.placeholder(f"p{n}") for n, p in enumerate(computation.parameters)
        }
        for i in computation.post_order():
            if i in values:
                continue
            if i.opcode is Opcode.CONSTANT:
                name = f"c{len(constants)}"
                constants[name] = torch.from_numpy(np.array(i.value.array))
                values[i] = graph.get_attr(name)
            elif i.opcode is Opcode.TUPLE:
                values[i] = tuple(values[o] for o in i.operands)
            else:
                values[i] = graph.call_function(self._function(i), tuple(values[o] for o in i.operands))
        graph.output(values[computation.root])
        root = torch.nn.Module()
        for name, tensor in constants.items():
            root.register_buffer(name, tensor)
        return fx.GraphModule(root, graph)

    def _function(self, i: HloInstruction) -> Function:
        if i.shape.is_array:
            _dtype(i)
        text = i.opcode.text
        if text in _SIMPLE:
            return _SIMPLE[text]
        match i.opcode:
            case Opcode.COMPARE:
                return _COMPARISONS[i.attributes["direction"]]
            case Opcode.CALL | Opcode.FUSION:
                callee = self.graph(i.called_computations()[0])
                return lambda *operands: callee(*operands)  # `call_function` does not accept a module
            case Opcode.WHILE:
                return self._loop(i)
            case Opcode.GET_TUPLE_ELEMENT:
                index = i.attributes["index"]
                return lambda value: operator.getitem(value, index)
            case _:
                return _structural(i)

    def _loop(self, i: HloInstruction) -> Function:
        condition, body = self.graph(i.attributes["condition"]), self.graph(i.attributes["body"])
        step: Function = torch.compile(body) if self._compiled else body
        trips = trip_count_of(i)

        def run(state: Any) -> Any:
            if trips is not None:
                for _ in range(trips):
                    state = step(state)
                return state
            while bool(condition(state)):
                state = step(state)
            return state

        return run


def _dtype(i: HloInstruction) -> torch.dtype:
    try:
        return torch.from_numpy(np.empty(0, i.shape.dtype)).dtype
    except TypeError:
        raise BackendError(f"PyTorch has no element type {i.shape.element_type.text}, the type of %{i.name}") from None


def _structural(i: HloInstruction) -> Function:
    """Translate an op that depends on its shape or attributes.

    Raises:
        BackendError: the op is not supported.
    """
    dims = i.shape.dimensions
    match i.opcode:
        case Opcode.RESHAPE | Opcode.BITCAST:
            return lambda x: x.reshape(dims)
        case Opcode.BROADCAST:
            source = dict(zip(i.dimensions, i.operands[0].shape.dimensions, strict=True))
            middle = tuple(source.get(d, 1) for d in range(len(dims)))
            return lambda x: x.reshape(middle).expand(dims)
        case Opcode.TRANSPOSE:
            order = i.dimensions
            return lambda x: x.permute(order)
        case Opcode.CONVERT:
            kind = _dtype(i)
            return lambda x: x.to(kind)
        case Opcode.CONCATENATE:
            (axis,) = i.dimensions
            return lambda *xs: torch.cat(xs, axis)
        case Opcode.IOTA:
            return _iota(i)
        case Opcode.SLICE:
            cuts = tuple(slice(s.start, s.limit, s.stride) for s in i.attributes["slice"])
            return lambda x: x[cuts]
        case Opcode.DYNAMIC_SLICE:
            return _dynamic_slice(i)
        case Opcode.REDUCE:
            return _reduce(i)
        case Opcode.DOT:
            return _dot(i)
        case _:
            raise BackendError(f"{i.opcode.text} (%{i.name}) is not translated to PyTorch")


def _iota(i: HloInstruction) -> Function:
    dims, axis, kind = i.shape.dimensions, i.attributes["iota_dimension"], _dtype(i)
    middle = tuple(d if n == axis else 1 for n, d in enumerate(dims))
    return lambda: torch.arange(dims[axis], dtype=kind).reshape(middle).expand(dims)


def _dynamic_slice(i: HloInstruction) -> Function:
    sizes, limits = i.attributes["dynamic_slice_sizes"], i.operands[0].shape.dimensions

    def run(x: torch.Tensor, *starts: torch.Tensor) -> torch.Tensor:
        for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            if size != limits[axis]:
                first = torch.clamp(start, 0, limits[axis] - size)
                x = torch.index_select(x, axis, first + torch.arange(size))
        return x

    return run


def _reduce(i: HloInstruction) -> Function:
    combine = i.attributes["to_apply"].root
    plain = len(i.operands) == 2 and all(o.opcode is Opcode.PARAMETER for o in combine.operands)
    if not plain or combine.opcode not in _REDUCTIONS:
        raise BackendError(f"the reduction %{i.name} is not translated to PyTorch")
    function, axes = _REDUCTIONS[combine.opcode], i.dimensions
    joined = _JOINED.get(combine.opcode)
    if joined is None:
        return lambda x, _: function(x, dim=axes)
    return lambda x, start: joined(function(x, dim=axes), start)


def _dot(i: HloInstruction) -> Function:
    lhs, rhs = (o.shape.dimensions for o in i.operands)
    batch = (i.attr("lhs_batch_dims", ()), i.attr("rhs_batch_dims", ()))
    contracted = (i.attr("lhs_contracting_dims", ()), i.attr("rhs_contracting_dims", ()))
    free = [_rest(len(d), (*b, *c)) for d, b, c in zip((lhs, rhs), batch, contracted, strict=True)]
    sizes = (math.prod(lhs[d] for d in batch[0]), math.prod(lhs[d] for d in contracted[0]))
    dims = i.shape.dimensions

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = x.permute(*batch[0], *free[0], *contracted[0]).reshape(sizes[0], -1, sizes[1])
        b = y.permute(*batch[1], *contracted[1], *free[1]).reshape(sizes[0], sizes[1], -1)
        return torch.bmm(a, b).reshape(dims)

    return run


def _rest(rank: int, used: Sequence[int]) -> tuple[int, ...]:
    return tuple(d for d in range(rank) if d not in used)
