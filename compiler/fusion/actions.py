"""A fusion action: what to fuse, by name, so that it can be recorded and replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from compiler.errors import PlanError
from compiler.support.untrusted import is_name, short_repr

FusionKind: TypeAlias = Literal[
    "producer-consumer", "producer-into-all-users", "multi-output", "sibling", "horizontal", "fission", "move"
]
KINDS: tuple[FusionKind, ...] = get_args(FusionKind)
SPLITTING_KINDS: frozenset[FusionKind] = frozenset({"fission", "move"})
"""The kinds that take fusions apart, or that lead back and forth.

Only policies that ask for them use them: for others, choosing would not end."""
FUSING_KINDS: tuple[FusionKind, ...] = tuple(k for k in KINDS if k not in SPLITTING_KINDS)


@dataclass(frozen=True, slots=True)
class FusionAction:
    """One fusion of two or more instructions of one sequence.

    Attributes:
        kind: "producer-consumer": compute the producer within this consumer; the producer remains where others use
            it. "producer-into-all-users": within every user, and remove it. "multi-output": within the consumer, which
            yields its value for the other users as well. "sibling": make two users of one value one kernel with the
            outputs of both. "horizontal": the same for two nodes that share no operand; shapes may differ. "fission":
            compute a value of a fusion, the producer, in a kernel of its own, which the fusion then reads. "move":
            compute a value of a fusion, the producer, in another kernel, which the fusion reads or which reads that
            value.
        computation: name of the sequence.
        producer: name of the producer; the earlier of the two for "sibling" and "horizontal".
        consumers: the consumer; the users of an all-users action, in topological order; the later of two siblings;
            for "fission" the instruction whose value is taken out, by the name that it had when fusion began;
            for "move" the same, and then the kernel that takes it.
    """

    kind: FusionKind
    computation: str
    producer: str
    consumers: tuple[str, ...]

    @property
    def consumer(self) -> str:
        """The first consumer."""
        return self.consumers[0]

    def __str__(self) -> str:
        return f"{self.kind}: %{self.producer} -> {', '.join('%' + c for c in self.consumers)} in %{self.computation}"

    def to_json(self) -> dict[str, Any]:
        """Return the action as a plan stores it."""
        return {
            "kind": self.kind,
            "computation": self.computation,
            "producer": self.producer,
            "consumers": list(self.consumers),
        }

    def check(self) -> None:
        """Raise PlanError unless the fields have their types and the kind takes as many consumers."""
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            raise PlanError(f"kind must be one of {', '.join(KINDS)}, got {short_repr(self.kind)}")
        consumers = self.consumers
        if not isinstance(consumers, tuple) or not consumers or not all(map(is_name, consumers)):
            raise PlanError(f"consumers must be a list of names, got {short_repr(consumers)}")
        for field, name in (("computation", self.computation), ("producer", self.producer)):
            if not is_name(name):
                raise PlanError(f"{field} must be a name, got {short_repr(name)}")
        problem = self.consumers_problem()
        if problem is not None:
            raise PlanError(problem)

    def consumers_problem(self) -> str | None:
        """Return why no action of this kind can have these consumers, or None."""
        if len(set(self.consumers)) < len(self.consumers):
            return "a consumer is named twice"
        if self.kind == "move" and len(self.consumers) != 2:
            return f"a move names a value and a kernel, not {len(self.consumers)} consumers"
        if len(self.consumers) != 1 and self.kind not in ("producer-into-all-users", "move"):
            return f"{self.kind} takes one consumer, {len(self.consumers)} are named"
        return None

    @staticmethod
    def from_json(data: object, where: str = "") -> FusionAction:
        """Read an action from JSON.

        Raises:
            PlanError: it is no action; the message begins with `where`.
        """
        at = f"{where}: " if where else ""
        if not isinstance(data, Mapping):
            raise PlanError(f"{at}expected an object, got {short_repr(data)}")
        consumers = data.get("consumers")
        action = FusionAction(
            data.get("kind", ""),
            data.get("computation", ""),
            data.get("producer", ""),
            tuple(consumers) if isinstance(consumers, list) else (),
        )
        try:
            action.check()
        except PlanError as e:
            raise PlanError(f"{at}{e}") from None
        return action
