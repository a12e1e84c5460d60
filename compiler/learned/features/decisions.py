"""What a policy sees: a decision as numbers. NumPy only, because exported policies use it without gymnasium or torch.

A decision is a list of candidates (fuse these two, unroll this loop by four, run this pass, stop) and the part of the
graph around them. Sizes are logarithms, so that features are of order one on every program.

Changing anything that a number here means changes FEATURE_VERSION: weights learned on other features are refused.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from compiler.analysis.cost_model import CostModel, is_priced_as_kernel
from compiler.analysis.kernel_summary import KernelSummary, summarize
from compiler.fusion.actions import KINDS, FusionAction, FusionKind
from compiler.fusion.rewriting import consumers_of, is_multi_output, producers_of, source_of
from compiler.fusion.sequence import Sequence as FusionSequence
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction, HloModule, Opcode, Trait
from compiler.learned.pointer_network import DecisionGraph
from compiler.loops import FULL, KERNEL, unroll_factor_of
from compiler.plan import Phase

__all__ = [
    "CANDIDATE_FEATURES",
    "FEATURE_VERSION",
    "GLOBAL_FEATURES",
    "KERNEL_LOOP_COLUMN",
    "MAX_CANDIDATES",
    "MAX_EDGES",
    "MAX_NODES",
    "NODE_FEATURES",
    "SAVING_COLUMN",
    "Candidate",
    "FusionFeatures",
    "ModuleFeatures",
    "decision_graph",
    "loop_candidate",
]

FEATURE_VERSION = 1
MAX_CANDIDATES = 256  # the action space; of more fusions than fit, those with the greatest expected saving are shown
MAX_NODES = 256  # nodes next to the candidates, nearest first
MAX_EDGES = 1024
PASS_SLOTS = 48
LIMIT = 16.0  # no feature is larger, whatever the program

CandidateKind: TypeAlias = FusionKind | Literal["loop", "pass", "stop"]
_KINDS: tuple[CandidateKind, ...] = (*KINDS, "loop", "pass", "stop")
_PHASES: tuple[Phase, ...] = ("passes", "loops", "fusion")  # those a policy decides
_CLASSES = (
    "elementwise", "expensive", "movement", "reduction", "leaf", "iota", "fusion", "reducing fusion", "library",
    "control", "tuple", "dynamic", "indexed", "other",
)  # fmt: skip
_CLASS_INDEX = {name: i for i, name in enumerate(_CLASSES)}
_NODE_NUMBERS = 16
_CANDIDATE_NUMBERS = 24

NODE_FEATURES = len(_CLASSES) + _NODE_NUMBERS
CANDIDATE_FEATURES = len(_KINDS) + _CANDIDATE_NUMBERS + PASS_SLOTS
GLOBAL_FEATURES = len(_PHASES) + 9
SAVING_COLUMN = len(_KINDS)
"""The candidate feature that holds the cost model's expected saving as a share of the program's time."""
KERNEL_LOOP_COLUMN = len(_KINDS) + 19
"""The candidate feature that says that a loop would run inside one kernel."""

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Candidate:
    """One thing that may be done.

    Attributes:
        kind: what it does.
        producer, consumer: the instructions it is about, if any; for a loop, the while is the producer.
        saving: seconds of the program that the cost model expects to save; negative when it expects a loss.
        consumers: how many instructions take the producer in.
        stays: whether the producer is still computed on its own afterwards.
        copies: how often the consumer would compute each element of the producer.
        factor: unroll factor of a loop; 1 keeps it, 0 unrolls it fully.
        in_kernel: whether the loop is to run inside one kernel.
        trips: of the loop, when known.
        pass_name: which pass.
    """

    kind: CandidateKind
    producer: HloInstruction | None = None
    consumer: HloInstruction | None = None
    saving: float = 0.0
    consumers: int = 1
    stays: bool = False
    copies: int = 1
    factor: int = 1
    in_kernel: bool = False
    trips: int | None = None
    pass_name: str = ""


STOP = Candidate("stop")


def loop_candidate(choice: str, loop: HloInstruction | None, trips: int | None) -> Candidate:
    """A way to treat a loop, by its name in plans: "keep", "full", "kernel", "unroll-4"."""
    factor = 0 if choice == FULL else unroll_factor_of(choice) or 1
    return Candidate("loop", loop, factor=factor, in_kernel=choice == KERNEL, trips=trips)


class NodeFacts(Protocol):
    """Where the numbers of instructions come from."""

    def seconds(self, node: HloInstruction) -> float:
        """Estimated time of one execution."""
        ...

    def weight(self, node: HloInstruction) -> float:
        """How often it runs in one run of the program."""
        ...

    def summary(self, node: HloInstruction) -> KernelSummary | None:
        """What its kernel reads and computes; None when it is no generated kernel."""
        ...

    def total_seconds(self) -> float:
        """Estimated time of the program as it stands."""
        ...

    def counts(self) -> tuple[int, int]:
        """Instructions in all sequences, and kernels among them."""
        ...


class ModuleFeatures:
    """Numbers of a module that is not being fused; valid until it changes."""

    def __init__(self, module: HloModule, cost_model: CostModel) -> None:
        self._model = cost_model
        self._weights = {c.name: w for c, w in cost_model.weights(module).items()}
        self._instructions = [i for c in cost_model.weights(module) for i in c.instructions]
        self._seconds: dict[HloInstruction, float] = {}

    def seconds(self, node: HloInstruction) -> float:
        """See `NodeFacts`."""
        if node not in self._seconds:
            self._seconds[node] = self._model.instruction(node)
        return self._seconds[node]

    def weight(self, node: HloInstruction) -> float:
        """See `NodeFacts`."""
        return self._weights.get(node.parent.name, 1.0) if node.parent is not None else 1.0

    def summary(self, node: HloInstruction) -> KernelSummary | None:
        """See `NodeFacts`."""
        return summarize(node) if is_priced_as_kernel(node) else None

    def total_seconds(self) -> float:
        """See `NodeFacts`."""
        return math.fsum(self.seconds(i) * self.weight(i) for i in self._instructions)

    def counts(self) -> tuple[int, int]:
        """See `NodeFacts`."""
        return len(self._instructions), sum(self.seconds(i) > 0 for i in self._instructions)

    def instructions(self) -> Sequence[HloInstruction]:
        """Every instruction of every sequence, callees first."""
        return self._instructions


class FusionFeatures:
    """Numbers of a module while it is being fused, and its candidates."""

    def __init__(self, state: FusionState) -> None:
        self.state = state

    # ---- facts of nodes

    def seconds(self, node: HloInstruction) -> float:
        """See `NodeFacts`."""
        return self._sequence(node).time_of(node)

    def weight(self, node: HloInstruction) -> float:
        """See `NodeFacts`."""
        return self._sequence(node).weight

    def summary(self, node: HloInstruction) -> KernelSummary | None:
        """See `NodeFacts`."""
        facts = self._sequence(node).legality.facts(node)
        return facts.summary if facts.refusal is None else None

    def total_seconds(self) -> float:
        """See `NodeFacts`."""
        return self.state.seconds()

    def counts(self) -> tuple[int, int]:
        """See `NodeFacts`."""
        sequences = self.state.sequences.values()
        return sum(len(s.computation) for s in sequences), len(self.state.kernels())

    def _sequence(self, node: HloInstruction) -> FusionSequence:
        assert node.parent is not None  # noqa: S101 - only standing instructions are asked about
        return self.state.sequences[node.parent.name]

    # ---- candidates

    def choices(self) -> tuple[list[FusionAction], list[Candidate]]:
        """The legal actions in their order, as many as fit besides stopping, and the candidates they make.

        The candidates have one entry more, at the end: to stop.
        """
        actions = self.state.actions()
        savings = [self.state.estimate(a) for a in actions]
        if len(actions) >= MAX_CANDIDATES:
            best = np.argsort([-s for s in savings], kind="stable")[: MAX_CANDIDATES - 1]
            kept = sorted(int(i) for i in best)
            actions, savings = [actions[i] for i in kept], [savings[i] for i in kept]
        candidates = [self._candidate(a, s) for a, s in zip(actions, savings, strict=True)]
        return actions, [*candidates, STOP]

    def _candidate(self, action: FusionAction, saving: float) -> Candidate:
        producer = self.state.find(action.computation, action.producer)
        consumer = self.state.find(action.computation, action.consumer)
        others = len(consumers_of(producer)) - len(action.consumers)
        facts = self._sequence(consumer).legality.facts(consumer)
        inputs = dict(zip(consumer.operands, facts.summary.inputs, strict=False))
        copies = sum(i.copies for o, i in inputs.items() if source_of(o) is producer)
        return Candidate(
            action.kind,
            producer,
            consumer,
            saving,
            consumers=len(action.consumers),
            stays=others > 0 or producer.is_root,
            copies=copies,
        )


# ---- arrays


def decision_graph(
    candidates: Sequence[Candidate], facts: NodeFacts, phase: Phase, extra_nodes: Iterable[HloInstruction] = ()
) -> DecisionGraph:
    """A decision in numbers.

    Args:
        candidates: at most MAX_CANDIDATES.
        facts: of the module they belong to.
        phase: which kind of decision this is.
        extra_nodes: instructions to show besides those the candidates are about and their neighbours.
    """
    nodes = _neighbourhood(candidates, extra_nodes)
    index = {node: i for i, node in enumerate(nodes)}
    total = max(facts.total_seconds(), 1e-12)
    edges = [(index[p], i) for node, i in index.items() for p in producers_of(node) if p in index][:MAX_EDGES]
    ends = [[index.get(e, -1) if e is not None else -1 for e in (c.producer, c.consumer)] for c in candidates]
    ends_of = _Ends(facts, total)
    rows = [_node_row(node, facts, total) for node in nodes] or [[0.0] * NODE_FEATURES]
    return DecisionGraph(
        nodes=_matrix(rows, NODE_FEATURES),
        edges=np.array(edges, dtype=np.int64).reshape(-1, 2),
        candidates=_matrix([_candidate_row(c, ends_of, total) for c in candidates], CANDIDATE_FEATURES),
        endpoints=np.array(ends, dtype=np.int64).reshape(-1, 2),
        globals=_matrix([_global_row(candidates, facts, total, phase)], GLOBAL_FEATURES)[0],
    )


def _matrix(rows: list[list[float]], width: int) -> Array:
    return np.clip(np.array(rows, dtype=np.float32).reshape(-1, width), -LIMIT, LIMIT)


def _neighbourhood(candidates: Sequence[Candidate], extra: Iterable[HloInstruction]) -> list[HloInstruction]:
    """The candidates' instructions, then their operands and users, up to MAX_NODES."""
    found: dict[HloInstruction, None] = {}
    for c in candidates:
        found.update((e, None) for e in (c.producer, c.consumer) if e is not None)
    for node in list(found):
        if len(found) >= MAX_NODES:
            break
        found.update(dict.fromkeys(producers_of(node)))
        found.update(dict.fromkeys(consumers_of(node)))
    found.update(dict.fromkeys(extra))
    return list(found)[:MAX_NODES]


