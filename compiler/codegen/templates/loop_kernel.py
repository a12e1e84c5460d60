"""Loop kernels: a whole `while` loop inside one kernel.

This is possible if the iterations are independent along one axis of the carried arrays: the new values at a position
depend only on the old values at that position, on small arrays and scalars shared by all positions, and on values that
the loop does not change. A tile of positions then runs all iterations with its state in local arrays (registers on a
GPU), so that the state does not go through memory in every iteration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from compiler.codegen.build_target import C_TARGET, BuildTarget
from compiler.codegen.kernel_spec import KernelSpec, build_spec, flops_of
from compiler.codegen.languages import find_language
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.templates.loop_lowering import LoopLowering
from compiler.codegen.templates.loop_state import LoopState, fitted_schedule, positions_of, states_of
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.support.recursion import deep_recursion


@dataclass(frozen=True)
class LoopKernel:
    """The kernel of a `while` loop.

    Attributes:
        spec: the kernel.
        inputs: positions in the carried tuple of the arguments that the kernel reads, in argument order.
        outputs: positions in the carried tuple of the arguments that it writes, in argument order after the inputs.
    """

    spec: KernelSpec
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def loop_refusal(loop: HloInstruction, target: BuildTarget = C_TARGET) -> str | None:
    """Return why a `while` cannot become one kernel of a target, or None when it can."""
    reason: str | None = None
    for schedule in _tried(target):
        try:
            _check(loop, target.language, schedule)
        except UnsupportedError as e:
            reason = reason or str(e)
        else:
            return None
    return reason


def _check(loop: HloInstruction, language: str, schedule: Schedule | None) -> None:
    """Raise UnsupportedError if `make_loop_kernel` does, without printing the kernel where that cannot fail."""
    check = find_language(language).check
    if check is None:
        make_loop_kernel(loop, language, schedule)
    else:
        kernel, _, schedule = _lowered(loop, language, schedule)
        check(kernel, schedule)


def _tried(target: BuildTarget) -> Iterator[Schedule | None]:
    """Yield the schedules that a loop may have where none is chosen: fewer lanes than preset if its state is large."""
    if target.has_preset:
        yield None
        return
    lanes = target.schedule.lanes
    while lanes:
        yield replace(target.schedule, lanes=lanes)
        lanes //= 2


def make_loop_kernel(loop: HloInstruction, language: str, schedule: Schedule | None = None) -> LoopKernel:
    """Return the kernel of a `while`, by default with the schedule of `loop_lowering.default_loop_schedule`.

    Raises:
        UnsupportedError: the loop cannot become one kernel.
    """
    kernel, state, schedule = _lowered(loop, language, schedule)
    shapes = loop.shape.tuple_shapes
    inputs, outputs = tuple(range(len(shapes))), tuple(state.changed)
    body: HloComputation = loop.attributes["body"]
    flops = flops_of(body) * (1 if state.trips is None else state.trips)
    spec = build_spec(
        loop.name, kernel, language, schedule,
        tuple(shapes[k] for k in inputs), tuple(shapes[k] for k in outputs), flops,
    )  # fmt: skip
    return LoopKernel(spec, inputs, outputs)


def bound_loop_nest(loop: HloInstruction, language: str, schedule: Schedule) -> lir.Kernel:
    """Return the bound nest from which `make_loop_kernel` prints the kernel; errors are those of that function."""
    return find_language(language).bind(_lowered(loop, language, schedule)[0], schedule)


def _lowered(loop: HloInstruction, language: str, schedule: Schedule | None) -> tuple[lir.Kernel, LoopState, Schedule]:
    """Return the nest of a loop, its state, and the schedule that it was lowered with.

    Raises:
        UnsupportedError: it has no nest with the last of the states that it may have.
    """
    *preferred, state = states_of(loop, find_language(language).threads is None)
    for other in preferred:
        with contextlib.suppress(UnsupportedError):
            return _lowered_with(other, language, schedule)
    return _lowered_with(state, language, schedule)


def _lowered_with(state: LoopState, language: str, schedule: Schedule | None) -> tuple[lir.Kernel, LoopState, Schedule]:
    axis, extent = positions_of(state, language, 0 if schedule is None else schedule.axis)
    schedule = schedule or fitted_schedule(language, extent, state.bytes_per_lane(axis, extent), state.most_lanes)
    with deep_recursion():
        kernel = LoopLowering(state, axis, extent, schedule).kernel()
    return kernel, state, schedule
