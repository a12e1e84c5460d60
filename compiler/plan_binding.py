"""Where instructions stood when fusion began, so that a plan's names can be found in a module that has others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.errors import PlanError
from compiler.fusion.actions import FusionAction
from compiler.ir import HloModule
from compiler.ir.printing import canonical_computations
from compiler.plan import CompilationPlan, FusionStep
from compiler.support.untrusted import short_repr


@dataclass(frozen=True)
class Places:
    """The instructions of a module's sequences by position.

    Attributes:
        fingerprint: of the module.
        sequences: names of the sequences, callees first.
        instructions: for each sequence the names, in the order that hangs on the graph alone.
    """

    fingerprint: str
    sequences: tuple[str, ...]
    instructions: tuple[tuple[str, ...], ...]

    @staticmethod
    def of(module: HloModule) -> Places:
        """The places of a module as it stands."""
        # Two ways to the same graph may list its instructions in different orders.
        sequences = set(module.control_flow_computations())
        orders = {c: order for c, order in canonical_computations(module.entry).items() if c in sequences}
        names = tuple(tuple(i.name for i in order) for order in orders.values())
        return Places(module.fingerprint(), tuple(c.name for c in orders), names)

    def table(self, steps: Iterable[FusionStep], kernels: Iterable[str]) -> dict[str, dict[str, int]]:
        """Positions of the original instructions that steps and kernel choices name, by sequence."""
        wanted: dict[str, set[str]] = {}
        for s in steps:
            named = wanted.setdefault(s.action.computation, set())
            named.update((s.action.producer, *s.action.consumers))
        chosen = set(kernels)
        found: dict[str, dict[str, int]] = {}
        for name, instructions in zip(self.sequences, self.instructions, strict=True):
            needed = wanted.get(name, set()) | chosen
            row = {i: n for n, i in enumerate(instructions) if i in needed}
            if row:
                found[name] = row
        return found


class Translation:
    """Names of a plan -> names of the module it is replayed on."""

    def __init__(self, plan: CompilationPlan, here: Places) -> None:
        if plan.base and plan.base != here.fingerprint:
            raise PlanError(
                "the passes lead to another module than when the plan was made (another version of them?); "
                "make a new plan"
            )
        if len(plan.sequences) != len(here.sequences):
            raise PlanError(f"the plan knows {len(plan.sequences)} sequences, the module has {len(here.sequences)}")
        self._sequences = dict(zip(plan.sequences, here.sequences, strict=True))
        self._names: dict[tuple[str, str], str] = {}
        for name, mine, instructions in zip(plan.sequences, here.sequences, here.instructions, strict=True):
            for old, position in plan.places.get(name, {}).items():
                if position >= len(instructions):
                    raise PlanError(
                        f"{short_repr(old)} cannot be at place {position}: the sequence %{mine} has {len(instructions)}"
                    )
                self._names[name, old] = instructions[position]

    def action(self, action: FusionAction) -> FusionAction:
        """The action by the names of this module; PlanError for a name nobody knows."""
        where = action.computation
        if where not in self._sequences:
            raise PlanError(f"the plan names a sequence {short_repr(where)} that it does not list")
        return replace(
            action,
            computation=self._sequences[where],
            producer=self._name(where, action.producer),
            consumers=tuple(self._name(where, c) for c in action.consumers),
        )

    def made(self, step: FusionStep, names: Sequence[str]) -> None:
        """Note what the fusions that a step made are called here."""
        if len(step.made) != len(names):
            raise PlanError(f"the plan says that {step.action} makes {len(step.made)} fusions, it makes {len(names)}")
        for old, new in zip(step.made, names, strict=True):
            self._names[step.action.computation, old] = new

    def kernels(self, choices: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
        """Kernel choices by the names of this module; where two sequences share a name, both of them have it."""
        by_name: dict[str, list[str]] = {}
        for (_, old), new in self._names.items():
            by_name.setdefault(old, []).append(new)
        unknown = [name for name in choices if name not in by_name]
        if unknown:
            raise PlanError(f"the plan chooses a kernel for {short_repr(unknown[0])}, which it does not place")
        return {new: choice for name, choice in choices.items() for new in by_name[name]}

    def _name(self, sequence: str, name: str) -> str:
        found = self._names.get((sequence, name))
        if found is None:
            raise PlanError(
                f"the plan names {short_repr(name)} in {short_repr(sequence)}, which it neither places nor makes"
            )
        return found
