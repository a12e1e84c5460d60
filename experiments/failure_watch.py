"""Stops a training run in which next to nothing can be measured: what it learned would be about the failures."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from env.measurement import MeasurementError

__all__ = ["FailureWatch"]

IN_A_ROW = 25
WINDOW = 200
SHARE = 0.9  # of the last WINDOW measurements
DOUBTFUL = 5
TOLD = 5


class FailureWatch:
    """Counts measurements that fail.

    Attributes:
        successes, failures: of this process.
    """

    def __init__(self) -> None:
        self.successes = self.failures = 0
        self._in_a_row = 0
        self._window: deque[bool] = deque(maxlen=WINDOW)
        self._last: deque[str] = deque(maxlen=TOLD)

    @property
    def doubtful(self) -> bool:
        """Whether plan after plan fails, so that it is better to wait before what was learned is kept."""
        return self._in_a_row >= DOUBTFUL

    def note(self, program: str, measurement: Mapping[str, Any]) -> None:
        """Take in a measurement as `info` tells it.

        Raises:
            MeasurementError: too many have failed.
        """
        failed = bool(measurement["failure"])
        self._window.append(failed)
        if not failed:
            self.successes += 1
            self._in_a_row = 0
            return
        self.failures += 1
        self._in_a_row += 1
        line = (str(measurement["message"]).strip().splitlines() or [""])[0]
        self._last.append(f"{program}: {measurement['failure']}: {line}")
        if self._in_a_row >= IN_A_ROW:
            raise MeasurementError(self.told(f"{self._in_a_row} measurements in a row have failed"))
        if len(self._window) == WINDOW and sum(self._window) > SHARE * WINDOW:
            raise MeasurementError(self.told(f"{sum(self._window)} of the last {WINDOW} measurements have failed"))

    def told(self, what: str) -> str:
        """A message with the reasons of the last failures."""
        return "\n  - ".join([f"{what}; the last of them:", *dict.fromkeys(self._last)])
