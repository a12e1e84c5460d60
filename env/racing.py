"""Timing of compiled programs against each other, inside the worker: ABBA blocks, and outputs checked afterwards."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from compiler.backends.cpu.executable import CpuExecutable
from compiler.runtime.donation import donations
from compiler.runtime.executable import Executable
from compiler.runtime.thunks import GemmThunk, LibraryThunk
from env.gate import GATE, PATIENCE, Block, Gate, is_undecided

__all__ = ["Budget", "ReferenceLoad", "Runner", "checksum", "least_seconds", "race", "runners"]

Array = npt.NDArray[Any]

SAMPLE_SECONDS = 1e-3
"""Length of one of the four samples of a block; it holds several executions of a short program."""
LEAST_EXECUTIONS, MOST_EXECUTIONS = 3, 100
LONG_EXECUTION = 10e-3
"""Seconds from which one execution is a sample of its own."""
LEAST_BLOCKS = 9
SLOW_BLOCK = 1.0
"""Seconds of a block from which FEW_BLOCKS are enough."""
FEW_BLOCKS = 5
HOPELESS = 20.0
"""A candidate so many times slower than the default is timed in FEW_BLOCKS of single executions."""
CHECKED_RUNS = 3
ABBA, BAAB = (0, 1, 1, 0), (1, 0, 0, 1)
"""Orders of a block: 0 is the default."""

WRITTEN_PER_CORE = 64 * 6e9
"""Bytes per second that no core can exceed: a whole vector register per cycle, at more cycles than any has."""
FLOPS_PER_CORE = 4096 * 6e9
"""Operations per second that no core can exceed, with the matrix units of the newest."""
LEAST_SECONDS = 1e-8
"""Less than a call of an empty program takes."""


@dataclass(frozen=True)
class Budget:
    """How long a race may take.

    Attributes:
        blocks: number of blocks at most.
        seconds: after which there are no more blocks, once there are LEAST_BLOCKS.
        gate: when a difference counts.
        patience: how many times longer a race may take that is undecided by the gate.
    """

    blocks: int = 25
    seconds: float = 1.0
    gate: Gate = GATE
    patience: int = PATIENCE


Runner: TypeAlias = Callable[[Sequence[Array], int], tuple[list[float], Sequence[Any]]]
"""Executes a program on arrays some times; returns the seconds of each execution, and the outputs of the last one."""


def runners(*executables: Executable) -> list[Runner]:
    """Return what times executables with the same results, all of them in the same memory where that is possible."""
    cpu = [e for e in executables if isinstance(e, CpuExecutable)]
    if len(cpu) < len(executables):
        return [_any_runner(e) for e in executables]
    memory = cpu[0].timing_memory(*cpu[1:])
    return [partial(e.timed_call, memory=memory) for e in cpu]


def _any_runner(executable: Executable) -> Runner:
    def run(arrays: Sequence[Array], repeats: int) -> tuple[list[float], Sequence[Any]]:
        return executable.benchmark(arrays, repeats), executable(*arrays)

    return run


class ReferenceLoad:
    """A fixed amount of work, in the caches and on one core, whose time shows how busy the machine is."""

    def __init__(self) -> None:
        self._array = np.ones(1 << 15, np.float32)

    def __call__(self) -> float:
        """Return its time in seconds."""
        start = time.perf_counter()
        for _ in range(16):
            np.multiply(self._array, 1.0, out=self._array)
        return (time.perf_counter() - start) / 16


def race(
    default: Runner, candidate: Runner, inputs: Sequence[Sequence[Array]], budget: Budget, load: Callable[[], float]
) -> tuple[list[Block], int, list[list[Sequence[Any]]]]:
    """Time two programs in ABBA and BAAB blocks in turns, on other inputs in each block.

    While the blocks leave it undecided whether the programs differ, as many again are timed, within the budget's
    patience.

    Returns:
        The blocks, the number of times that the gate was consulted, and for each program outputs on `inputs[0]`: those
        of its last timed run, and of CHECKED_RUNS single executions after it, because a program that skips some of its
        executions would be fast.
    """
    probes = [min(run(inputs[0], 2)[0]) for run in (default, candidate)]
    hopeless = probes[1] > HOPELESS * probes[0]
    repeats = 1 if hopeless else _executions(probes[0])
    each = 2.5 * repeats * sum(probes)
    least = FEW_BLOCKS if hopeless or each > SLOW_BLOCK else LEAST_BLOCKS
    count = least if hopeless else max(least, int(budget.seconds / max(each, 1e-9)))
    count = min(count, budget.blocks)
    blocks: list[Block] = []
    runs = default, candidate
    last: list[Sequence[Any]] = [(), ()]
    most = count if hopeless else count * budget.patience
    looks = 0
    while True:
        for number in range(len(blocks), count):
            arrays = inputs[(count - 1 - number) % len(inputs)]  # the last block has the inputs whose outputs are known
            busy, times = load(), []
            order = ABBA if number % 2 == 0 else BAAB
            runs[order[0]](arrays, repeats)  # what runs first brings the inputs of the block into the caches
            for which in order:
                seconds, outputs = runs[which](arrays, repeats)
                if number == count - 1:
                    last[which] = _copied(outputs)
                times.append(_typical(seconds))
            first, second, third, fourth = times if order is ABBA else (*times[2:], *times[:2])
            blocks.append(Block((first, second, third, fourth), busy))
        looks += 1
        if 2 * count > most or not is_undecided(blocks, budget.gate, looks):
            break
        count *= 2
    checked = [[_copied(run(inputs[0], 1)[1]) for _ in range(CHECKED_RUNS)] for run in runs]
    return blocks, looks, [[o, *more] for o, more in zip(last, checked, strict=True)]


def _copied(outputs: Sequence[Any]) -> Sequence[Any]:
    """Return copies of outputs whose memory the other program will use."""
    return [np.array(o) if isinstance(o, np.ndarray) else o for o in outputs]


def _executions(seconds: float) -> int:
    if seconds > LONG_EXECUTION:
        return 1
    return max(LEAST_EXECUTIONS, min(MOST_EXECUTIONS, round(SAMPLE_SECONDS / max(seconds, 1e-9))))


def _typical(seconds: Sequence[float]) -> float:
    """Return the lower quartile, because other work on the machine only ever slows an execution down."""
    return sorted(seconds)[(len(seconds) - 1) // 4]


def least_seconds(executable: Executable, outputs: Sequence[Array], executions: Sequence[float], cores: int) -> float:
    """Return the time per call that no machine of today undercuts: a roofline of the work that must be done.

    Args:
        executable: the program.
        outputs: its outputs, all of which must be written, unless they take over the memory of an argument.
        executions: executions of each of its thunks per call, or nothing if they were not counted.
        cores: number of cores.
    """
    donated = set(donations(executable.module).values())
    written = sum(o.nbytes for n, o in enumerate(outputs) if n not in donated)
    products = 0.0
    for thunk, count in zip(executable.thunks, executions, strict=False):
        if isinstance(thunk, GemmThunk | LibraryThunk):
            products += thunk.traffic()[1] * count
    return LEAST_SECONDS + max(written / (cores * WRITTEN_PER_CORE), products / (cores * FLOPS_PER_CORE))


def checksum(arrays: Sequence[Array]) -> int:
    """Return a checksum of inputs, which shows whether a program has changed them."""
    found = 1
    for array in arrays:
        found = zlib.adler32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, found)
    return found
