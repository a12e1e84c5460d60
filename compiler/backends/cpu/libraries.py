"""Loaded shared objects: each is identified by its content, loaded once, and unloaded when it has no more users."""

from __future__ import annotations

import _ctypes
import os
import threading
import weakref
from pathlib import Path

from compiler.errors import BackendError

__all__ = ["Library", "load_library"]


class Library:
    """A loaded shared object, which is unloaded when this object is garbage-collected."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        try:
            self._handle = _ctypes.dlopen(str(path), os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise BackendError(f"cannot load the compiled code {path.name}: {error}") from error
        # Nothing is unloaded at exit, because other threads may still be running the code.
        weakref.finalize(self, _ctypes.dlclose, self._handle).atexit = False

    def function(self, symbol: str) -> int:
        """Return the address of a function.

        Raises:
            BackendError: the library has no function with that name.
        """
        try:
            return _ctypes.dlsym(self._handle, symbol)
        except OSError as error:
            raise BackendError(f"the compiled code {self._name} has no function {symbol}: {error}") from error


_loaded: weakref.WeakValueDictionary[str, Library] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def load_library(path: Path) -> Library:
    """Return the library of a file in an `ObjectCache`, whose name is the hash of its content; load it if necessary."""
    with _lock:
        found = _loaded.get(path.stem)
        if found is None:
            found = _loaded[path.stem] = Library(path)
        return found


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


# If another thread holds the lock during a fork, the copy in the child would never be released.
os.register_at_fork(after_in_child=_new_lock)
