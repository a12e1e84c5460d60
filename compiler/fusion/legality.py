"""Which fusions are correct and can be built, each refusal with its reason. Whether they pay is for policies to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compiler.analysis.kernel_summary import KernelSummary, summarize
from compiler.analysis.order import TopologicalOrder
from compiler.codegen.buildability import FUSIBLE_STRUCTURE, kernel_refusal, node_refusal
from compiler.fusion import rewriting as mechanics
from compiler.fusion.pair_cache import PairCache
from compiler.fusion.rewriting import body_of, outputs_of, source_of
from compiler.ir import HloComputation, HloInstruction, Opcode, Shape, Trait
from compiler.ir.computation import has_side_effect


@dataclass(frozen=True, slots=True)
class FusionDecision:
    """Whether a fusion is allowed; `reason` says why when it is not."""

    reason: str | None = None

    @property
    def allowed(self) -> bool:
        """True when there is no reason against it."""
        return self.reason is None

    def __bool__(self) -> bool:
        return self.reason is None


ALLOW = FusionDecision()


def forbid(reason: str) -> FusionDecision:
    """A refusal."""
    return FusionDecision(reason)


@dataclass(frozen=True)
class Limits:
    """What one kernel can take.

    Attributes:
        arguments: operands and outputs together.
        instructions: instructions of the fused computation.
        statements: scalar statements, counting what is computed at several indices several times.
    """

    arguments: int = 64
    instructions: int = 2000
    statements: int = 4000


FUSIBLE_OPCODES = FUSIBLE_STRUCTURE - {
    Opcode.CONSTANT,
    Opcode.PARAMETER,
    Opcode.MAP,
    Opcode.TUPLE,
    Opcode.GET_TUPLE_ELEMENT,
} | {Opcode.BITCAST_CONVERT, Opcode.FUSION}
"""Opcodes besides the elementwise ones that can be fused; constants are copied into fusions instead."""


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What legality needs to know of a node and can be told without looking inside again.

    Attributes:
        refusal: why it cannot be fused with anything, or None.
        outputs: shapes of its outputs.
        size: instructions inside.
        summary: the kernel in numbers.
    """

    refusal: str | None
    outputs: tuple[Shape, ...] = ()
    size: int = 1
    summary: KernelSummary = field(default_factory=KernelSummary)

    @property
    def statements(self) -> int:
        """Scalar statements of the kernel's code."""
        return self.summary.statements

    @property
    def looped_reduction(self) -> bool:
        """Whether a reduction inside needs a loop, which brings rules of its own."""
        return self.summary.looped_reduction


@dataclass(slots=True)
class _PathVerdict:
    """A reason (or none) that was right at a version of the order."""

    version: int
    reason: str | None


