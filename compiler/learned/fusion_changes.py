"""A learned fusion policy: the default fusions, and then the changes of them that are surely faster.

After the default policy, every further action (one more fusion, a value taken out of a fusion or moved) is described by
the kernels that it replaces and by those that replace them. A forest, or rules distilled from it, predict by how much
these kernels become faster. The action with the greatest lower bound is taken if it exceeds a margin; then the actions
are looked at again.

policy.json          format, features, margin, number of steps, rules, identity of the cost model of kernels, provenance
policy.safetensors   the forest
"""

from __future__ import annotations

import functools
import math
import weakref
from pathlib import Path
from weakref import WeakKeyDictionary

from compiler.errors import PolicyError
from compiler.fusion.actions import KINDS, FusionAction
from compiler.fusion.policies import DEFAULT_POLICY, make_policy
from compiler.fusion.protocol import FusionPolicy
from compiler.fusion.rewriting import instructions_of
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.learned.change_choosers import ChangeChooser, ChangeForest, Prediction
from compiler.learned.features.fusion_changes import CHANGE_FEATURE_VERSION, CHANGE_FEATURES, Change, FusionChanges
from compiler.learned.forest import Forest
from compiler.learned.kernel_model import LearnedKernelCost, shipped_kernel_cost
from compiler.learned.policy_folder import read_number, read_policy_folder, write_policy_folder
from compiler.learned.rule_list import RuleList
from compiler.support.untrusted import short_repr

__all__ = ["FORMAT", "MOST_ACTIONS", "LearnedChanges", "action_seconds", "load_changes", "module_opcodes",
           "offered_changes", "read_changes", "save_changes", "shipped_changes"]  # fmt: skip

FORMAT = "hlogym-fusion-changes"
SHIPPED = Path(__file__).parent / "fusion_change_model"
"""What searches ask, whether or not the policy that ships has a part for fusion."""
MOST_ACTIONS = 40
"""Number of actions that are described in a state: those about the kernels that take longest."""
MOST_DESCRIBED = 2_000
"""Number of instructions in the kernels of these actions: describing a kernel takes time proportional to its size."""
LEAST_SECONDS = 3e-5
"""Programs that are expected to take less time keep the default fusions: the analytic model overestimates small
programs, so that these take a few microseconds, of which hardly one can be gained."""
LEAST_SHARE = 0.03
"""Share of a program's estimated time that the kernels of an action must take: a gain in fewer is too small."""
MOST_INSTRUCTIONS = 2_000
"""Modules with more instructions keep the default fusions, so that decisions take seconds."""
_RANKED = 3
_DECIDED = frozenset({Opcode.FUSION, Opcode.TUPLE, Opcode.GET_TUPLE_ELEMENT})


class LearnedChanges:
    """The default fusions, and after them the changes that a forest, or rules, expect to be faster.

    Args:
        chooser: predicts.
        model: predicts the times of kernels.
        name: the name in plans.
    """

    def __init__(self, chooser: ChangeChooser, model: LearnedKernelCost, name: str = "learned") -> None:
        self.chooser, self.model, self.name = chooser, model, name
        self.provenance = chooser.provenance
        self._runs: WeakKeyDictionary[FusionState, _Run] = WeakKeyDictionary()  # compilations may run side by side

    def choose(self, state: FusionState) -> FusionAction | None:
        """Return the next fusion, or None to stop."""
        return self._run(state).next_action()

    def explain(self, state: FusionState) -> str:
        """Return why the next action will be taken, or why there is none; empty for an action of the default policy."""
        run = self._run(state)
        if run.expected_next() is None:
            if run.unknown:
                return f"the default fusions: hardly any program that was learned on has {', '.join(run.unknown)}"
            found = [f"not taken: {self.reason(p)}" for p in run.ranked()[:_RANKED]]
            return "; ".join(found) or "the default fusions: there is nothing to change"
        return run.reason

    def _run(self, state: FusionState) -> _Run:
        found = self._runs.get(state)
        if found is None:
            found = self._runs[state] = _Run(self, weakref.proxy(state))
        return found

    def reason(self, p: Prediction) -> str:
        """Return what is expected of an action."""
        before, after = ", ".join(f"%{n}" for n in p.change.before), ", ".join(f"%{n}" for n in p.change.after)
        return f"{p.change.action}: {after} instead of {before}, {self.chooser.reason(p)}"


class _Run:
    """The decisions of a policy about one state.

    Attributes:
        reason: why the last action was chosen; empty for an action of the default policy.
        unknown: opcodes of the program with which the policy leaves it to the default fusions.
    """

    def __init__(self, policy: LearnedChanges, state: FusionState) -> None:
        self.reason = ""
        self._policy, self._state = policy, state
        self._rules: FusionPolicy | None = make_policy(DEFAULT_POLICY)
        self._left = policy.chooser.steps
        self._changes = FusionChanges(state, policy.model)
        self._met: set[str] = set()
        self._expected: tuple[str, FusionAction | None] | None = None
        known = policy.chooser.opcodes
        self.unknown = sorted(module_opcodes(state.module) - known) if known else []

    def next_action(self) -> FusionAction | None:
        """Return the next fusion of the default policy, then the next change, and None to stop."""
        known, self._expected = self._expected, None
        return known[1] if known is not None and known[0] == self._state.fingerprint else self._choose()

    def expected_next(self) -> FusionAction | None:
        """Return what `next_action` will return in this state."""
        if self._expected is None or self._expected[0] != self._state.fingerprint:
            self._expected = self._state.fingerprint, self._choose()
        return self._expected[1]

    def _choose(self) -> FusionAction | None:
        self.reason = ""
        action = None if self._rules is None else self._rules.choose(self._state)
        if action is not None:
            return action
        self._rules = None
        self._left -= 1
        return self._change() if self._left >= 0 else None

    def _change(self) -> FusionAction | None:
        state, policy = self._state, self._policy
        if self.unknown or state.module.instruction_count > MOST_INSTRUCTIONS or state.seconds() < LEAST_SECONDS:
            return None
        self._met.add(state.fingerprint)
        for p in self.ranked():
            if p.low <= math.log1p(policy.chooser.margin):
                break
            if self._leads_on(p.change.action):
                self.reason = policy.reason(p)
                return p.change.action
        return None

    def _leads_on(self, action: FusionAction) -> bool:
        """Check whether an action leads to a state that was not met: actions may lead back and forth."""
        self._state.apply(action)
        try:
            return self._state.fingerprint not in self._met
        finally:
            self._state.undo()

    def ranked(self) -> list[Prediction]:
        """Return the actions of which something is expected, the greatest lower bound first."""
        found = offered_changes(self._changes)
        return sorted(self._policy.chooser.expected(found), key=lambda p: -p.low) if found else []


