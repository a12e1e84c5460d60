"""Divides graphs with unsupported ops: programs compute the others, and PyTorch runs the unsupported ops in between.

The parts of a graph are in levels. Each level has at most one program and, after it, ops that PyTorch runs. A node is
at the first level where its operands are known, so that each program is convex and as large as possible. PyTorch also
runs the ops of a program that would gain less than its call costs, and updates the inputs after everything else.
"""

from __future__ import annotations

import importlib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.frontends.torch_graph import TensorLayout, is_random
from compiler.frontends.torch_support import is_element, is_number

__all__ = ["DividedGraph", "divide"]

_CALL_MICROSECONDS = 6.0
_TENSOR_MICROSECONDS = 0.4
_OP_MICROSECONDS = 3.0
_VIEW_MICROSECONDS = 1.5
_BYTES_PER_MICROSECOND = 10_000
"""What a program costs per call and per tensor that it takes or returns, and what an op costs that PyTorch runs, beside
the time for its memory."""
_ONLY_COMPILED = ("as_strided", "rng_state")
"""Ops that depend on how a program lays out memory or on the state of its random numbers."""


@dataclass(frozen=True)
class DividedGraph:
    """A graph of calls of its parts.

    Attributes:
        graph_module: calls each part as a submodule.
        programs: names of the submodules that are to be compiled.
        by_pytorch: number of ops that PyTorch runs.
        ops: number of ops of the graph.
    """

    graph_module: Any
    programs: tuple[str, ...]
    by_pytorch: int
    ops: int


def divide(graph_module: Any, unsupported: Mapping[Any, str]) -> DividedGraph | None:
    """Divide a functional graph of ATen ops into parts; return None if no program is worth its calls.

    Args:
        graph_module: a `torch.fx.GraphModule` whose nodes have fake tensors as `meta["val"]`. It is not changed, but
            values that share memory with inputs that it updates are copied in it.
        unsupported: the nodes that PyTorch has to run.
    """
    _copy_aliases_of_updated(graph_module.graph)
    nodes = [n for n in graph_module.graph.nodes if n.op == "call_function"]
    updates = {n for n in nodes if _is_update(n)}
    eager = {n for n in nodes if n in unsupported or n in updates}
    output = next(n for n in graph_module.graph.nodes if n.op == "output")
    if any(name in str(n.target) for n in eager for name in _ONLY_COMPILED):
        return None
    if any(getattr(n, "op", "") == "get_attr" for n in output.args[0]):
        return None
    while True:
        levels = _levels(nodes, eager)
        _delay(nodes, levels, eager)
        programs = defaultdict(list)
        for node in nodes:
            if node not in eager:
                programs[levels[node]].append(node)
        lost = [part for part in programs.values() if not _is_worthwhile(part)]
        if not lost:
            break
        eager.update(n for part in lost for n in part)
    if not programs:
        return None
    last = max(levels.values())
    part_of = {n: 2 * last + 2 if n in updates else 2 * levels[n] + (n in eager) for n in nodes}
    divided = _split(graph_module, part_of)
    names = sorted(f"submod_{2 * level}" for level in programs)
    returned = {n.name for n in nodes if n not in eager}
    for name in names:
        _make_dense(getattr(divided, name), returned)
    counted = [n for n in nodes if not is_element(n) and n not in updates]
    return DividedGraph(divided, tuple(names), len([n for n in counted if n in eager]), len(counted))


# ---- levels


def _levels(nodes: Sequence[Any], eager: set[Any]) -> dict[Any, int]:
    """Return the first level of each node; those with effects, which PyTorch runs, keep their order."""
    levels: dict[Any, int] = {}
    latest = 0
    for node in nodes:
        is_eager = node in eager
        operands = [p for p in node.all_input_nodes if p in levels]
        level = max((levels[p] + (p in eager and not is_eager) for p in operands), default=0)
        if is_eager and _has_effect(node):
            latest = level = max(latest, level)
        levels[node] = level
    return levels


def _delay(nodes: Sequence[Any], levels: dict[Any, int], eager: set[Any]) -> None:
    """Move views, and nodes with results larger than their operands, to the level where they are used first."""
    for node in reversed(nodes):
        users = [u for u in node.users if u.op != "output"]
        if node in eager or not users or len(users) < len(node.users) or is_element(node):
            continue
        if isinstance(node.meta.get("val"), list | tuple):
            continue
        used = min(levels[u] for u in users)
        if used > levels[node] and (_is_view(node) or _size(node) > sum(map(_size, node.all_input_nodes))):
            levels[node] = used


