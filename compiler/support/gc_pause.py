"""Python's garbage collector, paused or slowed down while a graph is changed."""

from __future__ import annotations

import gc
import os
import threading
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


OFTEN = 50_000
"""New objects between two collections of the youngest ones that `gc_less_often` demands at least."""


def gc_less_often() -> None:
    """Let the garbage collector of this process run less often from now on, unless it is disabled.

    Python collects the youngest objects after 700 new ones by default, a tenth of what a step of an environment makes,
    and all objects after a hundred times as many. `gc.set_threshold` gives it another rate again.
    """
    youngest, *older = gc.get_threshold()
    if 0 < youngest < OFTEN:
        gc.set_threshold(OFTEN, *older)


RARELY = 8_000_000
"""New objects between two collections inside `gc_rarely`: they take some 0.8 GB, and a collection takes seconds."""


class _Slowed:
    """The blocks of `gc_rarely` that run now, in all threads, and the threshold before the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._before = 0

    def renew_lock(self) -> None:
        """Replace the lock: in a forked child its holder may be a thread that does not exist there."""
        self._lock = threading.Lock()

    def enter(self) -> None:
        with self._lock:
            if self._blocks == 0:
                self._before = gc.get_threshold()[0]
                if 0 < self._before < RARELY:
                    gc.set_threshold(RARELY)
            self._blocks += 1

    def leave(self) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                gc.set_threshold(self._before)


_SLOWED = _Slowed()
os.register_at_fork(after_in_child=_SLOWED.renew_lock)


@contextmanager
def gc_rarely() -> Iterator[None]:
    """Let the garbage collector run rarely inside a `with` block, which may make garbage for as long as it likes.

    Blocks may nest and run in several threads; when the last of them ends, the collector runs as often as before.
    `gc_paused` is for blocks that make little garbage.
    """
    _SLOWED.enter()
    try:
        yield
    finally:
        _SLOWED.leave()
