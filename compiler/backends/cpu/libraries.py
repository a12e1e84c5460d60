"""Shared objects in this process: each loaded once, known by its content, unloaded when nobody uses it any more."""

from __future__ import annotations

import _ctypes
import os
import threading
import weakref
from pathlib import Path

from compiler.errors import BackendError

__all__ = ["Library", "load_library"]


class Library:
    """A loaded shared object. It stays loaded while this object is referenced."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        try:
            self._handle = _ctypes.dlopen(str(path), os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise BackendError(f"cannot load the built code {path.name}: {error}") from error
        # At the end of the process nothing is unloaded: other threads may still be running the code.
        weakref.finalize(self, _ctypes.dlclose, self._handle).atexit = False

    def function(self, symbol: str) -> int:
        """Address of a function.

        Raises:
            BackendError: the library has no function of that name.
        """
        try:
            return _ctypes.dlsym(self._handle, symbol)
        except OSError as error:
            raise BackendError(f"the built code {self._name} has no function {symbol}: {error}") from error


_loaded: weakref.WeakValueDictionary[str, Library] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def load_library(path: Path) -> Library:
    """The library in a file of an `ObjectCache`, whose name is the hash of its content."""
    with _lock:
        found = _loaded.get(path.stem)
        if found is None:
            found = _loaded[path.stem] = Library(path)
        return found


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


# A fork copies a lock that another thread holds, and in the child nobody would ever release it.
os.register_at_fork(after_in_child=_new_lock)
