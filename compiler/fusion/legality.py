"""Which fusions are correct and can be built, with a reason for every refusal; policies decide which ones are good."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from compiler.analysis.kernel_summary import KernelSummary, summarize
from compiler.analysis.library_work import TEMPLATE_OPS
from compiler.analysis.order import TopologicalOrder
from compiler.codegen.build_target import C_TARGET, BuildTarget
from compiler.codegen.buildability import FUSIBLE_STRUCTURE, node_refusal
from compiler.codegen.lowering.lower import BASE_STATEMENTS, STATEMENTS_PER_INSTRUCTION
from compiler.fusion.contents import Contents
from compiler.fusion.nodes import Nodes
from compiler.fusion.rewriting import body_of, instructions_of, is_multi_output, outputs_of, source_of
from compiler.fusion.rules import Restrictions
from compiler.fusion.templates import WITHOUT_TEMPLATE, is_open_product, pair_refusal
from compiler.fusion.trials import Trials
from compiler.ir import HloComputation, HloInstruction, Opcode, Shape, Trait
from compiler.ir.computation import has_side_effect


@dataclass(frozen=True, slots=True)
class FusionDecision:
    """Whether a fusion is allowed; if not, `reason` says why."""

    reason: str | None = None

    def __bool__(self) -> bool:
        return self.reason is None


ALLOW = FusionDecision()


def forbid(reason: str) -> FusionDecision:
    """Return a refusal."""
    return FusionDecision(reason)


@dataclass(frozen=True)
class Limits:
    """Limits of the size of one kernel.

    Attributes:
        arguments: operands and outputs together.
        instructions: instructions of the fused computation.
        statements: scalar statements; those computed at several indices count several times.
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
} | {Opcode.BITCAST_CONVERT, Opcode.FUSION, *TEMPLATE_OPS}
"""Opcodes besides the elementwise ones that can be fused; constants are copied into fusions instead."""
MANY_JOINTS, MANY_UPDATES = 4, 4
"""Numbers of pads and concatenations, and of updates, from which on only making a kernel shows its statements."""
BRANCH_STATEMENTS = 12
"""Statements of a kernel that decide whether an element is in the window of an update, at most."""


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Facts of a node as a kernel, cached so that its instructions are examined once.

    Attributes:
        refusal: why it cannot be fused with anything, or None.
        outputs: shapes of its outputs; of an update in place those of the new elements.
        size: number of instructions inside.
        summary: what the kernel reads and computes.
        marks: patterns of the user's rules that match instructions inside, as bits.
        updates: number of dynamic updates inside.
        joints: number of pads and concatenations inside.
    """

    refusal: str | None
    outputs: tuple[Shape, ...] = ()
    size: int = 1
    summary: KernelSummary = field(default_factory=KernelSummary)
    marks: int = 0
    updates: int = 0
    joints: int = 0

    @property
    def statements(self) -> int:
        """Number of scalar statements of the kernel's code."""
        return self.summary.statements

    @property
    def looped_reduction(self) -> bool:
        """Whether a reduction inside needs a loop; such kernels have rules of their own."""
        return self.summary.looped_reduction

    @property
    def template(self) -> Opcode | None:
        """The opcode of the instruction inside for which there is a template, see `KernelSummary`."""
        return self.summary.template


@dataclass(slots=True)
class Verdicts:
    """Facts of nodes and of pairs by their revisions, shared by forks: a node that comes back has its facts again.

    What depends on the structure alone is kept by it too (see `Trials`), because programs repeat themselves.
    """

    facts: dict[int, KernelFacts] = field(default_factory=dict)
    facts_by_structure: dict[int, KernelFacts] = field(default_factory=dict)
    # Pairs against which there is no quick reason without rules, and whether only kernels show that there is none.
    fitting_pairs: dict[int, bool] = field(default_factory=dict)
    reasons: dict[tuple[str, int, int], str | None] = field(default_factory=dict)
    names: dict[tuple[str, int, int], tuple[str, str]] = field(default_factory=dict)  # of the nodes in these reasons
    quick: dict[tuple[str, int, int], bool] = field(default_factory=dict)  # whether there is no quick reason
    untried: set[tuple[str, int, int]] = field(default_factory=set)  # pairs against which there is no quick reason
    known_fusible: set[int] = field(default_factory=set)


