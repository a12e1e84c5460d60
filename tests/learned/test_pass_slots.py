"""Every pass has a candidate feature of its own, and policies follow the passes by name."""

import json
from pathlib import Path

import numpy as np
import pytest

from compiler.analysis.cost_model import CostModel
from compiler.errors import PolicyError
from compiler.learned.features.candidates import CANDIDATE_FEATURES, Candidate, candidate_row
from compiler.learned.features.decisions import FEATURE_VERSION, GLOBAL_FEATURES, NODE_FEATURES
from compiler.learned.features.pass_slots import PASS_SLOTS, pass_slots, remap_pass_slots
from compiler.learned.features.programs import EndpointNumbers, ModuleFeatures
from compiler.learned.fusion_policy import FORMAT, load_policy, network_shape, save_policy
from compiler.learned.pointer_network import Array, DecisionGraph, NetworkShape, PointerNetwork
from compiler.learned.policy_folder import write_policy_folder
from compiler.passes import PASSES
from tests.fusion.programs import random_graph

OTHERS = CANDIDATE_FEATURES - len(PASSES)
"""Candidate features that are no pass slots."""
KNOWN = ("dce", "cse", "reshape-mover")
FAKE = ("zz-renamed-later", KNOWN[0], "aa-removed-later", KNOWN[1], KNOWN[2])
"""The passes of some other version, in an order that is not alphabetical."""


def random_weights(shape: NetworkShape) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=size).astype(np.float32) for name, size in shape.weights().items()}


def random_decision(candidate_features: Array) -> DecisionGraph:
    rng = np.random.default_rng(1)
    return DecisionGraph(
        rng.normal(size=(4, NODE_FEATURES)).astype(np.float32),
        np.array([[0, 1], [1, 2]], np.int64),
        candidate_features,
        rng.integers(-1, 4, (len(candidate_features), 2)),
        rng.normal(size=GLOBAL_FEATURES).astype(np.float32),
    )


@pytest.fixture
def foreign(tmp_path: Path) -> tuple[Path, PointerNetwork]:
    """A policy folder as a version with the passes FAKE would have written it, and its network."""
    shape = NetworkShape(NODE_FEATURES, OTHERS + len(FAKE), GLOBAL_FEATURES, hidden=8, rounds=1)
    weights = random_weights(shape)
    description = {
        "format": FORMAT, "feature_version": FEATURE_VERSION, "network": shape.to_json(), "passes": list(FAKE),
        "provenance": {},
    }  # fmt: skip
    write_policy_folder(tmp_path / "foreign", description, weights)
    return tmp_path / "foreign", PointerNetwork(shape, weights)


def test_every_registered_pass_has_a_slot_of_its_own() -> None:
    facts = ModuleFeatures(random_graph(0), CostModel(None))
    endpoints = EndpointNumbers(facts, 1.0)
    none = np.array(candidate_row(Candidate("pass"), endpoints, 1.0))
    assert not none[OTHERS:].any()
    columns = set()
    for name in PASSES:
        row = np.array(candidate_row(Candidate("pass", pass_name=name), endpoints, 1.0))
        assert len(row) == CANDIDATE_FEATURES
        (column,) = np.flatnonzero(row != none)
        assert row[column] == 1
        columns.add(int(column))
    assert columns == set(range(OTHERS, CANDIDATE_FEATURES))


def test_a_pass_without_a_slot_has_zeros() -> None:
    assert pass_slots("registered-too-late") == [0.0] * len(PASSES)


def test_columns_follow_their_names() -> None:
    given = np.array([[7, 10, 20], [8, 30, 40]], np.float32)
    found = remap_pass_slots(given, ["gone", "dce"])
    dce = 1 + PASS_SLOTS.index("dce")
    assert found.shape == (2, 1 + len(PASSES))
    assert found[:, 0].tolist() == [7, 8]
    assert found[:, dce].tolist() == [20, 40]
    assert not np.delete(found, [0, dce], axis=1).any()


def test_a_policy_of_other_passes_scores_known_passes_as_it_did(foreign: tuple[Path, PointerNetwork]) -> None:
    folder, network = foreign
    loaded = load_policy(folder).network
    rng = np.random.default_rng(2)
    others = rng.normal(size=(len(KNOWN) + 1, OTHERS)).astype(np.float32)
    then, now = np.zeros((len(others), len(FAKE)), np.float32), np.zeros((len(others), len(PASSES)), np.float32)
    for row, name in enumerate(KNOWN):  # the last row runs no pass
        then[row, FAKE.index(name)] = 1
        now[row, sorted(PASSES).index(name)] = 1
    want = network.scores(random_decision(np.hstack([others, then])))
    np.testing.assert_allclose(loaded.scores(random_decision(np.hstack([others, now]))), want, rtol=1e-5, atol=1e-5)


def test_a_pass_that_a_policy_has_never_seen_counts_as_no_pass(foreign: tuple[Path, PointerNetwork]) -> None:
    loaded = load_policy(foreign[0]).network
    rows = np.zeros((2, CANDIDATE_FEATURES), np.float32)
    rows[1, OTHERS + PASS_SLOTS.index("while-loop-unroller")] = 1
    graph = random_decision(rows)
    graph.endpoints[:] = -1
    first, second = loaded.scores(graph)
    assert first == second


def test_a_policy_of_the_same_passes_is_left_as_it_is(tmp_path: Path) -> None:
    shape = network_shape(hidden=8, rounds=1)
    weights = random_weights(shape)
    save_policy(tmp_path / "policy", shape, weights, {})
    assert json.loads((tmp_path / "policy" / "policy.json").read_text())["passes"] == sorted(PASSES)
    loaded = load_policy(tmp_path / "policy").network
    assert loaded.shape == shape
    for name, weight in weights.items():
        np.testing.assert_array_equal(loaded.weights[name], weight)


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        (None, "must be a list of different names"),
        ([1], "must be a list of different names"),
        (["dce", "dce"], "must be a list of different names"),
        (["dce"], "features of nodes, candidates and programs"),
    ],
)
def test_names_that_do_not_fit_the_weights_are_refused(
    foreign: tuple[Path, PointerNetwork], passes: object, message: str
) -> None:
    file = foreign[0] / "policy.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "passes": passes}))
    with pytest.raises(PolicyError, match=message):
        load_policy(foreign[0])
