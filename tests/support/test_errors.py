"""Errors survive the way out of another process."""

import pickle

import pytest

from compiler.errors import HlogymError, HloSyntaxError, HloVerificationError, UnknownNameError
from env.compilation import PlanFailedError
from env.measurement import Measurement


@pytest.mark.parametrize(
    "error",
    [
        HlogymError("plain"),
        HloSyntaxError("no such op", 3, 7, "  x = f32[] nothing()", "a.hlo"),
        HloVerificationError(["one", "two"]),
        UnknownNameError("suite", "tran", ["train", "test"]),
        PlanFailedError(Measurement(None, "crash", "it died")),
    ],
    ids=lambda e: type(e).__name__,
)
def test_an_error_is_pickled_with_its_message_and_its_attributes(error: HlogymError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - bytes that were made here
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
