"""Compiles graphs of TorchDynamo: AOT autograd traces forward and backward, and each graph becomes a program."""

from __future__ import annotations

import contextlib
import copy
import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from compiler.errors import UnsupportedError
from compiler.frontends.torch_decompositions import decompositions
from compiler.frontends.torch_graph import is_random, lower_graph
from compiler.frontends.torch_substitutes import substitute_calls
from compiler.frontends.torch_support import unsupported_nodes
from compiler.program_cache import cached_program
from compiler.support.lru_dict import LruDict
from compiler.torch_backend.calling import CompiledGraph
from compiler.torch_backend.options import BackendOptions
from compiler.torch_backend.parts import divide
from compiler.torch_backend.threads import share_threads
from compiler.torch_backend.whole_ops import whole_resampling

__all__ = ["compile_graph"]

_SIZES = 64
"""How many combinations of sizes of one graph with dynamic shapes stay compiled."""
_REASONS = 3
"""How many reasons a warning names."""


def compile_graph(
    graph_module: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: Any = None
) -> Callable[..., Any]:
    """Compile a graph with its gradient; see `compiler.torch_backend.hlogym`."""
    del mode  # modes choose among features of Inductor
    chosen = BackendOptions.of(options)
    if chosen.fallback and any(map(_is_nested, example_inputs)):
        return _by_torch(graph_module.forward, "nested tensors are not supported")
    share_threads()
    substitute_calls(graph_module)
    if any(map(_is_dynamic, example_inputs)):
        return _PerSize(graph_module, chosen)
    return _with_gradient(graph_module, example_inputs, chosen)


def _is_nested(value: Any) -> bool:
    return bool(getattr(value, "is_nested", False))


def _is_dynamic(value: Any) -> bool:
    """Check whether an input is a symbolic number or a tensor with symbolic sizes."""
    torch: Any = importlib.import_module("torch")
    symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
    if isinstance(value, symbolic):
        return True
    return isinstance(value, torch.Tensor) and any(isinstance(d, symbolic) for d in (*value.shape, *value.stride()))


class _PerSize:
    """A graph with dynamic shapes, compiled again for each combination of sizes and numbers that it is called with."""

    def __init__(self, graph_module: Any, options: BackendOptions) -> None:
        self._graph_module, self._options = graph_module, options
        placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
        self._numbers = [k for k, n in enumerate(placeholders) if any(map(_reads_number, n.users))]
        self._compiled: LruDict[Any, Callable[..., Any]] = LruDict(_SIZES)

    def __call__(self, *inputs: Any) -> Any:
        numbers = {k: inputs[k].item() for k in self._numbers}
        sizes = tuple((tuple(x.shape), x.stride()) if hasattr(x, "stride") else x for x in inputs)
        key = sizes, tuple(numbers.values())
        compiled = self._compiled.get(key)
        if compiled is None:
            module = _with_numbers(self._graph_module, numbers) if numbers else self._graph_module
            compiled = _with_gradient(module, inputs, self._options)
            self._compiled[key] = compiled
        return compiled(*inputs)


def _reads_number(node: Any) -> bool:
    """Check whether a node reads the number of a tensor, as which PyTorch passes a Python number of a dynamic graph."""
    return bool(node.op == "call_method" and node.target == "item")


def _with_numbers(graph_module: Any, numbers: Mapping[int, float]) -> Any:
    """Return a graph in which the numbers that it reads from some of its inputs are constants."""
    fx: Any = importlib.import_module("torch.fx")
    graph = copy.deepcopy(graph_module.graph)
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    for position, number in numbers.items():
        for node in [u for u in inputs[position].users if _reads_number(u)]:
            for user in list(node.users):
                user.args, user.kwargs = (
                    fx.node.map_arg(given, lambda n, node=node, number=number: number if n is node else n)
                    for given in (user.args, user.kwargs)
                )
            graph.erase_node(node)
    return fx.GraphModule(graph_module, graph)


def _with_gradient(graph_module: Any, inputs: Sequence[Any], options: BackendOptions) -> Callable[..., Any]:
    common: Any = importlib.import_module("torch._dynamo.backends.common")
    partitioners: Any = importlib.import_module("functorch.compile")
    attention: Any = importlib.import_module("torch.nn.attention")
    build = _GraphCompiler(options)
    aot = common.aot_autograd(
        fw_compiler=build,
        bw_compiler=build,
        partition_fn=partitioners.min_cut_rematerialization_partition,
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )
    # Fused attention kernels of PyTorch have no decomposition in the backward pass, and its fused LSTM has none at all.
    with attention.sdpa_kernel(attention.SDPBackend.MATH), _without_onednn(), whole_resampling():
        try:
            compiled: Callable[..., Any] = aot(graph_module, inputs)
        except UnsupportedError as e:
            if not options.fallback:
                raise
            # The graph as it was called is faster than the ops that it decomposes into.
            return _by_torch(graph_module.forward, str(e))
    return compiled


