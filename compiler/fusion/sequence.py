"""One sequence of instructions under fusion: its order, legal actions and cost, updated with every fusion."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias
from weakref import WeakSet

from compiler.analysis.cost_model import CostModel, is_priced_as_kernel
from compiler.analysis.kernel_compose import compose
from compiler.analysis.kernel_summary import Contexts, KernelSummary
from compiler.analysis.order import TopologicalOrder
from compiler.codegen.build_target import C_TARGET, BuildTarget
from compiler.fusion.action_table import ActionTable
from compiler.fusion.actions import FusionAction
from compiler.fusion.anatomy import Anatomy
from compiler.fusion.contents import MAX_VALUES, Contents
from compiler.fusion.digests import MODULUS, Digests
from compiler.fusion.edits import Edits
from compiler.fusion.kinds import FUSING, KIND_OF, SPLITTING, Entry, has_other_use
from compiler.fusion.legality import ALLOW, FusionDecision, Legality, Limits, forbid
from compiler.fusion.moving import Candidates, MoveFacts, Moving, candidates, peel_fusion
from compiler.fusion.nodes import Nodes, SavedNode
from compiler.fusion.reach import MAX_NODES, Reach
from compiler.fusion.rewriting import (
    FusionResult,
    consumers_of,
    fuse_into,
    fuse_multi_output,
    fuse_side_by_side,
    is_inlined_constant,
    is_multi_output,
    is_result,
    producers_of,
    source_of,
)
from compiler.fusion.rules import Restrictions
from compiler.fusion.running_sum import RunningSum
from compiler.fusion.splitting import PartFacts, part_facts, split_fusion
from compiler.ir import HloComputation, HloInstruction, Opcode

Rewrite: TypeAlias = Callable[[HloInstruction, HloInstruction, Edits], FusionResult]
"""Makes two nodes one that yields the outputs of the second and then of the first."""
_KIND_OF_REWRITE: Mapping[Rewrite, str] = {fuse_multi_output: "multi-output", fuse_side_by_side: "sibling"}
"""The kinds of trials whose fused computation a rewrite makes."""

FEW = 8
"""A constant that more instructions read is not counted among those that a fusion makes superfluous."""
_FIXED_POINT = 2.0**100
"""Units per second of times that are added up: integers, so that a sum does not depend on its history."""
_EVERYWHERE = (-1 << 100, 1 << 100)
"""Below and above every rank."""


@dataclass(slots=True)
class _Known:
    """Facts by the revisions of nodes, and the seconds of kernels by the pairs that they compute; forks share them."""

    times: dict[int, float] = field(default_factory=dict)
    savings: dict[tuple[str, int, int], float] = field(default_factory=dict)
    kernels: dict[int, float] = field(default_factory=dict)
    digests: dict[int, int] = field(default_factory=dict)
    cuts: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    parts: dict[tuple[int, int], PartFacts] = field(default_factory=dict)
    movable: dict[int, Candidates] = field(default_factory=dict)
    moves: dict[tuple[int, int, int, bool], MoveFacts] = field(default_factory=dict)


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
        self._known = _Known()
        self._start()

    def _start(self) -> None:
        """Set up what is computed from the nodes."""
        self.touched: list[HloInstruction] = []
        self.stamps: dict[HloInstruction, int] = {}
        self._changes = 0
        self._stamped: WeakSet[Changes] = WeakSet()
        self._producers: dict[HloInstruction, list[HloInstruction]] = {}  # until the next change
        self._consumers: dict[HloInstruction, list[HloInstruction]] = {}
        self.reach = Reach(self.nodes, self.order) if len(self.nodes.values) <= MAX_NODES else None
        self._make_tables()
        self._cost = RunningSum(self._fixed_point_time, self.nodes.values)
        self._fused = RunningSum(self._digest_of, self.nodes.values)
        self._fusions = RunningSum(self._is_fusion, self.nodes.values)
        self._step: Step | None = None

    def _make_tables(self) -> None:
        self.table = ActionTable(self, FUSING)
        self._splits: ActionTable | None = None  # made when it is asked for
        self._watched: dict[int, dict[HloInstruction, None]] = {}

    def copy_for(self, computation: HloComputation) -> SequenceState:
        """Return the same state for a clone of the computation; it cannot undo what was done before."""
        other = copy.copy(self)
        other.computation = computation
        other.nodes = self.nodes.copy_for(computation)
        other.order = self.order.copy_for(computation)
        other.legality = self.legality.copy_for(other.order, other.nodes)
        other.digests = Digests()
        other._start()
        return other

    def restrict(self, restrictions: Restrictions) -> None:
        """Make fusions illegal that rules of the user forbid; rules given before no longer hold."""
        self.legality = self.legality.restricted(restrictions)
        self._make_tables()

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
        return found

    def has_other_use(self, producer: HloInstruction) -> bool:
        """Check whether a node that has a consumer is needed by anything else."""
        return len(self.consumers(producer)) > 1 or is_result(producer)

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
        times, revision = self._known.times, self.nodes.revision(i)
        found = times.get(revision)
        if found is None:
            if len(times) >= self.nodes.most:
                times.clear()
            found = times[revision] = self._price(i)
        return found

    def _fixed_point_time(self, i: HloInstruction) -> int:
        return int(self.time_of(i) * _FIXED_POINT) if i in self.nodes else 0

    def _digest_of(self, i: HloInstruction) -> int:
        if i.opcode is not Opcode.FUSION or i not in self.nodes:
            return 0
        known, revision = self._known.digests, self.nodes.revision(i)
        found = known.get(revision)
        if found is None:
            if len(known) >= self.nodes.most:
                known.clear()
            found = known[revision] = self.digests.fusion(i, self.nodes.values[i], self.nodes.value_of)
        return found

    def _price(self, i: HloInstruction) -> float:
        facts = self.legality.facts(i)
        if facts.refusal is None and is_priced_as_kernel(i):
            return self.cost_model.kernel(facts.summary)
        return self.cost_model.instruction(i)

    def edge(self, producer: HloInstruction, consumer: HloInstruction) -> FusionDecision:
        """Return whether the producer may be computed within the consumer."""
        return self.legality.producer_consumer(producer, consumer)

    def is_legal(self, action: FusionAction) -> bool:
        """Check whether an action is legal now, without stating the reason against it."""
        if action.consumers_problem() is not None:
            return False
        entry = KIND_OF[action.kind].resolve(self, action)
        if isinstance(entry, str) or not entry.kind.has_kernel(self, entry):
            return False
        return entry.kind.reason(self, entry) is None

    def decide(self, action: FusionAction) -> FusionDecision:
        """Return whether an action is legal now."""
        problem = action.consumers_problem()
        if problem is not None:
            return forbid(problem)
        entry = KIND_OF[action.kind].resolve(self, action)
        return forbid(entry) if isinstance(entry, str) else FusionDecision(entry.kind.reason(self, entry))

    def may_go_into_all_users(self, producer: HloInstruction, users: Iterable[HloInstruction]) -> bool:
        """Check whether nothing is known against fusing the producer into all its users without making kernels."""
        may = self.legality.may_fuse
        return not is_result(producer) and all(may("producer-consumer", producer, u) for u in users)

    def can_go_into_all_users(self, producer: HloInstruction, users: Iterable[HloInstruction]) -> bool:
        """Check whether `into_all_users` allows it, without finding the reason against it."""
        refused = self.legality.is_refused
        return not is_result(producer) and not any(refused("producer-consumer", producer, u) for u in users)

    def has_path_around(self, first: HloInstruction, last: HloInstruction) -> bool:
        """Check whether a path other than the direct edge leads from one node to another."""
        if self.reach is None:
            return self.order.path_around(first, last) is not None
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

    def watched_cuts(self, fusion: HloInstruction) -> tuple[int, ...]:
        """Return the values at which the fissions of a fusion are listed; its row is made again when they move."""
        known, revision = self._known.cuts, self.nodes.revision(fusion)
        found = known.get(revision)
        if found is None:
            if len(known) >= self.nodes.most:
                known.clear()
            anatomy = Anatomy(fusion, self.nodes)
            found = known[revision] = anatomy.cuts(), tuple(anatomy.constants())
        cuts, constants = found
        for v in (*cuts, *constants):
            self._watched.setdefault(v, {})[fusion] = None
        return cuts

    def constant_reason(self, fusion: HloInstruction) -> str | None:
        """Return why a fusion cannot be split: another fusion yields a constant that a part would need."""
        self.watched_cuts(fusion)
        for v in self._known.cuts[self.nodes.revision(fusion)][1]:
            node = self.nodes.yields(v)
            if node is not None and node is not fusion and node.opcode is Opcode.FUSION:
                name = self.nodes.origins.name(v)
                return f"%{name}, a constant of which %{fusion.name} has a copy, is a result of %{node.name}"
        return None

    def parts(self, fusion: HloInstruction, cut: int) -> PartFacts:
        """Return whether a fusion can be split at a value, and how long the two kernels take."""
        known, key = self._known.parts, (self.nodes.revision(fusion), cut)
        found = known.get(key)
        if found is None:
            if len(known) >= self.nodes.most:
                known.clear()
            found = known[key] = part_facts(Anatomy(fusion, self.nodes), cut, self.cost_model, self.legality.target)
        return found

    def moves(self, fusion: HloInstruction) -> Iterator[tuple[int, HloInstruction, tuple[HloInstruction, ...]]]:
        """Yield the moves that are listed at a fusion: a value, where it goes, and what it reads besides; see `Move`.

        The row of the fusion is made again when one of these values is yielded by another node.
        """
        known, revision, nodes = self._known.movable, self.nodes.revision(fusion), self.nodes
        found = known.get(revision)
        if found is None:
            if len(known) >= self.nodes.most:
                known.clear()
            found = known[revision] = candidates(Anatomy(fusion, nodes))
        up, down = found
        for value, places in up:
            self._watched.setdefault(value, {})[fusion] = None
            if nodes.yields(value) not in (None, fusion):
                continue
            read = list(dict.fromkeys(source_of(fusion.operands[n]) for n in places))
            for target in nodes.sorted(i for i in read if i in nodes):
                yield value, target, tuple(i for i in read if i is not target)
        for value, needed in down:
            for v in needed:
                self._watched.setdefault(v, {})[fusion] = None
            reader = nodes.operand_of(value)
            if reader is None or is_result(reader) or len(reader.users) != 1:
                continue
            (target,) = reader.users
            if target in nodes and all(nodes.yields(v) in (None, fusion) for v in needed):
                yield value, target, ()

    def move_facts(self, fusion: HloInstruction, value: int, target: HloInstruction) -> MoveFacts:
        """Return whether a value of a fusion can be computed by a neighbor instead, and how long both then take."""
        others = is_result(target) or any(i is not fusion for i in consumers_of(target))
        known = self._known.moves
        key = self.nodes.revision(fusion), value, self.nodes.revision(target), others
        found = known.get(key)
        if found is None:
            if len(known) >= self.nodes.most:
                known.clear()
            moving = Moving(Anatomy(fusion, self.nodes), value, target)
            found = known[key] = moving.facts(self.legality, self.cost_model, others)
        return found

    def moved_rule(self, fusion: HloInstruction, value: int, target: HloInstruction) -> str | None:
        """Return the user's rule against computing a value of a fusion in another kernel, or None."""
        restrictions = self.legality.restrictions
        if not restrictions.patterns:
            return None
        pair = Moving(Anatomy(fusion, self.nodes), value, target).pair
        marks = 0 if pair is None else restrictions.marks(pair[0])
        return restrictions.refusal(marks, self.legality.facts(target).marks)

    # ---- estimates

    def saving(self, action: FusionAction) -> float:
        """Return the seconds that an action saves per run of the sequence; negative when it loses time."""
        entry = self._resolve(action)
        return entry.kind.saving(self, entry)

    def saving_into_all(self, producer: HloInstruction, users: Sequence[HloInstruction]) -> float:
        """Return the seconds saved by fusing the producer into all its users and removing it."""
        own = self.time_of(producer) + self.unused_constants_seconds([producer, *users])
        return own + sum(self.edge_saving(producer, u) for u in users)

    def unused_constants_seconds(self, fused: Sequence[HloInstruction]) -> float:
        """Return the seconds of broadcasts of constants that only these instructions read: fusions copy them."""
        gone = set(fused)
        constants = dict.fromkeys(
            o for i in fused for o in i.operands if o.opcode is Opcode.BROADCAST and is_inlined_constant(o)
        )
        return sum(
            self.time_of(o)
            for o in constants
            if len(o.users) <= len(gone) and o not in gone and gone.issuperset(o.users)
        )

    def edge_saving(self, producer: HloInstruction, consumer: HloInstruction) -> float:
        """Return the seconds the consumer saves by computing the producer itself; mostly negative, as it does more."""
        return self.pair_saving("producer-consumer", producer, consumer)

    def pair_saving(self, kind: str, first: HloInstruction, second: HloInstruction) -> float:
        """Return the seconds that the second node saves, mostly a negative number, if one kernel computes both."""
        known = self._known.savings
        key = (kind, self.nodes.revision(first), self.nodes.revision(second))
        found = known.get(key)
        if found is None:
            if len(known) >= self.nodes.most:
                known.clear()
            found = known[key] = self.time_of(second) - self._seconds_after(kind, first, second)
        return found

    def _seconds_after(self, kind: str, first: HloInstruction, second: HloInstruction) -> float:
        """Return the seconds of the kernel that computes both nodes; it is found once for all pairs of a structure."""
        trials, known = self.legality.trials, self._known.kernels
        if not (trials.is_shared(first) and trials.is_shared(second)):
            return self.cost_model.kernel(self._summary_after(kind, first, second))
        pair = trials.pair(kind, first, second)
        found = known.get(pair)
        if found is None:
            if len(known) >= self.nodes.most:
                known.clear()
            found = known[pair] = self.cost_model.kernel(self._summary_after(kind, first, second))
        return found

    def _summary_after(self, kind: str, first: HloInstruction, second: HloInstruction) -> KernelSummary:
        a, b = self.legality.facts(first).summary, self.legality.facts(second).summary
        keep = kind != "producer-consumer"
        exact = a.looped_reduction or a.in_place or b.in_place or (keep and b.looped_reduction)
        exact = exact or a.template is not None or b.template is not None or (keep and a.elements != b.elements)
        if exact or is_multi_output(first):
            return self.legality.trials.summary(kind, first, second)
        contexts: Contexts = {}
        inputs: list[HloInstruction | None] = []
        for o, i in zip(second.operands, b.inputs, strict=True):
            inputs.append(None if o is first or is_inlined_constant(o) else o)
            if o is first:
                contexts = i.contexts
        own = [None if is_inlined_constant(o) else o for o in first.operands]
        return compose(a, b, own, inputs, contexts, keep=keep)

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
        step, self._step = self._noting(), None
        return step

    def undo(self, step: Step) -> None:
        """Take back an action; it must be the last one that was not taken back."""
        step.edits.undo()
        for former in reversed(step.ranks):
            self.order.restore(former)
        self.nodes.restore(reversed(step.nodes))
        del self.touched[step.touched :]
        self._note_change(step.changed, step.around, step.low, step.high)

    def fuse(self, producer: HloInstruction, consumer: HloInstruction) -> HloInstruction:
        """Compute the producer within the consumer and return the fusion."""
        step = self._noting()
        around = [*producers_of(producer), *producers_of(consumer)]
        ranks = self.order.rank(producer), self.order.rank(consumer)
        values, own = self.nodes.values[consumer], self.nodes.values[producer]
        bits = self._bits(producer, consumer)
        several, constants = is_multi_output(producer), _constants_of(producer, consumer)
        trials = self.legality.trials
        pair = trials.pair("producer-consumer", producer, consumer)
        content = trials.content("producer-consumer", producer, consumer)
        left = trials.inside(producer)
        revisions = self.nodes.revision(producer), self.nodes.revision(consumer)
        result = fuse_into(producer, consumer, step.edits)
        if result.fusion is not consumer:
            self.order.replace(consumer, result.fusion)
        made = {result.fusion: values}
        if several and producer.parent is not None:  # it may have lost outputs
            made[producer] = own if result.kept is None else tuple(own[k] for k in result.kept)
        origins: dict[HloInstruction, Hashable] = {result.fusion: ("producer-consumer", *revisions)}
        if producer in made:
            origins[producer] = "kept", revisions[0], result.kept
        self._update(result, made, [*around, producer, *_few_readers(constants)], ranks, origins)
        if self.reach is not None:
            self.reach.set_bits(result.fusion, bits[1] if producer in self.nodes else bits[0] | bits[1])
        trials.note_origin(result.fusion, pair, None)
        trials.note_content(result.fusion, None if content is None else content.inside)
        if several and producer in self.nodes:
            trials.note_content(producer, left)
        return result.fusion

    def merge(self, first: HloInstruction, second: HloInstruction, rewrite: Rewrite) -> HloInstruction:
        """Make two nodes one that yields the outputs of the second and then of the first; return it."""
        step = self._noting()
        around = [*producers_of(first), *producers_of(second)]
        # Who reads a constant has its own copy of it, but now reads a value that a kernel makes.
        readers = [u for i in (first, second) if is_inlined_constant(i) for u in i.users]
        before, after = self.order.sorted([first, second])
        ranks = self.order.rank(before), self.order.rank(after)
        self.order.make_adjacent(before, after)
        values = (*self.nodes.values[second], *self.nodes.values[first])
        constants, bits = _constants_of(first, second), self._bits(first, second)
        kind = _KIND_OF_REWRITE.get(rewrite)
        trials = self.legality.trials
        pair = None if kind is None else trials.pair(kind, first, second)
        content = None if kind is None else trials.content(kind, first, second)
        origin = None if kind is None else (kind, self.nodes.revision(first), self.nodes.revision(second))
        result = rewrite(first, second, step.edits)
        if result.kept is not None:
            values = tuple(values[k] for k in result.kept)
        self.order.move(after, result.fusion)
        made = {
            result.fusion: values,
            **{u: self.nodes.values[u] for u in readers if u in self.nodes and u.parent is not None},
        }
        origins = {} if origin is None else {result.fusion: (*origin, result.kept)}
        self._update(result, made, [*around, *_few_readers(constants)], ranks, origins)
        if self.reach is not None:
            self.reach.set_bits(result.fusion, bits[0] | bits[1])
        if pair is not None:
            trials.note_origin(result.fusion, pair, result.kept)
            trials.note_content(result.fusion, None if content is None else content.inside)
        return result.fusion

    def _bits(self, first: HloInstruction, second: HloInstruction) -> tuple[int, int]:
        return (0, 0) if self.reach is None else (self.reach.bits(first), self.reach.bits(second))

    def split(self, fusion: HloInstruction, cut: int) -> HloInstruction:
        """Compute a value of a fusion elsewhere; return the node that yields it."""
        step, order = self._noting(), self.order
        around = [*producers_of(fusion), *consumers_of(fusion)]
        ranks = [order.rank(fusion)]
        yields = self.nodes.yields(cut)
        moves = yields is not None and yields is not fusion and order.rank(yields) > order.rank(fusion)
        if yields is not None and yields is not fusion:
            around.append(yields)
            if moves:
                order.make_adjacent(fusion, yields)
                ranks.append(order.rank(yields))
        done = split_fusion(fusion, cut, self.nodes, step.edits)
        own, rest = done.own, done.rest
        for c in dict.fromkeys((*done.constants, *_read_constants(own, rest))):
            if c not in order or order.rank(c) > order.rank(fusion):  # the fusion did not read it
                step.renumbered |= order.place(c, c.operands, [fusion])
        if rest is None and own not in done.constants and yields is fusion:
            if own in order:  # a constant that was there
                order.remove(fusion)
            else:
                order.replace(fusion, own)
        elif own in done.made and own not in order:
            step.renumbered |= order.place(own, own.operands, [fusion])
        if rest is not None and rest is not fusion:
            order.replace(fusion, rest)
        if rest is not None and moves:
            step.renumbered |= order.place(rest, rest.operands, consumers_of(rest))
        made = done.made
        around += [p for i in made for p in producers_of(i)]
        around += _few_readers(_constants_of(*made))
        if rest is not None and is_multi_output(rest):
            _move_outputs(order, rest)
        fusible = [i for i in (own, rest) if i is not None and i in made]
        ranks += [order.rank(i) for i in made]
        self._note(made, done.removed, around, ranks, fusible)
        return source_of(own)

    def peel(self, fusion: HloInstruction, value: int) -> HloInstruction:
        """Compute an output of a fusion, which one node reads, by an instruction of its own; return that.

        The fusion yields what the instruction reads.
        """
        step, order = self._noting(), self.order
        around = [*producers_of(fusion), *consumers_of(fusion)]
        ranks = [order.rank(fusion)]
        left = Moving(Anatomy(fusion, self.nodes), value, fusion).left()
        done = peel_fusion(fusion, value, self.nodes, step.edits)
        own, rest = done.own, done.rest
        assert rest is not None  # noqa: S101 - `Move` refuses it
        for c in dict.fromkeys((*done.constants, *_read_constants(own, rest))):
            if c not in order or order.rank(c) > order.rank(fusion):
                step.renumbered |= order.place(c, c.operands, [fusion])
        if rest is not fusion:
            order.replace(fusion, rest)
        if len(left) > 1:
            _move_outputs(order, rest)
        step.renumbered |= order.place(own, own.operands, own.users)
        made = done.made
        around += [p for i in made for p in producers_of(i)]
        around += _few_readers(_constants_of(*made))
        ranks += [order.rank(i) for i in made]
        self._note(made, done.removed, around, ranks, [own, rest])
        return own

    def move(self, fusion: HloInstruction, value: int, target: HloInstruction) -> list[HloInstruction]:
        """Compute a value of a fusion in a neighbor; return what remains of the fusion, and the neighbor."""
        downstream = target in consumers_of(fusion)
        left = Moving(Anatomy(fusion, self.nodes), value, target).left()
        if downstream:
            taken = self.fuse(self.peel(fusion, value), target)
        else:
            own = self.split(fusion, value)
            merges = has_other_use(target)
            taken = self.merge(target, own, fuse_multi_output) if merges else self.fuse(target, own)
        rest = self.nodes.yields(left[0])
        assert rest is not None  # noqa: S101 - it is left
        return [rest, taken]

    def _update(
        self,
        result: FusionResult,
        made: Mapping[HloInstruction, tuple[int, ...]],
        around: Iterable[HloInstruction],
        ranks: tuple[int, int],
        origins: Mapping[HloInstruction, Hashable],
    ) -> None:
        """Update what is known of the nodes.

        Args:
            result: what was done.
            made: the nodes that were made or changed, with the values that they yield now.
            around: nodes whose consumers changed.
            ranks: of the two nodes that were fused.
            origins: how nodes were made, see `Nodes.change`.
        """
        _move_outputs(self.order, result.fusion)
        self._note(made, result.removed, around, ranks, [result.fusion], origins)

    def _note(
        self,
        made: Mapping[HloInstruction, tuple[int, ...]],
        removed: Sequence[HloInstruction],
        around: Iterable[HloInstruction],
        ranks: Iterable[int],
        fusions: Sequence[HloInstruction],
        origins: Mapping[HloInstruction, Hashable] = MappingProxyType({}),
    ) -> None:
        """Update what is known of the nodes; see `_update`.

        Args:
            made: the nodes that were made or changed, with the values that they yield now.
            removed: instructions that were removed.
            around: nodes whose consumers changed.
            ranks: of the nodes that the action is about.
            fusions: those of `made` that legal steps made of others, so that they can be fused.
            origins: how nodes were made, see `Nodes.change`.
        """
        step, around = self._noting(), list(around)
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
        step.low, step.high = min(step.low, *places), max(step.high, *places)
        self.touched += [*made, *near]
        self._note_change(changed, near, min(places), max(places))

    def _note_change(
        self, changed: Iterable[HloInstruction], around: Iterable[HloInstruction], low: int, high: int
    ) -> None:
        changed, around = list(changed), list(around)
        self._producers, self._consumers = {}, {}
        self._changes += 1
        stamped: dict[HloInstruction, int] = {}
        for i in changed:
            if i not in self.nodes:
                self.stamps.pop(i, None)
                continue
            for n in (i, *consumers_of(i)):
                stamped[n] = self._changes
        stamped.update(dict.fromkeys((i for i in around if i in self.nodes), self._changes))
        self.stamps.update(stamped)
        for listener in self._stamped:
            listener.nodes.update(dict.fromkeys(stamped))
        watching = dict.fromkeys(i for v in self.nodes.moved for i in self._watched.get(v, ()) if i in self.nodes)
        self.nodes.moved.clear()
        if self.reach is not None:
            self.reach.change(changed, around)
        self.table.change(changed, around, low, high)
        if self._splits is not None:
            self._splits.change(changed, [*around, *watching], low, high)
        self._cost.change(changed)
        self._fused.change(changed)
        self._fusions.change(changed)

    def _noting(self) -> Step:
        if self._step is None:
            raise ValueError("a sequence is changed between begin() and end() only")
        return self._step


