"""Timing at real-time priority."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from env.measurement import Measurer, MeasurerOptions
from env.real_time import real_time
from env.suites import load_suite


@pytest.fixture(autouse=True)
def _allowed() -> None:
    try:
        with real_time():
            pass
    except PermissionError:
        pytest.skip("processes may not have real-time priority here")


@pytest.fixture
def sleeper() -> Iterator[int]:
    """The id of a thread that sleeps while the test runs."""
    end, started = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        end.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    assert thread.native_id is not None
    yield thread.native_id
    end.set()
    thread.join()


def test_all_threads_have_the_priority_and_lose_it(sleeper: int) -> None:
    ids = (os.getpid(), sleeper)
    before = [os.sched_getscheduler(i) for i in ids]
    with real_time(priority=3):
        assert [os.sched_getscheduler(i) for i in ids] == [os.SCHED_FIFO] * 2
        assert os.sched_getparam(sleeper).sched_priority == 3
    assert [os.sched_getscheduler(i) for i in ids] == before


def test_measurements_at_real_time_priority() -> None:
    (program,) = (p for p in load_suite("quickstart").programs if p.name == "softmax")
    with Measurer(options=MeasurerOptions(rounds=3, seconds=0.05, real_time=True)) as measurer:
        found = measurer.measure_reference(program)
        assert found.time.value > 0
        assert measurer.compare(program, {"a": None, "b": None}, rounds=2).failures == {}
