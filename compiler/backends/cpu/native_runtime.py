"""The C runtime of cpu programs: a thread pool, checks for pending signals, and timers.

One copy is loaded per process and never unloaded. The dynamic linker binds kernels and drivers to its functions.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from compiler.backends.cpu.array_call import array_calls_work, connect
from compiler.errors import BackendError
from compiler.support.memory import bytes_of_variable, when_short
from compiler.support.threads import available_cores, default_threads

__all__ = ["OPENMP_FUNCTIONS", "RUNTIME", "RUNTIME_FLAGS", "Call", "NativeRuntime", "runtime_source"]

RUNTIME_FLAGS = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")
SOURCES = ("runtime.c", "placement.c", "pool.c", "shared_threads.c", "timing.c", "steps.c", "result_memory.c", "call.c")
OPENMP_FUNCTIONS = (
    "GOMP_parallel_start", "GOMP_parallel_end", "omp_get_max_threads", "omp_get_num_threads", "omp_get_thread_num",
    "omp_in_parallel",
)  # fmt: skip
"""The functions of GNU OpenMP in the table of shared_threads.c, in its order."""
OTHER_RUNTIME = (
    "the program was saved by another version of hlogym than the one that this process uses: compile and save it "
    "again, or load it in a process of its own before any other program"
)
LARGE = 1 << 16
"""Bytes from which the memory of a result is kept when it is freed, as in result_memory.c."""
KEPT_RESULTS = 256 << 20
"""Bytes of freed results that are kept by default."""


def runtime_source() -> str:
    """Return the C source of the runtime: the thread pool, the driver, and calls from Python."""
    folder = resources.files("compiler.backends.cpu")
    return "\n".join(folder.joinpath(name).read_text() for name in SOURCES)


HOST_ERROR = 2
"""Why a call was stopped: a host op raised an exception, not the handler of a signal (1)."""


class Call(ctypes.Structure):
    """`struct hlogym_call` of runtime.c: one call of a program and the exception that ended it early."""

    stopped: int
    flush_denormals: int
    threads: int
    _fields_ = [  # ctypes requires a list
        ("exception", ctypes.c_void_p * 3),
        ("stopped", ctypes.c_int),
        ("polled", ctypes.c_int64),
        ("outer", ctypes.c_void_p),
        ("flush_denormals", ctypes.c_int),
        ("control", ctypes.c_uint32),
        ("threads", ctypes.c_int),
        ("shares", ctypes.c_int),
        ("has_guests", ctypes.c_int),
    ]

    def raise_exception(self) -> None:
        """Raise the exception of a host op, or of a signal handler that ran during the call (Ctrl-C), if any."""
        if self.stopped and self.exception[0]:
            self.stopped = 0
            ctypes.pythonapi.PyErr_Restore(*(ctypes.c_void_p(address) for address in self.exception))

    def fail(self, error: BaseException) -> None:
        """Request that the call stops early; its caller raises the exception of a host op."""
        for n, part in enumerate((type(error), error, error.__traceback__)):
            if part is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
                self.exception[n] = id(part)
        self.stopped = HOST_ERROR


class NativeRuntime:
    """The runtime of this process and its number of threads.

    Attributes:
        held: the runtime as a library whose functions are called with the GIL, once it is loaded.
        calls_arrays: whether programs can be called through the built-in function of call.c.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._library: ctypes.CDLL | None = None
        self._loaded = ""  # hash of the library
        self._requested: int | None = None
        self._openmp: Sequence[int] = ()
        self.held: ctypes.PyDLL
        self.calls_arrays = False

    def load(self, path: Path) -> ctypes.CDLL:
        """Return the runtime; the first call loads it from `path`, and later calls return the same library.

        Args:
            path: a file in an `ObjectCache`, whose name is the hash of its content.

        Raises:
            BackendError: the file cannot be loaded, or the process has loaded another runtime.
        """
        with self._lock:
            if self._library is None:
                library = _load(path)
                library.hlogym_set_threads(self.num_threads, available_cores())
                _share(library, self._openmp)
                self.held = connect(library)
                self.calls_arrays = array_calls_work(self.held)
                self.held.hlogym_release_results.restype = ctypes.c_int64
                self.held.hlogym_kept_results.restype = ctypes.c_int64
                self.held.hlogym_keep_results(ctypes.c_int64(kept_results()))
                when_short(self.held.hlogym_release_results)
                self._library, self._loaded = library, path.stem
            elif path.stem != self._loaded:
                raise BackendError(OTHER_RUNTIME)
            return self._library

    @property
    def num_threads(self) -> int:
        """Return the number of threads that run a parallel loop.

        Raises:
            BackendError: HLOGYM_NUM_THREADS is not a positive integer.
        """
        return default_threads() if self._requested is None else self._requested

    def set_num_threads(self, count: int) -> None:
        """Set the number of threads that run a parallel loop; raise ValueError unless it is a positive integer."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"the number of threads must be a positive integer, not {count!r}")
        with self._lock:
            self._requested = min(count, 10**9)
            if self._library is not None:
                self._library.hlogym_set_threads(self._requested, available_cores())

    def share_openmp(self, functions: Sequence[int]) -> None:
        """Let calls that share threads run on those of an OpenMP library, as shared_threads.c describes.

        No such call may run meanwhile.

        Args:
            functions: addresses of OPENMP_FUNCTIONS; empty to use our own threads only.
        """
        with self._lock:
            self._openmp = tuple(functions)
            if self._library is not None:
                _share(self._library, self._openmp)

    def renew_lock(self) -> None:
        """Replace the lock: in a forked child its holder may be a thread that does not exist there."""
        self._lock = threading.Lock()


def _load(path: Path) -> ctypes.CDLL:
    try:
        # RTLD_GLOBAL lets the dynamic linker resolve calls from kernels. It is never unloaded, because its threads
        # outlive every program.
        library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise BackendError(f"cannot load the C runtime: {error}") from error
    names = ("PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch")
    library.hlogym_set_python(*(ctypes.cast(getattr(ctypes.pythonapi, n), ctypes.c_void_p) for n in names))
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.hlogym_time_kernel.argtypes = [pointer, pointer, number, number, pointer, pointer]
    library.hlogym_clock_nanoseconds.restype = ctypes.c_int64
    library.hlogym_time_program.argtypes = [*[pointer] * 6, number, pointer]
    return library


def _share(library: ctypes.CDLL, functions: Sequence[int]) -> None:
    library.hlogym_share_openmp((ctypes.c_void_p * len(functions))(*functions) if functions else None)


def kept_results() -> int:
    """Return how many bytes of freed results are kept for later ones: HLOGYM_KEPT_RESULTS, or the default.

    Raises:
        BackendError: HLOGYM_KEPT_RESULTS is not a number of bytes such as 500M or 4G.
    """
    return bytes_of_variable("HLOGYM_KEPT_RESULTS", KEPT_RESULTS)


RUNTIME = NativeRuntime()
os.register_at_fork(after_in_child=RUNTIME.renew_lock)
