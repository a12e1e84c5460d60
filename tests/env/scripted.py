"""A measurer that replays the measurements of a test."""

from typing import Any, Self

from env.measurement import Measurement, Measurer, ReferenceFailedError
from env.statistics import Interval

FAILED = Measurement(None, "wrong", "all wrong")


def taking(seconds: float) -> Measurement:
    return Measurement(Interval(seconds, seconds, seconds))


class ScriptedMeasurer(Measurer):
    """Baselines take a second; plans get the entries of the script in turn."""

    def __init__(self, *script: Measurement) -> None:
        super().__init__()
        self.script = list(script)
        self.verified = 0
        self.broken = False

    def __enter__(self) -> Self:
        return self

    def measure_reference(self, program: Any, plan: Any) -> Measurement:
        return taking(1.0)

    def verify_reference(self, program: Any, plan: Any) -> None:
        self.verified += 1
        if self.broken:
            raise ReferenceFailedError("the reference fails now")

    def measure(self, program: Any, plan: Any, remeasure: bool = False) -> Measurement:
        return self.script.pop(0)
