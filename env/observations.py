"""Decisions as Gymnasium observations: flat arrays of fixed size, padded with zeros, and how many rows are used.

The features come from `compiler.learned.features.decisions`, which exported policies use without Gymnasium. Arrays are
flat because Stable-Baselines3 expects that; `unflatten` restores their rows:

    nodes       [MAX_NODES, NODE_FEATURES]            instructions next to the candidates
    edges       [MAX_EDGES, 2]                        (operand, user) node numbers
    candidates  [MAX_CANDIDATES, CANDIDATE_FEATURES]  the legal decisions; action i is row i
    endpoints   [MAX_CANDIDATES, 2]                   nodes that a candidate is about, -1 for none
    globals     [GLOBAL_FEATURES]
    counts      [3]                                   numbers of nodes, edges, candidates without padding
    action_mask [MAX_CANDIDATES]                      which actions are legal

Features are float16, to which `decision_graph` rounds them, and numbers int16: one observation takes 100 KiB.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from compiler.learned.features import decisions as f
from compiler.learned.features.compact import CompactGraph, compact
from compiler.learned.pointer_network import DecisionGraph

__all__ = ["CompactGraph", "Observation", "compact", "observation_space", "observe", "unflatten"]

Observation: TypeAlias = dict[str, npt.NDArray[Any]]

_ROWS = {
    "nodes": (f.MAX_NODES, f.NODE_FEATURES),
    "edges": (f.MAX_EDGES, 2),
    "candidates": (f.MAX_CANDIDATES, f.CANDIDATE_FEATURES),
    "endpoints": (f.MAX_CANDIDATES, 2),
}


def observation_space() -> spaces.Dict:
    """Return the observation space, which is the same for every environment and every program."""

    def floats(size: int) -> spaces.Box:
        return spaces.Box(-f.LIMIT, f.LIMIT, (size,), np.float16)

    def integers(low: int, high: int, size: int) -> spaces.Box:
        return spaces.Box(low, high, (size,), np.int16)

    return spaces.Dict(
        {
            "nodes": floats(f.MAX_NODES * f.NODE_FEATURES),
            "edges": integers(0, f.MAX_NODES - 1, f.MAX_EDGES * 2),
            "candidates": floats(f.MAX_CANDIDATES * f.CANDIDATE_FEATURES),
            "endpoints": integers(-1, f.MAX_NODES - 1, f.MAX_CANDIDATES * 2),
            "globals": floats(f.GLOBAL_FEATURES),
            "counts": spaces.Box(
                np.zeros(3, np.int16), np.array([f.MAX_NODES, f.MAX_EDGES, f.MAX_CANDIDATES], np.int16), dtype=np.int16
            ),
            "action_mask": spaces.Box(0, 1, (f.MAX_CANDIDATES,), np.int8),
        }
    )


def observe(graph: DecisionGraph | CompactGraph) -> Observation:
    """Return the observation of a decision, in new arrays."""
    graph = graph if isinstance(graph, CompactGraph) else compact(graph)
    count = len(graph.candidates)
    candidates = np.zeros(_ROWS["candidates"], np.float16)
    candidates[:count, graph.columns] = graph.candidates
    mask = np.zeros(f.MAX_CANDIDATES, np.int8)
    mask[:count] = 1
    return {
        "nodes": _padded(graph.nodes, "nodes", np.float16),
        "edges": _padded(graph.edges, "edges", np.int16),
        "candidates": candidates.reshape(-1),
        "endpoints": _padded(graph.endpoints, "endpoints", np.int16, fill=-1),
        "globals": graph.globals.copy(),
        "counts": np.array([len(graph.nodes), len(graph.edges), count], np.int16),
        "action_mask": mask,
    }


def _padded(rows: npt.NDArray[Any], name: str, dtype: npt.DTypeLike, fill: int = 0) -> npt.NDArray[Any]:
    padded = np.full(_ROWS[name], fill, dtype) if fill else np.zeros(_ROWS[name], dtype)
    padded[: len(rows)] = rows
    return padded.reshape(-1)


def unflatten(observation: Observation) -> DecisionGraph:
    """Return the decision that `observe` was given."""
    nodes, edges, candidates = (int(n) for n in observation["counts"])
    rows = {name: observation[name].reshape(shape) for name, shape in _ROWS.items()}
    return DecisionGraph(
        nodes=rows["nodes"][:nodes].astype(np.float32),
        edges=rows["edges"][:edges].astype(np.int64),
        candidates=rows["candidates"][:candidates].astype(np.float32),
        endpoints=rows["endpoints"][:candidates].astype(np.int64),
        globals=observation["globals"].astype(np.float32),
    )
