"""Lowers graphs of ATen ops that AOT autograd makes of a function: the forward pass, the backward pass, or inference.

Unlike an exported program, such a graph says for each input and result how it lies in memory, updates inputs in place
(`copy_`), and returns inputs or views of them. `LoweredGraph` keeps what a caller needs to reproduce this.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.errors import UnsupportedError
from compiler.frontends.names import set_argument_name, set_result_names
from compiler.frontends.torch_builder import TorchBuilder, element_type
from compiler.frontends.torch_movement import LOWERINGS as MOVEMENT
from compiler.frontends.torch_program import GraphWalk
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, Shape
from compiler.ir.header import Alias, Aliases

_VIEWS = frozenset(
    [
        "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "slice",
        "select", "alias", "detach", "as_strided", "diagonal", "unfold", "view_as_real", "_reshape_alias",
    ]
)  # fmt: skip
"""Ops whose result may share memory with their first operand."""


@dataclass(frozen=True)
class TensorLayout:
    """How a tensor lies in memory.

    Attributes:
        size: its sizes.
        stride: its strides in elements.
        dtype: its torch dtype.
        order: the dimensions from the outermost to the innermost in memory.
        is_dense: whether the elements fill memory without gaps. A program takes and returns dense tensors only.
        has_lazy_bits: whether a view may conjugate or negate the elements on access.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    order: tuple[int, ...]
    is_dense: bool
    has_lazy_bits: bool = False

    @staticmethod
    def of(tensor: Any) -> TensorLayout:
        """Return the layout of a tensor, which may be a fake one."""
        size, stride = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
        order = _dense_order(size, stride)
        lazy = bool(tensor.is_conj() or tensor.is_neg())
        if order is None:
            return TensorLayout(size, stride, tensor.dtype, tuple(range(len(size))), False, lazy)
        return TensorLayout(size, stride, tensor.dtype, order, True, lazy)

    @property
    def is_row_major(self) -> bool:
        """Whether the elements are in row-major order."""
        return self.is_dense and self.order == tuple(range(len(self.size)))

    @property
    def in_memory(self) -> Shape:
        """The shape of the row-major array with the same elements in memory."""
        return Shape(element_type(self.dtype), tuple(self.size[d] for d in self.order))


def _dense_order(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...] | None:
    """Return the dimensions from the outermost to the innermost, or None for a tensor with gaps or repetitions."""
    if 0 in size or _fills(size, stride, range(len(size))):
        return tuple(range(len(size)))
    order = sorted(range(len(size)), key=lambda d: (-stride[d], d))
    return tuple(order) if _fills(size, stride, order) else None


def _fills(size: Sequence[int], stride: Sequence[int], order: Sequence[int]) -> bool:
    expected = 1
    for d in reversed(order):
        if size[d] != 1 and stride[d] != expected:
            return False
        expected *= size[d]
    return True


@dataclass(frozen=True)
class FromResult:
    """An output that the program computes: the number of its result."""

    number: int


@dataclass(frozen=True)
class FromInput:
    """An output that is an input of the graph, after its update if there is one: its position."""

    position: int


@dataclass(frozen=True)
class ViewOf:
    """An output that is a view of a result or an input.

    Attributes:
        base: what it is a view of.
        size, stride: its layout.
        offset: the number of elements between the start of the base and its own.
    """

    base: FromResult | FromInput
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Fixed:
    """An output that is not a tensor: None, or a number that is the same in every call."""

    value: Any


Output = FromResult | FromInput | ViewOf | Fixed


