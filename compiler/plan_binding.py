"""Binding a plan to a module: the names in the plan are matched with instructions by their position.

Replaying passes can give instructions other names than when the plan was made. A plan therefore records the position,
in canonical order, of every instruction it names at the start of fusion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import PlanError
from compiler.fusion.actions import FusionAction
from compiler.ir import HloModule
from compiler.ir.printing import canonical_computations
from compiler.plan import CompilationPlan, FusionStep
from compiler.support.untrusted import short_repr


@dataclass(frozen=True)
class FusionBase:
    """The names and positions of a module's instructions when fusion begins.

    Attributes:
        fingerprint: of the module.
        sequences: names of the sequences, callees first.
        instructions: for each sequence, the names of its instructions in canonical order, which depends on the graph
            alone and not on the order in which the module lists them.
    """

    fingerprint: str
    sequences: tuple[str, ...]
    instructions: tuple[tuple[str, ...], ...]

    @staticmethod
    def of(module: HloModule) -> FusionBase:
        """Return the names and positions of a module's instructions."""
        # Two pass orders that lead to the same graph may list its instructions in different orders.
        sequences = set(module.control_flow_computations())
        orders = {c: order for c, order in canonical_computations(module.entry).items() if c in sequences}
        names = tuple(tuple(i.name for i in order) for order in orders.values())
        return FusionBase(module.fingerprint(), tuple(c.name for c in orders), names)

    def positions(self, steps: Iterable[FusionStep], kernels: Mapping[str, Iterable[str]]) -> dict[str, dict[str, int]]:
        """Return the positions, by sequence, of the original instructions that fusions and kernel choices name."""
        wanted: dict[str, set[str]] = {}
        for s in steps:
            named = wanted.setdefault(s.action.computation, set())
            named.update((s.action.producer, *s.action.consumers))
        for sequence, names in kernels.items():
            wanted.setdefault(sequence, set()).update(names)
        found: dict[str, dict[str, int]] = {}
        for name, instructions in zip(self.sequences, self.instructions, strict=True):
            needed = wanted.get(name, set())
            row = {i: n for n, i in enumerate(instructions) if i in needed}
            if row:
                found[name] = row
        return found


class PlanBinding:
    """Maps the names in a plan to the names in the module on which it is replayed.

    Args:
        plan: to be replayed.
        base: of the module on which it is replayed.

    Raises:
        PlanError: the plan was made when fusion began on another module.
    """

    def __init__(self, plan: CompilationPlan, base: FusionBase) -> None:
        if plan.base and plan.base != base.fingerprint:
            raise PlanError(
                "the passes lead to another module than when the plan was made (another version of them, or another "
                "library?); make a new plan"
            )
        if len(plan.sequences) != len(base.sequences):
            raise PlanError(f"the plan knows {len(plan.sequences)} sequences, the module has {len(base.sequences)}")
        self._sequences = dict(zip(plan.sequences, base.sequences, strict=True))
        self._names: dict[tuple[str, str], str] = {}
        for name, mine, instructions in zip(plan.sequences, base.sequences, base.instructions, strict=True):
            for old, position in plan.places.get(name, {}).items():
                if position >= len(instructions):
                    raise PlanError(
                        f"{short_repr(old)} cannot be at position {position}: "
                        f"the sequence %{mine} has {len(instructions)}"
                    )
                self._names[name, old] = instructions[position]

    def bind_action(self, action: FusionAction) -> FusionAction:
        """Return the action with the names of this module; PlanError for a name that the plan does not explain."""
        where = action.computation
        if where not in self._sequences:
            raise PlanError(f"the plan names a sequence {short_repr(where)} that it does not list")
        return replace(
            action,
            computation=self._sequences[where],
            producer=self._name(where, action.producer),
            consumers=tuple(self._name(where, c) for c in action.consumers),
        )

    def note_fusions(self, step: FusionStep, names: Sequence[str]) -> None:
        """Record the names that the fusions made by a step have in this module."""
        if len(step.made) != len(names):
            raise PlanError(f"the plan says that {step.action} makes {len(step.made)} fusions, it makes {len(names)}")
        for old, new in zip(step.made, names, strict=True):
            self._names[step.action.computation, old] = new

    def bind_kernels(self, choices: Mapping[str, Mapping[str, KernelChoice]]) -> dict[tuple[str, str], KernelChoice]:
        """Return kernel choices by the names of sequence and instruction in this module.

        Raises:
            PlanError: the plan does not explain a name.
        """
        return {
            (self._sequences[sequence], self._name(sequence, name)): choice
            for sequence, row in choices.items()
            for name, choice in row.items()
        }

    def _name(self, sequence: str, name: str) -> str:
        found = self._names.get((sequence, name))
        if found is None:
            raise PlanError(
                f"the plan names {short_repr(name)} in {short_repr(sequence)}, "
                "for which it has no position and which no fusion makes"
            )
        return found
