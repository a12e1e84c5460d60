"""A disk that is full after some files."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """Let `room` files be written durably; then the disk is full.

    Args:
        room: number of calls of `os.fsync` that succeed.
    """
    sync, left = os.fsync, [room]

    def full(descriptor: int) -> None:
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= 1
        sync(descriptor)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", full)
        yield
