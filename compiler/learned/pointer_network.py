"""The network of the learned fusion policy in NumPy: message passing over a graph, then one score per candidate.

`agents/network.py` is the same function in torch; a test compares the two. No weight depends on the size of the graph,
so one set of weights serves programs of any size, and permuting nodes or candidates permutes the scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from compiler.errors import PolicyError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["CANDIDATE_WEIGHTS", "MAX_SIZE", "Array", "DecisionGraph", "NetworkShape", "PointerNetwork"]

Array = npt.NDArray[np.float32]
MAX_SIZE = 4096
"""Greatest width and number of rounds of a network."""
CANDIDATE_WEIGHTS = ("join.weight", "prior.weight")
"""The weights whose last columns belong to the candidate features."""


@dataclass(frozen=True)
class DecisionGraph:
    """The input of the network: one decision.

    Attributes:
        nodes: [n, node features], float32.
        edges: [e, 2] (operand, user) node numbers, int64.
        candidates: [c, candidate features], float32; one row per action.
        endpoints: [c, 2] numbers of the nodes that an action is about (producer, consumer); -1 for none.
        globals: [global features], float32.
    """

    nodes: Array
    edges: npt.NDArray[np.int64]
    candidates: Array
    endpoints: npt.NDArray[np.int64]
    globals: Array


@dataclass(frozen=True)
class NetworkShape:
    """Sizes of the network; stored with the weights.

    Attributes:
        hidden: width of every layer.
        rounds: of message passing.
    """

    node_features: int
    candidate_features: int
    global_features: int
    hidden: int = 64
    rounds: int = 2

    def to_json(self) -> dict[str, int]:
        """Return the sizes as a policy file stores them."""
        return asdict(self)

    @staticmethod
    def from_json(data: Any) -> NetworkShape:
        """Read the sizes from a policy file.

        Raises:
            PolicyError: a size is missing, unknown or out of bounds.
        """
        names = [f.name for f in fields(NetworkShape)]
        if not isinstance(data, dict) or sorted(data) != sorted(names):
            raise PolicyError(f"the network's shape needs exactly {', '.join(names)}")
        if not all(type(v) is int and 0 < v <= MAX_SIZE for v in data.values()):
            raise PolicyError(f"the network's shape has a size that is no integer from 1 to {MAX_SIZE}")
        return NetworkShape(**data)

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight by name; a matrix is [outputs, inputs]."""
        h = self.hidden
        shapes: dict[str, tuple[int, ...]] = {"embed.weight": (h, self.node_features), "embed.bias": (h,)}
        for r in range(self.rounds):
            shapes[f"rounds.{r}.weight"] = (h, 3 * h)
            shapes[f"rounds.{r}.bias"] = (h,)
        shapes["pool.weight"] = (h, 2 * h + self.global_features)
        shapes["pool.bias"] = (h,)
        shapes["join.weight"] = (h, 3 * h + self.candidate_features)
        shapes["join.bias"] = (h,)
        shapes["score.weight"] = (1, h)
        shapes["prior.weight"] = (1, self.candidate_features)
        return shapes


class PointerNetwork:
    """Scores candidates.

    Args:
        shape: sizes of the network.
        weights: every weight by name.

    Raises:
        PolicyError: a weight is missing, unknown or of another shape than the network's.
    """

    def __init__(self, shape: NetworkShape, weights: Mapping[str, Array]) -> None:
        wanted = shape.weights()
        for name in sorted(wanted.keys() | weights.keys()):
            given = weights[name].shape if name in weights else None
            if name not in wanted or given != wanted[name]:
                raise PolicyError(f"weight {name!r} has shape {given}, but the network needs {wanted.get(name)}")
        self.shape = shape
        self.weights: Mapping[str, Array] = MappingProxyType(dict(weights))

    def scores(self, graph: DecisionGraph) -> Array:
        """Return one unnormalized log-probability per candidate, [c]."""
        w = self.weights
        h = _relu(_product(graph.nodes, w["embed.weight"]) + w["embed.bias"])
        incoming, outgoing = _mean_over_neighbours(graph.edges, len(graph.nodes))
        for r in range(self.shape.rounds):
            seen = np.concatenate([h, incoming @ h, outgoing @ h], axis=1)
            h = h + _relu(_product(seen, w[f"rounds.{r}.weight"]) + w[f"rounds.{r}.bias"])
        pooled = np.concatenate([h.mean(axis=0), h.max(axis=0), graph.globals])
        whole = _relu(pooled @ w["pool.weight"].T + w["pool.bias"])
        h_size = self.shape.hidden
        producer, consumer, context, own = np.split(w["join.weight"], [h_size, 2 * h_size, 3 * h_size], axis=1)
        joined = (
            _pick(_product(h, producer), graph.endpoints[:, 0])
            + _pick(_product(h, consumer), graph.endpoints[:, 1])
            + context @ whole
            + _product(graph.candidates, own)
            + w["join.bias"]
        )
        hidden = _relu(joined)
        scores: Array = (hidden @ w["score.weight"].T + graph.candidates @ w["prior.weight"].T)[:, 0]
        return scores


def _pick(rows: Array, index: npt.NDArray[np.int64]) -> Array:
    """Return rows by number, and zeros for -1."""
    return np.asarray(rows[np.maximum(index, 0)] * (index >= 0)[:, None].astype(np.float32))


def _product(rows: Array, weight: Array) -> Array:
    """Return `rows @ weight.T`, computed in blocks so small that OpenBLAS does not use its threads.

    Waking the threads takes longer than these products, and much longer on a busy machine.
    """
    block = max(1, (1 << 18) // weight.size)
    if len(rows) <= block:
        return np.asarray(rows @ weight.T)
    return np.concatenate([rows[i : i + block] @ weight.T for i in range(0, len(rows), block)])


def _relu(x: Array) -> Array:
    return np.maximum(x, np.float32(0))


def _mean_over_neighbours(edges: npt.NDArray[np.int64], count: int) -> tuple[csr_array, csr_array]:
    """Return matrices [n, n] that average a node's operands and its users; rows of nodes without any are zero."""
    operands, users = edges[:, 0], edges[:, 1]
    return _averaging(users, operands, count), _averaging(operands, users, count)


def _averaging(rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64], count: int) -> csr_array:
    from scipy.sparse import csr_array  # importing it takes long, and no other policy needs it

    degree = np.bincount(rows, minlength=count)
    values = (1.0 / degree[rows]).astype(np.float32)
    return csr_array((values, (rows, columns)), shape=(count, count))
