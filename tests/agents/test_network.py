"""The network in torch and in NumPy is one function, and treats graphs as graphs."""

from pathlib import Path

import numpy as np
import pytest
import torch

from agents.export import export_policy
from agents.network import GraphBatch, TorchPointerNetwork
from agents.policy import graph_batch
from compiler.learned.features import decisions as f
from compiler.learned.fusion_policy import load_policy, network_shape
from compiler.learned.pointer_network import DecisionGraph, PointerNetwork
from env.environments import CompileEnv
from env.observations import observe, unflatten
from tests.env.small_programs import write_suite

SHAPE = network_shape(hidden=24, rounds=2)
TOLERANCE = 1e-5


def random_graph(rng: np.random.Generator, nodes: int, edges: int, candidates: int) -> DecisionGraph:
    def floats(*dims: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return f.rounded(rng.normal(size=dims))  # as `decision_graph` rounds them

    return DecisionGraph(
        floats(nodes, f.NODE_FEATURES),
        rng.integers(0, nodes, (edges, 2)),
        floats(candidates, f.CANDIDATE_FEATURES),
        rng.integers(-1, nodes, (candidates, 2)),
        floats(f.GLOBAL_FEATURES),
    )


@pytest.fixture
def network() -> TorchPointerNetwork:
    torch.manual_seed(0)
    return TorchPointerNetwork(SHAPE)


def numpy_of(network: TorchPointerNetwork) -> PointerNetwork:
    weights = {k: v.numpy() for k, v in network.state_dict().items() if not k.startswith("value.")}
    return PointerNetwork(SHAPE, weights)


def batch_of(graphs: list[DecisionGraph]) -> GraphBatch:
    observations = [observe(g) for g in graphs]
    return graph_batch({k: torch.tensor(np.stack([o[k] for o in observations])).float() for k in observations[0]})


def test_torch_equals_numpy_on_a_batch_of_unlike_graphs(network: TorchPointerNetwork) -> None:
    rng = np.random.default_rng(0)
    sizes = [(1, 0, 1), (7, 12, 5), (f.MAX_NODES, f.MAX_EDGES, f.MAX_CANDIDATES), (3, 1, 40)]
    graphs = [random_graph(rng, *s) for s in sizes]
    with torch.no_grad():
        scores, values = network(batch_of(graphs).trimmed())
    assert values.shape == (len(graphs), 1)
    for row, graph in zip(scores, graphs, strict=True):
        np.testing.assert_allclose(
            row[: len(graph.candidates)].numpy(), numpy_of(network).scores(graph), atol=TOLERANCE, rtol=TOLERANCE
        )


def test_torch_equals_numpy_through_an_exported_policy_on_real_programs(
    network: TorchPointerNetwork, tmp_path: Path
) -> None:
    export_policy(network, tmp_path / "policy", {})
    exported = load_policy(tmp_path / "policy").network
    env, rng = CompileEnv(write_suite(tmp_path / "suite"), max_steps=30), np.random.default_rng(0)
    observation, _ = env.reset(seed=0)
    for _ in range(15):
        with torch.no_grad():
            tensors = {k: torch.tensor(v[None]).float() for k, v in observation.items()}
            scores = network(graph_batch(tensors).trimmed())[0][0]
        graph = unflatten(observation)
        np.testing.assert_allclose(
            scores[: len(graph.candidates)].numpy(), exported.scores(graph), atol=TOLERANCE, rtol=TOLERANCE
        )
        observation, _, terminated, truncated, _ = env.step(int(rng.integers(len(env.moves))))
        if terminated or truncated:
            observation, _ = env.reset()


def test_renumbering_nodes_and_candidates_renumbers_scores(network: TorchPointerNetwork) -> None:
    rng = np.random.default_rng(1)
    graph = random_graph(rng, 9, 20, 6)
    nodes, candidates = rng.permutation(9), rng.permutation(6)
    place = np.empty(9, np.int64)
    place[nodes] = np.arange(9)
    ends = graph.endpoints[candidates]
    shuffled = DecisionGraph(
        graph.nodes[nodes],
        rng.permutation(place[graph.edges]),
        graph.candidates[candidates],
        np.where(ends < 0, -1, place[ends]),
        graph.globals,
    )
    network_np = numpy_of(network)
    np.testing.assert_allclose(network_np.scores(shuffled), network_np.scores(graph)[candidates], atol=1e-5)


def test_observations_keep_the_graph() -> None:
    graph = random_graph(np.random.default_rng(2), 12, 30, 17)
    again = unflatten(observe(graph))
    for name in ("nodes", "edges", "candidates", "endpoints", "globals"):
        np.testing.assert_array_equal(getattr(again, name), getattr(graph, name))
