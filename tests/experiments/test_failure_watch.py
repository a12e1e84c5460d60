"""A run in which next to nothing can be measured is stopped with the reasons."""

from typing import Any

import pytest

from env.measurement import MeasurementError
from experiments.failure_watch import IN_A_ROW, SHARE, WINDOW, FailureWatch

GOOD: dict[str, Any] = {"failure": "", "message": ""}


def bad(message: str = "signal SIGSEGV") -> dict[str, Any]:
    return {"failure": "crash", "message": message}


def test_failures_in_a_row_stop_the_run_with_the_last_reasons() -> None:
    watch = FailureWatch()
    for n in range(IN_A_ROW - 1):
        watch.note("p", bad(f"reason {n}\nand a long trace"))
    with pytest.raises(MeasurementError) as caught:
        watch.note("q", bad("the last"))
    told = str(caught.value)
    assert f"{IN_A_ROW} measurements in a row" in told
    assert "q: crash: the last" in told
    assert f"p: crash: reason {IN_A_ROW - 2}" in told
    assert "p: crash: reason 0\n" not in told
    assert "long trace" not in told


def test_a_success_in_between_counts() -> None:
    watch = FailureWatch()
    for n in range(10 * IN_A_ROW):
        watch.note("p", GOOD if n % 2 else bad())
    assert (watch.successes, watch.failures) == (5 * IN_A_ROW, 5 * IN_A_ROW)


def test_a_share_of_failures_stops_the_run() -> None:
    watch = FailureWatch()
    every = IN_A_ROW - 5  # one success in so many: never enough failures in a row
    assert 1 - 1 / every > SHARE
    with pytest.raises(MeasurementError, match=f"of the last {WINDOW} measurements"):
        for n in range(WINDOW):
            watch.note("p", GOOD if n % every == 0 else bad())


def test_doubts_begin_early_and_end_with_a_success() -> None:
    watch = FailureWatch()
    for _ in range(6):
        watch.note("p", bad())
    assert watch.doubtful
    watch.note("p", GOOD)
    assert not watch.doubtful
