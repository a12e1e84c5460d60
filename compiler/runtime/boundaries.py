"""Boundaries between the kernels of a compiled module: why two kernels that follow each other are not one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from compiler.analysis.cost_model import DeviceModel, module_cost
from compiler.analysis.loop_marks import kernel_loop_of
from compiler.codegen.build_target import BuildTarget
from compiler.fusion.actions import FusionAction, FusionKind
from compiler.fusion.rewriting import consumers_of, producers_of
from compiler.fusion.rules import FusionRule, Restrictions
from compiler.fusion.state import FusionState
from compiler.fusion.templates import is_open_product
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode

_NOT_COMPUTED = frozenset({Opcode.PARAMETER, Opcode.CONSTANT, Opcode.TUPLE, Opcode.GET_TUPLE_ELEMENT, Opcode.AFTER_ALL})
_ALIASES = frozenset({Opcode.RESHAPE, Opcode.BITCAST, Opcode.COPY})
_CUSTOM = "is attention or a library call, into which the compiler fuses by rules and not by decisions"
_LOOP = "runs a whole loop in one kernel, which computes only what splits and stacks the state of the loop"
_NAME = re.compile(r"%[^\s,:;()]+")
_NUMBER = re.compile(r"\b\d+\b")
_SHAPE = re.compile(r"\b[a-z]+\d*\[[\d,<=]*\](?:\{[^}]*\})?")


@dataclass(frozen=True)
class Boundary:
    """Two instructions of a compiled module, of which one reads the other's result from memory.

    Attributes:
        sequence: name of their computation.
        producer: name of the instruction that writes the value.
        consumer: name of the instruction that reads it.
        bytes: size of the value.
        refusal: why the two cannot be one kernel; None if a fusion would be legal, and was not chosen.
        action: kind of the legal fusion that the cost model likes best; None if there is none.
        before: estimated seconds of the instructions that the fusion concerns, per run of the program.
        after: the same with the fusion; above `before` when the fusion would lose time.
    """

    sequence: str
    producer: str
    consumer: str
    bytes: int
    refusal: str | None
    action: FusionKind | None = None
    before: float = 0.0
    after: float = 0.0

    @property
    def kind_of_reason(self) -> str:
        """Return the reason without names and numbers, so that equal reasons can be counted."""
        if self.refusal is None:
            return "legal, not chosen"
        general = _SHAPE.sub("...", _NAME.sub("%...", self.refusal))
        return _NUMBER.sub("N", general)

    def to_dict(self) -> dict[str, Any]:
        """Return the boundary as plain data."""
        return {
            "sequence": self.sequence, "producer": self.producer, "consumer": self.consumer, "bytes": self.bytes,
            "refusal": self.refusal, "action": self.action, "before": self.before, "after": self.after,
        }  # fmt: skip


class Boundaries:
    """Finds the boundaries of a compiled module; reasons and estimates are computed on a copy of it.

    Args:
        module: the module after all passes and fusion.
        device: the device that estimates costs.
        rules: rules of the user that forbade fusions.
        target: what kernels were built for; None: C with its defaults.
    """

    def __init__(
        self, module: HloModule, device: DeviceModel, rules: Iterable[str] = (), target: BuildTarget | None = None
    ) -> None:
        self._state = FusionState(module.clone(), device, target=target)
        self._state.restrict(Restrictions(map(FusionRule.parse, rules)))
        self._seconds = module_cost(self._state.module, self._state.cost_model).by_instruction

    def __iter__(self) -> Iterator[Boundary]:
        for computation in self._state.module.control_flow_computations():
            if computation.name in self._state.sequences:
                yield from self._of_sequence(computation)

    def _of_sequence(self, computation: HloComputation) -> Iterator[Boundary]:
        for consumer in computation.post_order():
            if consumer.opcode in _NOT_COMPUTED or consumer.opcode in _ALIASES:
                continue
            for producer in producers_of(consumer):
                if _computing(producer) is not None:
                    yield self.between(producer, consumer)

    def between(self, producer: HloInstruction, consumer: HloInstruction) -> Boundary:
        """Return the boundary between two instructions of one sequence, the second of which reads the first."""
        computation = "" if consumer.parent is None else consumer.parent.name
        pair = computation, producer.name, consumer.name
        size = sum(s.byte_size for s in producer.shape.leaves())
        legal: list[tuple[float, FusionAction]] = []
        refusals: list[str] = []
        custom = next((i for i in (producer, consumer) if _is_closed(i)), None)
        if custom is not None:
            what = _CUSTOM if kernel_loop_of(custom) is None else _LOOP
            return Boundary(*pair, size, f"%{custom.name} {what}")
        for action in self._actions(computation, producer, consumer):
            refusal = self._state.why_not(action)
            if refusal is None:
                legal.append((self._state.estimate(action), action))
            else:
                refusals.append(refusal)
        if not legal:
            return Boundary(*pair, size, "; ".join(dict.fromkeys(refusals)))
        saving, best = max(legal, key=lambda found: found[0])
        before = sum(self._seconds.get((computation, n), 0.0) for n in (best.producer, *best.consumers))
        return Boundary(*pair, size, None, best.kind, before, before - saving)

    def _actions(self, computation: str, producer: HloInstruction, consumer: HloInstruction) -> Iterator[FusionAction]:
        yield FusionAction("producer-consumer", computation, producer.name, (consumer.name,))
        users = consumers_of(producer)
        if len(users) > 1:
            yield FusionAction("multi-output", computation, producer.name, (consumer.name,))


def _computing(i: HloInstruction) -> HloInstruction | None:
    """Return the instruction whose kernel writes a value, looking through changes of shape; None if no kernel does."""
    while i.opcode in _ALIASES or (i.opcode is Opcode.GET_TUPLE_ELEMENT and i.operands[0].opcode not in _NOT_COMPUTED):
        i = i.operands[0]
    return None if i.opcode in _NOT_COMPUTED or _is_constant(i) else i


def _is_closed(i: HloInstruction) -> bool:
    return i.attributes.get("kind") == "kCustom" and not is_open_product(i)


def _is_constant(i: HloInstruction) -> bool:
    """Check for a broadcast of a constant, which kernels compute themselves."""
    return i.opcode is Opcode.BROADCAST and i.operands[0].opcode is Opcode.CONSTANT
