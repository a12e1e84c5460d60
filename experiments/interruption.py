"""Signals that end a training run: heeded where what the agent has learned is whole, so that it can be kept."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interruption"]

_SIGNALS = tuple(getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n))


class Interruption:
    """Ctrl-C, and what batch systems and terminals send before they kill, raises KeyboardInterrupt(signal number).

    While `whole` is false it is held back until `heed` is called; a second signal is not held back. Use it as a
    context manager. Outside the main thread, where Python lets nobody handle signals, it does nothing.

    Attributes:
        whole: whether what was learned is whole at the moment; set by whoever knows, and false at first.
    """

    def __init__(self) -> None:
        self.whole = False
        self._received: int | None = None
        self._before: dict[int, Any] = {}

    def heed(self) -> None:
        """Raise what was held back."""
        if self._received is not None:
            raise KeyboardInterrupt(self._received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        second, self._received = self._received is not None, number
        if self.whole or second:
            raise KeyboardInterrupt(number)

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                # A signal that is ignored (nohup, a job in the background) stays so.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}
