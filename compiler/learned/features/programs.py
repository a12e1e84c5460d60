"""What a policy sees of a program: numbers of its instructions, and where they come from.

Sizes are logarithms, so that features are of order one on every program.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from compiler.analysis.cost_model import CostModel, is_priced_as_kernel
from compiler.analysis.kernel_summary import KernelSummary, summary_key
from compiler.fusion.rewriting import consumers_of, is_multi_output
from compiler.ir import HloInstruction, HloModule, Opcode, Trait

__all__ = [
    "ENDPOINT_NUMBERS",
    "NODE_FEATURES",
    "ROOT_COLUMN",
    "SHARE_COLUMN",
    "USERS_COLUMN",
    "USERS_NUMBER",
    "EndpointNumbers",
    "ModuleFeatures",
    "NodeFacts",
    "NodeRows",
    "Row",
    "log_size",
    "node_row",
    "signed_log",
    "users_feature",
]

_CLASSES = (
    "elementwise", "expensive", "movement", "reduction", "leaf", "iota", "fusion", "reducing fusion", "library",
    "control", "tuple", "dynamic", "indexed", "other",
)  # fmt: skip
_CLASS_INDEX = {name: i for i, name in enumerate(_CLASSES)}
_TRAIT_CLASSES = (
    (Trait.LEAF, "leaf"),
    (Trait.REDUCTION, "reduction"),
    (Trait.MOVEMENT, "movement"),
    (Trait.LIBRARY, "library"),
    (Trait.CONTROL, "control"),
    (Trait.TUPLE, "tuple"),
)
NODE_FEATURES = len(_CLASSES) + 16
"""Length of `node_row`."""
SHARE_COLUMN = len(_CLASSES) + 11
"""The feature of a node, and the first of its `EndpointNumbers`, that falls with the root of the program's time."""
USERS_COLUMN = len(_CLASSES) + 6
"""The feature of a node that changes with the number of its consumers."""
ROOT_COLUMN = len(_CLASSES) + 12
"""The feature of a node that says whether it is the root."""
ENDPOINT_NUMBERS = 7
"""Length of `EndpointNumbers.of`."""
USERS_NUMBER = 5
"""The place in `EndpointNumbers.of` that changes with the number of consumers."""


Row: TypeAlias = "Sequence[float] | npt.NDArray[np.float32]"
"""The features of an instruction."""


class NodeFacts(Protocol):
    """Source of the numbers of instructions."""

    def seconds(self, node: HloInstruction) -> float:
        """Return the estimated time of one execution."""
        ...

    def weight(self, node: HloInstruction) -> float:
        """Return how often the instruction runs per run of the program."""
        ...

    def summary(self, node: HloInstruction) -> KernelSummary | None:
        """Return what the instruction's kernel reads and computes, or None when it is no generated kernel."""
        ...

    def total_seconds(self) -> float:
        """Return the estimated time of the program in its current form."""
        ...

    def counts(self) -> tuple[int, int]:
        """Return the number of instructions in all sequences, and the number of kernels among them."""
        ...

    def row(self, node: HloInstruction, total: float) -> Row:
        """Return `node_row`, perhaps from a cache."""
        ...


NodeRows: TypeAlias = dict[Hashable, npt.NDArray[np.float32]]
"""Rows of single instructions of any modules; `ModuleFeatures` bounds their number."""
MAX_ROWS = 20_000
"""Number of rows of single instructions that are kept."""


