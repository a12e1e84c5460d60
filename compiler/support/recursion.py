"""A temporary, higher recursion limit for functions that walk deeply nested structures."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENOUGH = 50_000
"""Number of calls that suffices for every program within the nesting limits."""

_lock = threading.Lock()
_users = 0
_before = 0


@contextmanager
def deep_recursion(calls: int = ENOUGH) -> Iterator[None]:
    """Raise Python's recursion limit to `calls` for the duration of the block.

    Use it only where one Python function calls the next directly, which takes no C stack. Each level through `map`,
    `sorted`, `all` over a generator and the like does take C stack, so that a high limit would turn an error into a
    crash.

    The limit is shared by all threads of the process; it is restored when the last thread leaves such a block.
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
