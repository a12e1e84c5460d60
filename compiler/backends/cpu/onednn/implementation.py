"""oneDNN as an implementation of kernels, for kernel sites and the thunk emitter."""

from __future__ import annotations

from typing import Any

from compiler.backends.cpu.onednn import matcher
from compiler.codegen.schedules.kernel_choice import BoundKernel
from compiler.codegen.schedules.schedule_space import Knob
from compiler.ir.instruction import HloInstruction
from compiler.runtime.implementations import KernelImplementation
from compiler.runtime.thunk_emitter import ThunkEmitter


def onednn_of(backend: str) -> KernelImplementation:
    """Return the implementation of kernels by oneDNN for one backend, given its name."""

    def refusal(i: HloInstruction, target: str) -> str | None:
        return matcher.refusal(i) if target == backend else f"oneDNN is a library of the {backend} backend"

    return KernelImplementation(
        "onednn",
        refusal,
        _emit,
        knobs=lambda i, target: (Knob(matcher.THREADS, (0, 1), matcher.default_threads(i)),),
        prefers=lambda i, target: matcher.preference_refusal(i) is None,
    )


def _emit(
    emitter: ThunkEmitter, i: HloInstruction, operands: list[Any], thunks: list[Any], runs: float, bound: BoundKernel
) -> Any:
    call = matcher.call_of(i, bound.options.get(matcher.THREADS))
    return emitter.library_call(i, call, operands, thunks, runs)
