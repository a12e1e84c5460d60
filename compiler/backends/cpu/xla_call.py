"""Calls of cpu programs from inside programs of XLA, through the handler of xla_call.c."""

from __future__ import annotations

import ctypes
import os
import threading
from importlib import resources
from typing import Any

from compiler.backends.cpu import toolchain
from compiler.backends.cpu.executable import CpuExecutable
from compiler.backends.cpu.frames import Context
from compiler.runtime.memory import check_program

__all__ = ["TARGET", "donors", "handler", "register", "why_not_callable"]

TARGET = "hlogym_call"
"""Name of the handler in XLA's registry."""
_FLAGS = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")

_PYTHON = (
    "PyErr_Restore", "Py_AddPendingCall", "PyGILState_Ensure", "PyGILState_Release", "PyObject_Str",
    "PyUnicode_AsUTF8", "Py_DecRef", "PyErr_Clear",
)  # fmt: skip
"""Functions of Python that the handler calls, in the order of xla_call.c."""


class _ProgramTable(ctypes.Structure):
    """`struct program` of xla_call.c."""

    _fields_ = [  # ctypes requires a list
        ("next", ctypes.c_void_p),
        ("key", ctypes.c_int64),
        ("entry", ctypes.c_void_p),
        ("constants", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("context_bytes", ctypes.c_int64),
        ("addresses", ctypes.c_int64),
        ("operand_count", ctypes.c_int64),
        ("arena_bytes", ctypes.c_int64),
        ("parameter_count", ctypes.c_int64),
        ("result_count", ctypes.c_int64),
        ("donors", ctypes.c_void_p),
        ("result_bytes", ctypes.c_void_p),
        ("idle", ctypes.c_void_p),
        ("lock", ctypes.c_int64),
    ]


_ADDRESSES = getattr(Context, "addresses").offset  # noqa: B009 - for type checkers, the field is a number


class _Handlers:
    """The loaded handler, and the programs that it may call, which stay alive with it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.library: ctypes.CDLL | None = None
        self.kept: dict[int, tuple[object, ...]] = {}


_HANDLERS = _Handlers()


def _renew_lock() -> None:
    _HANDLERS.lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def handler(include: str, version: str) -> Any:
    """Return the FFI handler, which is built and loaded at the first call.

    Args:
        include: folder of the FFI's headers.
        version: version of the headers.

    Raises:
        BackendError, CodegenError: the handler cannot be built here.
    """
    with _HANDLERS.lock:
        if _HANDLERS.library is None:
            source = resources.files("compiler.backends.cpu").joinpath("xla_call.c").read_text()
            text = f"/* jaxlib {version} */\n{source}"
            path = toolchain.toolchain().shared_object(text, "xla_call", (*_FLAGS, f"-I{include}"))
            library = ctypes.CDLL(str(path))
            functions = (ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in _PYTHON)
            library.hlogym_xla_set_python((ctypes.c_void_p * len(_PYTHON))(*functions))
            library.hlogym_xla_register.argtypes = [ctypes.c_void_p]
            _HANDLERS.library = library
        return _HANDLERS.library.hlogym_xla_call


def why_not_callable(executable: CpuExecutable) -> str | None:
    """Return why XLA cannot call a program directly, or None if it can."""
    program = executable.program
    packed = (b.shape for b in (*program.parameters, *program.results) if b.shape.element_type.bits < 8)
    refused = next((shape for shape in packed if not shape.element_type.is_integer), None)
    return None if refused is None else f"XLA packs the elements of {refused}"


def donors(executable: CpuExecutable) -> list[int]:
    """Return for each result the number of the argument whose memory it takes over, or -1."""
    return [executable.donated.get(n, -1) for n in range(len(executable.program.results))]


def register(executable: CpuExecutable, key: int) -> None:
    """Let the loaded handler call a program under a key; the program stays loaded for the life of the process.

    Raises:
        MemoryLimitError: the temporaries of the program do not fit into memory.
    """
    with _HANDLERS.lock:
        if key in _HANDLERS.kept:
            return
        check_program(executable.program, executable.arena_bytes)
        results = executable.program.results
        sources = (ctypes.c_int64 * max(1, len(results)))(*donors(executable))
        sizes = (ctypes.c_int64 * max(1, len(results)))(*(b.shape.byte_size for b in results))
        context = executable.new_context()
        entry, constants = executable.entry_and_constants
        table = _ProgramTable(
            None, key, entry, constants, ctypes.addressof(context), ctypes.sizeof(Context), _ADDRESSES,
            max(1, len(executable.built.driver.operands)), executable.arena_bytes, len(executable.program.parameters),
            len(results), ctypes.addressof(sources), ctypes.addressof(sizes), None, 0,
        )  # fmt: skip
        assert _HANDLERS.library is not None, "the handler is loaded first"  # noqa: S101
        _HANDLERS.library.hlogym_xla_register(ctypes.addressof(table))
        _HANDLERS.kept[key] = (executable, table, sources, sizes, context)
