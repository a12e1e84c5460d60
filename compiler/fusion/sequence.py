"""One sequence of instructions under fusion: its order, its legal actions, its cost, all kept as fusions happen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from compiler.analysis.cost_model import CostModel, is_priced_as_kernel
from compiler.analysis.kernel_compose import compose
from compiler.analysis.kernel_summary import Contexts, KernelSummary, summarize_body
from compiler.analysis.order import TopologicalOrder
from compiler.fusion import rewriting as mechanics
from compiler.fusion.action_table import ActionTable, has_other_use
from compiler.fusion.actions import FusionAction
from compiler.fusion.legality import FusionDecision, Legality, Limits, forbid, trial_of
from compiler.fusion.pair_cache import PairCache
from compiler.fusion.rewriting import consumers_of, is_absorbed, is_multi_output, producers_of
from compiler.ir import HloComputation, HloInstruction, Opcode

_Surgeon: TypeAlias = Callable[[HloInstruction, HloInstruction], mechanics.Surgery]


class Sequence:
    """A computation that runs as a sequence, while its instructions are fused.

    Attributes:
        computation: the computation itself.
        weight: how often it runs in one run of the module.
        touched: instructions changed or made, in order, ever since the start; a policy keeps its place in the list to
            learn what is new. Some may be gone again (`parent` is None then).
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

    def copy_for(self, computation: HloComputation) -> Sequence:
        """The same for a clone of the computation."""
        other = Sequence.__new__(Sequence)
        other.computation = computation
        other.weight = self.weight
        other.touched = []
        other.cost_model = self.cost_model
        other.order = self.order.copy_for(computation)
        image = {i: found for i in self.computation.instructions if (found := computation.find(i.name)) is not None}
        other.legality = self.legality.copy_for(other.order, image)
        other._times = {image[i]: t for i, t in self._times.items() if i in image}
        other._savings = self._savings.copy_for(image)
        other.table = ActionTable(computation, other.order, other.legality)
        return other

    # ---- looking

    def nodes(self) -> list[HloInstruction]:
        """Every instruction in topological order."""
        return self.order.sorted(self.computation.instructions)

    def seconds(self) -> float:
        """Estimated time of running the sequence once, what it calls left out."""
        return sum(self.time_of(i) for i in self.computation.instructions)

    def time_of(self, i: HloInstruction) -> float:
        """Estimated seconds of one instruction."""
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
        """Whether the producer may be computed within the consumer."""
        return self.legality.producer_consumer(producer, consumer)

    def decide(self, action: FusionAction) -> FusionDecision:
        """Whether an action is legal now."""
        problem = action.miscount()
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
        return self.table.may_go_into_all(producer, users)

    def may_go_into_all(self, producer: HloInstruction, users: list[HloInstruction]) -> FusionDecision:
        """Whether the producer may be computed within each of `users`, which are all it has."""
        if producer.is_root or any(g.is_root for g in producer.users if is_multi_output(producer)):
            return forbid(f"%{producer.name} is the result of its computation")
        for u in users:
            if not (decision := self.edge(producer, u)):
                return decision
        return FusionDecision()

    def actions(self) -> list[FusionAction]:
        """The legal actions in a fixed order."""
        return self.table.actions()

    # ---- what an action would save

    def saving(self, action: FusionAction) -> float:
        """Seconds one run of the sequence saves; negative when it loses."""
        producer = self._find(action.producer)
        consumers = [self._find(c) for c in action.consumers]
        match action.kind:
            case "producer-consumer":
                if not has_other_use(producer):
                    return self.saving_into_all(producer, consumers)
                return self.edge_saving(producer, consumers[0]) + self._leaves_freed(consumers)
            case "producer-into-all-users":
                return self.saving_into_all(producer, consumers)
            case "multi-output":
                saved = self._pair_saving("multi-output", producer, consumers[0])
                return saved + self.time_of(producer) + self._leaves_freed([producer, consumers[0]])
            case _:
                first, second = self.order.sorted([producer, consumers[0]])
                saved = self._pair_saving("sibling", first, second)
                return saved + self.time_of(first) + self._leaves_freed([first, second])

    def saving_into_all(self, producer: HloInstruction, users: list[HloInstruction]) -> float:
        """Seconds saved when the producer goes into all its users, and is gone."""
        own = self.time_of(producer) + self._leaves_freed([producer, *users])
        return own + sum(self.edge_saving(producer, u) for u in users)

    def _leaves_freed(self, fused: list[HloInstruction]) -> float:
        """Seconds of the constants' broadcasts that nobody reads any more once these are fusions."""
        gone = set(fused)
        leaves = dict.fromkeys(o for i in fused for o in i.operands if is_absorbed(o))
        return sum(self.time_of(o) for o in leaves if o not in gone and gone.issuperset(o.users))

    def edge_saving(self, producer: HloInstruction, consumer: HloInstruction) -> float:
        """Seconds the consumer gains by computing the producer itself (mostly negative: it does more)."""
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
            return summarize_body(trial_of(kind, first, second))
        contexts: Contexts = {}
        inputs: list[HloInstruction | None] = []
        for o, i in zip(second.operands, b.inputs, strict=True):
            inputs.append(None if o is first or is_absorbed(o) else o)
            if o is first:
                contexts = i.contexts
        own = [None if is_absorbed(o) else o for o in first.operands]
        return compose(a, b, own, inputs, contexts, keep=keep)

    def _find(self, name: str) -> HloInstruction:
        found = self.computation.find(name)
        if found is None:
            raise KeyError(name)
        return found

    # ---- fusing

    def apply(self, action: FusionAction) -> list[HloInstruction]:
        """Do a legal action; returns the fusions it made or changed, in order."""
        producer = self._find(action.producer)
        consumers = [self._find(c) for c in action.consumers]
        match action.kind:
            case "producer-consumer":
                return [self._fuse_into(producer, consumers[0])]
            case "producer-into-all-users":
                return [self._fuse_into(producer, c) for c in self.order.sorted(consumers)]
            case "multi-output":
                return [self._merge(producer, consumers[0], mechanics.fuse_multi_output)]
            case _:
                first, second = self.order.sorted([producer, consumers[0]])
                return [self._merge(first, second, mechanics.fuse_side_by_side)]

    def _fuse_into(self, producer: HloInstruction, consumer: HloInstruction) -> HloInstruction:
        around = [*producers_of(producer), *producers_of(consumer)]
        several = is_multi_output(producer)
        self.order.note_change(producer, consumer)
        surgery = mechanics.fuse_into(producer, consumer)
        if surgery.fusion is not consumer:
            self.order.replace(consumer, surgery.fusion)
        if several and producer.parent is not None:
            self._forget(producer)  # it may have lost outputs
            self.legality.vouch_for(producer)
        self._update(surgery, [*around, producer])
        return surgery.fusion

    def _merge(self, first: HloInstruction, second: HloInstruction, how: _Surgeon) -> HloInstruction:
        around = [*producers_of(first), *producers_of(second)]
        self.order.note_change(first, second)
        self.order.make_adjacent(first, second)
        surgery = how(first, second)
        if surgery.fusion is not second:
            self.order.replace(second, surgery.fusion)
        self._update(surgery, around)
        return surgery.fusion

    def _update(self, surgery: mechanics.Surgery, around: Iterable[HloInstruction]) -> None:
        """Bring order and caches up to date; `around` are the nodes whose users or outputs changed."""
        fusion = surgery.fusion
        for g in fusion.users:
            if g.opcode is Opcode.GET_TUPLE_ELEMENT:
                self.order.add_fusion_output(g, fusion)
        for i in surgery.removed:
            self.order.remove(i)
            self._forget(i)
        self._forget(fusion)
        self.legality.vouch_for(fusion)
        near = [fusion, *(i for i in dict.fromkeys(around) if i.parent is not None and i is not fusion)]
        self.touched += near
        self.table.invalidate([*near, *surgery.removed])

    def _forget(self, i: HloInstruction) -> None:
        self.legality.forget(i)
        self._savings.forget(i)
        self._times.pop(i, None)
