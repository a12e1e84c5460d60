"""Whether this thread lowers a JAX function for this compiler, so that calls of `hlogym.jit` in it are inlined."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["inlining", "is_inlining"]

_state = threading.local()


def is_inlining() -> bool:
    """Check whether calls of `hlogym.jit` are inlined where JAX lowers them."""
    return bool(getattr(_state, "inlining", False))


@contextmanager
def inlining() -> Iterator[None]:
    """Inline calls of `hlogym.jit` that are lowered during the block."""
    before = is_inlining()
    _state.inlining = True
    try:
        yield
    finally:
        _state.inlining = before