@dataclass(frozen=True)
class LoweredGraph:
    """A program and how to call it in place of a graph.

    Attributes:
        module: the program. Its parameters are the inputs that are tensors, in order, then `rng_state` (u64[2]) if it
            draws random numbers. Its results are `results`, then the new values of `mutated`, which take over the
            memory of these inputs, then the next state.
        inputs: the layout of each input of the graph, or None for one that is not a tensor.
        results: the layouts of the results.
        mutated: the positions of the inputs that the graph updates in place.
        outputs: what the graph returns.
        draws: whether the program draws random numbers.
        drawn: functions that return random tensors, in row-major order, which are arguments after the inputs.
    """

    module: HloModule
    inputs: tuple[TensorLayout | None, ...]
    results: tuple[TensorLayout, ...]
    mutated: tuple[int, ...]
    outputs: tuple[Output, ...]
    draws: bool
    drawn: tuple[Callable[[], Any], ...] = ()


def lower_graph(graph_module: Any, name: str = "torch", draw_outside: bool = False) -> LoweredGraph:
    """Lower a functional graph of ATen ops with fixed sizes.

    Args:
        graph_module: a `torch.fx.GraphModule` whose nodes have fake tensors as `meta["val"]`.
        name: the name of the module.
        draw_outside: let PyTorch draw random numbers before the program runs, in the order of the graph.

    Raises:
        UnsupportedError: the graph has an op without a lowering, or tensors that HLO cannot express; the message names
            the op or the tensor.
    """
    return _GraphLowering(graph_module, name, draw_outside).run()


