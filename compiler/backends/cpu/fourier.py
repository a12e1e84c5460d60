"""Fast Fourier transforms in the precision of their operands, by SciPy.

The interpreter transforms in double precision, which takes twice as long and copies its operands.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.opcodes import Opcode
from compiler.runtime.thunks import HostThunk

__all__ = ["can_transform", "transform"]

Array = NDArray[Any]

FUNCTIONS = {"FFT": "fftn", "IFFT": "ifftn", "RFFT": "rfftn", "IRFFT": "irfftn"}
"""SciPy's functions by the kinds of transforms of HLO."""
SHARED_WORK = 1 << 21
"""Elements times the logarithm of their number from which on SciPy's threads save more than starting them takes."""


def can_transform(t: HostThunk) -> bool:
    """Return whether `transform` computes an op: a transform of an array with elements, all dimensions of a length."""
    i = t.instruction
    if i.opcode is not Opcode.FFT or not i.operands[0].shape.num_elements or not i.shape.num_elements:
        return False
    length, real = i.attr("fft_length"), i.attr("fft_type") == "IRFFT"
    given = i.shape if real else i.operands[0].shape
    return given.dimensions[len(given.dimensions) - len(length) :] == tuple(length)


def transform(t: HostThunk, x: Array, out: Array, threads: int) -> None:
    """Write the transform of an array to `out`.

    Args:
        t: an op for which `can_transform` is true.
        x: its operand, which is not changed.
        out: the array for the result.
        threads: maximum number of threads.
    """
    fft = importlib.import_module("scipy.fft")
    length = t.instruction.attr("fft_length")
    axes = tuple(range(x.ndim - len(length), x.ndim))
    work = x.size * max(1.0, math.log2(math.prod(length)))
    with np.errstate(all="ignore"):
        function = getattr(fft, FUNCTIONS[t.instruction.attr("fft_type")])
        np.copyto(out, function(x, length, axes, workers=threads if work >= SHARED_WORK else 1))
