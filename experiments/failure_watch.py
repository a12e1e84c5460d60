"""Stops a training run in which almost all measurements fail; the agent would learn only from failures."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from env.measurement import MeasurementError

__all__ = ["FailureWatch"]

MAX_CONSECUTIVE = 25
WINDOW = 200
MAX_SHARE = 0.9  # of the last WINDOW measurements
DOUBTFUL = 5  # consecutive failures
REPORTED = 5


class FailureWatch:
    """Counts failed measurements and raises an error if there are too many.

    Attributes:
        successes: the number of successful measurements in this process.
        failures: the number of failed measurements in this process.
    """

    def __init__(self) -> None:
        self.successes = self.failures = 0
        self._in_a_row = 0
        self._window: deque[bool] = deque(maxlen=WINDOW)
        self._last: deque[str] = deque(maxlen=REPORTED)

    @property
    def doubtful(self) -> bool:
        """Whether so many plans have failed lately that no checkpoint should be written now."""
        return self._in_a_row >= min(DOUBTFUL, MAX_CONSECUTIVE) or self._mostly_failed

    @property
    def _mostly_failed(self) -> bool:
        return len(self._window) == WINDOW and sum(self._window) > MAX_SHARE * WINDOW

    def note(self, program: str, measurement: Mapping[str, Any]) -> None:
        """Record a measurement, given as the environment's `info["measurement"]`.

        Raises:
            MeasurementError: too many measurements have failed.
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
        if self._in_a_row >= MAX_CONSECUTIVE:
            raise MeasurementError(self.message(f"{self._in_a_row} measurements in a row have failed"))
        if self._mostly_failed:
            raise MeasurementError(self.message(f"{sum(self._window)} of the last {WINDOW} measurements have failed"))

    def message(self, what: str) -> str:
        """Return an error message that starts with `what` and lists the most recent failures."""
        return "\n  - ".join([f"{what}; the most recent failures:", *dict.fromkeys(self._last)])