def _updates_of(parameter: HloInstruction) -> list[HloInstruction]:
    """Return the updates of a parameter, which write to it in place if nothing else reads it."""
    if parameter.opcode is not Opcode.PARAMETER or len(parameter.users) > 2:
        return []
    return [u for u in parameter.users if u.opcode is Opcode.DYNAMIC_UPDATE_SLICE and u.operands[0] is parameter]


def _read_constants(*nodes: HloInstruction | None) -> list[HloInstruction]:
    """Return the constants that these nodes read, operands first."""
    found = [o for i in nodes if i is not None for o in i.operands if is_inlined_constant(o)]
    return [c for o in found for c in (*o.operands, o)]


def _move_outputs(order: TopologicalOrder, fusion: HloInstruction) -> None:
    """Give the outputs of a multi-output fusion its rank."""
    for g in fusion.users:
        if g.opcode is Opcode.GET_TUPLE_ELEMENT:
            order.move(fusion, g)


def _constants_of(*nodes: HloInstruction) -> list[HloInstruction]:
    """Return the broadcasts of constants that these nodes read."""
    return [o for i in nodes for o in i.operands if o.opcode is Opcode.BROADCAST and is_inlined_constant(o)]


def _few_readers(constants: Iterable[HloInstruction]) -> list[HloInstruction]:
    """Return what reads the constants of which so few readers are left that `unused_constants_seconds` counts them."""
    return [u for o in constants if o.parent is not None and len(o.users) <= FEW for u in o.users]
