from typing import Any

import numpy as np
import pytest

from tests.fuzz.compare_modules import check_round_trip, check_values
from tests.fuzz.mutated_plans import fuzz as fuzz_plans
from tests.fuzz.mutated_texts import fuzz
from tests.fuzz.random_modules import random_inputs, random_module
from tests.fuzz.schedules import fuzz as fuzz_schedules


def test_a_few_random_modules_round_trip() -> None:
    for seed in range(60):
        check_round_trip(random_module(np.random.default_rng(seed), 40))


def test_a_few_random_modules_agree_with_xla() -> None:
    for seed in range(5):
        rng = np.random.default_rng((1, seed))
        module = random_module(rng, 25)
        check_values(module, random_inputs(module, rng))


def test_the_same_seed_makes_the_same_module() -> None:
    one, two = (str(random_module(np.random.default_rng(7), 40)) for _ in range(2))
    assert one == two


def test_a_few_mutated_texts() -> None:
    outcomes, _ = fuzz(400, seed=1)
    assert outcomes["HloSyntaxError"] and outcomes["HloVerificationError"]


def test_a_few_random_schedules() -> None:
    outcome = fuzz_schedules(100, seed=5)
    assert outcome.problems == []
    assert outcome.counts["right"] == 100


def test_a_few_mutated_plans() -> None:
    outcomes = fuzz_plans(200, seed=3).outcomes
    kinds = {kind for kind, _ in outcomes}
    assert kinds == {"the file's bytes", "fields in Python", "structure", "meaning"}
    assert all(outcomes["meaning", word] for word in ("rejected when read", "rejected on replay", "right"))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_mutated_plans() -> None:
    fuzz_plans(20_000, seed=4)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_mutated_texts() -> None:
    fuzz(200_000, seed=2)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(20))
def test_many_random_modules(part: Any) -> None:
    for number in range(1000):
        rng = np.random.default_rng((2, part, number))
        module = random_module(rng, 40)
        check_round_trip(module)
        check_values(module, random_inputs(module, rng))
