"""Memory checks of a compiled program, made before an allocation that cannot succeed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import MemoryLimitError
from compiler.runtime.buffers import Buffer, BufferKind
from compiler.runtime.thunk_emitter import ThunkProgram
from compiler.runtime.thunks import walk
from compiler.support.memory import check_memory, size_text

Array = NDArray[Any]


@dataclass(frozen=True)
class ProgramMemory:
    """The memory that a call of a program holds, in bytes.

    Attributes:
        arguments: the arrays of the arguments.
        results: the arrays of the results, without those that take over an argument.
        temporaries: the arena.
        constants: the constants, which are held between calls too.
    """

    arguments: int
    results: int
    temporaries: int
    constants: int

    @property
    def peak(self) -> int:
        """Return the most bytes held at the same time, without what the interpreter needs for ops without a kernel."""
        return self.arguments + self.results + self.temporaries + self.constants

    def __str__(self) -> str:
        parts = ", ".join(f"{f.name} {size_text(getattr(self, f.name))}" for f in fields(self))
        return f"{size_text(self.peak)}: {parts}"


def program_memory(program: ThunkProgram, arena_bytes: int) -> ProgramMemory:
    """Return the memory that a call of a program holds."""
    return ProgramMemory(
        arguments=sum(b.size for b in program.parameters),
        results=sum(b.size for b in new_buffers(program)),
        temporaries=arena_bytes,
        constants=sum(c.nbytes for c in program.constants),
    )


def new_buffers(program: ThunkProgram) -> list[Buffer]:
    """Return the results that do not take over the memory of an argument."""
    donated = {b.index for b in program.parameters if b.kind is BufferKind.OUTPUT}
    return [b for b in program.results if b.index not in donated]


def check_program(program: ThunkProgram, arena_bytes: int) -> None:
    """Check that the temporaries and results of a program fit into memory, before the arena is allocated.

    Raises:
        MemoryLimitError: they do not fit; the message names the largest array and the thunk that computes it.
    """
    results = sum(b.size for b in new_buffers(program))
    try:
        check_memory(arena_bytes + results, "running the program")
    except MemoryLimitError as e:
        raise MemoryLimitError(
            f"{e}: {size_text(arena_bytes)} for temporary values and {size_text(results)} for results"
            f"{_largest(program)}"
        ) from None


def _largest(program: ThunkProgram) -> str:
    written = [(b, t.name) for t in walk(program.thunks) for b in t.writes()]
    if not written:
        return ""
    buffer, name = max(written, key=lambda pair: pair[0].size)
    return f"; the largest is {buffer.shape} of %{name}, {size_text(buffer.size)}"


def new_results(buffers: Sequence[Buffer], make: Callable[[Buffer], Array]) -> list[Array]:
    """Return new arrays, made by `make`, for the results of a call; raise MemoryLimitError if they do not fit."""
    needed = sum(b.size for b in buffers)
    check_memory(needed, f"the program's results ({', '.join(str(b.shape) for b in buffers[:4])})")
    try:
        return [make(b) for b in buffers]
    except MemoryError as e:
        raise MemoryLimitError(f"the program's results need {size_text(needed)} of memory: {e}") from None


def contiguous_argument(array: Array, number: int) -> Array:
    """Return an argument in row-major order and aligned; raise MemoryLimitError if a copy does not fit."""
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return copied_argument(array, number)


def copied_argument(array: Array, number: int) -> Array:
    """Return a row-major copy of an argument; raise MemoryLimitError if it does not fit."""
    check_memory(array.nbytes, f"a row-major copy of argument {number}")
    return np.array(array, order="C", copy=True)