def module_opcodes(module: HloModule) -> frozenset[str]:
    """Return the opcodes of a module, as text, without those of fusions and tuples, which depend on decisions."""
    found = {i.opcode for c in module.computations for i in c.instructions}
    return frozenset(o.text for o in found - _DECIDED)


def offered_changes(changes: FusionChanges) -> list[Change]:
    """Return what the actions of a state change, as many as are considered: those about the longest kernels."""
    state = changes.state
    weighed = [(action_seconds(state, a), n, a) for n, a in enumerate(state.candidates(KINDS))]
    found: list[Change] = []
    left, least = MOST_DESCRIBED, LEAST_SHARE * state.seconds()
    for seconds, _, action in sorted(weighed, key=lambda w: (-w[0], w[1])):
        if seconds < least:
            break
        left -= sum(len(instructions_of(i)) for i in _named(state.sequences[action.computation], action))
        if len(found) == MOST_ACTIONS or (left < 0 and found):
            break
        change = changes.describe(action) if state.is_legal(action) else None
        if change is not None:
            found.append(change)
    return found


def action_seconds(state: FusionState, action: FusionAction) -> float:
    """Return the estimated seconds per run of the program of the kernels that an action names."""
    sequence = state.sequences[action.computation]
    return sequence.weight * sum(map(sequence.time_of, _named(sequence, action)))


def _named(sequence: SequenceState, action: FusionAction) -> list[HloInstruction]:
    nodes = (sequence.computation.find(name) for name in (action.producer, *action.consumers))
    return [i for i in nodes if i is not None and i in sequence.nodes]


def save_changes(folder: Path, chooser: ChangeForest) -> None:
    """Write the folder of a policy; one that is there is replaced, other files are left.

    Raises:
        PolicyError: the folder cannot be written, or holds something else than a policy of hlogym.
    """
    description = {
        "format": FORMAT,
        "feature_version": CHANGE_FEATURE_VERSION,
        "features": [f.name for f in CHANGE_FEATURES],
        "margin": chooser.margin,
        "errors": chooser.errors,
        "steps": chooser.steps,
        "kernel_costs": chooser.costs,
        "rules": chooser.rules.to_json(),
        "opcodes": sorted(chooser.opcodes),
        "provenance": dict(chooser.provenance),
    }
    write_policy_folder(folder, description, chooser.forest.to_arrays())


def load_changes(folder: Path, readable: bool = False) -> LearnedChanges | None:
    """Return the policy of a folder.

    Args:
        folder: of the policy.
        readable: decide by its rules instead of its forest; None if it has none.

    Raises:
        PolicyError: as in `read_changes`.
    """
    chooser, model = read_changes(folder)
    if not readable:
        return LearnedChanges(chooser, model)
    return LearnedChanges(chooser.readable(), model) if chooser.rules.rules else None


def read_changes(folder: Path) -> tuple[ChangeForest, LearnedKernelCost]:
    """Return what decides in the policy of a folder, and the cost model of kernels that it needs.

    Raises:
        PolicyError: there is none, it is of another version, it was learned with another model of kernel times than the
            one that ships, or it is damaged.
    """
    data, weights = read_policy_folder(folder, FORMAT, CHANGE_FEATURE_VERSION)
    model = shipped_kernel_cost()
    try:
        if data.get("features") != [f.name for f in CHANGE_FEATURES]:
            raise PolicyError("its features are not those of this compiler")
        if model is None or data.get("kernel_costs") != model.digest:
            raise PolicyError("it was learned with another cost model of kernels than the one that ships")
        margin, errors, steps = (read_number(data, name) for name in ("margin", "errors", "steps"))
        forest = Forest.from_arrays(weights, len(CHANGE_FEATURES))
        rules = RuleList.from_json(data.get("rules", []), CHANGE_FEATURES)
        opcodes = _opcodes(data.get("opcodes", []))
    except PolicyError as error:
        raise PolicyError(f"the policy in {folder} cannot be used: {error}; train it again") from error
    costs, provenance = str(data["kernel_costs"]), data["provenance"]
    return ChangeForest(forest, margin, errors, int(steps), costs, provenance, rules, opcodes), model


def _opcodes(value: object) -> frozenset[str]:
    if isinstance(value, list) and all(isinstance(o, str) for o in value):
        return frozenset(value)
    raise PolicyError(f"opcodes must be a list of names, not {short_repr(value)}")


@functools.cache
def shipped_changes() -> tuple[ChangeForest, LearnedKernelCost]:
    """Return what `read_changes` does of the model that is part of the package.

    Raises:
        PolicyError: as in `read_changes`.
    """
    return read_changes(SHIPPED)