class ModuleFeatures:
    """Numbers of a module outside fusion; valid until the module changes.

    Args:
        module: the module.
        cost_model: estimates times; what it caches serves other modules with equal instructions.
        rows: rows of such modules, which are added to.
    """

    def __init__(self, module: HloModule, cost_model: CostModel, rows: NodeRows | None = None) -> None:
        self._model, self._rows = cost_model, {} if rows is None else rows
        weights = cost_model.weights(module)
        self._weights = {c.name: w for c, w in weights.items()}
        self._instructions = [i for c in weights for i in c.instructions]
        self._seconds: dict[HloInstruction, float] = {}
        self._total: float | None = None
        self._kernels: int | None = None
        self._shown: dict[tuple[HloInstruction, float], Row] = {}

    def seconds(self, node: HloInstruction) -> float:
        """Return the estimated time of one execution."""
        if node not in self._seconds:
            self._seconds[node] = self._model.instruction(node)
        return self._seconds[node]

    def weight(self, node: HloInstruction) -> float:
        """Return how often the instruction runs per run of the program."""
        return self._weights.get(node.parent.name, 1.0) if node.parent is not None else 1.0

    def summary(self, node: HloInstruction) -> KernelSummary | None:
        """Return what the instruction's kernel reads and computes, or None when it is no generated kernel."""
        return self._model.summary(node) if is_priced_as_kernel(node) else None

    def total_seconds(self) -> float:
        """Return the estimated time of the program."""
        if self._total is None:
            self._total = math.fsum(self.seconds(i) * self.weight(i) for i in self._instructions)
        return self._total

    def row(self, node: HloInstruction, total: float) -> Row:
        """Return `node_row`, from the cache if there is an equal instruction in it; it must not be changed."""
        found = self._shown.get((node, total))
        if found is None:
            found = self._shown[node, total] = self._row(node, total)
        return found

    def _row(self, node: HloInstruction, total: float) -> Row:
        if node.opcode is Opcode.FUSION:
            return node_row(node, self, total)
        key = summary_key(node), len(consumers_of(node)), node.is_root, self.weight(node)
        known = self._rows.get(key)
        if known is None:
            if len(self._rows) >= MAX_ROWS:
                self._rows.clear()
            # Many rows together become a matrix: from arrays much faster than from lists of numbers.
            known = self._rows[key] = np.array(node_row(node, self, 1.0), np.float32)
        found = known.copy()
        found[SHARE_COLUMN] = math.sqrt(self.seconds(node) * self.weight(node) / total)
        return found

    def counts(self) -> tuple[int, int]:
        """Return the number of instructions in all sequences, and of those that take time."""
        if self._kernels is None:
            self._kernels = sum(self.seconds(i) > 0 for i in self._instructions)
        return len(self._instructions), self._kernels

    def instructions(self) -> Sequence[HloInstruction]:
        """Return every instruction of every sequence, callees first."""
        return self._instructions


def log_size(value: float, scale: float) -> float:
    """Return log2(1 + value) / scale, with negative values counted as 0."""
    return math.log2(1.0 + max(0.0, value)) / scale


def signed_log(value: float, unit: float, scale: float) -> float:
    """Return log2(1 + |value| / unit) / scale with the sign of the value."""
    return math.copysign(math.log2(1.0 + abs(value) / unit) / scale, value)


def users_feature(count: int) -> float:
    """Return the feature of a number of consumers."""
    return log_size(count, 4)


def node_row(node: HloInstruction, facts: NodeFacts, total: float) -> list[float]:
    """Return the features of an instruction.

    Args:
        node: the instruction.
        facts: of its module.
        total: seconds of the whole program.
    """
    shape = next(iter(node.shape.leaves()), node.shape)
    summary = facts.summary(node)
    weight = facts.weight(node)
    elements = sum(s.num_elements for s in node.shape.leaves())
    one_hot = [0.0] * len(_CLASSES)
    one_hot[_CLASS_INDEX[_node_class(node, summary)]] = 1.0
    return [
        *one_hot,
        log_size(elements, 24),
        log_size(node.shape.byte_size, 26),
        log_size(summary.bytes_read if summary else sum(o.shape.byte_size for o in node.operands), 26),
        log_size(summary.flops / max(1.0, elements) if summary else node.opcode.row.flops, 8),
        log_size(summary.statements if summary else 1, 8),
        log_size(len(node.operands), 4),
        users_feature(len(consumers_of(node))),
        shape.rank / 4,
        log_size(shape.dimensions[-1] if shape.dimensions else 1, 12),
        (shape.element_type.bits if shape.is_array else 0) / 32,
        log_size(weight, 14),
        math.sqrt(facts.seconds(node) * weight / total),
        float(node.is_root),
        float(is_multi_output(node)),
        log_size(summary.elements if summary else elements, 24),
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


class EndpointNumbers:
    """Numbers of the instructions that candidates are about, each computed once because many candidates share them."""

    def __init__(self, facts: NodeFacts, total: float) -> None:
        self._facts, self._total = facts, total
        self._found: dict[HloInstruction, tuple[float, ...]] = {}

    def of(self, node: HloInstruction | None) -> tuple[float, ...]:
        """Return share of the time, bytes, flops, statements, looped reduction, users, weight; zeros for None."""
        if node is None:
            return (0.0,) * ENDPOINT_NUMBERS
        found = self._found.get(node)
        if found is None:
            found = self._found[node] = self._numbers(node)
        return found

    def _numbers(self, node: HloInstruction) -> tuple[float, ...]:
        facts = self._facts
        summary, weight = facts.summary(node), facts.weight(node)
        return (
            math.sqrt(facts.seconds(node) * weight / self._total),
            log_size(node.shape.byte_size, 26),
            log_size(summary.flops if summary else 0, 30),
            log_size(summary.statements if summary else 0, 8),
            float(summary is not None and summary.looped_reduction),
            users_feature(len(consumers_of(node))),
            log_size(weight, 14),
        )
