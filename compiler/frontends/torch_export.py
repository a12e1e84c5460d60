"""PyTorch programs as graphs of ATen ops: torch.export, decompositions, and clear errors where these give up.

torch.export records a program above autograd, so a program that takes gradients (`torch.func.grad`,
`torch.autograd.grad`) fails there. Such a program is traced below autograd first, by make_fx, which writes the backward
pass out as ATen ops; what that yields is exported.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compiler.errors import ArgumentError, BackendError, HlogymError, UnsupportedError
from compiler.frontends.torch_program import is_lowered
from compiler.frontends.torch_substitutes import substitutes

_ROUNDS = 4
"""How often what a decomposition yields is decomposed in turn."""
_OWN = str(Path(__file__).parent)


def export(module_or_fn: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The exported program of a module or function, with ops that `LOWERINGS` has as far as PyTorch can decompose.

    Raises:
        ArgumentError: the arguments do not fit the signature.
        UnsupportedError: PyTorch cannot export the program; the message says where and why.
        BackendError: PyTorch is not installed.
    """
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("torch.export")
    except ImportError as e:
        raise BackendError(
            f"this frontend needs PyTorch, which cannot be imported here ({e}); install it with: pip install torch"
        ) from e
    module = module_or_fn if isinstance(module_or_fn, torch.nn.Module) else _as_module(torch, module_or_fn)
    _check_arguments(module.forward, args, kwargs)
    with _quiet(), _places_recorded(torch), _undisturbed(torch, module_or_fn), substitutes(torch):
        try:
            return _exported(torch, module, args, kwargs)
        except HlogymError:
            raise
        except Exception as e:
            try:
                with substitutes(torch, differentiable=True):
                    graph = _below_autograd(torch, module, args, kwargs)
                return _exported(torch, graph, args, kwargs)
            except Exception:  # what torch.export said of the program itself is closer to what the user wrote
                raise UnsupportedError(_explanation(torch, e)) from e


