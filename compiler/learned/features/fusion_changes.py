"""What one more action after the default fusions changes, in numbers: its kernels before and after, and the value.

An action replaces a few kernels by others. A row compares sums over those kernels before and after: estimated times,
what the loop nests do, kinds of kernels and ops; and it describes the value that is fused or taken out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compiler.fusion.actions import KINDS, FusionAction
from compiler.fusion.anatomy import Anatomy
from compiler.fusion.rewriting import body_of, consumers_of, instructions_of
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction, Opcode, Shape, Trait
from compiler.learned.features.kernel_costs import COST_FEATURES
from compiler.learned.features.sites import Feature
from compiler.learned.kernel_model import LearnedKernelCost
from compiler.runtime.kernel_features import KINDS as KERNEL_KINDS
from compiler.runtime.kernel_sites import KernelSite, KernelTarget
from compiler.support.lru_dict import LruDict

__all__ = ["CHANGED_COLUMNS", "CHANGE_FEATURES", "CHANGE_FEATURE_VERSION", "Change", "FusionChanges"]

CHANGE_FEATURE_VERSION = 1
"""Changes with the meaning of any feature here; models learned on another version are refused."""
MOST_KERNELS = 5_000
"""Number of kernels whose numbers are kept."""
Numbers = npt.NDArray[np.float64]

_NEST_SUMS: dict[str, tuple[str, ...]] = {
    "scalar work": ("scalar simple", "scalar multiply", "scalar convert", "scalar wide integer", "scalar assign"),
    "vector work": ("vector simple", "vector multiply", "vector convert", "vector wide integer", "vector assign"),
    "scalar functions": ("scalar divide", "scalar exponential", "scalar trigonometric"),
    "vector functions": ("vector divide", "vector exponential", "vector trigonometric"),
    "scalar loads in order": ("scalar load next", "scalar load same"),
    "vector loads in order": ("vector load next", "vector load same"),
    "scalar loads out of order": ("scalar load strided", "scalar load gathered"),
    "vector loads out of order": ("vector load strided", "vector load gathered"),
    "stores in order": ("scalar store next", "scalar store same", "vector store next", "vector store same"),
    "stores out of order": (
        "scalar store strided", "scalar store gathered", "vector store strided", "vector store gathered",
    ),
    "index arithmetic": ("scalar index", "vector index"),
    "tests": ("scalar test", "scalar branch", "vector test", "vector branch"),
    "local accesses": ("scalar local", "vector local"),
    "vector iterations": ("vector iterations",),
    "serial iterations": ("serial iterations",),
    "loops": ("vector loops", "serial loops"),
    "tasks": ("tasks",),
    "parallel work": ("parallel work",),
    "serial work": ("serial work",),
    "special work": ("product flops", "sort work", "scan steps", "updates", "flagged", "transposed"),
    "expensive statements": ("expensive statements",),
    "statements": ("statements",),
    "longest chain": ("longest chain",),
}  # fmt: skip
"""Counts of nests that are added up to one number of a kernel."""
_SUMMARY = ("flops", "loads", "bytes read", "bytes written", "nests", "looped reductions", "templates", "outputs")
_OPS: dict[str, frozenset[Opcode]] = {
    "gathers": frozenset({Opcode.GATHER, Opcode.DYNAMIC_SLICE}),
    "updates": frozenset({Opcode.SCATTER, Opcode.DYNAMIC_UPDATE_SLICE}),
    "slices": frozenset({Opcode.SLICE, Opcode.REVERSE}),
    "concatenates": frozenset({Opcode.CONCATENATE, Opcode.PAD}),
    "transposes": frozenset({Opcode.TRANSPOSE}),
    "broadcasts": frozenset({Opcode.BROADCAST}),
    "converts": frozenset({Opcode.CONVERT}),
    "reductions": frozenset({Opcode.REDUCE}),
    "windows": frozenset({Opcode.REDUCE_WINDOW}),
    "products": frozenset({Opcode.DOT, Opcode.CONVOLUTION}),
    "iotas": frozenset({Opcode.IOTA}),
    "selects": frozenset({Opcode.SELECT}),
}
_SUMS = ("kernels", "analytic time", "predicted time", *_SUMMARY, *_NEST_SUMS)
"""Numbers of kernels of which a row has the sum before, as a logarithm, and the change."""
_COUNTS = (*(f"{kind} kernels" for kind in KERNEL_KINDS), "other kernels", *_OPS, "elementwise ops")
"""Numbers of kernels of which a row has the sums before and after."""
_VALUES = ("elementwise", "expensive", *_OPS)
_UNITS = {
    "analytic time": "ns", "predicted time": "ns", "bytes read": "bytes", "bytes written": "bytes", "flops": "flops",
    "loads": "elements", "nests": "nests", "outputs": "arrays", **dict.fromkeys(_NEST_SUMS, "operations"),
    **dict.fromkeys((*_OPS, "elementwise ops"), "ops"), "vector iterations": "iterations", "loops": "loops",
    "serial iterations": "iterations", "tasks": "tasks",
    **dict.fromkeys(("expensive statements", "statements", "longest chain"), "statements"),
}  # fmt: skip
"""What the numbers count, where they do not count kernels."""

CHANGE_FEATURES: tuple[Feature, ...] = (
    *(Feature(f"action is {kind}") for kind in KINDS),
    *(Feature(f"{name} before", _UNITS.get(name, "kernels")) for name in _SUMS),
    *(Feature(f"change of {name}", "powers of two") for name in _SUMS),
    *(Feature(f"{name} before", _UNITS.get(name, "kernels")) for name in _COUNTS),
    *(Feature(f"{name} after", _UNITS.get(name, "kernels")) for name in _COUNTS),
    *(Feature(f"value is {name}") for name in _VALUES),
    Feature("value", "elements"),
    Feature("bits of the value", "bits"),
    Feature("innermost dimension of the value", "elements"),
    Feature("users of the value", "kernels"),
    Feature("largest array", "elements"),
    Feature("value per largest array", "elements"),
    Feature("work per element before", "flops"),
    Feature("spread of the predicted change", "powers of two"),
    Feature("share of the program", "of its time"),
    Feature("inside a loop or branch"),
)
"""The entries of a row."""
CHANGED_COLUMNS = {f.name: n for n, f in enumerate(CHANGE_FEATURES)}


@dataclass(frozen=True)
class Change:
    """What an action changes.

    Attributes:
        action: the action.
        before, after: names of the kernels that it replaces, and of those that replace them.
        seconds: estimated time of the former per run of the program, by the analytic cost model.
        row: the entries of CHANGE_FEATURES.
    """

    action: FusionAction
    before: tuple[str, ...]
    after: tuple[str, ...]
    seconds: float
    row: tuple[float, ...]


@dataclass(frozen=True)
class _Kernel:
    """Numbers of one kernel: `_SUMS`, `_COUNTS`, its largest array, and the logarithms that the ensemble predicts."""

    sums: Numbers
    counts: Numbers
    largest: float
    logs: Numbers


class FusionChanges:
    """Describes actions of a state.

    Args:
        state: the fusions of a module.
        model: predicts the times of kernels.
    """

    def __init__(self, state: FusionState, model: LearnedKernelCost) -> None:
        self.state = state
        target = state.target
        self._target = KernelTarget(target.backend, target.language, target.schedule, state.cost_model.device)
        self._model = model
        self._known: LruDict[int, _Kernel] = LruDict(MOST_KERNELS)
        self._equal: LruDict[str, _Kernel] = LruDict(MOST_KERNELS)  # by what a kernel computes: many actions make it

    def describe(self, action: FusionAction) -> Change | None:
        """Return what a legal action changes; None if nothing that takes time.

        The action is applied and taken back.
        """
        state, sequence = self.state, self.state.sequences[action.computation]
        value = self._value(sequence, action)
        state.apply(action)
        try:
            former, made = state.last_changed()
            made = [i for i in made if sequence.time_of(i) > 0]
            new = [(i.name, sequence.nodes.revision(i), self._kernel(sequence, i)) for i in made]
        finally:
            state.undo()
        old = [
            (i.name, sequence.nodes.revision(i), self._kernel(sequence, i)) for i in former if sequence.time_of(i) > 0
        ]
        same = {r for _, r, _ in old} & {r for _, r, _ in new}
        old, new = [k for k in old if k[1] not in same], [k for k in new if k[1] not in same]
        if not old or not new:
            return None
        seconds = sum(k.sums[1] for _, _, k in old) * 1e-9 * sequence.weight
        row = self._row(sequence, action, value, [k for _, _, k in old], [k for _, _, k in new], seconds)
        return Change(action, tuple(n for n, _, _ in old), tuple(n for n, _, _ in new), seconds, tuple(row))

    def _value(self, sequence: SequenceState, action: FusionAction) -> list[float]:
        """Return the numbers of the value that is fused or taken out."""
        producer = sequence.computation.find(action.producer)
        inside = producer
        if action.kind in ("fission", "move") and producer is not None:
            inside = _computed_in(sequence, producer, action.consumer)
        if inside is None:
            return [0.0] * (len(_VALUES) + 4)
        root = inside
        if inside.opcode is Opcode.FUSION:
            root = body_of(inside).root
            root = root.operands[0] if root.opcode is Opcode.TUPLE else root
        shape = next(iter(root.shape.leaves()), root.shape)
        users = consumers_of(inside) if inside.parent is sequence.computation else inside.users
        return [
            float(root.opcode.is_elementwise),
            float(root.opcode.has(Trait.EXPENSIVE)),
            *(float(root.opcode in ops) for ops in _OPS.values()),
            float(shape.num_elements if shape.is_array else 0),
            float(shape.element_type.bits if shape.is_array else 0),
            float(shape.dimensions[-1] if shape.is_array and shape.dimensions else 1),
            float(len(users)),
        ]

    def _row(
        self,
        sequence: SequenceState,
        action: FusionAction,
        value: Sequence[float],
        old: Sequence[_Kernel],
        new: Sequence[_Kernel],
        seconds: float,
    ) -> list[float]:
        before, after = (np.sum([k.sums for k in part], axis=0) for part in (old, new))
        had, has = (np.sum([k.counts for k in part], axis=0) for part in (old, new))
        largest = max(k.largest for k in (*old, *new))
        ratios = np.log2(1e-9 + sum(np.exp(k.logs) for k in new)) - np.log2(1e-9 + sum(np.exp(k.logs) for k in old))
        elements = value[len(_VALUES)]
        return [
            *(float(action.kind == kind) for kind in KINDS),
            *map(float, before),
            *map(float, np.log2((1.0 + after) / (1.0 + before))),
            *map(float, had),
            *map(float, has),
            *value,
            largest,
            elements / max(1.0, largest),
            float(before[_FLOPS] / max(1.0, largest)),
            float(np.std(ratios)),
            seconds / max(1e-12, self.state.seconds()),
            float(sequence.computation is not self.state.module.entry),
        ]

    def _kernel(self, sequence: SequenceState, i: HloInstruction) -> _Kernel:
        revision = sequence.nodes.revision(i)
        found = self._known.get(revision)
        if found is None:
            site = KernelSite(i, self._target)
            found = self._equal.get(site.fingerprint)
            if found is None:
                found = self._equal[site.fingerprint] = self._look(sequence, site)
            self._known[revision] = found
        return found

    def _look(self, sequence: SequenceState, site: KernelSite) -> _Kernel:
        i = site.instruction
        analytic = sequence.time_of(i)
        facts = sequence.legality.facts(i)
        leaves = [s for s in i.shape.leaves() if s.is_array]
        largest = max((s.num_elements for s in (*leaves, *_array_shapes(i.operands))), default=1)
        inside = instructions_of(i)
        opcodes = [o.opcode for o in inside]
        if facts.refusal is None:
            s = facts.summary
            summary = [
                s.flops + s.products, s.loads, s.bytes_read, s.bytes_written, s.nests, s.looped_reduction,
                s.template is not None, len(leaves),
            ]  # fmt: skip
        else:
            summary = [0.0] * len(_SUMMARY)
        counts, kinds = np.zeros(len(_NEST_SUMS)), np.zeros(len(KERNEL_KINDS) + 1)
        kinds[-1] = 1.0
        logs = np.full(len(self._model.members), np.log(max(analytic, 1e-9)))
        if site.is_kernel:
            row = self._model.site_rows(site, [site.default])
            amounts = np.exp2(row[0, _NEST].astype(np.float64)) - 1.0
            counts = np.array([amounts[columns].sum() for columns in _NEST_COLUMNS])
            kinds = row[0, _KIND_COLUMNS].astype(np.float64)
            logs = self._model.log_seconds_on(site.device.units, row)[:, 0]
        seconds = float(np.exp(logs.mean()))
        ops = [float(sum(o in kind for o in opcodes)) for kind in _OPS.values()]
        elementwise = float(sum(o.is_elementwise for o in opcodes))
        return _Kernel(
            np.array([1.0, analytic * 1e9, seconds * 1e9, *map(float, summary), *counts]),
            np.array([*kinds, *ops, elementwise]),
            float(largest),
            logs,
        )


_FLOPS = _SUMS.index("flops")
_NEST = [n for n, name in enumerate(COST_FEATURES) if name.startswith("nest: ")]
_NEST_NAMES = [COST_FEATURES[n].removeprefix("nest: ") for n in _NEST]
_NEST_COLUMNS = [[_NEST_NAMES.index(name) for name in names] for names in _NEST_SUMS.values()]
_KIND_COLUMNS = [COST_FEATURES.index(f"kernel: kind {kind}") for kind in (*KERNEL_KINDS, "other")]


def _array_shapes(operands: Iterable[HloInstruction]) -> list[Shape]:
    return [s for o in operands for s in o.shape.leaves() if s.is_array]


def _computed_in(sequence: SequenceState, fusion: HloInstruction, name: str) -> HloInstruction | None:
    """Return the instruction of a fusion's body that computes the value that had a name when fusion began."""
    if fusion.opcode is not Opcode.FUSION:
        return None
    value = sequence.nodes.origins.number_of(name)
    found = [i for i, v in Anatomy(fusion, sequence.nodes).pairs if v == value and i.opcode is not Opcode.PARAMETER]
    return found[0] if found else None
