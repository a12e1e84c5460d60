"""The sources of generated kernels, without building them: they need no compiler and no device."""

from __future__ import annotations

from compiler.backends.registry import find_backend
from compiler.errors import HlogymError
from compiler.ir import HloModule
from compiler.plan import CompilationPlan
from compiler.runtime.thunk_emitter import ThunkEmitter
from compiler.runtime.thunks import KernelThunk, walk
from compiler.session import CompilationSession

__all__ = ["kernel_sources"]


def kernel_sources(module: HloModule, plan: CompilationPlan, backend: str) -> dict[str, str]:
    """Return the source of each generated kernel by the name of the instruction that it computes.

    There are none if an op of the program has no implementation on the backend, which may still be shown.

    Args:
        module: the program before compilation; it is not changed.
        plan: made by a session on this module.
        backend: name of the backend.
    """
    target = find_backend(backend)
    if target.language is None:
        return {}
    session = CompilationSession(module, target.name)
    session.replay(plan)
    _ = session.fusion  # lowers the module if no decision about fusion did
    emitter = ThunkEmitter(
        target.language, session.kernel_bindings, target.default_schedule, target.name, plan.made, donate=True
    )
    try:
        program = emitter.emit(session.final_module())
    except HlogymError:
        return {}
    return {t.name: t.spec.source for t in walk(program.thunks) if isinstance(t, KernelThunk)}
