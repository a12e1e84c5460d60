"""Exports PyTorch programs as graphs of ATen ops: torch.export, decompositions, and clear errors.

torch.export traces above autograd, so it fails for programs that compute gradients (`torch.func.grad`,
`torch.autograd.grad`). Such a program is first traced below autograd by make_fx, which records the backward pass as
ATen ops; the resulting graph is then exported.
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
from compiler.frontends.torch_decompositions import decompositions
from compiler.frontends.torch_program import is_lowered
from compiler.frontends.torch_substitutes import substitutes

_ROUNDS = 4
"""How many times results of decompositions are decomposed again."""
_OWN = str(Path(__file__).parent)


def export(module_or_fn: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Export a module or function as a program of ops in `LOWERINGS`, as far as PyTorch can decompose it.

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
    with (
        _quiet(), _source_lines_recorded(torch), _state_restored(torch, module_or_fn), _dual_level_left(),
        substitutes(torch), _optimizers_refused(),
    ):  # fmt: skip
        try:
            return _exported(torch, module, args, kwargs)
        except HlogymError:
            raise
        except Exception as e:
            try:
                with substitutes(torch, differentiable=True):
                    graph = _below_autograd(torch, module, args, kwargs)
                return _exported(torch, graph, args, kwargs)
            except UnsupportedError:
                raise
            except Exception:  # the first error refers to the user's own code
                raise UnsupportedError(_explanation(torch, e)) from e


def _exported(torch: Any, module: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    program = torch.export.export(module, tuple(args), kwargs)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    if any(getattr(t, "__module__", "").startswith("torch._functorch") for t in targets):
        # Running such a graph, as decomposition does, would leave PyTorch inside the transform if it fails.
        raise RuntimeError("a transform of functions (torch.func) that torch.export does not follow")
    return _decomposed(program.run_decompositions())


def _decomposed(program: Any) -> Any:
    """Decompose the ops without a lowering, if that leads to ops that have one."""
    table = decompositions()
    found = program
    for _ in range(_ROUNDS):
        missing = _missing(found)
        known = {op: table[op] for op in missing if op in table}
        if not known:
            break
        try:
            found = found.run_decompositions(known)
        except Exception:  # not exportable; the op is then reported as unsupported
            break
    # An error about an op of the user's program is clearer than one about an op of its decomposition.
    return found if len(_missing(found) - _missing(program)) == 0 else program


def _missing(program: Any) -> set[Any]:
    return {n.target for n in program.graph.nodes if n.op == "call_function" and not is_lowered(n.target)}


def _below_autograd(torch: Any, module: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return a module with the same signature and weights whose forward is a graph of ATen ops, with gradients."""
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
    # Gradients of fused attention kernels are ops without decomposition.
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
    def forward(*args: Any, **kwargs: Any) -> Any:  # PyTorch records source lines from a frame of this name on
        return fn(*args, **kwargs)

    module = torch.nn.Module()
    module.forward = functools.wraps(fn)(forward) if _has_signature(fn) else forward
    return module


def _has_signature(fn: Callable[..., Any]) -> bool:
    """Check whether a function has a signature; torch functions written in C++ have none."""
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
def _state_restored(torch: Any, program: Any) -> Iterator[None]:
    """Restore buffers and gradients of the modules that a function refers to: tracing runs the modules."""
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


@contextmanager
def _dual_level_left() -> Iterator[None]:
    """Leave a level of forward differentiation that the program entered: one that fails inside may not leave it."""
    forward_ad: Any = importlib.import_module("torch.autograd.forward_ad")

    def is_inside() -> bool:
        try:
            with forward_ad.dual_level():
                return False
        except RuntimeError:  # levels do not nest
            return True

    before = is_inside()
    try:
        yield
    finally:
        if is_inside() and not before:
            forward_ad.exit_dual_level()


def _modules_of(torch: Any, program: Any) -> list[Any]:
    """Return the modules that a function refers to in its closure, globals or bound object."""
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
def _optimizers_refused() -> Iterator[None]:
    """Raise an error where the program calls an optimizer: its updates of weights would not be part of the graph."""
    optimizers: Any = importlib.import_module("torch.optim.optimizer")

    def refuse(optimizer: Any, *_: Any) -> None:
        raise UnsupportedError(
            f"this PyTorch program calls {type(optimizer).__name__}.step(), whose updates an export loses; use "
            'torch.compile(step, backend="hlogym"), or return new weights as a function of weights, gradients and state'
        )

    handle = optimizers.register_optimizer_step_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress PyTorch's deprecation warnings and the graphs that it prints before it raises."""
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
    """A stream that drops the text of graphs, which torch.export prints before it raises, and forwards the rest."""

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
def _source_lines_recorded(torch: Any) -> Iterator[None]:
    """Make PyTorch record source lines of all functions, not only of `forward` methods.

    Errors name these lines. Versions of PyTorch without this switch report some errors without lines.
    """
    proxy: Any = importlib.import_module("torch.fx.proxy")
    before = getattr(proxy, "_STACK_TRACE_ANCHORS", None)
    if before is None:
        yield
        return
    proxy._STACK_TRACE_ANCHORS = _UserFrames(str(Path(torch.__file__).parent))
    try:
        yield
    finally:
        proxy._STACK_TRACE_ANCHORS = before


class _UserFrames:
    """The (file, function) pairs of stack frames that are outside of PyTorch and this package."""

    def __init__(self, torch_folder: str) -> None:
        self.others = (torch_folder, _OWN, "<")

    def __contains__(self, frame: tuple[str, str]) -> bool:
        return not frame[0].startswith(self.others)


def _explanation(torch: Any, error: Exception) -> str:
    """Return one message for an exception of PyTorch: what is not possible, where, and what to do instead."""
    kind, text = type(error).__name__, next((ln.strip() for ln in str(error).splitlines() if ln.strip()), "")
    where = _location(torch, error)
    if "DataDependent" in kind or "data-dependent" in text:
        return (
            f"this PyTorch program branches in Python on values of a tensor (`if`, `.item()`, `int()`){where}, which "
            "a compiled program cannot; use torch.where, torch.cond or torch.while_loop"
        )
    if kind == "DynamicOutputShapeException":
        why = "a result whose size depends on the data is not supported by the torch frontend"
        return f"PyTorch op {text}{where}: {why}"
    return f"PyTorch cannot export this program{where}: {kind}: {text}"


def _location(torch: Any, error: Exception) -> str:
    """Return the location in the user's code where the exception was raised, or an empty string."""
    users = _UserFrames(str(Path(torch.__file__).parent))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if (f.filename, f.name) in users]
    return f", at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
