"""A policy that makes one kernel of two that read the same large array."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from compiler.fusion.actions import FusionAction
from compiler.fusion.policies.savings import LEAST_SAVING
from compiler.fusion.policies.walk import Walk, nodes_of
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction

LEAST_BYTES = 1 << 18
"""Size of an array from which on it takes a while to read it again."""
MOST_READERS = 12
"""Readers of one array of which all pairs are looked at."""


@dataclass(eq=False)
class ReaderFusion(Walk):
    """Fuses independent readers of a large array where that saves time, the largest arrays first.

    Listed actions join a node only with the next reader of any of its operands, which may be a small one that many
    nodes read.
    """

    def steps(self, state: FusionState) -> Iterator[FusionAction]:
        """Yield fusions of two readers, until none saves time."""
        for sequence in state.sequences.values():
            read = _large_arrays(sequence)
            for array in sorted(read, key=lambda i: -_bytes(i)):  # of equal size, those read first in the program
                while (action := _best_pair(state, sequence, array)) is not None:
                    yield action


def _large_arrays(sequence: SequenceState) -> list[HloInstruction]:
    """Return the large arrays that several nodes read, in an order that depends on the graph alone."""
    readers: dict[HloInstruction, int] = {}
    for node in nodes_of(sequence):
        for o in dict.fromkeys(node.operands):
            readers[o] = readers.get(o, 0) + 1
    return [i for i, n in readers.items() if n > 1 and _bytes(i) >= LEAST_BYTES]


def _bytes(i: HloInstruction) -> int:
    return i.shape.byte_size if i.shape.is_array else 0


def _best_pair(state: FusionState, sequence: SequenceState, array: HloInstruction) -> FusionAction | None:
    """Return the legal fusion of two readers of an array that saves most time, or None."""
    if array.parent is None:
        return None
    nodes = [n for n in sequence.nodes.sorted(dict.fromkeys(array.users)) if sequence.legality.refusal_of(n) is None]
    name = sequence.computation.name
    found: list[tuple[float, FusionAction]] = []
    for a, b in combinations(nodes[:MOST_READERS], 2):
        action = FusionAction("sibling", name, a.name, (b.name,))
        if state.is_possible(action) and (saved := state.estimate(action)) > LEAST_SAVING:
            found.append((saved, action))
    found.sort(key=lambda pair: -pair[0])
    return next((action for _, action in found if state.is_legal(action)), None)