class _GraphLowering:
    def __init__(self, graph_module: Any, name: str, draw_outside: bool) -> None:
        self.graph_module, self.draw_outside = graph_module, draw_outside
        self.drawn: list[Callable[[], Any]] = []
        self.module, self.entry = HloModule(name), HloComputation("main")
        self.walk = GraphWalk(graph_module, TorchBuilder(self.module, self.entry))
        self.builder = self.walk.builder
        self.inputs: list[TensorLayout | None] = []
        self.layouts: dict[int, TensorLayout] = {}
        self.positions: dict[Any, int] = {}
        self.mutated: dict[int, HloInstruction] = {}
        self.results: list[tuple[Any, TensorLayout]] = []
        self.numbers: dict[Any, int] = {}
        self.carriers: dict[Any, Any] = {}

    def run(self) -> LoweredGraph:
        outputs: list[Output] = []
        _complete_values(self.graph_module.graph)
        for node in self.graph_module.graph.nodes:
            if node.op == "placeholder":
                self._add_input(node)
            elif node.op == "output":
                outputs = [self._output(value) for value in node.args[0]]
            elif _base_name(node) == "copy_":
                self._update(node)
            elif self.draw_outside and is_random(node):
                self._draw(node)
            else:
                self.walk.step(node)
        values = [self._in_memory(self.walk.values[node.name], layout) for node, layout in self.results]
        names = [f"output_{n}" for n in range(len(values))]
        for position, value in self.mutated.items():
            values.append(self._in_memory(value, self.layouts[position]))
            names.append(f"updated_{position}")
        state = self.builder.random_state
        if state is not None:
            values.append(state)
            names.append("rng_state")
        self.entry.root = self.builder.add(Opcode.TUPLE, *values)
        set_result_names(self.entry.root, names)
        self.entry.remove_dead()
        self.module.add(self.entry, entry=True)
        self._donate()
        return LoweredGraph(
            self.module, tuple(self.inputs), tuple(layout for _, layout in self.results), tuple(self.mutated),
            tuple(outputs), state is not None, tuple(self.drawn),
        )  # fmt: skip

    def _add_input(self, node: Any) -> None:
        value = node.meta.get("val")
        self.positions[node] = len(self.inputs)
        if not hasattr(value, "untyped_storage") or _is_token(node):
            self.inputs.append(None)
            self.walk.values[node.name] = None if _is_token(node) else value
            return
        layout = self.layouts[len(self.inputs)] = TensorLayout.of(value)
        self.inputs.append(layout)
        b = self.builder
        parameter = b.entry.add_parameter(len(b.entry.parameters), layout.in_memory, name=node.name)
        set_argument_name(parameter, node.name)
        inverse = sorted(range(len(layout.order)), key=layout.order.__getitem__)
        self.walk.values[node.name] = b.transpose(parameter, inverse)

    def _in_memory(self, value: Any, layout: TensorLayout) -> HloInstruction:
        """Return a value as the array that lies in memory; results are dense even if torch's would not be."""
        b = self.builder
        return b.transpose(b.broadcast(b.convert(b.tensor(value), element_type(layout.dtype)), layout.size),
                           layout.order)  # fmt: skip

    def _update(self, node: Any) -> None:
        target, source = node.args[:2]
        if target not in self.positions:
            raise UnsupportedError(f"PyTorch op {node.target} (%{node.name}) on a tensor that is not an input")
        b = self.builder
        b.start(node, f"{node.target} (%{node.name})", "default")
        new = MOVEMENT["copy"](b, self.walk.values[target.name], self.walk.value(source))
        position = self.positions[target]
        self.mutated.pop(position, None)
        self.mutated[position] = new
        self.walk.values[node.name] = new

    def _draw(self, node: Any) -> None:
        """Make the random numbers of an op an argument of the program."""
        b = self.builder
        b.start(node, f"{node.target} (%{node.name})", "default")
        op, args = node.target, [_blank(a) for a in node.args]
        is_dropout = _base_name(node) == "native_dropout"
        in_inference = _base_name(node).startswith("rrelu") and not (len(args) > 4 and args[4])
        if in_inference or (is_dropout and not (node.args[2] and 0 < node.args[1] < 1)):
            self.walk.step(node)
            return
        by_number = (_base_name(node) == "bernoulli" and len(args) > 1) or not any(map(callable, args))
        if _base_name(node) not in _OF_SHAPES and not by_number:
            raise b.unsupported("to draw numbers that depend on computed values by PyTorch (fallback_random)")
        value = node.meta["val"][1] if is_dropout else node.meta["val"]
        shape = Shape(element_type(value.dtype), tuple(map(int, value.shape)))
        parameter = b.entry.add_parameter(len(b.entry.parameters), shape, name=node.name)
        set_argument_name(parameter, node.name)
        if not is_dropout:
            self.drawn.append(lambda: op(*[a() if callable(a) else a for a in args], **node.kwargs).contiguous())
            self.walk.values[node.name] = parameter
            return
        x, chance = self.walk.value(node.args[0]), 1 - node.args[1]
        like = args[0]
        empty_like: Any = importlib.import_module("torch").empty_like
        self.drawn.append(lambda: empty_like(like()).bernoulli_(chance).bool().contiguous())
        t = x.shape.element_type
        kept = b.select(parameter, b.binary(Opcode.MULTIPLY, x, 1 / chance, t), 0, t)
        self.walk.values[node.name] = [kept, parameter]

    def _donate(self) -> None:
        """Let the new values of inputs take over the memory of the inputs."""
        numbers = {position: n for n, position in enumerate(self.layouts)}
        first = len(self.results)
        entries = tuple(
            Alias((first + k,), numbers[position], (), "may-alias") for k, position in enumerate(self.mutated)
        )
        if entries:
            self.module.header["input_output_alias"] = Aliases(entries)

    # ---- outputs

    def _output(self, node: Any) -> Output:
        if not hasattr(node, "meta"):
            return Fixed(node)
        value = node.meta.get("val")
        position = self.positions.get(node)
        # What is saved of an updated input is its value before: PyTorch may compute the new one again from it.
        if position is not None and position not in self.mutated:
            return FromInput(position)
        if node.op == "call_function" and _base_name(node) == "copy_":  # it returns the input that it updates
            return FromInput(self.positions[node.args[0]])
        if self.walk.values[node.name] is None:
            return Fixed(None)
        if not hasattr(value, "untyped_storage"):
            found = self.walk.values[node.name]
            if isinstance(found, HloInstruction) or value is None:
                raise UnsupportedError(f"an output of this graph (%{node.name}) is not a tensor")
            return Fixed(found)
        base = _view_base(node)
        position = self.positions.get(base)
        if position is not None and position not in self.mutated and base is not node:
            return _view(FromInput(position), value, base.meta["val"])
        layout = TensorLayout.of(value)
        # Views of one value share the memory of the first if it holds all of their elements.
        carrier = self.carriers.setdefault(base, node) if layout.is_dense else self.carriers.get(base, node)
        if carrier is not node and _contains(carrier.meta["val"], value):
            return _view(FromResult(self.numbers[carrier]), value, carrier.meta["val"])
        if node not in self.numbers:
            if not layout.is_dense:
                layout = TensorLayout.of(value.new_empty(layout.size))
            self.numbers[node] = len(self.results)
            self.results.append((node, layout))
        return FromResult(self.numbers[node])


