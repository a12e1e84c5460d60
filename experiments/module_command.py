"""What commands that are run as modules, with `python -m experiments...`, do about errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from compiler.errors import HlogymError
from compiler.support.safe_names import printable

__all__ = ["error_text", "plain_errors"]


def error_text(error: HlogymError | OSError) -> str:
    """Return what a command says of an error that a user or the system caused."""
    if isinstance(error, HlogymError):
        return "\n".join([f"error: {error}", *getattr(error, "__notes__", ())])
    where = f": {error.filename}" if error.filename else ""
    return f"error: {error.strerror or error}{where}"


@contextmanager
def plain_errors() -> Iterator[None]:
    """End the process with a message and status 1 where a user's mistake or the system is the cause of an error.

    Other errors are bugs and keep their traceback.
    """
    try:
        yield
    except (HlogymError, OSError) as error:
        # A message may quote a program, a file or another compiler's output, and with it control characters.
        sys.exit(printable(error_text(error)))
