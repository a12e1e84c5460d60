"""A fusion action: what is to be fused, by name, so that it can be written down and replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from compiler.errors import PlanError

FusionKind: TypeAlias = Literal["producer-consumer", "producer-into-all-users", "multi-output", "sibling", "horizontal"]
KINDS: tuple[FusionKind, ...] = get_args(FusionKind)


@dataclass(frozen=True, slots=True)
class FusionAction:
    """One fusion of two or more instructions of one sequence.

    Attributes:
        kind: "producer-consumer": the producer is computed within this consumer; where others use it too, it also
            stays. "producer-into-all-users": within every user, and it goes. "multi-output": within the consumer,
            which yields its value for the other users as well. "sibling": two users of one value become one kernel
            with the outputs of both. "horizontal": the same for two that share no operand.
        computation: name of the sequence.
        producer: name of the producer; the earlier of the two for "sibling" and "horizontal".
        consumers: the consumer; the users of an all-users action, in topological order; the later of two siblings.
    """

    kind: FusionKind
    computation: str
    producer: str
    consumers: tuple[str, ...]

    @property
    def consumer(self) -> str:
        """The (first) consumer."""
        return self.consumers[0]

    def __str__(self) -> str:
        return f"{self.kind}: %{self.producer} -> {', '.join('%' + c for c in self.consumers)} in %{self.computation}"

    def to_json(self) -> dict[str, Any]:
        """As a plan spells it."""
        return {
            "kind": self.kind,
            "computation": self.computation,
            "producer": self.producer,
            "consumers": list(self.consumers),
        }

    @staticmethod
    def from_json(data: object, where: str = "fusion action") -> FusionAction:
        """Read one back; PlanError says what is wrong and where."""
        if not isinstance(data, Mapping):
            raise PlanError(f"{where}: expected an object, got {type(data).__name__}")
        kind, consumers = data.get("kind"), data.get("consumers")
        if kind not in KINDS:
            raise PlanError(f"{where}: kind must be one of {', '.join(KINDS)}, got {kind!r}")
        names = (data.get("computation"), data.get("producer"))
        if not all(isinstance(n, str) and n for n in names):
            raise PlanError(f"{where}: computation and producer must be names, got {names[0]!r} and {names[1]!r}")
        if not isinstance(consumers, list) or not consumers or not all(isinstance(c, str) for c in consumers):
            raise PlanError(f"{where}: consumers must be a list of names, got {consumers!r}")
        return FusionAction(kind, str(names[0]), str(names[1]), tuple(consumers))
