"""Kernels written by hand in CUDA C++ and their runs in the emulator, for its tests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.backends.cuda import emulation
from compiler.backends.cuda.emulation.emulator import Extent
from compiler.codegen.kernel_spec import KernelSpec
from compiler.ir.shape import shape_of

Array = npt.NDArray[Any]


def spec_of(
    source: str, inputs: Sequence[Array], outputs: Sequence[Array], grid: int = 1, block: int = 32, before: str = ""
) -> KernelSpec:
    """Return a kernel whose body is given; its arrays are x, y, z... and out, out1, out2..., declared by their types.

    `before` is source that precedes the kernel.
    """
    identity = repr((source, before, [(a.dtype, a.shape) for a in (*inputs, *outputs)]))
    symbol = f"hk_{hashlib.sha256(identity.encode()).hexdigest()[:20]}"
    names = ["xyzuvw"[k] for k in range(len(inputs))]
    parameters = [f"const {_TYPES[a.dtype.name]} *__restrict__ {n}" for n, a in zip(names, inputs, strict=True)]
    parameters += [f"{_TYPES[a.dtype.name]} *out{k or ''}" for k, a in enumerate(outputs)]
    head = f'extern "C" __global__ void __launch_bounds__({block}) {symbol}({", ".join(parameters)})'
    shapes = tuple(map(shape_of, inputs)), tuple(map(shape_of, outputs))
    text = f"{before}\n{head} {{\n{source}\n}}\n"
    size = sum(a.nbytes for a in (*inputs, *outputs))
    return KernelSpec("hand", "loop", "cuda", text, symbol, *shapes, size, 0, grid=grid, block=block)


_TYPES = {"float32": "float", "float64": "double", "int32": "int", "uint32": "unsigned", "int64": "int64_t",
          "uint64": "uint64_t", "float16": "half_t", "int16": "short", "uint8": "unsigned char"}  # fmt: skip


def run(
    source: str,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    grid: Extent = 1,
    block: Extent = 32,
    shared_bytes: int = 0,
) -> str:
    """Run a kernel in the emulator, in place on `outputs`; return the error that it detected."""
    spec = spec_of(source, inputs, outputs)
    pointers = [a.ctypes.data for a in (*inputs, *outputs)]
    return emulation.build([spec]).launch(spec.symbol, pointers, grid, block, shared_bytes=shared_bytes)


def numbers(count: int, dtype: Any = np.float32) -> Array:
    """Return the array 0, 1, 2, ..."""
    return np.arange(count).astype(dtype)


def zeros(count: int, dtype: Any = np.float32) -> Array:
    """Return an array of zeros."""
    return np.zeros(count, dtype)
