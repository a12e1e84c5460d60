"""A lock that lets only one process train a run at a time; two would overwrite each other's checkpoints."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from experiments.results import ResultError
from experiments.run_folder import RunFolder

__all__ = ["sole_trainer"]


@contextmanager
def sole_trainer(run: RunFolder) -> Iterator[None]:
    """Hold the run's lock; the operating system releases it when the process ends.

    Raises:
        ResultError: another process holds the lock, or the run's folder cannot be written.
    """
    path = run.path / "lock"
    try:
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResultError(
                f"run {run.name} is being trained by another process; wait until it ends, or stop it"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
