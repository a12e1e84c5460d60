"""A temporary, higher recursion limit for functions that walk deeply nested structures."""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

ENOUGH = 50_000
"""Number of calls that suffices for every program within the nesting limits."""

SHALLOW = 500
"""Number of nested calls of a program for which the stack of every thread suffices."""
STACK_PER_CALL, MAX_STACK = 16 << 10, 1 << 30
"""Bytes of stack for each nested call, several times what it takes, and at most; only what is used takes memory."""

T = TypeVar("T")

_lock = threading.Lock()
_stack_lock = threading.Lock()
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


def on_deep_stack(run: Callable[[], T], calls: int) -> T:
    """Return `run()`, in a thread with a stack for so many nested calls if there are more than a few.

    Python functions that call each other directly take no C stack, but they do where another evaluator of frames is
    installed (PEP 523), as in a function that PyTorch compiles.
    """
    if calls <= SHALLOW:
        return run()
    results: list[T] = []
    errors: list[BaseException] = []

    def kept() -> None:
        try:
            results.append(run())
        except BaseException as e:  # it is raised again in the caller's thread
            errors.append(e)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(kept,), name="deep stack", daemon=True)
    with _stack_lock:
        before = threading.stack_size(min(MAX_STACK, SHALLOW * STACK_PER_CALL + calls * STACK_PER_CALL))
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
