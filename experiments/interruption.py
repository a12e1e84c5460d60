"""Signals that end a command: what it keeps, and a training run that is stopped only where it can be saved."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

__all__ = ["INTERRUPTED", "Interruption", "insisting", "keeping", "status_of_signal"]

INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended, as of shells: 128 and the number of the signal."""

REPEATED = 3.0
"""Seconds after which an interruption that has not ended the command is repeated."""
_SIGNALS = tuple(getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n))


class Interruption:
    """A context manager that turns SIGINT, SIGTERM and SIGHUP into `KeyboardInterrupt(signal number)`.

    While `consistent` is False, the exception is deferred until `raise_pending` is called; a second signal raises it
    immediately. Outside the main thread, where Python does not allow signal handlers, it does nothing.

    Attributes:
        consistent: whether the agent can be saved now; set by the training callback. Initially False.
    """

    def __init__(self) -> None:
        self.consistent = False
        self._received: int | None = None
        self._before: dict[int, Any] = {}

    def raise_pending(self) -> None:
        """Raise KeyboardInterrupt if a signal was deferred."""
        if self._received is not None:
            raise KeyboardInterrupt(self._received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        second, self._received = self._received is not None, number
        if self.consistent or second:
            raise KeyboardInterrupt(number)

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                # A signal that is already ignored (nohup, background jobs) stays ignored.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}


class _Repetition:
    """Repeats an interruption whose exception did not arrive, because code of another library has swallowed it.

    A callback that C code calls, or a finalizer, cannot raise: Python prints the exception and continues.
    """

    def __init__(self) -> None:
        self.number: int = signal.SIGINT
        self._timer: threading.Timer | None = None

    def raise_interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, and again after some seconds unless `arrived` is called."""
        del frame
        if self._timer is None:
            self.number = number
        self.arrived()
        main = threading.main_thread().ident or 0
        # A signal of the system, not Python's flag, so that it also ends a call that waits.
        self._timer = threading.Timer(REPEATED, signal.pthread_kill, (main, signal.SIGINT))
        self._timer.daemon = True
        self._timer.start()
        raise KeyboardInterrupt

    def arrived(self) -> None:
        """Note that the exception has arrived at code that ends the command."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_REPETITION = _Repetition()


@contextmanager
def insisting() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP interrupt the block, so that it can keep what it has found.

    An interruption whose exception was swallowed is repeated, and no traceback of the swallowed one is printed. Signals
    that are ignored, or that the process handles in another way than by default, stay as they are.
    """
    default = (signal.default_int_handler, signal.SIG_DFL)
    own = {number: handler for number in _SIGNALS if (handler := signal.getsignal(number)) in default}
    if threading.current_thread() is not threading.main_thread():  # which alone handles signals
        own = {}
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            before(unraisable)

    _REPETITION.number = signal.SIGINT
    for number in own:
        signal.signal(number, _REPETITION.raise_interrupt)
    sys.unraisablehook = hook
    try:
        yield
    finally:
        _REPETITION.arrived()
        sys.unraisablehook = before
        for number, handler in own.items():
            signal.signal(number, handler)


def status_of_signal() -> int:
    """Return the exit status of a command whose block `insisting` was interrupted: 128 and the signal's number."""
    return 128 + _REPETITION.number


@contextmanager
def keeping(keep: Callable[[], str]) -> Iterator[None]:
    """Call `keep` if the block is interrupted; it saves what was found so far and returns what it kept and where.

    Raises:
        KeyboardInterrupt: the block was interrupted; the argument is the text, which the command line prints.
    """
    try:
        yield
    except KeyboardInterrupt:
        _REPETITION.arrived()
        raise KeyboardInterrupt(keep()) from None