def _has_effect(node: Any) -> bool:
    """Check whether a node has to keep its order: it draws random numbers, or has side effects."""
    return is_random(node) or not node.users or bool(node.is_impure())


# ---- costs


def _is_worthwhile(part: Sequence[Any]) -> bool:
    """Estimate whether a program of these nodes takes less time than PyTorch does, node by node."""
    if any(name in str(n.target) for n in part for name in _ONLY_COMPILED):
        return True
    own = set(part)
    given = {p for n in part for p in n.all_input_nodes if p not in own and p.op != "get_attr"}
    returned = [n for n in part if any(u not in own for u in n.users)]
    computing = [n for n in part if not is_element(n) and not _is_view(n)]
    views = len([n for n in part if _is_view(n)])
    moved = sum(_size(n) + sum(map(_size, n.all_input_nodes)) for n in computing)
    moved -= sum(map(_size, given)) + sum(map(_size, returned))
    gain = len(computing) * _OP_MICROSECONDS + views * _VIEW_MICROSECONDS + moved / _BYTES_PER_MICROSECOND
    return gain > _CALL_MICROSECONDS + (len(given) + len(returned)) * _TENSOR_MICROSECONDS


def _size(node: Any) -> int:
    """Return the bytes of the results of a node."""
    return sum(math.prod(0 if is_number(d) else int(d) for d in v.shape) * v.element_size() for v in _tensors(node))


def _tensors(node: Any) -> Iterator[Any]:
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return (v for v in values if hasattr(v, "untyped_storage"))


def _is_view(node: Any) -> bool:
    return bool(getattr(node.target, "is_view", False))


# ---- updates of inputs


def _is_update(node: Any) -> bool:
    return str(node.target) == "aten.copy_.default"


def _storages(node: Any) -> set[int]:
    torch: Any = importlib.import_module("torch")
    return {v.untyped_storage()._cdata for v in _tensors(node) if v.layout is torch.strided}


def _copy_aliases_of_updated(graph: Any) -> None:
    """Copy what is returned, or written to an input, and shares memory with an input that the graph updates."""
    torch: Any = importlib.import_module("torch")
    updates = [n for n in graph.nodes if _is_update(n)]
    if not updates:
        return
    updated = set().union(*(_storages(n.args[0]) for n in updates))
    output = next(n for n in graph.nodes if n.op == "output")
    read = [n for n in output.args[0] if hasattr(n, "meta") and not _is_update(n)]
    read += [n.args[1] for n in updates if hasattr(n.args[1], "meta")]
    for node in dict.fromkeys(read):
        if not _storages(node) & updated:
            continue
        with graph.inserting_before(updates[0]):
            copy = graph.call_function(torch.ops.aten.clone.default, (node,))
        copy.meta = {**node.meta, "val": node.meta["val"].clone()}
        for user in updates:
            if user.args[1] is node:
                user.args = (user.args[0], copy, *user.args[2:])
        output.args = (tuple(copy if n is node else n for n in output.args[0]),)


# ---- submodules


def _split(graph_module: Any, part_of: Mapping[Any, int]) -> Any:
    """Return a graph module that calls the parts, in the order of their numbers, as submodules `submod_<number>`."""
    fx: Any = importlib.import_module("torch.fx")
    splitting: Any = importlib.import_module("torch.fx.passes.split_module")
    graph, copies, numbers = fx.Graph(), dict[Any, Any](), dict[Any, int]()
    nodes = list(graph_module.graph.nodes)
    for node in sorted(nodes, key=lambda n: -1 if n.op in ("placeholder", "get_attr") else part_of.get(n, math.inf)):
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node in part_of:
            numbers[copies[node]] = part_of[node]
    ordered = fx.GraphModule(graph_module, graph)
    return splitting.split_module(
        ordered, ordered, numbers.__getitem__, keep_original_order=True, keep_original_node_name=True, tuple_return=True
    )


def _make_dense(part: Any, returned: set[str]) -> None:
    """Note in the inputs of a program that other programs return these without gaps."""
    for node in part.graph.nodes:
        if node.op == "placeholder" and node.name in returned:
            for value in _tensors(node):
                if not TensorLayout.of(value).is_dense:
                    node.meta["val"] = value.new_empty(tuple(value.shape))
