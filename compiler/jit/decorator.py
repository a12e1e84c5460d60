"""The decorator `hlogym.jit`."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, overload

from compiler.api import CompileOptions, compile
from compiler.errors import ArgumentError, BackendError, UnknownNameError
from compiler.jit.programs import Settings
from compiler.plan import CompilationPlan

if TYPE_CHECKING:
    from compiler.jit.function import JitFunction

Output = Literal["like", "jax", "numpy"]
OUTPUTS = ("like", "jax", "numpy")
BACKENDS = ("auto", "cpu", "xla")
_ONLY_OF_JAX = ("in_shardings", "out_shardings", "device", "compiler_options")
"""Arguments of `jax.jit` that would change where or how a function runs."""


@overload
def jit(f: Callable[..., Any], **settings: Any) -> JitFunction: ...
@overload
def jit(f: None = None, **settings: Any) -> Callable[[Callable[..., Any]], JitFunction]: ...
def jit(  # users know it by this name
    f: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Iterable[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    inline: bool = False,
    backend: str = "auto",
    policy: Any = None,
    plan: CompilationPlan | None = None,
    options: CompileOptions | None = None,
    output: Output = "like",
    **decisions: Any,
) -> JitFunction | Callable[[Callable[..., Any]], JitFunction]:
    """Compile a JAX function with hlogym; it is called, transformed and nested like one of `jax.jit`.

    The function is compiled once per signature: shapes, types, weak types, tree structure and static values. Programs
    are also kept on disk, for later processes.

    Args:
        f: a function, method, `functools.partial` or callable object that JAX can trace; None to use `jit` as a
            decorator with arguments.
        static_argnums: positions of arguments whose values are part of the signature; they must be hashable.
        static_argnames: the same by name.
        donate_argnums: positions of arguments whose memory results may take over; a JAX array is deleted by the call,
            and a numpy array that owns its memory is overwritten.
        donate_argnames: the same by name.
        keep_unused: an argument of `jax.jit`, which makes no difference here.
        inline: the same.
        backend: "cpu" or "auto", which means the same for arrays on the CPU; "xla" runs our passes in front of XLA.
        policy: who decides, as in `compile`.
        plan: decisions to replay, for a function that is called with one signature.
        options: see `CompileOptions`.
        output: type of the results: "jax" or "numpy"; "like" means numpy arrays if all arrays among the arguments are
            numpy arrays, and JAX arrays otherwise.
        **decisions: further arguments of `compile` for decisions, such as `fusion_policy`.

    Raises:
        ArgumentError: a static argument is not hashable, a leaf of an argument is no array, `f` is not callable, or an
            argument is one of `jax.jit` that is not supported.
        UnsupportedError: the function uses an op that is not supported; the message names its source line.
        UnknownNameError: there is no such argument.
        BackendError: JAX is not installed.
    """
    if importlib.util.find_spec("jax") is None:
        raise BackendError("hlogym.jit needs JAX, which is not installed; install it with: pip install 'hlogym[jax]'")
    if output not in OUTPUTS:
        raise ArgumentError(f"output must be one of {', '.join(OUTPUTS)}, not {output!r}")
    if backend not in BACKENDS:
        raise ArgumentError(f"hlogym.jit runs on the backends {', '.join(BACKENDS)}, not {backend!r}")
    _check_decisions(decisions)
    settings = Settings("xla" if backend == "xla" else "cpu", policy, plan, options, tuple(sorted(decisions.items())))
    from compiler.jit.arguments import Arguments  # these import JAX
    from compiler.jit.function import JitFunction

    def make(function: Callable[..., Any]) -> JitFunction:
        if not callable(function):
            raise ArgumentError(f"hlogym.jit takes a function, not a {type(function).__name__}")
        arguments = Arguments.of(function, static_argnums, static_argnames, donate_argnums, donate_argnames)
        return JitFunction(function, arguments, settings, output)

    return make if f is None else make(f)


def _check_decisions(decisions: dict[str, Any]) -> None:
    """Raise an error if there are arguments other than those of `compile`; None stands for the default of `jax.jit`."""
    if unsupported := [name for name in _ONLY_OF_JAX if decisions.pop(name, None) is not None]:
        raise ArgumentError(
            f"hlogym.jit does not support {', '.join(unsupported)} of jax.jit: programs run on one CPU device, and "
            "options=CompileOptions(...) says how they are compiled"
        )
    known = {*inspect.signature(compile).parameters} - {"module"}
    for name in decisions:
        if name not in known:
            raise UnknownNameError("argument of hlogym.jit", name, {*known, *inspect.signature(jit).parameters})
