"""Frames: the working memory of calls of a cpu program, in a pool that Python and C share."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.backends.cpu.array_call import ProgramTable
from compiler.backends.cpu.native_runtime import Call
from compiler.runtime.buffers import PAGE, PLACE

__all__ = ["Context", "Frame", "FramePool", "TimingMemory", "address_of", "pointers"]

RESULT_PLACES, RESULT_STEP = 15, 4
"""Number of places of a page for results, and the step from one to the next, as in result_memory.c."""

Array = NDArray[Any]


class Context(ctypes.Structure):
    """`struct context` of steps.c."""

    call: Call
    addresses: int
    _fields_ = [  # ctypes requires a list
        ("call", Call),
        ("program", ctypes.c_void_p),
        ("addresses", ctypes.c_void_p),
        ("kernels", ctypes.c_void_p),
        ("host", ctypes.c_void_p),
        ("sgemm", ctypes.c_void_p),
        ("dgemm", ctypes.c_void_p),
        ("sgemv", ctypes.c_void_p),
        ("dgemv", ctypes.c_void_p),
        ("get_blas_threads", ctypes.c_void_p),
        ("set_blas_threads", ctypes.c_void_p),
        ("run_library", ctypes.c_void_p),
        ("library", ctypes.c_void_p),
        ("times", ctypes.c_void_p),
    ]


class _FrameTable(ctypes.Structure):
    """`struct frame` of call.c."""

    _fields_ = [  # ctypes requires a list
        ("next", ctypes.c_void_p),
        ("arena", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
        ("results", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("returned", ctypes.c_void_p),
    ]


class Frame:
    """The working memory of one call of a program; later calls reuse it.

    Attributes:
        arena: memory of the temporaries.
        context: tables that are passed to the driver.
        arguments, results: arrays of the call.
    """

    def __init__(self, arena_bytes: int, context: Context, parameters: int, results: int, operands: int) -> None:
        self.arena = _placed(arena_bytes)
        self.arena_address = address_of(self.arena)
        self.context = context
        self.context_address = ctypes.addressof(context)
        self.arguments: list[Array] = []
        self.results: list[Array] = []
        self._pointers = [(ctypes.c_void_p * max(1, n))() for n in (parameters, results, operands)]
        *tables, context.addresses = map(ctypes.addressof, self._pointers)
        self._table = _FrameTable(None, self.arena_address, self.context_address, *tables)
        self.address = ctypes.addressof(self._table)

    @property
    def argument_addresses(self) -> Any:
        """The C array of the addresses of arguments."""
        return self._pointers[0]

    @property
    def result_addresses(self) -> Any:
        """The C array of the addresses of results."""
        return self._pointers[1]

    def fill(self, arguments: Sequence[int], results: Sequence[int]) -> None:
        """Set the addresses of arguments and results for a call on memory of the caller."""
        self._pointers[0][: len(arguments)] = list(arguments)
        self._pointers[1][: len(results)] = list(results)

    def use_arena(self, arena: Array) -> None:
        """Let the driver of a timed run keep its temporaries in this memory; C has the frame's own arena."""
        self.arena, self.arena_address = arena, address_of(arena)

    def raise_error(self) -> None:
        """Raise the exception that stopped the call early, if any."""
        if self.context.call.stopped:
            self.context.call.raise_exception()


class FramePool:
    """The frames of a program; the built-in function of call.c takes frames from it and returns them too."""

    def __init__(self, held: ctypes.PyDLL, program: ProgramTable, make: Callable[[], Frame]) -> None:
        self._held, self._program, self._make = held, program, make
        self._address = ctypes.addressof(program)
        self._frames: dict[int, Frame] = {}

    def take(self) -> Frame:
        """Return an unused frame; make one if this is the first call, or other threads use all frames."""
        address = self._held.hlogym_take_frame(self._address)
        if address is not None:
            self._held.hlogym_clear_frame(address)  # so that the results can be in the memory of the last ones
            return self._frames[address]
        frame = self._make()
        self._frames[frame.address] = frame
        return frame

    def give(self, frame: Frame) -> None:
        """Make a frame available to later calls."""
        self._held.hlogym_give_frame(self._address, frame.address, tuple(frame.arguments), frame.results)
        frame.arguments, frame.results = [], []  # the pool keeps those of the last call alive

    def __iter__(self) -> Iterator[Frame]:
        return iter(list(self._frames.values()))

    def clear(self) -> None:
        """Drop the arguments and results of earlier calls."""
        for address in list(self._frames):
            self._held.hlogym_clear_frame(address)


class TimingMemory:
    """Memory in which several programs are timed, so that none of them is faster only because of where its arrays are.

    Args:
        arena_bytes: size of the largest arena.
        results: type and dimensions of each result.
    """

    def __init__(self, arena_bytes: int, results: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
        self.arena = _placed(arena_bytes)
        self.results = [_placed_array(n, dtype, dimensions) for n, (dtype, dimensions) in enumerate(results)]


def _placed_array(number: int, dtype: np.dtype[Any], dimensions: tuple[int, ...]) -> Array:
    """Return an array at the place of a page where result_memory.c has the results of a program."""
    size = math.prod(dimensions) * dtype.itemsize
    place = (RESULT_STEP * number % RESULT_PLACES + 1) * PLACE + PLACE // 2
    return _placed(size, place)[:size].view(dtype).reshape(dimensions)


def _placed(size: int, place: int = 0) -> Array:
    """Return `size` zero-filled bytes that start `place` bytes after the start of a page."""
    raw = np.zeros(size + PAGE, np.uint8)
    start = (place - raw.ctypes.data) % PAGE
    return raw[start : start + max(1, size)]


def pointers(arrays: Sequence[Array]) -> Any:
    """Return a C array of the addresses of arrays."""
    return (ctypes.c_void_p * max(1, len(arrays)))(*map(address_of, arrays))


def _data_member(a: Array) -> int:
    """Return the address of an array's data by reading the first member of NumPy's array object after its header."""
    return ctypes.c_void_p.from_address(id(a) + object.__basicsize__).value or 0


def _data_attribute(a: Array) -> int:
    return a.ctypes.data


_SAMPLE = np.zeros(3)
address_of = _data_member if _data_member(_SAMPLE) == _SAMPLE.ctypes.data else _data_attribute
"""Return the address of an array's data; reading `ctypes.data` would take as long as a small kernel."""
