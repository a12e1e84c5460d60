"""Compares the interpreter with XLA:CPU on the quickstart suite."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.errors import ArgumentError
from compiler.interpreter import evaluate
from compiler.text import parse
from env.reference import Reference
from env.suites import Program, load_suite, random_inputs
from tests.oracle import run_xla


@pytest.mark.parametrize("program", load_suite("quickstart").programs, ids=lambda p: p.name)
def test_the_interpreter_agrees_with_xla(program: Program) -> None:
    module = parse(program.text())
    args = random_inputs(program, [(s.dtype, s.dimensions) for s in module.parameter_shapes], seed=5)
    assert Reference.of(module, args).difference(run_xla(program.text(), args)) is None


IDENTITY = "HloModule m\nENTRY e { ROOT x = f32[2,3] parameter(0) }"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "takes 1 arguments, got 0"),
        ([np.zeros((2, 3), np.float64)], r"argument 0: expected float32\[2, 3\], got float64\[2, 3\]"),
        ([np.zeros((3, 2), np.float32)], r"argument 0: expected float32\[2, 3\], got float32\[3, 2\]"),
    ],
)
def test_arguments_that_do_not_fit_are_told(args: list[np.ndarray], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        evaluate(parse(IDENTITY), args)


def test_results_share_no_memory_with_arguments() -> None:
    x = np.ones((2, 3), np.float32)
    (y,) = evaluate(parse(IDENTITY), [x])
    assert not np.shares_memory(x, y)
