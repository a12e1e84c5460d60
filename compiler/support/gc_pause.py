"""Python's garbage collector, paused or slowed down while a graph is changed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector inside a `with` block; a collector that was disabled before stays disabled.

    Instructions refer to their users and users to their operands, so the collector has to follow every object of a
    program: it starts after every few hundred new objects, finds nothing, and costs more the larger the program is.
    Garbage made inside the block is found by the first collection afterwards.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


RARELY = 4_000_000
"""New objects between two collections inside `gc_rarely`."""


@contextmanager
def gc_rarely() -> Iterator[None]:
    """Let the garbage collector run rarely inside a `with` block, which may make garbage for as long as it likes.

    `gc_paused` is for blocks that make little garbage.
    """
    before = gc.get_threshold()
    if 0 < before[0] < RARELY:
        gc.set_threshold(RARELY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
