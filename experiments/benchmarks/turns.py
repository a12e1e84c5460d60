"""Programs that compute the same, called in turns."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.runtime.executable import Executable

__all__ = ["check_alike", "contains", "milliseconds_in_turns", "normal_arguments"]


def normal_arguments(module: HloModule) -> list[npt.NDArray[np.float32]]:
    """Return normally distributed arguments of a program whose parameters are arrays of f32."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(p.dimensions).astype(np.float32) for p in module.parameter_shapes]


def contains(i: HloInstruction, *opcodes: Opcode) -> bool:
    """Check whether an instruction is, or is a fusion with, one of these ops."""
    inside = i.attributes["calls"].instructions if i.opcode is Opcode.FUSION else (i,)
    return any(x.opcode in opcodes for x in inside)


def check_alike(
    name: str, programs: Sequence[Executable], arguments: Sequence[npt.NDArray[np.float32]], rtol: float, atol: float
) -> None:
    """Raise ValueError unless the first results of programs agree within tolerances; `name` is the program's."""
    first, *others = (np.asarray(p(*arguments)[0]) for p in programs)
    for other in others:
        if not np.allclose(first, other, rtol=rtol, atol=atol):
            raise ValueError(f"{name}: the results differ by {np.abs(first - other).max()}")


def milliseconds_in_turns(
    programs: Sequence[Executable],
    arguments: Sequence[npt.NDArray[np.float32]],
    rounds: int,
    back_and_forth: bool = False,
) -> list[list[float]]:
    """Return each program's milliseconds of one call per round; every other round may be in reverse order."""
    times: list[list[float]] = [[] for _ in programs]
    for n in range(rounds):
        order = range(len(programs))
        for k in reversed(order) if back_and_forth and n % 2 == 0 else order:
            start = time.perf_counter()
            programs[k](*arguments)
            times[k].append(1e3 * (time.perf_counter() - start))
    return times