class Legality:
    """Legality of fusions in one sequence; facts of nodes and of pairs are cached by the revisions of the nodes.

    Attributes:
        order: of the sequence.
        nodes: of the sequence.
        limits: of the size of one kernel.
        target: what kernels are built for.
        restrictions: rules of the user.
        trials: kernels that were made to see whether they can be.
    """

    def __init__(
        self,
        order: TopologicalOrder,
        nodes: Nodes,
        limits: Limits,
        target: BuildTarget = C_TARGET,
        verdicts: Verdicts | None = None,
        trials: Trials | None = None,
        restrictions: Restrictions | None = None,
        contents: Contents | None = None,
    ) -> None:
        self.order, self.nodes, self.limits, self.target = order, nodes, limits, target
        self.restrictions = restrictions or Restrictions()
        self._verdicts = verdicts or Verdicts()
        self.trials = trials or Trials(nodes, target, contents)

    def copy_for(self, order: TopologicalOrder, nodes: Nodes) -> Legality:
        """Return the same facts for a clone, whose nodes have the same revisions."""
        trials = self.trials.copy_for(nodes)
        return Legality(order, nodes, self.limits, self.target, self._verdicts, trials, self.restrictions)

    def restricted(self, restrictions: Restrictions) -> Legality:
        """Return the legality of the same sequence under other rules of the user."""
        verdicts = Verdicts(known_fusible=self._verdicts.known_fusible)
        return Legality(self.order, self.nodes, self.limits, self.target, verdicts, self.trials, restrictions)

    def mark_fusible(self, fusion: HloInstruction) -> None:
        """Note that a fusion was made by legal steps, so that its instructions need not be examined again."""
        self._verdicts.known_fusible.add(self.nodes.revision(fusion))

    def forget_facts(self) -> None:
        """Drop the facts of nodes by their revisions, as happens when there are too many."""
        self._verdicts.facts.clear()
        self._verdicts.known_fusible.clear()

    def is_marked_fusible(self, node: HloInstruction) -> bool:
        """Check whether a fusion was marked by `mark_fusible`."""
        return self.nodes.revision(node) in self._verdicts.known_fusible

    def facts(self, node: HloInstruction) -> KernelFacts:
        """Return the facts of a node."""
        known, revision = self._verdicts.facts, self.nodes.revision(node)
        found = known.get(revision)
        if found is None:
            if len(known) >= self.nodes.most // 4:
                self.forget_facts()
            found = known[revision] = self._examine(node)
        return found

    def refusal_of(self, node: HloInstruction) -> str | None:
        """Return why a node cannot take part in any fusion, or None."""
        return self.facts(node).refusal

    # ---- decisions

    def producer_consumer(self, producer: HloInstruction, consumer: HloInstruction) -> FusionDecision:
        """Return whether `producer` may be computed within `consumer`, whatever else uses it."""
        reason = self.pair_reason("producer-consumer", producer, consumer)
        return forbid(reason) if reason else ALLOW

    def multi_output(self, producer: HloInstruction, consumer: HloInstruction) -> FusionDecision:
        """Return whether one kernel may compute both and yield the values of both."""
        reason = self.pair_reason("multi-output", producer, consumer) or self.path_reason(
            "multi-output", producer, consumer
        )
        return forbid(reason) if reason else ALLOW

    def side_by_side(self, first: HloInstruction, second: HloInstruction) -> FusionDecision:
        """Return whether one kernel may compute both, neither of which may need the other."""
        first, second = self.nodes.sorted([first, second])
        reason = self.pair_reason("sibling", first, second) or self.path_reason("sibling", first, second)
        return forbid(reason) if reason else ALLOW

    def pair_reason(self, kind: str, first: HloInstruction, second: HloInstruction) -> str | None:
        """Return the reason against a pair that holds until one of the two changes, or None."""
        reasons, key = self._verdicts.reasons, self._key(kind, first, second)
        if key not in reasons:
            reason = self.quick_reason(kind, first, second)
            if key not in reasons:  # else there is none either, and no kernel has to be made to see that
                reason = reason or self.trials.refusal(kind, first, second)
                self._set_reason(key, first, second, reason)
            return reason
        if reasons[key] is not None and self._verdicts.names.get(key) != (first.name, second.name):
            # Nodes that were made again may have other names now.
            reason = self._quick_refusal(kind, first, second)[0] or self.trials.refusal(kind, first, second)
            self._set_reason(key, first, second, reason)
        return reasons[key]

    def _set_reason(
        self, key: tuple[str, int, int], first: HloInstruction, second: HloInstruction, reason: str | None
    ) -> None:
        self._verdicts.reasons[key] = reason
        if reason is not None:
            self._verdicts.names[key] = first.name, second.name

    def is_refused(self, kind: str, first: HloInstruction, second: HloInstruction) -> bool:
        """Check whether `pair_reason` has a reason, without finding it if it takes the kernel to state it."""
        if self.quick_reason(kind, first, second) is not None:
            return True
        reasons, key = self._verdicts.reasons, self._key(kind, first, second)
        if key not in reasons:
            if self.trials.is_refused(kind, first, second):
                return True
            reasons[key] = None
        return reasons[key] is not None

    def quick_reason(self, kind: str, first: HloInstruction, second: HloInstruction) -> str | None:
        """Return the reason against a pair that is found without making the kernel, or None; see `pair_reason`."""
        reasons, key = self._verdicts.reasons, self._key(kind, first, second)
        found = reasons.get(key)
        if found is not None or key in self._verdicts.untried or key in reasons:
            return found
        reason, tried = self._quick_refusal(kind, first, second)
        if len(reasons) + len(self._verdicts.untried) >= self.nodes.most:
            reasons.clear()
            self._verdicts.names.clear()
            self._verdicts.untried.clear()
        if tried:
            self._verdicts.untried.add(key)
        else:
            self._set_reason(key, first, second, reason)
        return reason

    def may_fuse(self, kind: str, first: HloInstruction, second: HloInstruction) -> bool:
        """Check whether `quick_reason` is None, faster."""
        revision = self.nodes.revision
        known, key = self._verdicts.quick, (kind, revision(first), revision(second))
        found = known.get(key)
        if found is None:
            if len(known) >= self.nodes.most:
                known.clear()
            found = known[key] = self.quick_reason(kind, first, second) is None
        return found

    def may_fuse_into(self, producer: HloInstruction, users: Iterable[HloInstruction]) -> bool:
        """Check whether a producer may be fused into each of some users by `may_fuse`."""
        revision, known = self.nodes.revision, self._verdicts.quick.get
        first = revision(producer)
        for u in users:
            found = known(("producer-consumer", first, revision(u)))
            if found is None:
                found = self.may_fuse("producer-consumer", producer, u)
            if not found:
                return False
        return True

    def body_refusal(self, body: HloComputation, summary: KernelSummary) -> str | None:
        """Return why a fused computation is too large for one kernel, or None."""
        arguments = len(body.parameters) + (len(body.root.operands) if body.root.opcode is Opcode.TUPLE else 1)
        if len(body) > self.limits.instructions:
            return f"the kernel would have {len(body)} instructions, more than {self.limits.instructions}"
        if arguments > self.limits.arguments:
            return f"the kernel would have {arguments} operands and outputs, more than {self.limits.arguments}"
        if summary.statements > self.limits.statements:
            return f"the kernel would have some {summary.statements} statements, more than {self.limits.statements}"
        return None

    def _key(self, kind: str, first: HloInstruction, second: HloInstruction) -> tuple[str, int, int]:
        return kind, self.nodes.revision(first), self.nodes.revision(second)

    def _quick_refusal(self, kind: str, first: HloInstruction, second: HloInstruction) -> tuple[str | None, bool]:
        """Return the reason against a pair without its kernel, and if there is none, whether only that shows one."""
        reason = self._pair_refusal(first, second)
        if reason is not None:
            return reason, False
        # Other pairs depend on who else reads a parameter.
        known = self._verdicts.fitting_pairs
        pair = None if self.restrictions.patterns else self.trials.shared_pair(kind, first, second)
        if pair is not None and pair in known:
            return None, known[pair]
        a, b = self.facts(first), self.facts(second)
        statements = _statements(kind, first, second, a, b)
        reason = self._pair_of_kernels_refusal(kind, first, second, a, b, statements)
        if reason is not None:
            return reason, False
        needs_trial = _needs_trial(kind, first, second, a, b, statements)
        if pair is not None:
            if len(known) >= self.nodes.most:
                known.clear()
            known[pair] = needs_trial
        return None, needs_trial

    def _pair_of_kernels_refusal(
        self, kind: str, first: HloInstruction, second: HloInstruction, a: KernelFacts, b: KernelFacts, statements: int
    ) -> str | None:
        keep = kind != "producer-consumer"
        return (
            self.restrictions.refusal(a.marks, b.marks)
            or (self._edge_refusal(first, second) if kind != "sibling" else None)
            or pair_refusal(kind, first, second, a.summary, b.summary)
            or (_outputs_refusal(kind, first, second, a, b) if keep else None)
            or self._size_refusal(first, second, a, b, statements, keep)
        )

    def path_reason(self, kind: str, first: HloInstruction, second: HloInstruction) -> str | None:
        """Return the reason against a pair that depends on the paths between the two, or None."""
        refusal = self._dependence_refusal if kind == "sibling" else self._around_refusal
        return refusal(first, second)

    # ---- reasons

    def _pair_refusal(self, first: HloInstruction, second: HloInstruction) -> str | None:
        if first is second:
            return f"%{first.name} cannot be fused with itself"
        return self.facts(first).refusal or self.facts(second).refusal

    @staticmethod
    def _edge_refusal(producer: HloInstruction, consumer: HloInstruction) -> str | None:
        if all(source_of(o) is not producer for o in consumer.operands):
            return f"%{consumer.name} does not use %{producer.name}"
        return None

    def _size_refusal(
        self,
        first: HloInstruction,
        second: HloInstruction,
        a: KernelFacts,
        b: KernelFacts,
        statements: int,
        keep: bool,
    ) -> str | None:
        size = a.size + b.size
        if size > self.limits.instructions:
            return f"the kernel would have {size} instructions, more than {self.limits.instructions}"
        outputs = len(b.outputs) + (len(a.outputs) if keep else 0)
        if len(first.operands) + len(second.operands) + outputs > self.limits.arguments:
            operands = {o for o in second.operands if source_of(o) is not first}
            operands.update(first.operands)
            if len(operands) + outputs > self.limits.arguments:
                total = len(operands) + outputs
                return f"the kernel would have {total} operands and outputs, more than {self.limits.arguments}"
        if statements > self.limits.statements:
            return f"the kernel would have some {statements} statements, more than {self.limits.statements}"
        return None

    def _around_refusal(self, producer: HloInstruction, consumer: HloInstruction) -> str | None:
        between = self.order.path_around(producer, consumer)
        if between is not None:
            return f"a cycle through %{between.name}, which uses %{producer.name} and is needed by %{consumer.name}"
        return None

    def _dependence_refusal(self, first: HloInstruction, second: HloInstruction) -> str | None:
        first, second = self.order.sorted([first, second])  # nothing depends on what comes later
        if self.order.reaches(first, second):
            return f"%{second.name} needs %{first.name}"
        return None

    # ---- facts

    def _examine(self, node: HloInstruction) -> KernelFacts:
        refusal = self._node_refusal(node)
        if refusal is not None:
            return KernelFacts(refusal, tuple(node.shape.leaves()))
        marks = self.restrictions.marks(node)
        shared = self.trials.structure(node) if not marks and self.trials.is_shared(node) else None
        found = None if shared is None else self._verdicts.facts_by_structure.get(shared)
        if found is None:
            summary = summarize(node)
            outputs = tuple(s for o in outputs_of(node) for s in _computed(o, summary).leaves())
            inside = [i.opcode for i in instructions_of(node)]
            updates = inside.count(Opcode.DYNAMIC_UPDATE_SLICE)
            joints = inside.count(Opcode.PAD) + inside.count(Opcode.CONCATENATE)
            found = KernelFacts(None, outputs, len(inside), summary, marks, updates, joints)
            if shared is not None:
                if len(self._verdicts.facts_by_structure) >= self.nodes.most // 4:
                    self._verdicts.facts_by_structure.clear()
                self._verdicts.facts_by_structure[shared] = found
        return found

    def _node_refusal(self, node: HloInstruction) -> str | None:
        op = node.opcode
        if op not in FUSIBLE_OPCODES and not (op.is_elementwise and op not in (Opcode.COPY, Opcode.MAP)):
            why = WITHOUT_TEMPLATE.get(op)
            return f"%{node.name}: {_category(op)} {op.text} cannot be fused" + (f": {why}" if why else "")
        if has_side_effect(node):
            return f"%{node.name} has side effects"
        if self.order.has_control_edges(node):
            return f"%{node.name} is ordered by control dependencies"
        if node.shape.is_dynamic:
            return f"%{node.name} has a dynamic shape"
        if op is Opcode.FUSION and node.attributes.get("kind") == "kCustom" and not is_open_product(node):
            return _closed_refusal(node)
        return None if self.is_marked_fusible(node) else node_refusal(node, self.target)


