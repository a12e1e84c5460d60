"""A decision in the types of observations: the form in which many decisions are kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compiler.learned.pointer_network import DecisionGraph

__all__ = ["CompactGraph", "compact"]


@dataclass(frozen=True)
class CompactGraph:
    """A decision in the types of observations, without the columns of candidates that are zero throughout.

    Attributes:
        nodes, edges, endpoints, globals: as in `DecisionGraph`.
        columns: the candidate features that are not zero for all candidates.
        candidates: [c, number of columns].
    """

    nodes: npt.NDArray[np.float16]
    edges: npt.NDArray[np.int16]
    columns: npt.NDArray[np.int16]
    candidates: npt.NDArray[np.float16]
    endpoints: npt.NDArray[np.int16]
    globals: npt.NDArray[np.float16]

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        arrays = (self.nodes, self.edges, self.columns, self.candidates, self.endpoints, self.globals)
        return sum(a.nbytes for a in arrays)

    def expanded(self, candidate_features: int) -> DecisionGraph:
        """Return the decision with all columns of its candidates.

        Args:
            candidate_features: their number.
        """
        candidates = np.zeros((len(self.candidates), candidate_features), np.float32)
        candidates[:, self.columns] = self.candidates
        return DecisionGraph(
            nodes=self.nodes.astype(np.float32),
            edges=self.edges.astype(np.int64),
            candidates=candidates,
            endpoints=self.endpoints.astype(np.int64),
            globals=self.globals.astype(np.float32),
        )


def compact(graph: DecisionGraph) -> CompactGraph:
    """Return a decision in little memory."""
    columns = np.flatnonzero(graph.candidates.any(axis=0))
    return CompactGraph(
        nodes=graph.nodes.astype(np.float16),
        edges=graph.edges.astype(np.int16),
        columns=columns.astype(np.int16),
        candidates=graph.candidates[:, columns].astype(np.float16),
        endpoints=graph.endpoints.astype(np.int16),
        globals=graph.globals.astype(np.float16),
    )
