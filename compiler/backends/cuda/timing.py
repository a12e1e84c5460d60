"""Times on a GPU, by CUDA events on the stream on which the work runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compiler.backends.cuda.arrays import Argument
from compiler.backends.cuda.device_program import DeviceProgram

__all__ = ["time_program", "time_step"]

WARM_UP = 3
"""Executions before the first that counts: by single launches, at the capture of graphs, and of the graphs."""


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
        return _timed(program, run, prepare, stream, repeats, queue=program.is_one_stretch)


def time_step(program: DeviceProgram, step: Callable[[Any], None] | None, stream: Any, repeats: int) -> list[float]:
    """Return the seconds of each of `repeats` executions of one thunk, or zeros if it does nothing itself."""
    if step is None:
        return [0.0] * repeats
    step(stream)
    return _timed(program, lambda: step(stream), lambda: None, stream, repeats, queue=False)


def _timed(
    program: DeviceProgram,
    run: Callable[[], None],
    prepare: Callable[[], None],
    stream: Any,
    repeats: int,
    queue: bool,
) -> list[float]:
    cuda = program.xp.cuda
    pairs = [(cuda.Event(), cuda.Event()) for _ in range(repeats)]
    stream.synchronize()
    for start, stop in pairs:
        prepare()
        start.record(stream)
        run()
        stop.record(stream)
        if not queue:
            stop.synchronize()
    stream.synchronize()
    return [cuda.get_elapsed_time(start, stop) / 1e3 for start, stop in pairs]
