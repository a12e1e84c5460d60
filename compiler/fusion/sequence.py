"""One sequence of instructions under fusion: its order, legal actions and cost, updated with every fusion."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from weakref import WeakSet

from compiler.analysis.cost_model import CostModel
from compiler.analysis.order import TopologicalOrder
from compiler.codegen.build_target import C_TARGET, BuildTarget
from compiler.fusion.action_table import ActionTable
from compiler.fusion.actions import FusionAction
from compiler.fusion.contents import MAX_VALUES, Contents
from compiler.fusion.digests import MODULUS, Digests
from compiler.fusion.divisions import Divisions
from compiler.fusion.edits import Edits
from compiler.fusion.estimates import Estimates
from compiler.fusion.kinds import FUSING, KIND_OF, SPLITTING, Entry
from compiler.fusion.legality import ALLOW, FusionDecision, Legality, Limits, forbid
from compiler.fusion.nodes import Nodes, SavedNode
from compiler.fusion.reach import MAX_NODES, Reach
from compiler.fusion.rewriting import (
    consumers_of,
    is_result,
    producers_of,
)
from compiler.fusion.rules import Restrictions
from compiler.fusion.running_sum import RunningSum
from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.support.bounded_table import BoundedTable

_FIXED_POINT = 2.0**100
"""Units per second of times that are added up: integers, so that a sum does not depend on its history."""
MAX_LISTED = 3_000
"""Number of listed actions that are kept for another list, in small sequences: they keep the nodes of before alive."""
_EVERYWHERE = (-1 << 100, 1 << 100)
"""Below and above every rank."""


@dataclass(slots=True)
class Step:
    """What one action changed, so that it can be taken back.

    Attributes:
        edits: of the sequence.
        touched: the length of `SequenceState.touched` before.
        nodes: what the nodes that changed were before, in order of the changes.
        ranks: former ranks, in order of the changes.
        changed: nodes that were made, changed or removed.
        around: nodes whose consumers changed.
        readers: see `SequenceState.note`.
        low: least rank of a node on whose paths something changed.
        high: the greatest one.
        renumbered: whether all ranks changed.
    """

    edits: Edits
    touched: int
    nodes: list[SavedNode] = field(default_factory=list)
    ranks: list[dict[HloInstruction, int | None]] = field(default_factory=list)
    changed: list[HloInstruction] = field(default_factory=list)
    around: list[HloInstruction] = field(default_factory=list)
    readers: list[HloInstruction] = field(default_factory=list)
    low: int = 1 << 100
    high: int = -1 << 100
    renumbered: bool = False


class Changes:
    """The nodes with new stamps, for one listener.

    Attributes:
        nodes: those since the listener last cleared them; some may have been removed.
    """

    __slots__ = ("__weakref__", "nodes")

    def __init__(self) -> None:
        self.nodes: dict[HloInstruction, None] = {}


class SequenceState:
    """A computation that runs as a sequence (the entry, a loop, a branch) while its instructions are fused.

    Attributes:
        computation: the computation itself.
        weight: how often it runs per run of the module.
        listed: actions of earlier lists by the revisions of their nodes, see `ActionKind.known_entry`.
        touched: instructions changed or made since the start, in order. A policy remembers the length of the list to
            find what is new. Some may have been removed again; their `parent` is None.
        stamps: for each node the number of the last change, or undo, that concerns it, its producers or its consumers.
    """

    def __init__(
        self,
        computation: HloComputation,
        weight: float,
        cost_model: CostModel,
        limits: Limits,
        target: BuildTarget = C_TARGET,
    ) -> None:
        self.computation = computation
        self.weight = weight
        self.cost_model = cost_model
        self.nodes = Nodes(computation)
        self.order = TopologicalOrder(computation)
        small = len(self.nodes.origins.values) <= MAX_VALUES
        contents = Contents(computation, self.nodes, target) if small else None
        self.legality = Legality(self.order, self.nodes, limits, target, contents=contents)
        self.digests = Digests()
        self._digests: BoundedTable[int, int] = BoundedTable(self.nodes.most)  # of fusions by revision
        self.estimates = Estimates(self.nodes, self.legality, cost_model)
        self.divisions = Divisions(self.nodes, self.legality, cost_model)
        self._start()

    def _start(self) -> None:
        """Set up what is computed from the nodes."""
        self.touched: list[HloInstruction] = []
        self.stamps: dict[HloInstruction, int] = {}
        self._changes = 0
        self._stamped: WeakSet[Changes] = WeakSet()
        self._producers: dict[HloInstruction, list[HloInstruction]] = {}  # of nodes that have not changed since
        self._consumers: dict[HloInstruction, list[HloInstruction]] = {}
        self._listed_for: dict[HloInstruction, dict[HloInstruction, None]] = {}  # whose consumers list a node
        self.reach: Reach | None = None
        if len(self.nodes.values) <= MAX_NODES:
            self.reach = Reach(self.nodes, self.order, self.producers, self.consumers)
        self._make_tables()
        self._cost = RunningSum(self._fixed_point_time, self.nodes.values)
        self._fused = RunningSum(self._digest_of, self.nodes.values)
        self._fusions = RunningSum(self._is_fusion, self.nodes.values)
        self._step: Step | None = None

    def _make_tables(self) -> None:
        self.listed: BoundedTable[Hashable, Entry] = BoundedTable(max(MAX_LISTED, 4 * len(self.nodes.values)))
        self.table = ActionTable(self, FUSING)
        self._splits: ActionTable | None = None  # made when it is asked for

    def copy_for(self, computation: HloComputation) -> SequenceState:
        """Return the same state for a clone of the computation; it cannot undo what was done before."""
        other = copy.copy(self)
        other.computation = computation
        other.nodes = self.nodes.copy_for(computation)
        other.order = self.order.copy_for(computation)
        other.legality = self.legality.copy_for(other.order, other.nodes)
        other.digests = Digests()
        other._set_facts()
        other._start()
        return other

    def dismantle(self) -> None:
        """Drop everything, see `FusionState.dismantle`."""
        for t in self.tables(self._splits is not None):
            vars(t).clear()
        vars(self).clear()

    def restrict(self, restrictions: Restrictions) -> None:
        """Make fusions illegal that rules of the user forbid; rules given before no longer hold."""
        self.legality = self.legality.restricted(restrictions)
        self._set_facts()
        self._make_tables()

    def _set_facts(self) -> None:
        """Set up estimates and divisions for the present nodes and legality, with what is known already."""
        self.estimates = Estimates(self.nodes, self.legality, self.cost_model, self.estimates)
        self.divisions = Divisions(self.nodes, self.legality, self.cost_model, self.divisions)

    def listen(self) -> Changes:
        """Return a collection to which changes add the nodes that get a new stamp, as long as it is referenced."""
        found = Changes()
        self._stamped.add(found)
        return found

    # ---- queries

    def instructions(self) -> list[HloInstruction]:
        """Return every instruction in topological order."""
        return self.order.sorted(self.computation.instructions)

    def producers(self, node: HloInstruction) -> list[HloInstruction]:
        """Return the nodes that a node reads, in order of their keys; the list must not be changed."""
        found = self._producers.get(node)
        if found is None:
            found = producers_of(node)
            if len(found) > 1:
                found.sort(key=self.nodes.key)
            self._producers[node] = found
        return found

    def consumers(self, node: HloInstruction) -> list[HloInstruction]:
        """Return the nodes that read a node; the list must not be changed."""
        found = self._consumers.get(node)
        if found is None:
            found = self._consumers[node] = consumers_of(node)
            for u in found:
                self._listed_for.setdefault(u, {})[node] = None
        return found

    def has_other_use(self, producer: HloInstruction) -> bool:
        """Check whether a node that has a consumer is needed by anything else."""
        return is_result(producer) or len(self.consumers(producer)) > 1

    def seconds(self) -> float:
        """Return the estimated time of one run of the sequence, without what it calls."""
        return self._cost.total() / _FIXED_POINT

    def digest(self) -> int:
        """Return the sum of the digests of the fusions, see `FusionState.fingerprint`."""
        return self._fused.total() % MODULUS

    def fusion_count(self) -> int:
        """Return the number of fusions."""
        return self._fusions.total()

    def _is_fusion(self, i: HloInstruction) -> int:
        return int(i.opcode is Opcode.FUSION and i in self.nodes)

    def time_of(self, i: HloInstruction) -> float:
        """Return the estimated seconds of one instruction."""
        return self.estimates.time_of(i)

    def _fixed_point_time(self, i: HloInstruction) -> int:
        return int(self.time_of(i) * _FIXED_POINT) if i in self.nodes else 0

    def _digest_of(self, i: HloInstruction) -> int:
        if i.opcode is not Opcode.FUSION or i not in self.nodes:
            return 0
        known, revision = self._digests, self.nodes.revision(i)
        found = known.get(revision)
        if found is None:
            found = known[revision] = self.digests.fusion(i, self.nodes.values[i], self.nodes.value_of)
        return found

    def edge(self, producer: HloInstruction, consumer: HloInstruction) -> FusionDecision:
        """Return whether the producer may be computed within the consumer."""
        return self.legality.producer_consumer(producer, consumer)

    def is_legal(self, action: FusionAction) -> bool:
        """Check whether an action is legal now, without stating the reason against it."""
        entry = self._possible(action)
        return entry is not None and entry.kind.has_kernel(self, entry)

    def is_possible(self, action: FusionAction) -> bool:
        """Check whether at most its kernels speak against an action now, mostly without making them."""
        return self._possible(action) is not None

    def _possible(self, action: FusionAction) -> Entry | None:
        if action.consumers_problem() is not None:
            return None
        entry = KIND_OF[action.kind].resolve(self, action)
        return None if isinstance(entry, str) or not entry.kind.is_possible(self, entry) else entry

    def decide(self, action: FusionAction) -> FusionDecision:
        """Return whether an action is legal now."""
        problem = action.consumers_problem()
        if problem is not None:
            return forbid(problem)
        entry = KIND_OF[action.kind].resolve(self, action)
        return forbid(entry) if isinstance(entry, str) else FusionDecision(entry.kind.reason(self, entry))

    def may_go_into_all_users(self, producer: HloInstruction, users: Iterable[HloInstruction]) -> bool:
        """Check whether nothing is known against fusing the producer into all its users without making kernels."""
        return not is_result(producer) and self.legality.may_fuse_into(producer, users)

    def can_go_into_all_users(self, producer: HloInstruction, users: Iterable[HloInstruction]) -> bool:
        """Check whether `into_all_users` allows it, without finding the reason against it."""
        refused = self.legality.is_refused
        return not is_result(producer) and not any(refused("producer-consumer", producer, u) for u in users)

    def has_path_around(self, first: HloInstruction, last: HloInstruction) -> bool:
        """Check whether a path other than the direct edge leads from one node to another."""
        if self.reach is None:
            return self.order.has_path_around(first, last)
        return self.reach.has_path_around(first, last)

    def depends(self, first: HloInstruction, last: HloInstruction) -> bool:
        """Check whether `last` depends on `first`, directly or indirectly."""
        return (self.order if self.reach is None else self.reach).reaches(first, last)

    def is_ordered(self, first: HloInstruction, second: HloInstruction) -> bool:
        """Check whether one of two nodes depends on the other."""
        if self.reach is None:
            return self.order.reaches(*self.order.sorted([first, second]))  # nothing depends on what comes later
        return self.reach.reaches(first, second) or self.reach.reaches(second, first)

    def into_all_users(self, producer: HloInstruction, users: Iterable[HloInstruction]) -> FusionDecision:
        """Return whether the producer may be computed within each of `users`, which are all its users."""
        if is_result(producer):
            return forbid(f"%{producer.name} is the result of its computation")
        for u in users:
            if not (decision := self.legality.producer_consumer(producer, u)):
                return decision
        return ALLOW

    def tables(self, splits: bool) -> tuple[ActionTable, ...]:
        """Return the tables of actions: of those that fuse, and with `splits` also of those that take fusions apart."""
        if splits and self._splits is None:
            self._splits = ActionTable(self, SPLITTING)
        return (self.table, self._splits) if splits and self._splits is not None else (self.table,)

    def actions(self, splits: bool = False) -> list[FusionAction]:
        """Return the legal actions in a fixed order."""
        return [a for t in self.tables(splits) for a in t.actions()]

    def candidates(self, splits: bool = False) -> list[FusionAction]:
        """Return the legal actions, in the same order, and others that fail only when their kernel is made."""
        return [a for t in self.tables(splits) for a in t.candidates()]

    def weighed_candidates(self, splits: bool = False) -> list[tuple[FusionAction, float]]:
        """Return `candidates`, each with the seconds that it saves per run of the sequence."""
        return [c for t in self.tables(splits) for c in t.weighed_candidates()]

    # ---- estimates

    def saving(self, action: FusionAction) -> float:
        """Return the seconds that an action saves per run of the sequence; negative when it loses time."""
        entry = self._resolve(action)
        return entry.kind.saving(self, entry)

    def _resolve(self, action: FusionAction) -> Entry:
        entry = KIND_OF[action.kind].resolve(self, action)
        if isinstance(entry, str):
            raise KeyError(entry)
        return entry

    # ---- fusing

    def apply(self, action: FusionAction) -> list[HloInstruction]:
        """Apply a legal action and return the fusions it made or changed, in order."""
        entry = self._resolve(action)
        return entry.kind.apply(self, entry)

    def begin(self) -> None:
        """Start to note what an action changes."""
        self._step = Step(Edits(self.computation), len(self.touched))

    def end(self) -> Step:
        """Return what was noted since `begin`, for `undo`."""
        step, self._step = self.noting(), None
        return step

    def undo(self, step: Step) -> None:
        """Take back an action; it must be the last one that was not taken back."""
        step.edits.undo()
        for former in reversed(step.ranks):
            self.order.restore(former)
        self.nodes.restore(reversed(step.nodes))
        del self.touched[step.touched :]
        self._note_change(step.changed, step.around, step.readers, step.low, step.high)

    def note(
        self,
        made: Mapping[HloInstruction, tuple[int, ...]],
        removed: Sequence[HloInstruction],
        around: Iterable[HloInstruction],
        ranks: Iterable[int],
        fusions: Sequence[HloInstruction],
        origins: Mapping[HloInstruction, Hashable] = MappingProxyType({}),
        readers: Sequence[HloInstruction] = (),
    ) -> None:
        """Update what is known of the nodes after one change.

        Args:
            made: the nodes that were made or changed, with the values that they yield now.
            removed: instructions that were removed.
            around: nodes whose consumers changed.
            ranks: of the nodes that the action is about.
            fusions: those of `made` that legal steps made of others, so that they can be fused.
            origins: how nodes were made, see `Nodes.change`.
            readers: other nodes that read the same constants, which have fewer readers now.
        """
        step, around = self.noting(), [*around, *readers]
        made = {**made, **{u: self.nodes.values[u] for p in around for u in _updates_of(p) if u not in made}}
        for i in removed:
            self.order.remove(i)
        former = self.order.take_changes()
        changed = [*made, *removed]
        step.nodes += self.nodes.save(changed)
        for i in removed:
            self.nodes.remove(i)
        for i, values in made.items():
            # Facts must not be asked for here: the node has changed, and its revision has not.
            fusible = i in fusions or self.legality.is_marked_fusible(i)
            self.nodes.change(i, values, origins.get(i))
            if fusible and i.opcode is Opcode.FUSION:
                self.legality.mark_fusible(i)
        around = dict.fromkeys((*around, *(o for i in removed for o in i.operands)))
        near = [i for i in around if i in self.nodes and i not in made]
        places = [r for r in (*ranks, *former.values()) if r is not None]
        if step.renumbered:
            places += _EVERYWHERE
        step.ranks.append(former)
        step.changed += changed
        step.around += near
        step.readers += readers
        step.low, step.high = min(step.low, *places), max(step.high, *places)
        self.touched += [*made, *near]
        self._note_change(changed, near, readers, min(places), max(places))

    def _note_change(
        self,
        changed: Iterable[HloInstruction],
        around: Iterable[HloInstruction],
        readers: Sequence[HloInstruction],
        low: int,
        high: int,
    ) -> None:
        changed, around = list(changed), list(around)
        self._changes += 1
        stamped: dict[HloInstruction, int] = {}
        producers, consumers = self._producers, self._consumers
        for i in changed:
            producers.pop(i, None)
            consumers.pop(i, None)
            # An action may not have named all that a node reads now, or has read.
            for p in (*producers_of(i), *self._listed_for.pop(i, ())):
                consumers.pop(p, None)
            if i not in self.nodes:
                self.stamps.pop(i, None)
                continue
            for n in (i, *consumers_of(i)):
                stamped[n] = self._changes
        for i in stamped:
            producers.pop(i, None)
        for i in around:
            consumers.pop(i, None)
            if i in self.nodes:
                stamped[i] = self._changes
        self.stamps.update(stamped)
        for listener in self._stamped:
            listener.nodes.update(dict.fromkeys(stamped))
        watching = self.divisions.watching(self.nodes.moved)
        self.nodes.moved.clear()
        if self.reach is not None:
            self.reach.change(changed, around)
        self.table.change(changed, around, low, high, readers)
        if self._splits is not None:
            self._splits.change(changed, [*around, *watching], low, high)
        self._cost.change(changed)
        self._fused.change(changed)
        self._fusions.change(changed)

    def noting(self) -> Step:
        """Return what is noted of the present action; raise ValueError if none was begun."""
        if self._step is None:
            raise ValueError("a sequence is changed between begin() and end() only")
        return self._step


def _updates_of(parameter: HloInstruction) -> list[HloInstruction]:
    """Return the updates of a parameter, which write to it in place if nothing else reads it."""
    if parameter.opcode is not Opcode.PARAMETER or len(parameter.users) > 2:
        return []
    return [u for u in parameter.users if u.opcode is Opcode.DYNAMIC_UPDATE_SLICE and u.operands[0] is parameter]
