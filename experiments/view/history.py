"""What a compilation did to a module, step by step: the changes of each pass, and every fusion with its estimates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from compiler.analysis.cost_model import CostModel, module_cost
from compiler.ir import HloComputation, HloInstruction, HloModule
from compiler.ir.printing import PrintOptions, print_instruction
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession

__all__ = ["FusionRecord", "History", "PassChange", "record_history"]

_OPTIONS = PrintOptions(max_constant_elements=16)
_Lines: TypeAlias = dict[tuple[str, str], str]
MAX_LINES = 20_000
"""Greatest number of changed lines that are kept of one pass."""


@dataclass(frozen=True)
class PassChange:
    """What one pass changed.

    Attributes:
        name: the pass with its options, or what else changed the module.
        instructions: number of instructions afterwards.
        removed: number of lines removed.
        added: number of lines added.
        lines: "-" or "+", the computation, and the line; a changed instruction is a removed and an added line.
    """

    name: str
    instructions: int
    removed: int
    added: int
    lines: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class FusionRecord:
    """One fusion of the plan.

    Attributes:
        made: the fusions that it made or changed, each with its estimated seconds per run of the module.
        remains: whether the producer is still an instruction of its own afterwards.
        saving: estimated seconds that it saves per run of the module.
    """

    sequence: str
    kind: str
    producer: str
    consumers: tuple[str, ...]
    made: tuple[tuple[str, float], ...]
    remains: bool
    saving: float


@dataclass
class History:
    """The course of a compilation.

    Attributes:
        passes: what changed before fusion, in order.
        base: the module when fusion began.
        base_seconds: its estimated seconds per run.
        fusions: the fusions, in order.
        final: the module after fusion.
        hlo: HLO text of the module as it was given, when fusion began, and at the end.
    """

    passes: list[PassChange]
    base: HloModule
    base_seconds: float
    fusions: list[FusionRecord]
    final: HloModule
    hlo: Mapping[str, str] = field(default_factory=dict)


def record_history(module: HloModule, plan: CompilationPlan, backend: str, costs: CostModel) -> History:
    """Make the decisions of a plan one by one and record what each changes.

    Args:
        module: the program; it is not changed.
        plan: made by a session on this very module, so that its names are those of this compilation.
        backend: name of the backend.
        costs: prices the instructions.
    """
    session = CompilationSession(module, backend)
    recorder = _PassRecorder(session)
    for text in plan.passes:
        session.apply_pass(text)
        recorder.note(text)
    for expansion in plan.expansions:
        session.set_expansion(expansion.id, expansion.choice)
        recorder.note(f"expansion of %{expansion.id}: {expansion.choice}")
    for loop in plan.loop_choices:
        session.set_loop(loop.id, loop.choice)
        recorder.note(f"loop %{loop.id}: {loop.choice}")
    state = session.fusion
    recorder.note("cleanup after loops, and lowering" if plan.loop_passes else "lowering, and grouping of products")
    base = session.module.clone()
    hlo = {"as given": _text(module), "before fusion": _text(session.module)}
    fusions, prices = [], _Prices(session.module, costs)
    before = prices.seconds
    for step in plan.steps:
        action = step.action
        session.apply(action)
        made = state.made[-1]
        sequence = state.sequences[action.computation].computation
        saving = prices.update(sequence, (action.producer, *action.consumers, *made))
        timed = tuple((n, prices.of(sequence, n)) for n in made)
        remains = action.producer not in made and sequence.find(action.producer) is not None
        record = FusionRecord(
            action.computation, action.kind, action.producer, action.consumers, timed, remains, saving
        )
        fusions.append(record)
    session.module.reorder()
    hlo["after fusion"] = _text(session.module)
    return History(recorder.changes, base, before, fusions, session.module, hlo)


class _Prices:
    """The seconds per run of a module that each of its instructions takes, while fusions change it."""

    def __init__(self, module: HloModule, costs: CostModel) -> None:
        cost = module_cost(module, costs)
        self.seconds = cost.seconds
        self._costs, self._runs = costs, {c.name: runs for c, runs in costs.weights(module).items()}
        self._known: dict[str, dict[str, float]] = {name: {} for name in self._runs}
        for (sequence, name), seconds in cost.by_instruction.items():
            self._known[sequence][name] = seconds

    def of(self, sequence: HloComputation, name: str) -> float:
        """Return the seconds of an instruction."""
        return self._known[sequence.name].get(name, 0.0)

    def update(self, sequence: HloComputation, changed: Iterable[str]) -> float:
        """Price what a fusion changed, forget what it removed, and return the seconds that it saves."""
        known, now = self._known[sequence.name], {i.name: i for i in sequence.instructions}
        gone = {*(n for n in known if n not in now), *changed}
        saved = [known.pop(n) for n in gone if n in known]
        known.update({n: self._costs.instruction(now[n]) * self._runs[sequence.name] for n in gone if n in now})
        return math.fsum((*saved, *(-known[n] for n in gone if n in known)))


def _text(module: HloModule) -> str:
    from compiler.ir.printing import print_module

    return print_module(module, _OPTIONS)


class _PassRecorder:
    """Compares the module of a session with what it was at the last call."""

    def __init__(self, session: CompilationSession) -> None:
        self._session = session
        self._lines = self._print()
        self.changes: list[PassChange] = []

    def _print(self) -> _Lines:
        without_metadata = PrintOptions(metadata=False, max_constant_elements=16)
        return {
            (c.name, i.name): print_instruction(i, without_metadata)
            for c in self._session.module.computations
            for i in c.instructions
        }

    def note(self, name: str) -> None:
        """Record what changed since the last call as the work of one pass; nothing if nothing did."""
        old, new = self._lines, self._print()
        self._lines = new
        removed = [(key, line) for key, line in old.items() if new.get(key) != line]
        added = [(key, line) for key, line in new.items() if old.get(key) != line]
        if not removed and not added:
            return
        after = dict(added)
        changed: list[tuple[tuple[str, str], str, str]] = []
        for key, line in removed:
            changed.append((key, "-", line))
            if key in after:
                changed.append((key, "+", after.pop(key)))
        changed += [(key, "+", line) for key, line in after.items()]
        order = {computation: n for n, computation in enumerate(dict.fromkeys(key[0] for key, _, _ in changed))}
        changed.sort(key=lambda c: order[c[0][0]])
        lines = tuple((sign, key[0], line) for key, sign, line in changed[:MAX_LINES])
        self.changes.append(PassChange(name, len(new), len(removed), len(added), lines))


def opcode_counts(instructions: list[HloInstruction]) -> dict[str, Any]:
    """Return how many instructions have each opcode."""
    found: dict[str, int] = {}
    for i in instructions:
        found[i.opcode.text] = found.get(i.opcode.text, 0) + 1
    return found
