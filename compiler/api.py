"""compile and load: what users call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from compiler.errors import ArgumentError, UnknownNameError
from compiler.fusion.policies import DEFAULT_POLICY, make_policy
from compiler.fusion.protocol import FusionPolicy
from compiler.ir import HloInstruction, HloModule
from compiler.ir.verifier import verify
from compiler.loops import KernelLoops, LoopPolicy
from compiler.passes import HloPass, PassPipeline
from compiler.plan import CompilationPlan
from compiler.runtime.build import BACKENDS, build_executable
from compiler.runtime.executable import Executable
from compiler.session import CompilationSession
from compiler.support.untrusted import short_repr
from compiler.text import parse


class KernelSelector(Protocol):
    """Chooses how each kernel is made."""

    def choose_kernel(self, instruction: HloInstruction, module: HloModule) -> Mapping[str, int]:
        """Fields of a `codegen.schedule.Schedule` that shall differ from the defaults."""
        ...


@dataclass(frozen=True)
class CompileOptions:
    """Switches of `compile`.

    Attributes:
        verify: check the module before and after the passes.
        optimize: run passes, loop decisions and fusion; without, every op becomes a kernel of its own.
    """

    verify: bool = True
    optimize: bool = True


def resolve_backend(backend: str) -> str:
    """The backend a name stands for: "auto" is cuda where CuPy finds a GPU, else cpu.

    UnknownNameError with the nearest names when there is no such backend.
    """
    if not isinstance(backend, str):
        raise ArgumentError(f"a backend is named by a text, not by {short_repr(backend)}")
    if backend not in BACKENDS:
        raise UnknownNameError("backend", backend, BACKENDS)
    if backend != "auto":
        return backend
    from compiler.backends import cuda

    return "cpu" if cuda.why_unavailable() else "cuda"


def compile(  # the name users know
    module: HloModule | str,
    backend: str = "cpu",
    pipeline: PassPipeline | HloPass | Sequence[str | HloPass] | None = None,
    fusion_policy: FusionPolicy | str | None = None,
    kernel_selector: KernelSelector | None = None,
    loop_policy: LoopPolicy | None = None,
    plan: CompilationPlan | None = None,
    options: CompileOptions | None = None,
) -> Executable:
    """Compile a program.

    Args:
        module: HLO text or a module; a module is not changed.
        backend: "cpu" (C, gcc), "cuda" (CUDA C++, CuPy), "interpreter" (numpy, the definition), or "auto".
        pipeline: passes before fusion: None for the default, a list of names, or a PassPipeline.
        fusion_policy: None for the default, a name, or a FusionPolicy.
        kernel_selector: how kernels are made; None: each backend's defaults.
        loop_policy: what becomes of loops; None: one kernel where that can be made.
        plan: replay these decisions instead of asking policies.
        options: see CompileOptions.

    Returns:
        An executable: call it with arrays, look at `.kernels`, `.module`, `.plan`.

    Raises:
        HloSyntaxError, HloVerificationError: the program is not HLO.
        UnsupportedError, BackendError, CodegenError: it cannot be built here; the message says why.
        ArgumentError: what was given is no program, or no backend.
        PlanError: the plan is of another program or cannot be replayed, or a kernel cannot be made as was chosen.
    """
    options = options or CompileOptions()
    backend = resolve_backend(backend)
    module = parse(module) if isinstance(module, str) else module
    if not isinstance(module, HloModule):
        raise ArgumentError(f"a program is HLO text or an HloModule, not {short_repr(module)}")
    if options.verify:
        verify(module)
    if not options.optimize:
        return build_executable(module, backend)
    session = CompilationSession(module, backend, pipeline)
    if plan is not None:
        session.replay(plan)
        return session.finish()
    decide(session, _policy(fusion_policy), loop_policy, kernel_selector)
    session.module.reorder()  # fusions stand where they were made, a scheduled module is read in order
    if options.verify:
        verify(session.module)
    return session.finish()


def _policy(given: FusionPolicy | str | None) -> FusionPolicy:
    if given is None or isinstance(given, str):
        return make_policy(given or DEFAULT_POLICY)
    return given


def decide(
    session: CompilationSession,
    fusion_policy: FusionPolicy,
    loop_policy: LoopPolicy | None = None,
    kernel_selector: KernelSelector | None = None,
) -> None:
    """Take every decision of a session by policies."""
    session.run_passes()
    if loop_policy is None:
        # A learned policy decides loops too; one that only fuses leaves them to the default.
        loop_policy = fusion_policy if isinstance(fusion_policy, LoopPolicy) else KernelLoops()
    session.run_loop_policy(loop_policy)
    session.run_fusion_policy(fusion_policy)
    if kernel_selector is None:
        return
    for i in session.kernels():
        choice = kernel_selector.choose_kernel(i, session.module)
        if choice:
            session.set_kernel(i.name, choice)
