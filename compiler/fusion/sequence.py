"""One sequence of instructions under fusion: its order, legal actions and cost, updated with every fusion."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import TypeAlias

from compiler.analysis.cost_model import CostModel, is_priced_as_kernel
from compiler.analysis.kernel_compose import compose
from compiler.analysis.kernel_summary import Contexts, KernelSummary
from compiler.analysis.order import TopologicalOrder
from compiler.fusion.action_table import ActionTable, has_other_use
from compiler.fusion.actions import FusionAction
from compiler.fusion.legality import FusionDecision, Legality, Limits, forbid
from compiler.fusion.pair_cache import PairCache
from compiler.fusion.rewriting import (
    FusionResult,
    consumers_of,
    fuse_into,
    fuse_multi_output,
    fuse_side_by_side,
    is_inlined_constant,
    is_multi_output,
    producers_of,
)
from compiler.ir import HloComputation, HloInstruction, Opcode

_Merge: TypeAlias = Callable[[HloInstruction, HloInstruction], FusionResult]


class SequenceState:
    """A computation that runs as a sequence (the entry, a loop, a branch) while its instructions are fused.

    Attributes:
        computation: the computation itself.
        weight: how often it runs per run of the module.
        touched: instructions changed or made since the start, in order. A policy remembers the length of the list to
            find what is new. Some may have been removed again; their `parent` is None.
    """

    def __init__(self, computation: HloComputation, weight: float, cost_model: CostModel, limits: Limits) -> None:
        self.computation = computation
        self.weight = weight
        self.touched: list[HloInstruction] = []
        self.cost_model = cost_model
        self.order = TopologicalOrder(computation)
        self.legality = Legality(self.order, limits)
        self._times: dict[HloInstruction, float] = {}
        self._savings: PairCache[float] = PairCache()
        self.table = ActionTable(computation, self.order, self.legality)

    def copy_for(self, computation: HloComputation) -> SequenceState:
        """Return the same state for a clone of the computation."""
        other = copy.copy(self)
        other.computation = computation
        other.touched = []
        other.order = self.order.copy_for(computation)
        image = {i: found for i in self.computation.instructions if (found := computation.find(i.name)) is not None}
        other.legality = self.legality.copy_for(other.order, image)
        other._times = {image[i]: t for i, t in self._times.items() if i in image}
        other._savings = self._savings.copy_for(image)
        other.table = ActionTable(computation, other.order, other.legality)
        return other

    # ---- queries

    def nodes(self) -> list[HloInstruction]:
        """Return every instruction in topological order."""
        return self.order.sorted(self.computation.instructions)

    def seconds(self) -> float:
        """Return the estimated time of one run of the sequence, without what it calls."""
        return sum(self.time_of(i) for i in self.computation.instructions)

    def time_of(self, i: HloInstruction) -> float:
        """Return the estimated seconds of one instruction."""
        found = self._times.get(i)
        if found is None:
            found = self._times[i] = self._price(i)
        return found

    def _price(self, i: HloInstruction) -> float:
        facts = self.legality.facts(i)
        if facts.refusal is None and is_priced_as_kernel(i):
            return self.cost_model.kernel(facts.summary)
        return self.cost_model.instruction(i)

    def edge(self, producer: HloInstruction, consumer: HloInstruction) -> FusionDecision:
        """Return whether the producer may be computed within the consumer."""
        return self.legality.producer_consumer(producer, consumer)

    def decide(self, action: FusionAction) -> FusionDecision:
        """Return whether an action is legal now."""
        problem = action.consumers_problem()
        if problem is not None:
            return forbid(problem)
        nodes = [self.computation.find(n) for n in (action.producer, *action.consumers)]
        for name, node in zip((action.producer, *action.consumers), nodes, strict=True):
            if node is None:
                return forbid(f"there is no instruction %{name} in computation %{self.computation.name}")
        producer, *consumers = (n for n in nodes if n is not None)
        match action.kind:
            case "producer-consumer":
                return self.edge(producer, consumers[0])
            case "producer-into-all-users":
                return self._into_all(producer, consumers)
            case "multi-output":
                return self.legality.multi_output(producer, consumers[0])
            case _:
                return self.legality.side_by_side(producer, consumers[0])

    def _into_all(self, producer: HloInstruction, consumers: list[HloInstruction]) -> FusionDecision:
        users = consumers_of(producer)
        if set(users) != set(consumers):
            named = ", ".join("%" + u.name for u in self.order.sorted(users))
            return forbid(f"the users of %{producer.name} are {named or 'none'}")
        return self.table.into_all_users(producer, users)

    def actions(self) -> list[FusionAction]:
        """Return the legal actions in a fixed order."""
        return self.table.actions()

    def candidates(self) -> list[FusionAction]:
        """Return the legal actions, in the same order, and others that fail only when their kernel is made."""
        return self.table.candidates()

    # ---- estimates

    def saving(self, action: FusionAction) -> float:
        """Return the seconds that an action saves per run of the sequence; negative when it loses time."""
        producer = self._find(action.producer)
        consumers = [self._find(c) for c in action.consumers]
        match action.kind:
            case "producer-consumer":
                if not has_other_use(producer):
                    return self.saving_into_all(producer, consumers)
                return self.edge_saving(producer, consumers[0]) + self._unused_constants_seconds(consumers)
            case "producer-into-all-users":
                return self.saving_into_all(producer, consumers)
            case "multi-output":
                saved = self._pair_saving("multi-output", producer, consumers[0])
                return saved + self.time_of(producer) + self._unused_constants_seconds([producer, consumers[0]])
            case _:
                first, second = self.order.sorted([producer, consumers[0]])
                saved = self._pair_saving("sibling", first, second)
                return saved + self.time_of(first) + self._unused_constants_seconds([first, second])

    def saving_into_all(self, producer: HloInstruction, users: list[HloInstruction]) -> float:
        """Return the seconds saved by fusing the producer into all its users and removing it."""
        own = self.time_of(producer) + self._unused_constants_seconds([producer, *users])
        return own + sum(self.edge_saving(producer, u) for u in users)

    def _unused_constants_seconds(self, fused: list[HloInstruction]) -> float:
        """Return the seconds of broadcasts of constants that only these instructions read: fusions copy them."""
        gone = set(fused)
        constants = dict.fromkeys(o for i in fused for o in i.operands if is_inlined_constant(o))
        return sum(self.time_of(o) for o in constants if o not in gone and gone.issuperset(o.users))

    def edge_saving(self, producer: HloInstruction, consumer: HloInstruction) -> float:
        """Return the seconds the consumer saves by computing the producer itself; mostly negative, as it does more."""
        return self._pair_saving("producer-consumer", producer, consumer)

    def _pair_saving(self, kind: str, first: HloInstruction, second: HloInstruction) -> float:
        key = (kind, first, second)
        if key not in self._savings:
            after = self.cost_model.kernel(self._summary_after(kind, first, second))
            self._savings[key] = self.time_of(second) - after
        return self._savings[key]

    def _summary_after(self, kind: str, first: HloInstruction, second: HloInstruction) -> KernelSummary:
        a, b = self.legality.facts(first).summary, self.legality.facts(second).summary
        keep = kind != "producer-consumer"
        exact = a.looped_reduction or a.in_place or b.in_place or (keep and b.looped_reduction)
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

    def _find(self, name: str) -> HloInstruction:
        found = self.computation.find(name)
        if found is None:
            raise KeyError(name)
        return found

    # ---- fusing

    def apply(self, action: FusionAction) -> list[HloInstruction]:
        """Apply a legal action and return the fusions it made or changed, in order."""
        producer = self._find(action.producer)
        consumers = [self._find(c) for c in action.consumers]
        match action.kind:
            case "producer-consumer":
                return [self._fuse_into(producer, consumers[0])]
            case "producer-into-all-users":
                return [self._fuse_into(producer, c) for c in self.order.sorted(consumers)]
            case "multi-output":
                return [self._merge(producer, consumers[0], fuse_multi_output)]
            case _:
                first, second = self.order.sorted([producer, consumers[0]])
                return [self._merge(first, second, fuse_side_by_side)]

    def _fuse_into(self, producer: HloInstruction, consumer: HloInstruction) -> HloInstruction:
        around = [*producers_of(producer), *producers_of(consumer)]
        several = is_multi_output(producer)
        self.order.note_change(producer, consumer)
        result = fuse_into(producer, consumer)
        if result.fusion is not consumer:
            self.order.replace(consumer, result.fusion)
        if several and producer.parent is not None:
            self._forget(producer)  # it may have lost outputs
            self.legality.mark_fusible(producer)
        self._update(result, [*around, producer])
        return result.fusion

    def _merge(self, first: HloInstruction, second: HloInstruction, merge: _Merge) -> HloInstruction:
        around = [*producers_of(first), *producers_of(second)]
        self.order.note_change(first, second)
        self.order.make_adjacent(first, second)
        result = merge(first, second)
        if result.fusion is not second:
            self.order.replace(second, result.fusion)
        self._update(result, around)
        return result.fusion

    def _update(self, result: FusionResult, around: Iterable[HloInstruction]) -> None:
        """Update the order and the caches; `around` are the nodes whose users or outputs changed."""
        fusion = result.fusion
        for g in fusion.users:
            if g.opcode is Opcode.GET_TUPLE_ELEMENT:
                self.order.add_fusion_output(g, fusion)
        for i in result.removed:
            self.order.remove(i)
            self._forget(i)
        self._forget(fusion)
        self.legality.mark_fusible(fusion)
        near = [fusion, *(i for i in dict.fromkeys(around) if i.parent is not None and i is not fusion)]
        self.touched += near
        self.table.invalidate([*near, *result.removed])

    def _forget(self, i: HloInstruction) -> None:
        self.legality.forget(i)
        self._savings.forget(i)
        self._times.pop(i, None)
