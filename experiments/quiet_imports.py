"""What Ctrl-C does while modules are imported: it ends the process in one line."""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["quiet_interruption", "usual_interruption"]

INTERRUPTED = 130


def quiet_interruption() -> None:
    """Let Ctrl-C end this process with one line, until `usual_interruption` is called.

    Imports take a second, in which Python would print a traceback of wherever they are.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def usual_interruption() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: object) -> None:
    del number, frame
    if sys.stderr is not None:
        os.write(2, b"stopped\n")
    os._exit(INTERRUPTED)
