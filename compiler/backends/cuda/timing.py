"""Times on a GPU, by CUDA events on the stream on which the work runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from compiler.backends.cuda.arrays import Argument
from compiler.backends.cuda.device_program import DeviceProgram

__all__ = ["time_program", "time_step"]

WARM_UP = 3
"""Executions before the first that counts: by single launches, at the capture of graphs, and of the graphs."""
QUEUED = 32
"""Executions that are queued before the first of them starts, well below what the queue of a stream can hold."""
LONGEST_WAIT = 1.0
"""Seconds after which a stream continues, whatever the host does."""


def time_program(
    program: DeviceProgram,
    arguments: Sequence[Argument],
    results: Sequence[Any],
    copies: Sequence[tuple[int, int]],
    repeats: int,
) -> list[float]:
    """Return the seconds of each execution of a program, which writes the same results each time.

    Args:
        program: the program.
        arguments: of all executions.
        results: where it writes.
        copies: see `take_results`; they are made before each execution and do not count.
        repeats: number of executions.
    """
    with program.bound(arguments, results) as stream:

        def prepare() -> None:
            program.begin(copies, arguments, results, stream)

        def run() -> None:
            program.launch(stream)

        for _ in range(WARM_UP):
            prepare()
            run()
        return _timed(program, run, prepare, stream, repeats, queue=program.is_one_launch)


def time_step(
    program: DeviceProgram, step: Callable[[Any], None] | None, is_one_launch: bool, stream: Any, repeats: int
) -> list[float]:
    """Return the seconds of each of `repeats` executions of one thunk, or zeros if it does nothing itself."""
    if step is None:
        return [0.0] * repeats
    step(stream)
    return _timed(program, lambda: step(stream), lambda: None, stream, repeats, queue=is_one_launch)


def _timed(
    program: DeviceProgram,
    run: Callable[[], None],
    prepare: Callable[[], None],
    stream: Any,
    repeats: int,
    queue: bool,
) -> list[float]:
    """Return the seconds of each execution.

    With `queue`, the stream waits for the host until many executions are queued. Otherwise the GPU would reach
    the first event of an execution while the host still launches the execution itself, and the launch would count.
    """
    cuda = program.xp.cuda
    pairs = [(cuda.Event(), cuda.Event()) for _ in range(repeats)]
    for first in range(0, repeats, QUEUED):
        stream.synchronize()
        gate = threading.Event()
        if queue:
            stream.launch_host_func(lambda waited: waited.wait(LONGEST_WAIT), gate)
        try:
            for start, stop in pairs[first : first + QUEUED]:
                prepare()
                start.record(stream)
                run()
                stop.record(stream)
                if not queue:
                    stop.synchronize()
        finally:
            gate.set()
    stream.synchronize()
    return [cuda.get_elapsed_time(start, stop) / 1e3 for start, stop in pairs]
