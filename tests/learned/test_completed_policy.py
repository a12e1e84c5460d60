"""A learned fusion policy with a completion: the network begins, and a policy of the compiler takes over."""

from pathlib import Path

import numpy as np
import pytest

from compiler.analysis.cost_model import gpu
from compiler.errors import PolicyError
from compiler.fusion.policies import make_policy
from compiler.fusion.protocol import run_policy
from compiler.learned.features.candidates import KIND_COLUMNS
from compiler.learned.fusion_policy import LearnedFusionPolicy, load_policy, network_shape, save_policy
from compiler.learned.pointer_network import Array, PointerNetwork
from tests.fusion.programs import entry
from tests.fusion.test_policies import SLICES_BEHIND_RESHAPES

SHAPE = network_shape(hidden=2, rounds=1)


def weights(stop: float) -> dict[str, Array]:
    """Weights with which stopping has this score, and every action the score 0."""
    found = {name: np.zeros(dims, np.float32) for name, dims in SHAPE.weights().items()}
    found["prior.weight"][0, KIND_COLUMNS["stop"]] = stop
    return found


def test_a_network_that_stops_at_once_leaves_all_to_the_completion() -> None:
    policy = LearnedFusionPolicy(PointerNetwork(SHAPE, weights(1.0)), completion="default")
    learned, rules = entry(SLICES_BEHIND_RESHAPES), entry(SLICES_BEHIND_RESHAPES)
    run_policy(learned, policy)
    run_policy(rules, make_policy("default"))
    assert learned.history == rules.history != []
    for _ in range(2):  # the policy begins again after an undo
        while learned.history:
            learned.undo()
        run_policy(learned, policy)
        assert learned.history == rules.history


def test_a_network_that_never_stops_is_completed_when_nothing_is_legal() -> None:
    state = entry(SLICES_BEHIND_RESHAPES)
    run_policy(state, LearnedFusionPolicy(PointerNetwork(SHAPE, weights(-1.0)), completion="default"))
    assert state.actions() == []


def test_completion_and_device_are_in_the_folder(tmp_path: Path) -> None:
    save_policy(tmp_path / "p", SHAPE, weights(1.0), {}, "default", "gpu")
    found = load_policy(tmp_path / "p")
    assert (found.completion, found.device) == ("default", gpu())
    save_policy(tmp_path / "p", SHAPE, weights(1.0), {})
    found = load_policy(tmp_path / "p")
    assert (found.completion, found.device) == ("", None)


@pytest.mark.parametrize(("completion", "device"), [("nothing", ""), ("annealing", ""), ("", "abacus")])
def test_a_completion_or_device_that_does_not_exist_is_refused(tmp_path: Path, completion: str, device: str) -> None:
    save_policy(tmp_path / "p", SHAPE, weights(1.0), {}, completion, device)
    with pytest.raises(PolicyError, match="there is no"):
        load_policy(tmp_path / "p")
