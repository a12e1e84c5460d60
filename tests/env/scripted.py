"""A measurer that replays the measurements of a test."""

from typing import Any, Self

from env.gate import Verdict
from env.measurement import Measurement, Measurer, ReferenceFailedError
from env.statistics import Interval

FAILED = Measurement(None, "wrong", "all wrong")


def taking(seconds: float, counts: bool = True) -> Measurement:
    """Return the measurement of a plan whose default plan takes a second."""
    each, one, speedup = (Interval(x, x, x) for x in (seconds, 1.0, 1 / seconds))
    return Measurement(each, verdict=Verdict(speedup, one, each, counts, 9), thunks=1)


class ScriptedMeasurer(Measurer):
    """Default plans take a second; plans get the entries of the script in turn."""

    def __init__(self, *script: Measurement) -> None:
        super().__init__()
        self.script = list(script)
        self.verified = 0
        self.broken = False

    def __enter__(self) -> Self:
        return self

    def measure_reference(self, program: Any, remeasure: bool = False) -> Measurement:
        return taking(1.0)

    def verify_reference(self, program: Any) -> None:
        self.verified += 1
        if self.broken:
            raise ReferenceFailedError("the reference fails now")

    def measure(self, program: Any, plan: Any, remeasure: bool = False) -> Measurement:
        return self.script.pop(0)