def _statements(kind: str, first: HloInstruction, second: HloInstruction, a: KernelFacts, b: KernelFacts) -> int:
    """Return about how many scalar statements the kernel of two nodes would have."""
    copies = 0 if kind == "producer-consumer" else 1
    reads = dict(zip(second.operands, b.summary.inputs, strict=True))
    if is_multi_output(first):
        copies += sum([i.copies for o, i in reads.items() if source_of(o) is first])
    elif first in reads:
        copies += reads[first].copies
    return b.statements + a.statements * max(1, copies)


def _outputs_refusal(
    kind: str, first: HloInstruction, second: HloInstruction, a: KernelFacts, b: KernelFacts
) -> str | None:
    if a.looped_reduction or b.looped_reduction or a.template or b.template:
        return None  # a kernel may yield reduced values and whole rows: the trial decides
    x, y = a.outputs[0], b.outputs[0]
    in_place = a.summary.in_place or b.summary.in_place
    if in_place:
        x, y = _without_ones(x), _without_ones(y)  # an update has one more dimension than what it stores
    if in_place and x.num_elements != y.num_elements:
        return (
            f"outputs of %{first.name} ({x}) and %{second.name} ({y}) differ in size, and an update in place "
            "shares its loop with outputs of its own size only"
        )
    if (in_place or kind == "multi-output") and x.num_elements == y.num_elements and x.dimensions != y.dimensions:
        return f"outputs of %{first.name} ({x}) and %{second.name} ({y}) differ in dimensions"
    return None


