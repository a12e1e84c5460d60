"""Whole programs of the cuda backend on a stand-in for CuPy and a GPU, by the code that runs on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest

from compiler import compile
from compiler.backends.cuda.emulation import available, stand_in
from compiler.interpreter import evaluate
from compiler.text import parse
from tests.passes.programs import PROGRAMS, program_inputs, program_text

pytestmark = pytest.mark.skipif(not available(), reason="the emulator needs g++")

FEW = ("seed_broadcast_add_after", "mlp_train_step", "attention")


@pytest.fixture(autouse=True)
def no_refused_captures() -> Iterator[None]:
    """Make a stretch that cannot be captured an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


@pytest.mark.parametrize("name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in PROGRAMS])
def test_programs_match_the_interpreter_launched_captured_and_replayed(name: str) -> None:
    module = parse(program_text(name))
    args = program_inputs(name)
    wanted = evaluate(module, args)
    executable = compile(module, backend="cuda")
    with stand_in.installed():
        for _ in range(3):
            for got, expected in zip(executable(*args), wanted, strict=True):
                np.testing.assert_allclose(got.get(), expected, rtol=2e-4, atol=1e-4)


def test_the_stand_in_is_gone_after_the_block() -> None:
    import sys

    before = sys.modules.get("cupy")
    with stand_in.installed():
        assert sys.modules["cupy"] is not before
    assert sys.modules.get("cupy") is before
