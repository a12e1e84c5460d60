"""Signals end a run when the agent's parameters are consistent."""

import os
import signal
import threading

import pytest

from experiments.interruption import Interruption


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_raises_at_once_in_a_consistent_state(name: str) -> None:
    number = signal.Signals[name]
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt) as caught, Interruption() as interruption:
        interruption.consistent = True
        os.kill(os.getpid(), number)
    assert caught.value.args == (number,)
    assert signal.getsignal(number) == before


def test_a_signal_is_deferred_in_an_inconsistent_state() -> None:
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGTERM)
        interruption.consistent = True
        with pytest.raises(KeyboardInterrupt):
            interruption.raise_pending()


def test_a_second_signal_is_not_deferred() -> None:
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert not interruption.consistent


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_it_does_nothing_outside_the_main_thread() -> None:
    done: list[bool] = []

    def run() -> None:
        with Interruption() as interruption:
            interruption.raise_pending()
        done.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == [True]