class Legality:
    """Decides for the nodes of one sequence; facts of nodes are kept until `forget`."""

    def __init__(self, order: TopologicalOrder, limits: Limits | None = None) -> None:
        self.order = order
        self.limits = limits or Limits()
        self._facts: dict[HloInstruction, KernelFacts] = {}
        self._reasons: PairCache[str | None] = PairCache()
        self._paths: PairCache[_PathVerdict] = PairCache()
        self._vouched: set[HloInstruction] = set()

    def copy_for(self, order: TopologicalOrder, image: Mapping[HloInstruction, HloInstruction]) -> Legality:
        """The same for a clone whose instructions are the images of these."""
        other = Legality(order, self.limits)
        other._facts = {image[i]: f for i, f in self._facts.items() if i in image}
        other._reasons = self._reasons.copy_for(image)
        other._vouched = {image[i] for i in self._vouched if i in image}
        return other

    def forget(self, node: HloInstruction) -> None:
        """The node has changed or is gone."""
        self._facts.pop(node, None)
        self._reasons.forget(node)
        self._paths.forget(node)
        self._vouched.discard(node)

    def vouch_for(self, fusion: HloInstruction) -> None:
        """The fusion was made by legal steps, so what it holds need not be looked at again."""
        self._vouched.add(fusion)

    def facts(self, node: HloInstruction) -> KernelFacts:
        """What is known of a node."""
        found = self._facts.get(node)
        if found is None:
            found = self._facts[node] = self._look(node)
        return found

    def refusal_of(self, node: HloInstruction) -> str | None:
        """Why this node cannot take part in any fusion, or None."""
        return self.facts(node).refusal

    # ---- decisions

    def producer_consumer(self, producer: HloInstruction, consumer: HloInstruction) -> FusionDecision:
        """Compute `producer` within `consumer`, whoever else uses it."""
        reason = self.pair_reason("producer-consumer", producer, consumer)
        return forbid(reason) if reason else ALLOW

    def multi_output(self, producer: HloInstruction, consumer: HloInstruction) -> FusionDecision:
        """Compute both in one kernel that yields the values of both."""
        reason = self.pair_reason("multi-output", producer, consumer) or self.path_reason(
            "multi-output", producer, consumer
        )
        return forbid(reason) if reason else ALLOW

    def side_by_side(self, first: HloInstruction, second: HloInstruction) -> FusionDecision:
        """One kernel with the outputs of both, neither of which may need the other."""
        first, second = self.order.sorted([first, second])
        reason = self.pair_reason("sibling", first, second) or self.path_reason("sibling", first, second)
        return forbid(reason) if reason else ALLOW

    def pair_reason(self, kind: str, first: HloInstruction, second: HloInstruction) -> str | None:
        """The reason against a pair that holds as long as neither of the two changes."""
        key = (kind, first, second)
        if key not in self._reasons:
            self._reasons[key] = self._pair_refusal(first, second) or self._refusal(kind, first, second)
        return self._reasons[key]

    def _refusal(self, kind: str, first: HloInstruction, second: HloInstruction) -> str | None:
        keep = kind != "producer-consumer"
        return (
            (self._edge_refusal(first, second) if kind != "sibling" else None)
            or (self._outputs_refusal(first, second) if keep else None)
            or self._size_refusal(first, second, keep)
            or self._trial(kind, first, second)
        )

    def path_reason(self, kind: str, first: HloInstruction, second: HloInstruction) -> str | None:
        """The reason against a pair that hangs on what lies between the two."""
        key = (kind, first, second)
        found = self._paths.get(key)
        if found is None or self.order.changed_since(found.version, first, second):
            refusal = self._dependence_refusal if kind == "sibling" else self._around_refusal
            found = self._paths[key] = _PathVerdict(self.order.version, refusal(first, second))
        found.version = self.order.version
        return found.reason

    # ---- reasons

    def _pair_refusal(self, first: HloInstruction, second: HloInstruction) -> str | None:
        if first is second:
            return f"%{first.name} cannot be fused with itself"
        return self.refusal_of(first) or self.refusal_of(second)

    @staticmethod
    def _edge_refusal(producer: HloInstruction, consumer: HloInstruction) -> str | None:
        if all(source_of(o) is not producer for o in consumer.operands):
            return f"%{consumer.name} does not use %{producer.name}"
        return None

    def _outputs_refusal(self, first: HloInstruction, second: HloInstruction) -> str | None:
        a, b = self.facts(first), self.facts(second)
        if a.looped_reduction or b.looped_reduction:
            return None  # a row may yield values and whole rows: the trial knows
        x, y = a.outputs[0], b.outputs[0]
        if x.num_elements != y.num_elements:
            return f"outputs of %{first.name} ({x}) and %{second.name} ({y}) differ in size"
        if x.dimensions != y.dimensions:
            return f"outputs of %{first.name} ({x}) and %{second.name} ({y}) differ in dimensions"
        return None

    def _size_refusal(self, first: HloInstruction, second: HloInstruction, keep: bool) -> str | None:
        a, b = self.facts(first), self.facts(second)
        size = a.size + b.size
        if size > self.limits.instructions:
            return f"the kernel would have {size} instructions, more than {self.limits.instructions}"
        operands = {o for o in second.operands if source_of(o) is not first}
        operands.update(first.operands)
        outputs = len(b.outputs) + (len(a.outputs) if keep else 0)
        if len(operands) + outputs > self.limits.arguments:
            total = len(operands) + outputs
            return f"the kernel would have {total} operands and outputs, more than {self.limits.arguments}"
        by_operand = dict(zip(second.operands, b.summary.inputs, strict=True))
        copies = sum(i.copies for o, i in by_operand.items() if source_of(o) is first) + (1 if keep else 0)
        statements = b.statements + a.statements * max(1, copies)
        if statements > self.limits.statements:
            return f"the kernel would have some {statements} statements, more than {self.limits.statements}"
        return None

    def _around_refusal(self, producer: HloInstruction, consumer: HloInstruction) -> str | None:
        between = self.order.path_around(producer, consumer)
        if between is not None:
            return f"a cycle through %{between.name}, which uses %{producer.name} and is needed by %{consumer.name}"
        return None

    def _dependence_refusal(self, first: HloInstruction, second: HloInstruction) -> str | None:
        if self.order.reaches(first, second):
            return f"%{second.name} needs %{first.name}"
        return None

    def _trial(self, kind: str, first: HloInstruction, second: HloInstruction) -> str | None:
        """The last word for kernels with reductions: make the fused computation and ask whether it can be built."""
        if not (self.facts(first).looped_reduction or self.facts(second).looped_reduction):
            return None
        return kernel_refusal(trial_of(kind, first, second))

    # ---- facts

    def _look(self, node: HloInstruction) -> KernelFacts:
        refusal = self._node_refusal(node)
        if refusal is not None:
            return KernelFacts(refusal, tuple(node.shape.leaves()))
        outputs = tuple(s for o in outputs_of(node) for s in o.shape.leaves())
        summary = summarize(node)
        size = len(body_of(node)) if node.opcode is Opcode.FUSION else 1
        return KernelFacts(None, outputs, size, summary)

    def _node_refusal(self, node: HloInstruction) -> str | None:
        op = node.opcode
        if op not in FUSIBLE_OPCODES and not (op.is_elementwise and op not in (Opcode.COPY, Opcode.MAP)):
            return f"%{node.name}: {_what(op)} {op.text} cannot be fused"
        if has_side_effect(node):
            return f"%{node.name} has side effects"
        if self.order.has_control_edges(node):
            return f"%{node.name} is ordered by control dependencies"
        if node.shape.is_dynamic:
            return f"%{node.name} has a dynamic shape"
        if op is Opcode.FUSION and node.attributes.get("kind") == "kCustom":
            return f"%{node.name} is a custom fusion"
        return None if node in self._vouched else node_refusal(node)


def _what(op: Opcode) -> str:
    if op.has(Trait.CONTROL):
        return "control flow"
    if op.has(Trait.LIBRARY):
        return "the library operation"
    return "a"


def trial_of(kind: str, first: HloInstruction, second: HloInstruction) -> HloComputation:
    """The fused computation that a pair would make, for trying out."""
    if kind == "sibling":
        return mechanics.trial_side_by_side(first, second)
    return mechanics.trial(first, second, keep_producer=kind == "multi-output")
