"""The library calls of one loaded program: a step of oneDNN for each, in the table that the driver reads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from compiler.backends.cpu.onednn.description import Description
from compiler.backends.cpu.onednn.library import OneDnn, Step, load_onednn
from compiler.errors import BackendError
from compiler.runtime.buffers import BufferKind
from compiler.runtime.thunks import LibraryThunk

Array = NDArray[Any]


class LibrarySteps:
    """The steps of a program's library calls.

    Args:
        thunks: the library calls in the order of the driver's table.
        constants: the constants of the program, from which weights are reordered once.
        threads: number of threads that run a step at most; None for as many as there are.

    Attributes:
        run_address: address of the C function that runs a step, or 0 without library calls.
        table_address: address of the table of steps, or 0.

    Raises:
        BackendError: the program needs oneDNN, which is not available here.
    """

    def __init__(self, thunks: Sequence[LibraryThunk], constants: Sequence[Array], threads: int | None = None) -> None:
        self.steps: list[Step] = []
        self.run_address = self.table_address = 0
        if not thunks:
            return
        try:
            library = load_onednn()
        except BackendError as e:
            raise BackendError(f"the program needs oneDNN: {e}") from e
        shared: dict[str, Step] = {}
        for t in thunks:
            addresses = _constant_addresses(t, constants)
            key = f"{t.operation}{addresses}"
            if key not in shared:
                shared[key] = _create(library, t, addresses, threads or 0)
            self.steps.append(shared[key])
        self._table = (ctypes.c_void_p * len(thunks))(*(s.address for s in self.steps))
        self.run_address, self.table_address = library.run_address, ctypes.addressof(self._table)


def _constant_addresses(t: LibraryThunk, constants: Sequence[Array]) -> tuple[int, ...]:
    buffers = [b.resolve() for b in t.inputs]
    found = [constants[b.index].ctypes.data if b.kind is BufferKind.CONSTANT else 0 for b in buffers]
    return (*found, 0) if any(found) else ()


def _create(library: OneDnn, t: LibraryThunk, constants: tuple[int, ...], threads: int) -> Step:
    step = library.create(Description.from_json(t.operation), constants, threads)
    if step is None:
        raise BackendError(f"oneDNN has no implementation of %{t.name} here; compile the program on this machine")
    return step
