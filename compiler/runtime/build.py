"""From an optimised module to an executable on a backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from compiler.backends import BACKENDS as BACKENDS
from compiler.codegen.schedule import Schedule
from compiler.errors import UnknownNameError
from compiler.ir.module import HloModule
from compiler.runtime.executable import CpuExecutable, Executable, InterpreterExecutable
from compiler.runtime.thunk_emitter import Planner

if TYPE_CHECKING:
    from compiler.plan import CompilationPlan


def build_executable(
    module: HloModule,
    backend: str = "cpu",
    *,
    plan: CompilationPlan | None = None,
    schedules: Mapping[str, Schedule] | None = None,
) -> Executable:
    """Make `module` run: kernels, buffers, thunks.

    Args:
        module: after all passes, fusions in place; it is not changed.
        backend: one of BACKENDS, "auto" already resolved.
        plan: the decisions that led here, kept with the result.
        schedules: kernel choices by instruction name.

    Raises:
        BackendError: the backend cannot work here. CodegenError: a kernel could not be built.
        UnsupportedError: an op that nothing can run.
    """
    if backend == "interpreter":
        return InterpreterExecutable(module, plan)
    if backend == "cpu":
        return CpuExecutable.build(module, Planner("c", dict(schedules or {})).plan(module), plan)
    if backend == "cuda":
        from compiler.runtime.cuda_executable import CudaExecutable

        return CudaExecutable.build(module, Planner("cuda", dict(schedules or {})).plan(module), plan)
    raise UnknownNameError("backend", backend, BACKENDS)
