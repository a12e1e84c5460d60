"""Passes on random modules, one at a time and in random sequences, and the counter-examples of earlier runs."""

from pathlib import Path

import numpy as np
import pytest

from compiler.passes import PASSES
from tests.fuzz.pass_fuzz import check, fuzz_one, pass_texts, read_regression
from tests.fuzz.random_modules import random_module

REGRESSIONS = sorted((Path(__file__).parent.parent / "regressions" / "passes").glob("*.hlo"))


@pytest.mark.parametrize("text", pass_texts())
def test_single_pass(text: str) -> None:
    for seed in range(3):
        module = random_module(np.random.default_rng((seed, len(text))), 30)
        assert check(module, [text]) is None, f"seed {seed}"


@pytest.mark.parametrize("seed", range(25))
def test_random_sequence(seed: int) -> None:
    assert fuzz_one(seed, 30) is None


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda p: p.stem)
def test_regression(path: Path) -> None:
    module, passes = read_regression(path)
    assert check(module, passes) is None


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 2000, 100))
def test_many_random_sequences(start: int) -> None:
    failures = [f for seed in range(start, start + 100) if (f := fuzz_one(10_000 + seed)) is not None]
    assert failures == []


def test_every_pass_is_drawn() -> None:
    assert set(PASSES) <= {t.split("{")[0] for t in pass_texts()}
