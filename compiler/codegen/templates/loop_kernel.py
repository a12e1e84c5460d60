"""Loop kernels: a whole `while` loop inside one kernel.

This is possible if the iterations are independent along one axis of the carried arrays: the new values at a position
depend only on the old values at that position, on small arrays and scalars shared by all positions, and on values that
the loop does not change. A tile of positions then runs all iterations with its state in local arrays (registers on a
GPU), so that the state does not go through memory in every iteration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from compiler.codegen.build_target import C_TARGET, BuildTarget
from compiler.codegen.kernel_spec import KernelSpec, build_spec, flops_of
from compiler.codegen.languages import CUDA, default_schedule, find_language
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.templates.block_loop import BLOCK_LOOP, lower_for_blocks
from compiler.codegen.templates.block_stages import BlockStages
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


def loop_refusal(loop: HloInstruction, target: BuildTarget = C_TARGET, *, in_blocks: bool = True) -> str | None:
    """Return why a `while` cannot become one kernel of a target, or None when it can.

    Args:
        loop: the `while`.
        target: what the kernel is built for.
        in_blocks: whether blocks of threads that wait for each other may run it.
    """
    reason: str | None = None
    for schedule in _tried(target):
        try:
            _check(loop, target.language, schedule, in_blocks)
        except UnsupportedError as e:
            reason = reason or str(e)
        else:
            return None
    return reason


def _check(loop: HloInstruction, language: str, schedule: Schedule | None, in_blocks: bool) -> None:
    """Raise UnsupportedError if `make_loop_kernel` does, without printing the kernel where that cannot fail."""
    check = find_language(language).check
    if check is None:
        make_loop_kernel(loop, language, schedule)
    else:
        kernel, _, schedule = _lowered(loop, language, schedule)
        if kernel.kind == BLOCK_LOOP and not in_blocks:
            raise UnsupportedError(f"%{loop.name}: only threads that wait for each other can run it")
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
        UnsupportedError: it has no nest with the last of the states that it may have, and no block runs it.
    """
    on_gpu = find_language(language).threads is None
    states = states_of(loop, on_gpu)
    try:
        return _lowered_for_positions(states, language, schedule)
    except UnsupportedError:
        found = _lowered_for_blocks(states[-1]) if on_gpu else None
        if found is None:
            raise
        return found[0], states[-1], schedule or default_schedule(language)


def _lowered_for_positions(
    states: Sequence[LoopState], language: str, schedule: Schedule | None
) -> tuple[lir.Kernel, LoopState, Schedule]:
    """Return what `_lowered` does, of a loop whose positions are run by threads that do not wait for each other."""
    *preferred, state = states
    for other in preferred:
        with contextlib.suppress(UnsupportedError):
            return _lowered_with(other, language, schedule)
    return _lowered_with(state, language, schedule)


def _lowered_for_blocks(state: LoopState) -> tuple[lir.Kernel, BlockStages] | None:
    """Return the nest of a loop that blocks of threads run, and its stages; None if they cannot."""
    for divided in (True, False):
        with contextlib.suppress(UnsupportedError), deep_recursion():
            stages = BlockStages(state, divided=divided)
            return lower_for_blocks(stages), stages
    return None


def is_slow_in_blocks(loop: HloInstruction, launch: float) -> bool:
    """Check whether blocks of threads would run a loop that has a kernel of a GPU, but slower than kernels of its body.

    Args:
        loop: the `while`.
        launch: seconds to launch a kernel.
    """
    states = states_of(loop, True)
    with contextlib.suppress(UnsupportedError):
        _lowered_for_positions(states, CUDA.name, None)
        return False
    found = _lowered_for_blocks(states[-1])
    return found is not None and found[1].iteration_seconds() > launch * found[1].launches()


def _lowered_with(state: LoopState, language: str, schedule: Schedule | None) -> tuple[lir.Kernel, LoopState, Schedule]:
    axis, extent = positions_of(state, language, 0 if schedule is None else schedule.axis)
    schedule = schedule or fitted_schedule(state, language, axis, extent)
    with deep_recursion():
        kernel = LoopLowering(state, axis, extent, schedule).kernel()
    return kernel, state, schedule
