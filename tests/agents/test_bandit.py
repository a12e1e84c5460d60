"""The gradient bandit prefers the decisions that lead to high returns."""

import numpy as np
import pytest

from agents.bandit import GradientBandit

ARMS = ["loop main/while.3: keep", "loop main/while.3: kernel", "loop main/while.3: unroll-2"]


def _play(agent: GradientBandit, episodes: int) -> None:
    for _ in range(episodes):
        agent.learn([0.0, 3.0, 1.0][agent.draw(ARMS)])


@pytest.mark.parametrize("seed", range(3))
def test_it_learns_the_best_decision(seed: int) -> None:
    agent = GradientBandit(0.3, seed)
    _play(agent, 200)
    assert agent.preferred(ARMS) == 1
    assert agent.probabilities(ARMS)[1] > 0.9


def test_without_a_rate_it_is_random_search() -> None:
    agent = GradientBandit(0.0, 0)
    _play(agent, 50)
    np.testing.assert_allclose(agent.probabilities(ARMS), 1 / 3)


def test_a_decision_is_known_whatever_the_numbers_of_its_instructions() -> None:
    agent = GradientBandit(0.3, 0)
    _play(agent, 200)
    renamed = [a.replace("while.3", "while.41") for a in ARMS]
    np.testing.assert_allclose(agent.probabilities(renamed), agent.probabilities(ARMS))
    assert agent.probabilities(["stop passes"])[0] == 1
