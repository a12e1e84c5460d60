"""Deep recursion: how far Python functions may call each other while something nested is walked."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENOUGH = 50_000
"""Calls that suffice for what the limits on nesting let through, whatever the opcodes are."""

_lock = threading.Lock()
_users = 0
_before = 0


@contextmanager
def deep_recursion(calls: int = ENOUGH) -> Iterator[None]:
    """Let Python functions call each other this deep within; they do not use the C stack for it.

    Only for walks in which a Python function calls the next one itself: through `map`, `sorted`, `all` over a
    generator and the like each level takes C stack, and a high limit would end in a crash instead of an error.

    The limit is that of the whole process, so it stays up until the last of several threads is through.
    """
    global _users, _before
    with _lock:
        if _users == 0:
            _before = sys.getrecursionlimit()
        _users += 1
        sys.setrecursionlimit(max(sys.getrecursionlimit(), calls))
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                sys.setrecursionlimit(_before)
