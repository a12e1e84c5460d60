"""Calls of programs through the built-in functions of call.c, which reads and allocates numpy arrays in C."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Leaf", "ProgramTable", "array_calls_work", "builtin_functions", "connect", "leaf_table"]

Array = NDArray[Any]

FUNCTIONS = (
    "Py_IncRef", "Py_DecRef", "PyCapsule_GetPointer", "PyTuple_Size", "PyTuple_GetItem", "PyList_New", "PyList_SetItem",
    "PyEval_SaveThread", "PyEval_RestoreThread", "PyErr_Restore", "PyLong_AsVoidPtr",
)  # fmt: skip
"""The functions of Python's C API in the table of call.c, in its order; numpy's follow them."""

_ARRAY_TYPE, _NEW_FROM_DESCR, _SET_HANDLER = 2, 94, 304
"""Positions of PyArray_Type, PyArray_NewFromDescr and PyDataMem_SetHandler in numpy's table, fixed by its ABI."""


class Leaf(ctypes.Structure):
    """`struct leaf` of call.c: the type and dimensions of an argument or result."""

    _fields_ = [  # ctypes requires a list
        ("descr", ctypes.c_void_p),
        ("dimensions", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("rank", ctypes.c_int),
        ("alias", ctypes.c_int),
    ]


class ProgramTable(ctypes.Structure):
    """`struct program` of call.c."""

    idle: int | None
    _fields_ = [  # ctypes requires a list
        ("entry", ctypes.c_void_p),
        ("constants", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
        ("results", ctypes.c_void_p),
        ("parameter_count", ctypes.c_int),
        ("result_count", ctypes.c_int),
        ("idle", ctypes.c_void_p),
    ]


def leaf_table(
    leaves: Sequence[tuple[np.dtype[Any], tuple[int, ...]]], aliases: Sequence[int]
) -> tuple[Any, list[object]]:
    """Return an array of `Leaf` and the objects that it refers to, which must live as long as it does."""
    table = (Leaf * max(1, len(leaves)))()
    kept: list[object] = []
    for k, ((dtype, dimensions), alias) in enumerate(zip(leaves, aliases, strict=True)):
        sizes = (ctypes.c_ssize_t * max(1, len(dimensions)))(*dimensions)
        kept += [dtype, sizes]
        table[k] = Leaf(id(dtype), ctypes.addressof(sizes), _size(dtype, dimensions), len(dimensions), alias)
    return table, kept


def _size(dtype: np.dtype[Any], dimensions: tuple[int, ...]) -> int:
    size = dtype.itemsize
    for d in dimensions:
        size *= d
    return size


def connect(runtime: ctypes.CDLL) -> ctypes.PyDLL:
    """Give the runtime the functions that it calls; return the runtime as a library that is called with the GIL."""
    held = ctypes.PyDLL(runtime._name, handle=runtime._handle)
    table = [ctypes.cast(getattr(ctypes.pythonapi, n), ctypes.c_void_p).value for n in FUNCTIONS]
    table += [id(None), id(True)]
    numpy_table = _numpy_table()
    used = (_ARRAY_TYPE, _NEW_FROM_DESCR, _SET_HANDLER)
    table += [numpy_table[position] if numpy_table else None for position in used]
    table.append(_result_handler(runtime))
    runtime.hlogym_set_api((ctypes.c_void_p * len(table))(*table))
    pointer = ctypes.c_void_p
    held.hlogym_take_frame.argtypes, held.hlogym_take_frame.restype = [pointer], pointer
    held.hlogym_clear_frame.argtypes = [pointer]
    held.hlogym_give_frame.argtypes = [pointer, pointer, ctypes.py_object, ctypes.py_object]
    held.hlogym_give_frame.restype = None
    held.hlogym_read_array.argtypes = [ctypes.py_object, pointer]
    held.hlogym_new_array.argtypes, held.hlogym_new_array.restype = [pointer], ctypes.py_object
    held.hlogym_call_definition.argtypes, held.hlogym_call_definition.restype = [ctypes.c_int], pointer
    return held


def _result_handler(runtime: ctypes.CDLL) -> int:
    """Return the address of a capsule of the memory handler of large results, which lives as long as the runtime."""
    runtime.hlogym_result_handler.restype = ctypes.c_void_p
    name = ctypes.c_char_p(b"mem_handler")  # the capsule keeps the address of its name
    capsule = _new_capsule(runtime.hlogym_result_handler(), name)
    _HANDLER_PARTS.extend((name, capsule))
    return id(capsule)


_HANDLER_PARTS: list[object] = []


def _new_capsule(address: int, name: ctypes.c_char_p | None = None) -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(address, name, None)


def _numpy_table() -> Any:
    """Return numpy's table of C functions, or None if this is not a numpy whose ABI is known."""
    if sys.implementation.name != "cpython" or not np.__version__.startswith("2."):
        return None
    try:
        capsule = importlib.import_module("numpy._core._multiarray_umath")._ARRAY_API
    except (ImportError, AttributeError):
        return None
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = get(capsule, None)
    table = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))
    return table if table[_ARRAY_TYPE] == id(np.ndarray) else None


def array_calls_work(held: ctypes.PyDLL) -> bool:
    """Check on sample arrays whether call.c reads arrays as Python does, and whether its new arrays are right."""
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    if _numpy_table() is None or not gil or object.__basicsize__ != 2 * ctypes.sizeof(ctypes.c_void_p):
        return False
    read_only = np.zeros((2, 3), np.float32)
    read_only.flags.writeable = False
    samples: list[Array] = [
        np.zeros((5, 3)),
        np.zeros((), np.int8),
        read_only,
        np.zeros((4, 6), np.int16).T,
        np.zeros(9)[::2],
    ]
    return all(_is_read_correctly(held, a) for a in samples) and all(_is_made_correctly(held, a) for a in samples)


def _is_read_correctly(held: ctypes.PyDLL, a: Array) -> bool:
    found = (ctypes.c_int64 * 6)()
    held.hlogym_read_array(a, found)
    first = a.shape[0] if a.ndim else -1
    return list(found) == [id(np.ndarray), a.ctypes.data, a.ndim, first, id(a.dtype), a.flags.num]


def _is_made_correctly(held: ctypes.PyDLL, a: Array) -> bool:
    table, _kept = leaf_table([(a.dtype, a.shape)], [-1])
    made = held.hlogym_new_array(ctypes.addressof(table))
    return type(made) is np.ndarray and made.dtype == a.dtype and made.shape == a.shape and made.flags.owndata


def builtin_functions(
    held: ctypes.PyDLL, program: ProgramTable
) -> tuple[Callable[[tuple[Any, ...]], list[Array] | None], Callable[..., bool | None]]:
    """Return the built-in functions that run a program, whose table must live as long as they do.

    The first one takes a tuple of arrays and returns the results, and the second one takes the addresses of all
    arguments and results. They return None if they leave the call to Python.
    """
    new_function = ctypes.pythonapi.PyCFunction_NewEx
    new_function.restype = ctypes.py_object
    new_function.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    capsule = _new_capsule(ctypes.addressof(program))
    on_arrays, on_addresses = (new_function(held.hlogym_call_definition(n), capsule, None) for n in range(2))
    return on_arrays, on_addresses