def _log(value: float, scale: float) -> float:
    return math.log2(1.0 + max(0.0, value)) / scale


def _signed_log(value: float, unit: float, scale: float) -> float:
    return math.copysign(math.log2(1.0 + abs(value) / unit) / scale, value)


def _node_row(node: HloInstruction, facts: NodeFacts, total: float) -> list[float]:
    shape = next(iter(node.shape.leaves()), node.shape)
    summary = facts.summary(node)
    weight = facts.weight(node)
    elements = sum(s.num_elements for s in node.shape.leaves())
    one_hot = [0.0] * len(_CLASSES)
    one_hot[_CLASS_INDEX[_node_class(node, summary)]] = 1.0
    return [
        *one_hot,
        _log(elements, 24),
        _log(node.shape.byte_size, 26),
        _log(summary.bytes_read if summary else sum(o.shape.byte_size for o in node.operands), 26),
        _log(summary.flops / max(1.0, elements) if summary else node.opcode.row.flops, 8),
        _log(summary.statements if summary else 1, 8),
        _log(len(node.operands), 4),
        _log(len(consumers_of(node)), 4),
        shape.rank / 4,
        _log(shape.dimensions[-1] if shape.dimensions else 1, 12),
        (shape.element_type.bits if shape.is_array else 0) / 32,
        _log(weight, 14),
        math.sqrt(facts.seconds(node) * weight / total),
        float(node.is_root),
        float(is_multi_output(node)),
        _log(summary.elements if summary else elements, 24),
        float(summary is not None),
    ]


