"""The library of the wheel `onednn-cpu-gomp`: where it is, whether it works, and steps made from descriptions."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Sequence
from importlib import metadata, resources
from pathlib import Path

from compiler.backends.cpu import toolchain
from compiler.backends.cpu.native_runtime import RUNTIME
from compiler.backends.cpu.onednn.description import Description, pack
from compiler.errors import BackendError

__all__ = ["VARIABLE", "WHEEL", "OneDnn", "Step", "load_onednn", "onednn_or_none", "why_unavailable"]

WHEEL = "onednn-cpu-gomp"
VARIABLE = "HLOGYM_ONEDNN"
"""The environment variable that disables the library when it is 0."""
SOURCES = ("openmp.c", "api.c", "transpose.h", "turns.c", "maxima.c", "onednn.c")
"""The C sources, which are compiled as one; transpose.h is that of generated kernels."""
FLAGS = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden")


class Step:
    """One primitive with the reorders around it, ready to run; freed when this object is garbage-collected.

    Attributes:
        address: address of `struct step` of onednn.c.
        scratch_bytes: size of the temporary memory that a run needs.
        implementation: oneDNN's name of the implementation that it has chosen.
    """

    def __init__(self, library: ctypes.CDLL, address: int) -> None:
        self.address = address
        self.scratch_bytes = int(library.hlogym_onednn_scratch(address))
        self.implementation = bytes(library.hlogym_onednn_name(address)).decode()
        # Nothing is freed at exit, because other threads may still be running it.
        weakref.finalize(self, library.hlogym_onednn_destroy, address).atexit = False


class OneDnn:
    """The loaded library.

    Attributes:
        run_address: address of the C function that runs a step.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.run_address = ctypes.cast(library.hlogym_onednn_run, ctypes.c_void_p).value or 0

    def create(self, description: Description, constants: Sequence[int] = (), threads: int = 0) -> Step | None:
        """Return the step of a description, or None if the library has no implementation of it.

        Args:
            description: the primitive.
            constants: for each tensor the address of its data if it is a constant, else 0.
            threads: number of threads that run it at most; 0 for as many as there are.
        """
        addresses = (ctypes.c_void_p * len(constants))(*constants) if constants else None
        made = self._library.hlogym_onednn_create(ctypes.byref(pack(description)), addresses, threads)
        return Step(self._library, made) if made else None


def find_library() -> Path:
    """Return the path of the library; raise BackendError if it is disabled or not installed."""
    if os.environ.get(VARIABLE, "").strip() == "0":
        raise BackendError(f"oneDNN is disabled by {VARIABLE}=0")
    return _find()


@functools.lru_cache(maxsize=1)
def _find() -> Path:
    try:
        files = metadata.distribution(WHEEL).files or []
    except metadata.PackageNotFoundError:
        raise BackendError(f"oneDNN is not installed; on x86-64 Linux: pip install {WHEEL}") from None
    for file in files:
        if file.name == "libdnnl.so.3":
            return Path(str(file.locate())).resolve()
    raise BackendError(f"the wheel {WHEEL} lacks libdnnl.so.3; install version 2023.2.0 again")


def load_onednn() -> OneDnn:
    """Return the library; it is loaded once per process.

    Raises:
        BackendError: it is disabled, not installed, or cannot be loaded, or there is no C compiler.
    """
    with _lock:
        return _load(find_library())


def is_installed() -> bool:
    """Check whether the library is installed and not disabled, without loading it."""
    try:
        find_library()
    except BackendError:
        return False
    return True


def onednn_or_none() -> OneDnn | None:
    """Return the library, or None where it is not available."""
    try:
        return load_onednn()
    except BackendError:
        return None


def why_unavailable() -> str | None:
    """Return why the library is not available, or None if it is."""
    try:
        load_onednn()
    except BackendError as e:
        return str(e)
    return None


def onednn_source() -> str:
    """Return the C source of the code that creates and runs oneDNN's primitives."""
    return "\n".join(map(_source, SOURCES))


def _source(name: str) -> str:
    if name.endswith(".h"):
        text = resources.files("compiler.codegen.printing").joinpath(name).read_text()
        return f'#pragma GCC push_options\n#pragma GCC target("avx512f")\n{text}\n#pragma GCC pop_options'
    return resources.files("compiler.backends.cpu.onednn").joinpath(name).read_text()


@functools.lru_cache(maxsize=4)
def _load(path: Path) -> OneDnn:
    tools = toolchain.toolchain()
    RUNTIME.load(tools.runtime())  # onednn.c calls its functions
    library = ctypes.CDLL(str(tools.shared_object(onednn_source(), "onednn", FLAGS)))
    pointer = ctypes.c_void_p
    library.hlogym_onednn_open.restype, library.hlogym_onednn_open.argtypes = ctypes.c_char_p, [ctypes.c_char_p]
    create = library.hlogym_onednn_create
    create.restype, create.argtypes = pointer, [pointer, pointer, ctypes.c_int]
    library.hlogym_onednn_destroy.restype, library.hlogym_onednn_destroy.argtypes = None, [pointer]
    library.hlogym_onednn_scratch.restype, library.hlogym_onednn_scratch.argtypes = ctypes.c_int64, [pointer]
    library.hlogym_onednn_name.restype, library.hlogym_onednn_name.argtypes = ctypes.c_char_p, [pointer]
    problem = library.hlogym_onednn_open(str(path).encode())
    if problem:
        raise BackendError(f"cannot load oneDNN from {path}: {problem.decode()}")
    return OneDnn(library)


_lock = threading.Lock()


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


# If another thread holds the lock during a fork, the copy in the child would never be released.
os.register_at_fork(after_in_child=_new_lock)
