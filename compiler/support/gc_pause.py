"""Python's collector of cycles, held off while a graph is worked on."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection of cycles within; one that was off before stays off afterwards.

    Instructions know their users and users their operands, so that every object of a program is one the collector has
    to follow: it starts after each few hundred that are made, finds nothing, and costs more the larger the program is.
    What is left behind within is found by the first collection afterwards.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