@contextlib.contextmanager
def _without_onednn() -> Iterator[None]:
    """Let PyTorch decompose what it would leave to oneDNN."""
    state: Any = importlib.import_module("torch._C")
    before = state._get_mkldnn_enabled()
    state._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        state._set_mkldnn_enabled(before)


class _GraphCompiler:
    """Compiles the forward and the backward graph of one function, which pass random states to each other."""

    def __init__(self, options: BackendOptions) -> None:
        self._options = options

    def __call__(self, graph_module: Any, inputs: Sequence[Any]) -> Any:
        """Compile a graph of ATen ops, in parts if some are unsupported; PyTorch runs a backward graph without parts.

        Raises:
            UnsupportedError: a forward graph has an unsupported op and no part that is worth compiling, or nothing may
                be left to PyTorch.
        """
        dispatch: Any = importlib.import_module("torch.utils._python_dispatch")
        with dispatch._disable_current_modes():  # constants of the graph are read
            try:
                return self._program(graph_module)
            except UnsupportedError as e:
                if not self._options.fallback:
                    raise
                divided = self._in_parts(graph_module)
                if divided is not None:
                    return divided
                if not _is_backward(graph_module) or _passes_states(graph_module):
                    raise
                return _by_torch(_run_by_torch(graph_module), str(e))

    def _program(self, graph_module: Any) -> CompiledGraph:
        options = self._options
        lowered = lower_graph(graph_module, draw_outside=options.fallback_random)
        return CompiledGraph(lowered, cached_program(lowered.module, options.backend, options.policy, options.cache))

    def _in_parts(self, graph_module: Any) -> Any:
        """Compile parts of a graph with unsupported ops; return a function that calls them, or None without parts."""
        reasons = unsupported_nodes(graph_module)
        drawn = [n for n in graph_module.graph.nodes if self._options.fallback_random and is_random(n)]
        divided = divide(graph_module, {**dict.fromkeys(drawn, ""), **reasons})
        if divided is None:
            return None
        whole, why = divided.graph_module, list(reasons.values())
        for name, part in list(whole.named_children()):
            function = part.forward
            if name in divided.programs:
                try:
                    function = _unboxed(self._program(part))
                except UnsupportedError as e:
                    if _passes_states(part):
                        raise
                    why.append(str(e))
            # Calls of attributes that are no modules are fast.
            delattr(whole, name)
            setattr(whole, name, function)
        _warn(
            f"PyTorch runs {divided.by_pytorch} of the {divided.ops} ops of this "
            f"{'backward ' if _is_backward(graph_module) else ''}graph between programs: {_listed(why)}"
        )
        return _run_by_torch(whole)


def _is_backward(graph_module: Any) -> bool:
    return any(n.name.startswith("tangents") for n in graph_module.graph.nodes)


def _passes_states(graph_module: Any) -> bool:
    """Check whether a graph takes or returns states of random generators."""
    return any("rng_state" in str(n.target) for n in graph_module.graph.nodes)


def _unboxed(compiled: CompiledGraph) -> Callable[..., Any]:
    return lambda *inputs: compiled(list(inputs))


def _listed(reasons: Sequence[str]) -> str:
    """Return the first reasons, without repetitions."""
    different = list(dict.fromkeys(reasons))
    others = f"; and {len(different) - _REASONS} others" if len(different) > _REASONS else ""
    return "; ".join(different[:_REASONS]) + others


def _by_torch(function: Callable[..., Any], why: str) -> Callable[..., Any]:
    """Return the function of a graph that PyTorch runs, after a warning that says why."""
    _warn(f"PyTorch runs this graph op by op: {why}")
    return function


def _warn(message: str) -> None:
    warnings.warn(
        f"torch.compile(backend='hlogym'): {message} (options={{'fallback': False}} raises this as an error)",
        stacklevel=4,
    )


def _run_by_torch(graph_module: Any) -> Any:
    partitioners: Any = importlib.import_module("functorch.compile")
    return partitioners.make_boxed_func(graph_module.forward)
