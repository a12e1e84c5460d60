"""Lowers an exported PyTorch program node by node into the entry of a module."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from compiler.errors import HlogymError, UnsupportedError
from compiler.frontends import (
    torch_backward,
    torch_bessel,
    torch_counting,
    torch_embedding,
    torch_gamma_integrals,
    torch_indexing,
    torch_lapack,
    torch_linalg,
    torch_movement,
    torch_networks,
    torch_normal,
    torch_numbers,
    torch_padding_backward,
    torch_pointwise,
    torch_pooling,
    torch_pooling_backward,
    torch_prims,
    torch_quantization,
    torch_random,
    torch_reductions,
    torch_resampling,
    torch_special,
    torch_zeta,
)
from compiler.frontends.names import set_argument_name, set_result_names
from compiler.frontends.torch_builder import Registry, TorchBuilder, element_type, to_numpy
from compiler.frontends.torch_random import state_bytes, state_of_bytes
from compiler.ir import HloComputation, HloInstruction, HloModule, Literal, Opcode, Shape
from compiler.ir.shape import tuple_shape
from compiler.ir.types import PrimitiveType as T

LOWERINGS: Registry = {
    **torch_pointwise.LOWERINGS,
    **torch_movement.LOWERINGS,
    **torch_indexing.LOWERINGS,
    **torch_reductions.LOWERINGS,
    **torch_networks.LOWERINGS,
    **torch_pooling.LOWERINGS,
    **torch_linalg.LOWERINGS,
    **torch_lapack.LOWERINGS,
    **torch_special.LOWERINGS,
    **torch_bessel.LOWERINGS,
    **torch_gamma_integrals.LOWERINGS,
    **torch_normal.LOWERINGS,
    **torch_zeta.LOWERINGS,
    **torch_numbers.LOWERINGS,
    **torch_counting.LOWERINGS,
    **torch_embedding.LOWERINGS,
    **torch_backward.LOWERINGS,
    **torch_pooling_backward.LOWERINGS,
    **torch_padding_backward.LOWERINGS,
    **torch_resampling.LOWERINGS,
    **torch_random.LOWERINGS,
    **torch_prims.LOWERINGS,
    **torch_quantization.LOWERINGS,
}
"""Maps ATen names without overloads to their lowerings."""
_OWN = f"{Path(__file__).parent}/"
_ALONG_ONE_DIMENSION = frozenset(
    [
        "sort",
        "topk",
        "kthvalue",
        "median",
        "nanmedian",
        "mode",
        "max",
        "min",
        "argmax",
        "argmin",
        "cummax",
        "cummin",
        "logcumsumexp",
        "gather",
        "index_select",
        "scatter",
        "scatter_add",
        "scatter_reduce",
        "index_add",
        "index_copy",
        "index_fill",
        "index_reduce",
    ]
)
"""Ops along one dimension that PyTorch also accepts for scalars."""
_CONTROL = ("cond", "while_loop", "scan", "map_impl", "with_effects", "run_and_save_rng_state", "run_with_rng_state")
_MUTATIONS = ("BUFFER_MUTATION", "PARAMETER_MUTATION", "USER_INPUT_MUTATION")


def is_lowered(target: Any) -> bool:
    """Check whether the target of a call needs no decomposition."""
    name = str(target)
    return not name.startswith(("aten.", "prims.")) or _lowering_of(target) is not None


def _lowering_of(op: Any) -> Any:
    """Return the lowering of an op of ATen or prims, or None; that of a view is also that of the copy of the view."""
    name = _base(str(op))
    is_copy = any(str(tag) == "Tag.view_copy" for tag in getattr(op, "tags", ()))
    return LOWERINGS.get(name.removesuffix("_copy") if is_copy else name)


def weight(program: Any, target: str) -> Any:
    """Return a parameter, buffer or constant tensor of an exported program by name."""
    if target in program.state_dict:
        return program.state_dict[target]
    return program.constants[target]


def lower_program(program: Any, freeze: bool) -> HloModule:
    """Lower an exported program to a module; see `compiler.frontends.torch.lower`."""
    result, entry = HloModule("torch"), HloComputation("main")
    walk = GraphWalk(program.graph_module, TorchBuilder(result, entry))
    specs = iter(program.graph_signature.input_specs)
    for node in program.graph.nodes:
        if node.op == "placeholder":
            walk.values[node.name] = _placeholder(walk.builder, program, node, next(specs), freeze)
        elif node.op != "output":
            walk.step(node)
        else:
            _finish(walk, node, program.graph_signature.output_specs)
    entry.remove_dead()
    result.add(entry, entry=True)
    return result


def _placeholder(b: TorchBuilder, program: Any, node: Any, spec: Any, freeze: bool) -> Any:
    value = node.meta.get("val")
    if spec.kind.name == "TOKEN" or not hasattr(value, "dtype"):
        return None if spec.kind.name == "TOKEN" else value  # a Python number, fixed by the export
    is_weight = spec.kind.name != "USER_INPUT"
    if is_weight and freeze:
        return b.entry.add_constant(Literal.from_array(to_numpy(weight(program, spec.target))))
    shape = Shape(element_type(value.dtype), tuple(int(d) for d in value.shape))
    parameter = b.entry.add_parameter(len(b.entry.parameters), shape, name=f"{node.name}")
    set_argument_name(parameter, spec.target if is_weight else node.name)
    return parameter


def _finish(walk: GraphWalk, node: Any, specs: Iterable[Any]) -> None:
    """Set the root: outputs, then new values of what the program mutates, then the state of the random generator."""
    outputs: list[Any] = []
    changed: list[tuple[str, Any]] = []
    for arg, spec in zip(node.args[0], specs, strict=True):
        if not hasattr(arg, "name"):
            continue  # None, or a number fixed by the export
        if spec.kind.name == "USER_OUTPUT":
            outputs.append(walk.values[arg.name])
        elif spec.kind.name in _MUTATIONS:
            changed.append((spec.target, walk.values[arg.name]))
    if not all(isinstance(o, HloInstruction) for o in outputs):
        raise UnsupportedError("an output of this PyTorch program is not a tensor")
    names = [f"output_{i}" for i in range(len(outputs))] + [name for name, _ in changed]
    results = outputs + [value for _, value in changed]
    b = walk.builder
    if b.random_state is not None:
        names.append("rng_state")
        results.append(b.random_state)
    b.entry.root = b.entry.add(Opcode.TUPLE, results)
    set_result_names(b.entry.root, names)


class GraphWalk:
    """Lowers one graph into a computation; `values` maps node names to values."""

    def __init__(self, graph_module: Any, builder: TorchBuilder) -> None:
        self.graph_module, self.builder = graph_module, builder
        self.values: dict[str, Any] = {}

    def step(self, node: Any) -> None:
        """Lower a node that is neither a placeholder nor the output."""
        if node.op == "get_attr":
            found = getattr(self.graph_module, node.target)
            is_tensor = hasattr(found, "untyped_storage")
            self.values[node.name] = self.builder.literal(to_numpy(found)) if is_tensor else found
            return
        if node.op != "call_function":
            raise UnsupportedError(f"torch graph node {node.op} (%{node.name}) is not supported")
        self.values[node.name] = self._call(node)

    def _call(self, node: Any) -> Any:
        name = str(node.target)
        args = [self.value(a) for a in node.args]
        kwargs = {k: self.value(v) for k, v in node.kwargs.items()}
        b = self.builder
        b.start(node, f"{name} (%{node.name}){_location(node)}", name.rpartition(".")[2])
        if name in _CONTROL:
            return getattr(self, f"_{name}")(*args, **kwargs)
        if not name.startswith(("aten.", "prims.")):
            return self._plain(node, args)
        return self._lowered(node.target, args, kwargs)

    def _lowered(self, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Lower a call of an op of ATen or prims."""
        b, name = self.builder, str(op)
        lowering = _lowering_of(op)
        if lowering is None:
            if _is_constant(op, [*args, *kwargs.values()]):
                return b.literal(to_numpy(op(*args, **kwargs)))
            raise UnsupportedError(f"PyTorch op {b.what} is not supported by the torch frontend")
        try:
            if _base(name) in _ALONG_ONE_DIMENSION and args and _is_scalar(args[0]):
                return _of_scalar(b, lowering, args, kwargs)
            return lowering(b, *args, **kwargs)
        except HlogymError:
            raise
        except Exception as e:
            # The lowering does not handle this form of the op; the exception is the best hint available.
            raise b.unsupported(f"this form of it ({type(e).__name__}: {e})") from e

    def _plain(self, node: Any, args: list[Any]) -> Any:
        """Evaluate a Python operator in the graph: an element of several results, or arithmetic on sizes."""
        if "getitem" in str(node.target) and isinstance(args[0], list | tuple):
            return args[0][args[1]]
        # A custom op, or a function of functions, is called each time, even without tensors.
        is_op = any(kind.__module__ == "torch._ops" for kind in type(node.target).__mro__)
        if is_op or any(map(_has_tensor, args)) or not callable(node.target):
            raise UnsupportedError(f"PyTorch op {self.builder.what} is not supported by the torch frontend")
        return node.target(*args)

    def value(self, arg: Any) -> Any:
        """Return the value of an argument of a node, which may be a node, a list of them, or a constant."""
        if hasattr(arg, "op") and hasattr(arg, "meta"):
            return self.values[arg.name]
        if isinstance(arg, list | tuple):
            return [self.value(a) for a in arg]
        return arg

    # ---- control flow

    def _with_effects(self, _token: Any, op: Any, *_: Any, **__: Any) -> Any:
        """Drop a check that raises an error in torch (singular matrix), because compiled programs have no errors."""
        if not any(word in str(op) for word in ("check", "assert")):
            raise self.builder.unsupported(f"the effect of {op}")
        return [None, None]

    def _run_and_save_rng_state(self, op: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the state of the random generator and the result of an op that draws from it next."""
        b = self.builder
        state, (_, b.result) = b.draw_state(), b.result
        size = next(int(u.meta["val"].shape[0]) for u in b.node.users if u.args[1] == 0)
        return [state_bytes(b, state, size), self._drawn(op, list(args), kwargs)]

    def _run_with_rng_state(self, state: HloInstruction, op: Any, *args: Any, **kwargs: Any) -> Any:
        """Draw again what was drawn in a state of the random generator."""
        b = self.builder
        present, b.random_state = b.random_state, state_of_bytes(b, state)
        try:
            return self._drawn(op, list(args), kwargs)
        finally:
            b.random_state = present

    def _drawn(self, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        self.builder.what, self.builder.overload = f"{op} in {self.builder.what}", str(op).rpartition(".")[2]
        return self._lowered(op, args, kwargs)

    def _cond(self, predicate: HloInstruction, on_true: Any, on_false: Any, operands: list[Any]) -> list[Any]:
        b = self.builder
        given = b.add(Opcode.TUPLE, *(b.tensor(o) for o in operands))
        branches = [self._computation(g, f"{b.entry.name}_{k}", operands) for k, g in enumerate((on_false, on_true))]
        chosen = b.add(
            Opcode.CONDITIONAL, b.convert(predicate, element_type("bool")), given, given,
            shape=branches[0].root.shape, true_computation=branches[1], false_computation=branches[0],
        )  # fmt: skip
        return _elements(b, chosen)

    def _while_loop(self, condition: Any, body: Any, carried: list[Any], extra: list[Any] | None = None) -> list[Any]:
        b = self.builder
        given = [b.tensor(o) for o in (*carried, *(extra or ()))]
        state = b.add(Opcode.TUPLE, *given)
        test = self._computation(condition, f"{b.entry.name}_condition", given, single_result=True)
        step = self._computation(body, f"{b.entry.name}_body", given, extra=len(extra or ()))
        loop = b.add(Opcode.WHILE, state, shape=state.shape, condition=test, body=step)
        return _elements(b, loop)[: len(carried)]

    def _scan(self, combine: Any, init: list[Any], xs: list[Any], extra: list[Any] | None = None) -> list[Any]:
        """Return the last state and the stacked results of a function of a state and one row of each of `xs`."""
        b = self.builder
        state, rows, others = ([b.tensor(v) for v in part] for part in (init, xs, extra or ()))
        length = rows[0].shape.dimensions[0]
        if not length:
            raise b.unsupported("a scan of no rows")
        zero = b.constant(0, T.S64)
        step = self._computation(combine, f"{b.entry.name}_step", [*state, *(_row(b, x, zero) for x in rows), *others])
        stacked = [Shape(s.element_type, (length, *s.dimensions)) for s in step.root.shape.tuple_shapes[len(state) :]]
        filled = [b.full(0, s) for s in stacked]
        carried = b.add(Opcode.TUPLE, zero, *state, *filled, *rows, *others)

        test = b.inside(HloComputation(f"{b.entry.name}_condition"))
        n = _elements(test, test.entry.add_parameter(0, carried.shape))[0]
        test.entry.root = test.add(Opcode.COMPARE, n, test.constant(length, T.S64), direction="LT")

        body = b.inside(HloComputation(f"{b.entry.name}_body"))
        parts = iter(_elements(body, body.entry.add_parameter(0, carried.shape)))
        n = next(parts)
        state, filled, rows, others = ([next(parts) for _ in part] for part in (state, filled, rows, others))
        given = body.add(Opcode.TUPLE, *state, *(_row(body, x, n) for x in rows), *others)
        made = _elements(body, body.add(Opcode.CALL, given, shape=step.root.shape, to_apply=step))
        filled = [_with_row(body, x, r, n) for x, r in zip(filled, made[len(state) :], strict=True)]
        after = body.add(Opcode.ADD, n, body.constant(1, T.S64))
        body.entry.root = body.add(Opcode.TUPLE, after, *made[: len(state)], *filled, *rows, *others)

        condition, whole = b.module.add(test.entry), b.module.add(body.entry)
        loop = b.add(Opcode.WHILE, carried, shape=carried.shape, condition=condition, body=whole)
        return _elements(b, loop)[1 : 1 + len(made)]

    def _map_impl(self, function: Any, xs: list[Any], extra: list[Any] | None = None) -> list[Any]:
        return self._scan(function, [], xs, extra)

    def _computation(
        self, graph_module: Any, name: str, operands: list[Any], single_result: bool = False, extra: int = 0
    ) -> HloComputation:
        """Lower a graph to a computation of one tuple; it also returns its last `extra` operands unchanged."""
        inner = HloComputation(name)
        shapes = tuple_shape(*(self.builder.tensor(o).shape for o in operands))
        parameter = inner.add_parameter(0, shapes)
        walk = GraphWalk(graph_module, self.builder.inside(inner))
        elements = iter([inner.add(Opcode.GET_TUPLE_ELEMENT, [parameter], attributes={"index": i})
                         for i in range(len(operands))])  # fmt: skip
        kept = []
        for node in graph_module.graph.nodes:
            if node.op == "placeholder":
                walk.values[node.name] = next(elements)
                kept.append(walk.values[node.name])
            elif node.op != "output":
                walk.step(node)
            else:
                results = walk.value(node.args[0])
                listed = results if isinstance(results, list) else [results]
                listed = [walk.builder.tensor(r) for r in [*listed, *kept[len(kept) - extra :]]]
                inner.root = listed[0] if single_result else inner.add(Opcode.TUPLE, listed)
        return self.builder.module.add(inner)


def _elements(b: TorchBuilder, value: HloInstruction) -> list[Any]:
    return [b.add(Opcode.GET_TUPLE_ELEMENT, value, index=i) for i in range(len(value.shape.tuple_shapes))]


def _row(b: TorchBuilder, x: HloInstruction, n: HloInstruction) -> HloInstruction:
    """Return a row of an array."""
    dimensions = x.shape.dimensions
    row = b.add(Opcode.DYNAMIC_SLICE, x, *_starts(b, x, n), dynamic_slice_sizes=(1, *dimensions[1:]))
    return b.reshape(row, dimensions[1:])


def _with_row(b: TorchBuilder, x: HloInstruction, row: HloInstruction, n: HloInstruction) -> HloInstruction:
    """Return an array with another row."""
    return b.add(Opcode.DYNAMIC_UPDATE_SLICE, x, b.reshape(row, (1, *x.shape.dimensions[1:])), *_starts(b, x, n))


def _starts(b: TorchBuilder, x: HloInstruction, n: HloInstruction) -> list[HloInstruction]:
    return [n, *(b.constant(0, T.S64) for _ in x.shape.dimensions[1:])]


def _has_tensor(value: Any) -> bool:
    """Check whether an argument of a node is a tensor or a list with one."""
    return any(map(_has_tensor, value)) if isinstance(value, list) else isinstance(value, HloInstruction)


def _is_constant(op: Any, args: list[Any]) -> bool:
    """Check whether an op returns one tensor that does not depend on tensors or random numbers, such as a window."""
    schema, tags = getattr(op, "_schema", None), [str(t) for t in getattr(op, "tags", ())]
    returns = [str(r.type) for r in schema.returns] if schema is not None else []
    leaves = [a for v in args for a in (v if isinstance(v, list) else [v])]
    fixed = not any(isinstance(a, HloInstruction) for a in leaves)
    return fixed and returns == ["Tensor"] and not any("nondeterministic" in t for t in tags)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, HloInstruction) and value.shape.is_scalar


def _of_scalar(b: TorchBuilder, lowering: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Apply a lowering for tensors to scalars, as tensors of one element."""

    def line(value: Any) -> Any:
        return b.reshape(value, (1,)) if _is_scalar(value) else value

    results = lowering(b, *map(line, args), **{name: line(value) for name, value in kwargs.items()})
    return [b.reshape(r, ()) for r in results] if isinstance(results, list) else b.reshape(results, ())


def _base(name: str) -> str:
    return name.removeprefix("aten.").removeprefix("prims.").partition(".")[0]


@functools.cache
def _library() -> str:
    """Return the folder of PyTorch."""
    return f"{Path(importlib.import_module('torch').__file__ or '').parent}/"


def _location(node: Any) -> str:
    """Return the location of a node: the submodule, and the line of the program."""
    parts = []
    modules = [v for v in (node.meta.get("nn_module_stack") or {}).values() if v[0]]
    if modules:
        path, kind = modules[-1]
        parts.append(f"in {path} ({str(getattr(kind, '__name__', kind)).rpartition('.')[2]})")
    lines = [ln.strip() for ln in (node.meta.get("stack_trace") or "").splitlines() if ln.strip().startswith("File")]
    own = [ln for ln in lines if not any(part in ln for part in (_library(), _OWN, 'File "<'))]
    if own:
        file, number = own[-1].split(", ")[:2]
        parts.append(
            f"at {file.removeprefix('File ').strip(chr(34)).rpartition('/')[2]}:{number.removeprefix('line ')}"
        )
    return " " + ", ".join(parts) if parts else ""
