"""A run in which almost all measurements fail is stopped with the reasons."""

from typing import Any

import pytest

from env.measurement import MeasurementError
from experiments.failure_watch import MAX_CONSECUTIVE, MAX_SHARE, WINDOW, FailureWatch

GOOD: dict[str, Any] = {"failure": "", "message": ""}


def bad(message: str = "signal SIGSEGV") -> dict[str, Any]:
    return {"failure": "crash", "message": message}


def test_consecutive_failures_stop_the_run_with_the_last_reasons() -> None:
    watch = FailureWatch()
    for n in range(MAX_CONSECUTIVE - 1):
        watch.note("p", bad(f"reason {n}\nand a long trace"))
    with pytest.raises(MeasurementError) as caught:
        watch.note("q", bad("the last"))
    message = str(caught.value)
    assert f"{MAX_CONSECUTIVE} measurements in a row" in message
    assert "q: crash: the last" in message
    assert f"p: crash: reason {MAX_CONSECUTIVE - 2}" in message
    assert "p: crash: reason 0\n" not in message
    assert "long trace" not in message


def test_a_success_resets_the_count_of_consecutive_failures() -> None:
    watch = FailureWatch()
    for n in range(10 * MAX_CONSECUTIVE):
        watch.note("p", GOOD if n % 2 else bad())
    assert (watch.successes, watch.failures) == (5 * MAX_CONSECUTIVE, 5 * MAX_CONSECUTIVE)


def test_a_large_share_of_failures_stops_the_run() -> None:
    watch = FailureWatch()
    every = MAX_CONSECUTIVE - 5  # one success every so many measurements: never enough consecutive failures
    assert 1 - 1 / every > MAX_SHARE
    with pytest.raises(MeasurementError, match=f"of the last {WINDOW} measurements"):
        for n in range(WINDOW):
            watch.note("p", GOOD if n % every == 0 else bad())


def test_doubtful_is_set_by_a_few_failures_and_cleared_by_a_success() -> None:
    watch = FailureWatch()
    for _ in range(6):
        watch.note("p", bad())
    assert watch.doubtful
    watch.note("p", GOOD)
    assert not watch.doubtful
