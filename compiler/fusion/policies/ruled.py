"""Fusion by rules of the user, and by a policy where no rule says anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from compiler.errors import FusionError
from compiler.fusion.actions import FusionAction, FusionKind
from compiler.fusion.policies.walk import Walk, nodes_of
from compiler.fusion.protocol import FusionPolicy
from compiler.fusion.rewriting import consumers_of, has_other_use, producers_of
from compiler.fusion.rules import FusionRule, Pattern, Restrictions, kernel_instructions
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction


class RuledFusion(Walk):
    """Applies rules of the user: what is forced or required is fused first, and nothing that is forbidden.

    Attributes:
        rules: the rules.
        policy: decides about everything else.
        name: of that policy, for readers.
        unmet: what could not be done, each with the rule and the reason, once the policy is done.
    """

    def __init__(self, rules: Iterable[str | FusionRule], policy: FusionPolicy, name: str = "") -> None:
        self.name = name
        self.rules = tuple(r if isinstance(r, FusionRule) else FusionRule.parse(r) for r in rules)
        self.policy = policy
        self.unmet: list[str] = []

    def steps(self, state: FusionState) -> Iterator[FusionAction]:
        """Yield the fusions that are forced, then those of the policy.

        Raises:
            FusionError: a rule requires a fusion that is illegal, or that was not made.
        """
        self.unmet = [f"the rule '{r}': no instruction matches {p}" for r in self.rules for p in _missing(state, r)]
        state.restrict(Restrictions(self.rules))
        wanted = [r for r in self.rules if r.verb != "forbid"]
        for rule in wanted:
            yield from _forced(state, rule)
        while (action := self.policy.choose(state)) is not None:
            yield action
        for rule in wanted:
            reason = _why_apart(state, rule)
            if reason is not None and rule.verb == "require":
                raise FusionError(f"the rule '{rule}' is not met: {reason}")
            if reason is not None:
                self.unmet.append(f"the rule '{rule}': {reason}")


def _missing(state: FusionState, rule: FusionRule) -> list[Pattern]:
    patterns = dict.fromkeys(p for p in (rule.first, rule.second) if p is not None)
    return [p for p in patterns if not any(_holds(i, p) for _, i in state.instructions())]


def _holds(node: HloInstruction, pattern: Pattern) -> bool:
    """Check whether a node computes an instruction that a pattern matches."""
    return any(map(pattern.matches, kernel_instructions(node)))


def _forced(state: FusionState, rule: FusionRule) -> Iterator[FusionAction]:
    """Yield legal actions that make kernels with both patterns of a rule, until there are none."""
    for sequence in state.sequences.values():
        work = [i for i in nodes_of(sequence) if _holds(i, rule.first)]
        while work:
            node = work.pop(0)
            if node.parent is None:
                continue
            action = next(filter(sequence.decide, _joins(sequence, node, rule)), None)
            if action is not None:
                yield action
                work.insert(0, state.find(sequence.computation.name, state.made[-1][-1]))


def _joins(sequence: SequenceState, node: HloInstruction, rule: FusionRule) -> Iterator[FusionAction]:
    """Yield the actions that may join a node with others of the second pattern; neighbours come first."""
    second = rule.second or rule.first
    name = sequence.computation.name

    def action(kind: FusionKind, first: HloInstruction, last: HloInstruction) -> FusionAction:
        return FusionAction(kind, name, first.name, (last.name,))

    for user in sequence.nodes.sorted(consumers_of(node)):
        if _holds(user, second):
            yield from (action(k, node, user) for k in _edge_kinds(node))
    for producer in producers_of(node):
        if _holds(producer, second):
            yield from (action(k, producer, node) for k in _edge_kinds(producer))
    siblings = dict.fromkeys(u for p in producers_of(node) for u in consumers_of(p))
    for other in _others(sequence, node, list(siblings), second):
        yield action("sibling", *_in_order(sequence, node, other))
    if second.is_exact:
        for other in _others(sequence, node, nodes_of(sequence), second):
            yield action("horizontal", *_in_order(sequence, node, other))


def _edge_kinds(producer: HloInstruction) -> tuple[FusionKind, ...]:
    """Return the kinds that join a producer with a user, the preferred first: one that computes it only once."""
    return ("multi-output", "producer-consumer") if has_other_use(producer) else ("producer-consumer",)


def _others(
    sequence: SequenceState, node: HloInstruction, nodes: Sequence[HloInstruction], pattern: Pattern
) -> list[HloInstruction]:
    return [o for o in sequence.nodes.sorted(nodes) if o is not node and _holds(o, pattern)]


def _in_order(
    sequence: SequenceState, first: HloInstruction, second: HloInstruction
) -> tuple[HloInstruction, HloInstruction]:
    a, b = sequence.nodes.sorted([first, second])
    return a, b


def _why_apart(state: FusionState, rule: FusionRule) -> str | None:
    """Return why an instruction of the first pattern is in no kernel with one of the second, or None."""
    second = rule.second or rule.first
    for sequence in state.sequences.values():
        nodes = nodes_of(sequence)
        for node in nodes:
            inside = kernel_instructions(node)
            matched = [i for i in inside if rule.first.matches(i)]
            if not matched or any(second.matches(i) and (len(matched) > 1 or i is not matched[0]) for i in inside):
                continue
            others = [o for o in nodes if o is not node and _holds(o, second)]
            if not others:
                continue
            actions = list(_joins(sequence, node, rule))
            if not actions:
                return f"%{matched[0].name} and %{others[0].name} are not neighbours, so that nothing joins them"
            return sequence.decide(actions[0]).reason or f"{actions[0]} is legal, but was not chosen"
    return None