def _node_class(node: HloInstruction, summary: KernelSummary | None) -> str:
    op = node.opcode
    if op is Opcode.FUSION:
        return "reducing fusion" if summary is not None and summary.looped_reduction else "fusion"
    if op is Opcode.IOTA:
        return "iota"
    if op in (Opcode.DYNAMIC_SLICE, Opcode.DYNAMIC_UPDATE_SLICE):
        return "dynamic"
    if op in (Opcode.GATHER, Opcode.SCATTER):
        return "indexed"
    for trait, name in _TRAIT_CLASSES:
        if op.has(trait):
            return name
    if op.is_elementwise:
        return "expensive" if op.has(Trait.EXPENSIVE) else "elementwise"
    return "other"


_TRAIT_CLASSES = (
    (Trait.LEAF, "leaf"),
    (Trait.REDUCTION, "reduction"),
    (Trait.MOVEMENT, "movement"),
    (Trait.LIBRARY, "library"),
    (Trait.CONTROL, "control"),
    (Trait.TUPLE, "tuple"),
)


class _Ends:
    """Numbers of the instructions that candidates are about, each computed once: many candidates share them."""

    def __init__(self, facts: NodeFacts, total: float) -> None:
        self._facts, self._total = facts, total
        self._found: dict[HloInstruction, tuple[float, ...]] = {}

    def of(self, node: HloInstruction | None) -> tuple[float, ...]:
        """Share of the time, bytes, flops, statements, looped reduction; users and weight."""
        if node is None:
            return _NO_END
        found = self._found.get(node)
        if found is None:
            found = self._found[node] = self._numbers(node)
        return found

    def _numbers(self, node: HloInstruction) -> tuple[float, ...]:
        facts = self._facts
        summary, weight = facts.summary(node), facts.weight(node)
        return (
            math.sqrt(facts.seconds(node) * weight / self._total),
            _log(node.shape.byte_size, 26),
            _log(summary.flops if summary else 0, 30),
            _log(summary.statements if summary else 0, 8),
            float(summary is not None and summary.looped_reduction),
            _log(len(consumers_of(node)), 4),
            _log(weight, 14),
        )


