"""Host ops of a program: the driver calls back into Python for the ops that have no kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.backends.cpu.driver import BEGIN_HOST
from compiler.backends.cpu.fourier import can_transform, transform
from compiler.backends.cpu.native_runtime import RUNTIME, Call
from compiler.interpreter.machine import Machine
from compiler.ir.shape import Shape
from compiler.runtime.host_ops import evaluate_host
from compiler.runtime.thunks import HostThunk
from compiler.support.weak_methods import weakly

__all__ = ["HostSteps"]

Array = NDArray[Any]
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


class HostSteps:
    """The function that the driver calls for host ops, on whichever thread runs the program.

    Attributes:
        address: address of the function.
        threads: maximum number of threads of an op; None for the number of the runtime.
    """

    def __init__(self, thunks: Sequence[HostThunk]) -> None:
        self.threads: int | None = None
        self._thunks = [(t, can_transform(t), _types(t)) for t in thunks]
        self._machines: dict[int, Machine] = {}  # by the address of the call, whose memory later calls reuse
        self._callback = _CALLBACK(weakly(self._run))
        self.address = ctypes.cast(self._callback, ctypes.c_void_p).value

    def _run(self, call: int, number: int, operands: int) -> None:
        """Evaluate an op; an exception, which cannot propagate through C, stops the call and is raised at its end."""
        if number == BEGIN_HOST:
            self._machines.setdefault(call, Machine()).renew()
            return
        try:
            thunk, transforms, types = self._thunks[number]
            addresses = ctypes.cast(operands, ctypes.POINTER(ctypes.c_void_p))
            arrays = [_array_at(addresses[n] or 0, *t) for n, t in enumerate(types)]
            inputs, outputs = arrays[: len(thunk.inputs)], arrays[len(thunk.inputs) :]
            if transforms:
                transform(thunk, inputs[0], outputs[0], self.threads or RUNTIME.num_threads)
            else:
                evaluate_host(thunk, inputs, outputs, self._machines[call])
        except BaseException as e:
            Call.from_address(call).fail(e)


def _types(thunk: HostThunk) -> list[tuple[np.dtype[Any], tuple[int, ...], int]]:
    """Return the type, dimensions and bytes of each operand of a host op."""
    shapes: list[Shape] = [b.shape for b in (*thunk.inputs, *thunk.outputs)]
    return [(s.dtype, s.dimensions, s.byte_size) for s in shapes]


def _array_at(address: int, dtype: np.dtype[Any], dimensions: tuple[int, ...], size: int) -> Array:
    """Return memory as an array."""
    if not size:
        return np.empty(dimensions, dtype)
    memory: Any = (ctypes.c_char * size).from_address(address)
    array: Array = np.frombuffer(memory, dtype)
    return array.reshape(dimensions)
