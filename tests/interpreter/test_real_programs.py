"""Programs lowered from JAX, by the interpreter and by XLA:CPU."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.interpreter import evaluate
from compiler.text import parse
from tests.jax_programs import PROGRAMS, program_text
from tests.oracle import run_xla
from tests.sweeps.case import Tolerance, difference

_LOOSE = {
    # Conditioning of the problem or long chains of steps, not the ops, decide how many digits agree.
    "runge_kutta": 3000,
    "transformer_block_gradient": 2000,
    # XLA keeps the product in f32 where the program rounds it to bf16.
    "bf16_network": 30000,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_interpreter_agrees_with_xla(name: str) -> None:
    text, args = program_text(name)
    found, wanted = evaluate(parse(text), args), run_xla(text, args)
    told = difference(found, wanted, Tolerance(_LOOSE.get(name, 300), 0.3))
    assert told is None, told


def test_there_are_enough_of_them() -> None:
    assert len(PROGRAMS) >= 60
    assert all(np.asarray(leaf).size < 10_000 for name in list(PROGRAMS)[:5] for leaf in program_text(name)[1])
