"""What the nodes of a sequence cost, and what fusing two of them saves, found once for all nodes that are alike."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.analysis.cost_model import CostModel, is_priced_as_kernel
from compiler.analysis.kernel_compose import compose
from compiler.analysis.kernel_summary import Contexts, KernelSummary
from compiler.fusion.legality import Legality
from compiler.fusion.nodes import Nodes
from compiler.fusion.rewriting import is_inlined_constant, is_multi_output
from compiler.ir import HloInstruction, Opcode
from compiler.support.bounded_table import BoundedTable


class _Known:
    """Seconds by the revisions of nodes, and of kernels by the pairs that they compute; forks share them.

    Attributes:
        times: of nodes.
        savings: of pairs, by their kind.
        kernels: of the kernels of pairs, by the number of their structure and by which of the two updates in place.
        broadcasts: which operands of a node are broadcasts of constants.
    """

    def __init__(self, most: int) -> None:
        self.times: BoundedTable[int, float] = BoundedTable(most)
        self.savings: BoundedTable[tuple[str, int, int], float] = BoundedTable(most)
        self.kernels: BoundedTable[tuple[int, bool, bool], float] = BoundedTable(most)
        self.broadcasts: BoundedTable[int, tuple[int, ...]] = BoundedTable(most)


class Estimates:
    """The estimates of one sequence, in seconds per run of it.

    Args:
        nodes: of the sequence.
        legality: of the sequence.
        cost_model: prices kernels and instructions.
        like: estimates of a sequence whose nodes have the same revisions, with which they are shared.
    """

    def __init__(self, nodes: Nodes, legality: Legality, cost_model: CostModel, like: Estimates | None = None) -> None:
        self._nodes, self._legality, self._cost_model = nodes, legality, cost_model
        self._known: _Known = _Known(nodes.most) if like is None else like._known

    def time_of(self, i: HloInstruction) -> float:
        """Return the estimated seconds of one instruction."""
        times, revision = self._known.times, self._nodes.revision(i)
        found = times.get(revision)
        if found is None:
            found = times[revision] = self._price(i)
        return found

    def _price(self, i: HloInstruction) -> float:
        facts = self._legality.facts(i)
        if facts.refusal is None and is_priced_as_kernel(i):
            return self._cost_model.kernel(facts.summary)
        return self._cost_model.instruction(i)

    def into_all(self, producer: HloInstruction, users: Sequence[HloInstruction]) -> float:
        """Return the seconds saved by fusing the producer into all its users and removing it."""
        own = self.time_of(producer) + self.unused_constants([producer, *users])
        # Without calls where the answers are known, because there may be many users.
        known, revision = self._known.savings.get, self._nodes.revision
        first, edges = revision(producer), []
        for u in users:
            found = known(("producer-consumer", first, revision(u)))
            edges.append(self.edge(producer, u) if found is None else found)
        return own + sum(edges)

    def unused_constants(self, fused: Sequence[HloInstruction]) -> float:
        """Return the seconds of broadcasts of constants that only these instructions read: fusions copy them."""
        known, revision = self._known.broadcasts.get, self._nodes.revision
        constants: dict[HloInstruction, None] = {}
        for i in fused:
            places = known(revision(i))
            for n in self._broadcasts(i) if places is None else places:
                constants[i.operands[n]] = None
        if not constants:
            return 0.0
        gone = set(fused)
        return sum(
            self.time_of(o)
            for o in constants
            if len(o.users) <= len(gone) and o not in gone and gone.issuperset(o.users)
        )

    def reads_constants(self, nodes: Sequence[HloInstruction]) -> bool:
        """Check whether nodes read broadcasts of constants, so that `unused_constants` may count some."""
        return any(self._broadcasts(i) for i in nodes)

    def _broadcasts(self, i: HloInstruction) -> tuple[int, ...]:
        """Return which operands of a node are broadcasts of constants."""
        known, revision = self._known.broadcasts, self._nodes.revision(i)
        found = known.get(revision)
        if found is None:
            operands = enumerate(i.operands)
            found = tuple([n for n, o in operands if o.opcode is Opcode.BROADCAST and is_inlined_constant(o)])
            known[revision] = found
        return found

    def edge(self, producer: HloInstruction, consumer: HloInstruction) -> float:
        """Return the seconds the consumer saves by computing the producer itself; mostly negative, as it does more."""
        return self.pair("producer-consumer", producer, consumer)

    def pair(self, kind: str, first: HloInstruction, second: HloInstruction) -> float:
        """Return the seconds that the second node saves, mostly a negative number, if one kernel computes both."""
        known, revision = self._known.savings, self._nodes.revision
        key = (kind, revision(first), revision(second))
        found = known.get(key)
        if found is None:
            found = known[key] = self.time_of(second) - self._seconds_after(kind, first, second)
        return found

    def _seconds_after(self, kind: str, first: HloInstruction, second: HloInstruction) -> float:
        """Return the seconds of the kernel that computes both nodes; it is found once for all pairs of a structure."""
        # Who else reads what a node updates decides whether it does so in place; all else follows from the structure.
        known, facts, pair = self._known.kernels, self._legality.facts, self._legality.trials.pair(kind, first, second)
        key = pair, facts(first).summary.in_place, facts(second).summary.in_place
        found = known.get(key)
        if found is None:
            found = known[key] = self._cost_model.kernel(self._summary_after(kind, first, second))
        return found

    def _summary_after(self, kind: str, first: HloInstruction, second: HloInstruction) -> KernelSummary:
        a, b = self._legality.facts(first).summary, self._legality.facts(second).summary
        keep = kind != "producer-consumer"
        exact = a.looped_reduction or a.in_place or b.in_place or (keep and b.looped_reduction)
        exact = exact or a.template is not None or b.template is not None or (keep and a.elements != b.elements)
        # An input that the producer repeats along the reduced rows is loaded once for all of them.
        exact = exact or (b.looped_reduction and any(1 < i.elements < a.elements for i in a.inputs))
        if exact or is_multi_output(first) or (a.spreads and b.spreads):
            return self._legality.trials.summary(kind, first, second)
        contexts: Contexts = {}
        inputs: list[HloInstruction | None] = []
        for o, i in zip(second.operands, b.inputs, strict=True):
            inputs.append(None if o is first or is_inlined_constant(o) else o)
            if o is first:
                contexts = i.contexts
        own = [None if is_inlined_constant(o) else o for o in first.operands]
        return compose(a, b, own, inputs, contexts, keep=keep)