_NO_END = (0.0,) * 7


def _candidate_row(c: Candidate, ends: _Ends, total: float) -> list[float]:
    kind = [0.0] * len(_KINDS)
    kind[_KINDS.index(c.kind)] = 1.0
    slots = [0.0] * PASS_SLOTS
    if c.pass_name:
        # A pass keeps its slot whatever other passes there are; two may share one.
        slots[zlib.crc32(c.pass_name.encode()) % PASS_SLOTS] = 1.0
    producer, consumer = ends.of(c.producer), ends.of(c.consumer)
    return [
        *kind,
        _signed_log(c.saving / total, 1e-3, 10),
        _signed_log(c.saving, 1e-7, 16),
        *producer[:5],
        *consumer[:5],
        float(
            c.producer is not None
            and c.consumer is not None
            and c.producer.shape.dimensions == c.consumer.shape.dimensions
        ),
        producer[5],
        _log(c.consumers, 4),
        producer[6],
        float(c.stays),
        _log(c.copies, 4),
        float(c.kind == "loop" and c.factor == 1 and not c.in_kernel),
        float(c.in_kernel),
        float(c.kind == "loop" and c.factor == 0),
        _log(c.factor, 8),
        _log(c.trips or 0, 14),
        float(c.kind == "loop" and c.trips is None),
        *slots,
    ]


def _global_row(candidates: Sequence[Candidate], facts: NodeFacts, total: float, phase: Phase) -> list[float]:
    instructions, kernels = facts.counts()
    savings = [c.saving / total for c in candidates]
    return [
        *(float(phase == p) for p in _PHASES),
        _log(instructions, 10),
        _log(kernels, 8),
        _log(total, 1) if total > 1 else _signed_log(total, 1e-7, 24),
        _log(len(candidates), 8),
        _signed_log(max(savings, default=0.0), 1e-3, 10),
        _signed_log(min(savings, default=0.0), 1e-3, 10),
        sum(s > 0 for s in savings) / max(1, len(savings)),
        sum(s < 0 for s in savings) / max(1, len(savings)),
        1.0,
    ]
