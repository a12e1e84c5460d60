"""The registry of kernel implementations: the code generator, and libraries and templates that register themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from compiler.codegen.schedules.kernel_choice import GENERATED, BoundKernel
from compiler.codegen.schedules.schedule_space import Knob
from compiler.errors import UnknownNameError
from compiler.ir.instruction import HloInstruction

if TYPE_CHECKING:
    from compiler.runtime.thunk_emitter import ThunkEmitter

Emit: TypeAlias = "Callable[[ThunkEmitter, HloInstruction, list[Any], list[Any], float, BoundKernel], Any]"


def never(instruction: HloInstruction, backend: str) -> bool:
    """Return False: an implementation is the default nowhere."""
    del instruction, backend
    return False


def _no_knobs(instruction: HloInstruction, backend: str) -> tuple[Knob, ...]:
    del instruction, backend
    return ()


@dataclass(frozen=True)
class KernelImplementation:
    """A way to compute an instruction other than by generated code: a library call or a template.

    Attributes:
        name: the value of `KernelChoice.implementation`.
        refusal: function of an instruction and the name of a backend that returns why the implementation cannot
            compute the instruction there, or None when it can.
        emit: function that emits the thunks of the instruction and returns its value, see `ThunkEmitter`. Its
            arguments are the emitter, the instruction, the values of the operands, the thunks to append to, the
            expected number of executions, and the bound choice.
        knobs: function of an instruction and the name of a backend that returns the parameters that may be chosen.
        prefers: function of an instruction and the name of a backend that returns whether the implementation is the
            default there if it can compute it; of several, the one that was registered last is taken. It is asked
            about any instruction, before `refusal`, which may take longer.
    """

    name: str
    refusal: Callable[[HloInstruction, str], str | None]
    emit: Emit
    knobs: Callable[[HloInstruction, str], tuple[Knob, ...]] = _no_knobs
    prefers: Callable[[HloInstruction, str], bool] = never


IMPLEMENTATIONS: dict[str, KernelImplementation] = {}
"""Implementations by name, in order of registration; the code generator is not among them."""


def register_implementation(implementation: KernelImplementation) -> KernelImplementation:
    """Register an implementation under its name; raise ValueError if the name is in use."""
    if implementation.name == GENERATED or IMPLEMENTATIONS.get(implementation.name, implementation) != implementation:
        raise ValueError(f"two kernel implementations are called {implementation.name!r}")
    IMPLEMENTATIONS[implementation.name] = implementation
    return implementation


def find_implementation(name: str) -> KernelImplementation:
    """Return the implementation of a name; raise UnknownNameError if there is none."""
    if name not in IMPLEMENTATIONS:
        raise UnknownNameError("kernel implementation", name, (GENERATED, *IMPLEMENTATIONS))
    return IMPLEMENTATIONS[name]


def implementations_of(instruction: HloInstruction, backend: str) -> tuple[KernelImplementation, ...]:
    """Return the implementations that can compute an instruction, the preferred ones first."""
    found = [i for i in reversed(IMPLEMENTATIONS.values()) if i.refusal(instruction, backend) is None]
    return tuple(sorted(found, key=lambda i: not i.prefers(instruction, backend)))


def preferred_implementation(instruction: HloInstruction, backend: str) -> KernelImplementation | None:
    """Return the implementation that an instruction has by default, or None for the code generator."""
    preferred = (
        i
        for i in reversed(IMPLEMENTATIONS.values())
        if i.prefers(instruction, backend) and i.refusal(instruction, backend) is None
    )
    return next(preferred, None)
