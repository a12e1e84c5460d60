"""Evaluator of fast Fourier transforms over the last one to three dimensions."""

from __future__ import annotations

import numpy as np

from compiler.errors import InterpreterError
from compiler.interpreter.registry import Array, array_evaluator
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode


@array_evaluator(Opcode.FFT)
def _fft(instruction: HloInstruction, x: Array) -> Array:
    length, kind = instruction.attr("fft_length"), instruction.attr("fft_type")
    if x.size == 0 or instruction.shape.num_elements == 0:
        return np.zeros(instruction.shape.dimensions, instruction.shape.dtype)
    last = x.shape[x.ndim - len(length) :]
    if kind in ("FFT", "IFFT") and last != tuple(length):
        raise InterpreterError(f"%{instruction.name}: fft_length {list(length)} must be the dimensions {list(last)}")
    return transform(x, kind, length).astype(instruction.shape.dtype)


def transform(x: Array, kind: str, length: tuple[int, ...]) -> Array:
    """Compute an FFT, IFFT, RFFT or IRFFT in double precision."""
    axes = tuple(range(x.ndim - len(length), x.ndim))
    wide = x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)
    match kind:
        case "FFT":
            return np.fft.fftn(wide, length, axes)
        case "IFFT":
            return np.fft.ifftn(wide, length, axes)
        case "RFFT":
            return np.fft.rfftn(wide, length, axes)
        case "IRFFT":
            return np.fft.irfftn(wide, length, axes)
    raise InterpreterError(f"unknown fft_type {kind}")
