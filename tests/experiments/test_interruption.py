"""Signals end a run where what was learned is whole."""

import os
import signal
import threading

import pytest

from experiments.interruption import Interruption


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_is_heeded_at_once_while_all_is_whole(name: str) -> None:
    number = signal.Signals[name]
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt) as caught, Interruption() as interruption:
        interruption.whole = True
        os.kill(os.getpid(), number)
    assert caught.value.args == (number,)
    assert signal.getsignal(number) == before


def test_it_is_held_back_while_something_is_half_done() -> None:
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGTERM)
        interruption.whole = True
        with pytest.raises(KeyboardInterrupt):
            interruption.heed()


def test_a_second_signal_is_not_held_back() -> None:
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert not interruption.whole


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_handle_no_signals() -> None:
    done: list[bool] = []

    def run() -> None:
        with Interruption() as interruption:
            interruption.heed()
        done.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == [True]
