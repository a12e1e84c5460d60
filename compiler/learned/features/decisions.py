"""A decision in numbers: its candidates and the part of the program's graph around them, as arrays.

With NumPy alone, because exported policies run without Gymnasium and torch. A change of what any number means changes
FEATURE_VERSION: weights learned on other features are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.fusion.rewriting import consumers_of, producers_of
from compiler.ir import HloInstruction
from compiler.learned.features.candidates import (
    CANDIDATE_FEATURES,
    MAX_CANDIDATES,
    AlikeCandidates,
    Candidate,
    candidate_row,
)
from compiler.learned.features.compact import CompactGraph
from compiler.learned.features.programs import (
    NODE_FEATURES,
    EndpointNumbers,
    NodeFacts,
    Row,
    log_size,
    signed_log,
)
from compiler.learned.features.rounding import LIMIT, halved, rounded
from compiler.learned.pointer_network import DecisionGraph
from compiler.plan import Phase
from compiler.runtime.kernel_features import FEATURE_NAMES

__all__ = [
    "CANDIDATE_FEATURES",
    "FEATURE_VERSION",
    "GLOBAL_FEATURES",
    "LIMIT",
    "MAX_CANDIDATES",
    "MAX_EDGES",
    "MAX_NODES",
    "NODE_FEATURES",
    "ShownNodes",
    "compact_decision",
    "decision_graph",
    "global_row",
    "halved",
    "rounded",
]

FEATURE_VERSION = 4
MAX_NODES = 256
"""Most nodes of a graph: those nearest to the candidates."""
MAX_EDGES = 1024
_PHASES: tuple[Phase, ...] = ("passes", "expansions", "loops", "fusion", "kernels")  # those that a policy decides
GLOBAL_FEATURES = len(_PHASES) + 9 + len(FEATURE_NAMES)


def decision_graph(
    candidates: Sequence[Candidate] | AlikeCandidates,
    facts: NodeFacts,
    phase: Phase,
    extra_nodes: Iterable[HloInstruction] = (),
    kernel: Sequence[float] = (),
) -> DecisionGraph:
    """Return a decision in numbers.

    Args:
        candidates: at most MAX_CANDIDATES.
        facts: of the module they belong to.
        phase: the kind of decision.
        extra_nodes: instructions to show besides those of the candidates and their neighbours.
        kernel: the features of the kernel that is decided, see `KernelSite.features`; empty for other decisions.
    """
    shown = ShownNodes.of(candidates, facts, extra_nodes)
    return compact_decision(candidates, facts, phase, shown, kernel).expanded(CANDIDATE_FEATURES)


@dataclass(frozen=True)
class ShownNodes:
    """The part of a decision that does not depend on what is decided, if the same nodes are shown.

    Attributes:
        index: the number of each node.
        nodes, edges: as in `CompactGraph`.
    """

    index: Mapping[HloInstruction, int]
    nodes: npt.NDArray[np.float16]
    edges: npt.NDArray[np.int16]

    @staticmethod
    def of(
        candidates: Sequence[Candidate] | AlikeCandidates, facts: NodeFacts, extra: Iterable[HloInstruction]
    ) -> ShownNodes:
        """Return the nodes of candidates, their neighbours and others in numbers."""
        nodes, total = _neighbourhood(_different(candidates), extra), _total(facts)
        index = {node: i for i, node in enumerate(nodes)}
        edges = [(index[p], i) for node, i in index.items() for p in producers_of(node) if p in index][:MAX_EDGES]
        rows = [facts.row(node, total) for node in nodes] or [[0.0] * NODE_FEATURES]
        return ShownNodes(index, _matrix(rows, NODE_FEATURES), np.array(edges, dtype=np.int16).reshape(-1, 2))


def compact_decision(
    candidates: Sequence[Candidate] | AlikeCandidates,
    facts: NodeFacts,
    phase: Phase,
    shown: ShownNodes,
    kernel: Sequence[float] = (),
) -> CompactGraph:
    """Return `decision_graph` in the types of observations.

    Args:
        candidates: see `decision_graph`.
        facts: the same.
        phase: the same.
        shown: the nodes that are shown.
        kernel: see `decision_graph`.
    """
    each, total = _different(candidates), _total(facts)
    ends = [[-1 if e is None else shown.index.get(e, -1) for e in (c.producer, c.consumer)] for c in each]
    endpoints = EndpointNumbers(facts, total)
    rows = _matrix([candidate_row(c, endpoints, total) for c in each], CANDIDATE_FEATURES)
    if isinstance(candidates, AlikeCandidates):
        used, features = candidates.rows(rows[0])
    else:
        used = np.flatnonzero(rows.any(axis=0))
        features = rows[:, used]
    times = len(candidates) if isinstance(candidates, AlikeCandidates) else 1
    savings = np.array([c.saving for c in each] * times)
    return CompactGraph(
        nodes=shown.nodes,
        edges=shown.edges,
        columns=used.astype(np.int16),
        candidates=features,
        endpoints=np.array(ends * times, dtype=np.int16).reshape(-1, 2),
        globals=_matrix([global_row(savings, facts, total, phase, kernel)], GLOBAL_FEATURES)[0],
    )


def _different(candidates: Sequence[Candidate] | AlikeCandidates) -> Sequence[Candidate]:
    """Return one of candidates that are alike, or all of others."""
    return [candidates.like] if isinstance(candidates, AlikeCandidates) else candidates


def _total(facts: NodeFacts) -> float:
    """Return the seconds of the whole program; positive."""
    return max(facts.total_seconds(), 1e-12)


def _matrix(rows: Sequence[Row], width: int) -> npt.NDArray[np.float16]:
    return halved(np.array(rows, dtype=np.float32).reshape(len(rows), width))


def _neighbourhood(candidates: Sequence[Candidate], extra: Iterable[HloInstruction]) -> list[HloInstruction]:
    """Return the candidates' instructions, then their operands and users, up to MAX_NODES."""
    found: dict[HloInstruction, None] = {}
    for c in candidates:
        found.update((e, None) for e in (c.producer, c.consumer) if e is not None)
    for node in list(found):
        if len(found) >= MAX_NODES:
            break
        found.update(dict.fromkeys(producers_of(node)))
        found.update(dict.fromkeys(consumers_of(node)))
    found.update(dict.fromkeys(extra))
    return list(found)[:MAX_NODES]


def global_row(
    savings: npt.NDArray[Any], facts: NodeFacts, total: float, phase: Phase, kernel: Sequence[float]
) -> list[float]:
    """Return the features of a decision as a whole.

    Args:
        savings: [c] seconds that each candidate saves.
        facts: of the module.
        total: seconds of the whole program.
        phase: the kind of decision.
        kernel: the features of the kernel that is decided; empty for other decisions.
    """
    instructions, kernels = facts.counts()
    count = len(savings)
    return [
        *(float(phase == p) for p in _PHASES),
        log_size(instructions, 10),
        log_size(kernels, 8),
        log_size(total, 1) if total > 1 else signed_log(total, 1e-7, 24),
        log_size(count, 8),
        signed_log(float(savings.max()) / total if count else 0.0, 1e-3, 10),
        signed_log(float(savings.min()) / total if count else 0.0, 1e-3, 10),
        float((savings > 0).sum()) / max(1, count),
        float((savings < 0).sum()) / max(1, count),
        1.0,
        *(kernel or [0.0] * len(FEATURE_NAMES)),
    ]