def _exported(torch: Any, module: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    program = torch.export.export(module, tuple(args), kwargs)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    if any(getattr(t, "__module__", "").startswith("torch._functorch") for t in targets):
        # To run such a graph, as decomposing does, would leave PyTorch inside of the transform when it fails.
        raise RuntimeError("a transform of functions (torch.func) that torch.export does not follow")
    return _decomposed(program.run_decompositions())


def _decomposed(program: Any) -> Any:
    """The program with the ops that have no lowering taken apart, as far as that leads to ops that have one."""
    table = importlib.import_module("torch._decomp").decomposition_table
    found = program
    for _ in range(_ROUNDS):
        missing = _missing(found)
        known = {op: table[op] for op in missing if op in table}
        if not known:
            break
        try:
            found = found.run_decompositions(known)
        except Exception:  # the decomposition does not fit into an export; the op is refused by name then
            break
    # An error about an op that somebody wrote says more than one about what it was made of.
    return found if len(_missing(found) - _missing(program)) == 0 else program


def _missing(program: Any) -> set[Any]:
    return {n.target for n in program.graph.nodes if n.op == "call_function" and not is_lowered(n.target)}


def _below_autograd(torch: Any, module: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A module of the same signature and weights whose forward is a graph of ATen ops, gradients included."""
    pytree = importlib.import_module("torch.utils._pytree")
    make_fx = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx
    state = dict(module.named_parameters()) | dict(module.named_buffers())
    weights = {name: tensor.detach() for name, tensor in state.items()}
    leaves, spec = pytree.tree_flatten((weights, tuple(args), dict(kwargs)))
    results: list[Any] = []

    def flat(*given: Any) -> list[Any]:
        named, inner_args, inner_kwargs = pytree.tree_unflatten(given, spec)
        out = torch.func.functional_call(module, named, inner_args, inner_kwargs)
        found, out_spec = pytree.tree_flatten(out)
        results[:] = [out_spec]
        return list(found)

    attention = importlib.import_module("torch.nn.attention")
    # The fused kernels' gradients are ops that only they have.
    with attention.sdpa_kernel(attention.SDPBackend.MATH):
        graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True, record_stack_traces=True)(*leaves)

    def forward(*inner_args: Any, **inner_kwargs: Any) -> Any:
        named = dict(shell.named_parameters()) | dict(shell.named_buffers())
        given, _ = pytree.tree_flatten((named, inner_args, inner_kwargs))
        with importlib.import_module("torch.fx.traceback").preserve_node_meta():
            return pytree.tree_unflatten(torch.fx.Interpreter(graph).run(*given), results[0])

    shell = torch.nn.Module()
    shell.__dict__.update(module.__dict__)
    shell.forward = functools.wraps(module.forward)(forward)
    return shell


def _as_module(torch: Any, fn: Callable[..., Any]) -> Any:
    def forward(*args: Any, **kwargs: Any) -> Any:  # PyTorch records places from a frame of this name on
        return fn(*args, **kwargs)

    module = torch.nn.Module()
    module.forward = functools.wraps(fn)(forward) if _has_signature(fn) else forward
    return module


def _has_signature(fn: Callable[..., Any]) -> bool:
    """Functions of torch written in C++ say nothing of their parameters."""
    try:
        inspect.signature(fn)
    except ValueError:
        return False
    return True


def _check_arguments(forward: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    if not _has_signature(forward):
        return
    try:
        inspect.signature(forward).bind(*args, **kwargs)
    except TypeError as e:
        raise ArgumentError(f"the arguments do not fit the PyTorch program's signature: {e}") from e


@contextmanager
def _undisturbed(torch: Any, program: Any) -> Iterator[None]:
    """Tracing a function runs the modules that it refers to: their buffers and gradients are put back afterwards."""
    modules = _modules_of(torch, program)
    buffers = [(b, b.detach().clone()) for m in modules for b in m.buffers()]
    gradients = [(p, p.grad) for m in modules for p in m.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for parameter, grad in gradients:
            parameter.grad = grad


def _modules_of(torch: Any, program: Any) -> list[Any]:
    """The modules a function finds in its closure, its globals or its object."""
    if isinstance(program, torch.nn.Module):
        return [program]
    fn = program
    found = []
    while isinstance(fn, functools.partial):
        found += [*fn.args, *fn.keywords.values()]
        fn = fn.func
    found.append(getattr(fn, "__self__", None))
    try:
        seen = inspect.getclosurevars(inspect.unwrap(getattr(fn, "__func__", fn)))
    except TypeError:  # not written in Python
        return [m for m in found if isinstance(m, torch.nn.Module)]
    found += [*seen.nonlocals.values(), *seen.globals.values()]
    return [m for m in found if isinstance(m, torch.nn.Module)]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without PyTorch's warnings of its own deprecations, and without the graphs it prints before it raises."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "torch"]
    loggers = [logger for logger in map(logging.getLogger, names) if not logger.disabled]
    for logger in loggers:
        logger.disabled = True
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(_WithoutGraphs(sys.stderr)):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger in loggers:
            logger.disabled = False


class _WithoutGraphs(io.TextIOBase):
    """A stream that passes on all but the text of graphs, which torch.export prints before it raises."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.left_out = False

    def write(self, text: str) -> int:
        ends_graph = self.left_out and text == "\n"
        self.left_out = "def forward(self" in text
        if not self.left_out and not ends_graph:
            self.stream.write(text)
        return len(text)


@contextmanager
def _places_recorded(torch: Any) -> Iterator[None]:
    """While this lasts, PyTorch records the lines of functions too, not of `forward` methods alone.

    Errors name these lines; where this version of PyTorch has no such switch, some errors are without them.
    """
    proxy: Any = importlib.import_module("torch.fx.proxy")
    before = getattr(proxy, "_STACK_TRACE_ANCHORS", None)
    if before is None:
        yield
        return
    proxy._STACK_TRACE_ANCHORS = _UsersFrames(str(Path(torch.__file__).parent))
    try:
        yield
    finally:
        proxy._STACK_TRACE_ANCHORS = before


class _UsersFrames:
    """The (file, function) pairs of frames that are neither PyTorch's nor this package's."""

    def __init__(self, torch_folder: str) -> None:
        self.others = (torch_folder, _OWN, "<")

    def __contains__(self, frame: tuple[str, str]) -> bool:
        return not frame[0].startswith(self.others)


def _explanation(torch: Any, error: Exception) -> str:
    """One message for whatever PyTorch raised: what it cannot do, where, and what to do about it."""
    kind, text = type(error).__name__, next((ln.strip() for ln in str(error).splitlines() if ln.strip()), "")
    where = _place(torch, error)
    if "DataDependent" in kind or "data-dependent" in text:
        return (
            f"this PyTorch program decides in Python on values of a tensor (`if`, `.item()`, `int()`...){where}, which "
            "a compiled program cannot; use torch.where, torch.cond or torch.while_loop"
        )
    if kind == "DynamicOutputShapeException":
        why = "a result whose size depends on the data is not supported by the torch frontend"
        return f"PyTorch op {text}{where}: {why}"
    return f"PyTorch cannot export this program{where}: {kind}: {text}"


def _place(torch: Any, error: Exception) -> str:
    """Where in the user's own code it happened, if it did."""
    users = _UsersFrames(str(Path(torch.__file__).parent))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if (f.filename, f.name) in users]
    return f", at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