def _complete_values(graph: Any) -> None:
    """Set the fake values of nodes by which PyTorch passes random states from forward to backward passes."""
    for node in graph.nodes:
        if node.op != "call_function" or "val" in node.meta:
            continue
        args = [a.meta.get("val") if hasattr(a, "meta") else a for a in node.args]
        if str(node.target) == "run_and_save_rng_state":
            node.meta["val"] = (None, args[0](*args[1:], **node.kwargs))
        elif str(node.target) == "run_with_rng_state":
            node.meta["val"] = args[1](*args[2:], **node.kwargs)
        elif "getitem" in str(node.target) and isinstance(args[0], list | tuple):
            node.meta["val"] = args[0][args[1]]


def _is_token(node: Any) -> bool:
    """Check whether an input is a token, which orders effects; PyTorch passes None for it."""
    users = list(node.users)
    return bool(users) and all(str(u.target) == "with_effects" and u.args[0] is node for u in users)


def _base_name(node: Any) -> str:
    return str(node.target).removeprefix("aten.").partition(".")[0]


def _blank(arg: Any) -> Any:
    """Return a function that makes a tensor like a node's value; other arguments of a node unchanged.

    The tensor has the strides of the value, because PyTorch draws numbers in the order of memory.
    """
    if not hasattr(arg, "meta"):
        return arg
    value = arg.meta["val"]
    torch: Any = importlib.import_module("torch")
    size, stride = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
    return functools.partial(torch.empty_strided, size, stride, dtype=value.dtype)


_OF_SHAPES = frozenset(
    [
        "native_dropout", "rand_like", "randn_like", "randint_like", "uniform", "normal_functional", "exponential",
        "rand", "randn", "randint", "randperm",
    ]
)  # fmt: skip
"""Random ops whose numbers depend on no values of tensors."""


def is_random(node: Any) -> bool:
    """Check whether a node draws random numbers."""
    torch: Any = importlib.import_module("torch")
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) or "rng_state" in str(node.target)


def _view_base(node: Any) -> Any:
    """Return the node with whose memory a node's value shares its own."""
    storage = node.meta["val"].untyped_storage()._cdata
    while node.op == "call_function" and _base_name(node) in _VIEWS:
        before = node.args[0]
        value = before.meta.get("val")
        if not hasattr(value, "untyped_storage") or value.untyped_storage()._cdata != storage:
            break
        if value.dtype != node.meta["val"].dtype or value.is_conj() or value.is_neg():
            break
        node = before
    return node


def _contains(dense: Any, view: Any) -> bool:
    """Check whether the memory of a dense tensor contains that of a view of the same storage."""
    start = int(view.storage_offset()) - int(dense.storage_offset())
    reach = sum((int(n) - 1) * int(s) for n, s in zip(view.shape, view.stride(), strict=True))
    return view.numel() > 0 and start >= 0 and start + reach < dense.numel()


def _view(base: FromResult | FromInput, value: Any, of: Any) -> Output:
    size, stride = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
    offset = int(value.storage_offset()) - int(of.storage_offset())
    if not offset and size == tuple(of.shape) and stride == tuple(of.stride()):
        return base
    return ViewOf(base, size, stride, offset)