def _needs_trial(
    kind: str, first: HloInstruction, second: HloInstruction, a: KernelFacts, b: KernelFacts, statements: int
) -> bool:
    """Check whether only making the kernel shows that it can be built.

    That is so if it reduces, updates an output, or computes its instructions at many indices.
    """
    several = kind != "producer-consumer" or len(a.outputs) + len(b.outputs) > 2
    # Not the summaries: a kernel writes into a parameter of its own, whatever else reads the array.
    in_place = any(o.opcode is Opcode.DYNAMIC_UPDATE_SLICE for i in (first, second) for o in outputs_of(i))
    if a.looped_reduction or b.looped_reduction or (in_place and several):
        return True
    if a.template or b.template:
        return True
    # An output may be read through all updates of an array: their branches are in no summary.
    branches = BRANCH_STATEMENTS * (a.updates + b.updates) * (len(a.outputs) + len(b.outputs))
    # Each branch of a pad or a concatenation computes what it needs again, and so do the branches within it.
    joints = a.joints + b.joints
    if joints >= MANY_JOINTS or a.updates + b.updates >= MANY_UPDATES:
        return True
    return statements * (2 + joints) + branches > BASE_STATEMENTS + STATEMENTS_PER_INSTRUCTION * (a.size + b.size)


def _computed(output: HloInstruction, summary: KernelSummary) -> Shape:
    """Return the shape of the elements that a kernel computes for one of its outputs."""
    updates = summary.in_place and output.opcode is Opcode.DYNAMIC_UPDATE_SLICE
    return output.operands[1].shape if updates else output.shape


def _without_ones(shape: Shape) -> Shape:
    return Shape(shape.element_type, tuple(n for n in shape.dimensions if n != 1))


def _closed_refusal(fusion: HloInstruction) -> str:
    """Return why a custom fusion that may not grow cannot be fused."""
    pooling = next((i for i in body_of(fusion).instructions if i.opcode is Opcode.REDUCE_WINDOW), None)
    if pooling is None:
        return f"%{fusion.name} is a custom fusion"
    return (
        f"%{fusion.name} is a custom fusion: a library computes %{pooling.name} (reduce-window); with the expansion "
        "'slices' it can be fused"
    )


def _category(op: Opcode) -> str:
    if op.has(Trait.CONTROL):
        return "control flow"
    if op.has(Trait.LIBRARY):
        return "the library operation"
    return "a"
