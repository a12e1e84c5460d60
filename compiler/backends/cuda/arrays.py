"""Arguments and results of calls on a GPU: CuPy arrays, arrays of other libraries by DLPack, and numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.backends.cuda.dlpack import read_tensor
from compiler.backends.cuda.failures import memory_error
from compiler.errors import ArgumentError, BackendError
from compiler.ir.shape import Shape
from compiler.runtime.executable import check_arguments, check_signature

__all__ = ["Argument", "new_array", "take_arguments", "take_results"]


VECTOR_BYTES = 16
"""The largest access of a thread, to whose multiples the addresses of arrays are aligned."""


@dataclass(slots=True)
class Argument:
    """An argument in the memory of the GPU.

    Attributes:
        address: address of its first element; it is row-major.
        size: bytes.
        holder: what keeps the memory allocated.
        given: the caller's own CuPy array, or an array that was made of the caller's numpy array; None for memory of
            another library.
        ours: whether the memory was allocated for this call.
    """

    address: int
    size: int
    holder: Any
    given: Any
    ours: bool


def take_arguments(xp: Any, arrays: Sequence[Any], shapes: Sequence[Shape], stream: Any) -> list[Argument]:
    """Return the arguments of a call on the GPU; arrays that are there already are not copied if they are row-major.

    Args:
        xp: CuPy.
        arrays: what the caller passed.
        shapes: what the program takes.
        stream: the current stream, on which what is needed is copied.

    Raises:
        ArgumentError: they do not match.
        MemoryLimitError: a copy does not fit into the memory of the GPU.
    """
    if len(arrays) != len(shapes):
        check_signature([(None, ())] * len(arrays), shapes)  # says how many there must be
    return [_taken(xp, a, n, s, stream) for n, (a, s) in enumerate(zip(arrays, shapes, strict=True))]


def _taken(xp: Any, array: Any, number: int, shape: Shape, stream: Any) -> Argument:
    if isinstance(array, xp.ndarray):
        _check(number, array.dtype, array.shape, shape)
        if array.flags.c_contiguous:
            return _aligned(xp, Argument(array.data.ptr, array.nbytes, array, array, ours=False), number, shape, stream)
        return _gathered(xp, array, number, shape)
    if hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray | np.generic):
        return _of_library(xp, array, number, shape, stream)
    if hasattr(array, "__cuda_array_interface__"):
        return _taken(xp, xp.asarray(array), number, shape, stream)
    return _uploaded(xp, array, number, shape, stream)


def _check(number: int, dtype: Any, dimensions: tuple[int, ...], shape: Shape) -> None:
    if dtype != shape.dtype or tuple(dimensions) != shape.dimensions:
        shown = f"{np.dtype(dtype).name}[{','.join(map(str, dimensions))}]"
        raise ArgumentError(f"argument {number}: expected {shape} (numpy {shape.dtype.name}), given {shown}")


def _aligned(xp: Any, argument: Argument, number: int, shape: Shape, stream: Any) -> Argument:
    """Return an argument, or a copy of one whose address kernels cannot read in vectors: a part of a larger array."""
    if argument.address % VECTOR_BYTES == 0:
        return argument
    made = new_array(xp, shape, f"an aligned copy of argument {number}")
    runtime = xp.cuda.runtime
    runtime.memcpyAsync(made.data.ptr, argument.address, argument.size, runtime.memcpyDeviceToDevice, stream.ptr)
    # The caller's memory is held as that of another library, until the copy is done.
    return Argument(made.data.ptr, argument.size, (made, argument.holder), made, ours=True)


def _gathered(xp: Any, array: Any, number: int, shape: Shape) -> Argument:
    """Return a row-major copy of an array."""
    # CuPy has no kernels for the types of ml_dtypes, so their bits are copied.
    bits = array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array
    try:
        copied = xp.ascontiguousarray(bits)
    except xp.cuda.memory.OutOfMemoryError:
        raise memory_error(xp, array.nbytes, f"a row-major copy of argument {number}") from None
    made = copied.view(shape.dtype)
    return Argument(made.data.ptr, made.nbytes, made, made, ours=True)


def _uploaded(xp: Any, array: Any, number: int, shape: Shape, stream: Any) -> Argument:
    """Return a copy on the GPU of what numpy can read."""
    try:
        (host,) = check_arguments([array], [shape])
    except ArgumentError as e:
        raise ArgumentError(str(e).replace("argument 0", f"argument {number}", 1)) from None
    made = new_array(xp, shape, f"argument {number}")
    if host.nbytes:
        runtime = xp.cuda.runtime
        # CUDA has read pageable memory when this returns.
        runtime.memcpyAsync(made.data.ptr, host.ctypes.data, host.nbytes, runtime.memcpyHostToDevice, stream.ptr)
    return Argument(made.data.ptr, host.nbytes, made, made, ours=True)


def _of_library(xp: Any, array: Any, number: int, shape: Shape, stream: Any) -> Argument:
    """Return an array of another library, whose memory is read through DLPack."""
    tensor = read_tensor(array, stream.ptr, number)
    if tensor.on_host:
        return _uploaded(xp, tensor.on_this_host(), number, shape, stream)
    _check(number, tensor.dtype, tensor.dimensions, shape)
    if tensor.device != xp.cuda.runtime.getDevice():
        raise ArgumentError(f"argument {number}: it is on GPU {tensor.device}, not on the current GPU")
    if not tensor.row_major:
        return _gathered(xp, xp.from_dlpack(array), number, shape)
    foreign = Argument(tensor.address, shape.byte_size, (array, tensor.capsule), None, ours=False)
    return _aligned(xp, foreign, number, shape, stream)


def take_results(
    xp: Any, shapes: Sequence[Shape], donated: Mapping[int, int], arguments: Sequence[Argument], donate: bool
) -> tuple[list[Any], list[tuple[int, int]]]:
    """Return an array for each result, and the copies that must precede the program: (result, argument).

    A result takes over the memory of the argument that is donated to it, if that is a CuPy array which owns its memory
    and shares it with no other argument; else it begins as a copy of that argument.

    Args:
        xp: CuPy.
        shapes: of the results.
        donated: the argument that is donated to a result, by the result's number.
        arguments: of the call.
        donate: whether the caller's arrays may be taken over.
    """
    out, copies = [], []
    for number, shape in enumerate(shapes):
        source = donated.get(number)
        if source is not None and _may_donate(arguments, source, donate):
            out.append(arguments[source].given)
            continue
        out.append(new_array(xp, shape, f"result {number}"))
        if source is not None:
            copies.append((number, source))
    return out, copies


def _may_donate(arguments: Sequence[Argument], number: int, donate: bool) -> bool:
    a = arguments[number]
    if a.ours:
        return True
    if not donate or a.given is None or a.given.base is not None:
        return False
    others = (b for n, b in enumerate(arguments) if n != number)
    return not any(a.address < b.address + b.size and b.address < a.address + a.size for b in others)


def new_array(xp: Any, shape: Shape, what: str) -> Any:
    """Return a new CuPy array, whose elements are not set.

    Raises:
        BackendError: this version of CuPy has no arrays of this type.
        MemoryLimitError: it does not fit into the memory of the GPU.
    """
    try:
        # Not `empty`, which refuses some types of ml_dtypes.
        return xp.ndarray(shape.dimensions, shape.dtype, xp.cuda.alloc(shape.byte_size))
    except xp.cuda.memory.OutOfMemoryError:
        raise memory_error(xp, shape.byte_size, f"{what} ({shape})") from None
    except (TypeError, ValueError) as e:
        raise BackendError(
            f"{what}: CuPy {xp.__version__} has no arrays of {shape.dtype.name} ({e}); CuPy 14 has them"
        ) from None
