"""The kernels of plans by what they compute, and plans in which some kernels of one are made as in another.

Fusions have names that depend on the order in which they were made, so kernels are compared by the instructions inside,
as they were when fusion began.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import FusionError, PlanError
from compiler.fusion.anatomy import Anatomy
from compiler.ir import HloInstruction, Opcode
from compiler.plan import CompilationPlan, FusionStep
from compiler.plan_binding import PlanBinding
from compiler.runtime.explanation import steps_of_fusions
from compiler.session import CompilationSession

__all__ = ["Content", "FusedPlan", "exchanged", "regions"]

Content: TypeAlias = tuple[str, frozenset[str]]
"""A sequence, and the names of the instructions that one of its kernels computes."""
Parts: TypeAlias = list[tuple[CompilationPlan, Sequence[FusionStep]]]
_NO_KERNEL = frozenset({Opcode.PARAMETER, Opcode.CONSTANT, Opcode.TUPLE, Opcode.GET_TUPLE_ELEMENT})


class FusedPlan:
    """The fusions and the kernel choices of a plan, made on a session in which fusion has begun.

    Args:
        start: the session, which is not changed.
        plan: the plan, which began fusion on the same module.

    Attributes:
        session: with every decision of the plan.
        kernels: the name of each kernel by what it computes.
        choices: kernel choices that are not the default, by what the kernel computes.
    """

    def __init__(self, start: CompilationSession, plan: CompilationPlan) -> None:
        self.session = start.fork()
        binding = PlanBinding(plan, start.fusion_base)
        for step in plan.steps:
            self.session.apply(binding.bind_action(step.action))
            binding.note_fusions(step, self.session.fusion.made[-1])
        for (sequence, name), choice in binding.bind_kernels(plan.kernels).items():
            self.session.set_kernel(f"{sequence}/{name}", choice)
        self.plan = self.session.plan
        self.kernels = _kernels(self.session)
        content_of = {(content[0], name): content for content, name in self.kernels.items()}
        self.choices: dict[Content, KernelChoice] = {
            content_of[sequence, name]: choice
            for sequence, row in self.plan.kernels.items()
            for name, choice in row.items()
        }
        by_fusion = steps_of_fusions(self.plan)
        self._made: dict[int, set[Content]] = {}
        numbers = {id(step): n for n, step in enumerate(self.plan.steps)}
        for key, steps in by_fusion.items():
            for step in steps:
                if key in content_of:
                    self._made.setdefault(numbers[id(step)], set()).add(content_of[key])

    def steps(self) -> Iterator[tuple[FusionStep, set[Content]]]:
        """Yield the fusions, each with the kernels that it is part of."""
        for number, step in enumerate(self.plan.steps):
            yield step, self._made.get(number, set())


def _kernels(session: CompilationSession) -> dict[Content, str]:
    found = {}
    for name, sequence in session.fusion.sequences.items():
        for node in sequence.computation.instructions:
            if node.opcode not in _NO_KERNEL and node in sequence.nodes.values:
                found[name, _inside(node, session)] = node.name
    return found


def _inside(node: HloInstruction, session: CompilationSession) -> frozenset[str]:
    """Return the original instructions that a node computes, without constants."""
    sequence = session.fusion.sequences[node.parent.name if node.parent is not None else ""]
    nodes = sequence.nodes
    if node.opcode is not Opcode.FUSION:
        return frozenset(nodes.origins.name(v) for v in nodes.values[node])
    pairs = Anatomy(node, nodes).pairs
    return frozenset(nodes.origins.name(v) for i, v in pairs if i.opcode not in (Opcode.PARAMETER, Opcode.CONSTANT))


def regions(a: Collection[Content], b: Collection[Content]) -> list[tuple[set[Content], set[Content]]]:
    """Return the kernels in which two plans differ, as groups that compute the same instructions.

    Kernels that share an instruction which neither plan computes twice are in one group.
    """
    only = [(side, kernel) for side, mine, other in ((0, a, b), (1, b, a)) for kernel in mine if kernel not in other]
    times: dict[tuple[int, str, str], int] = {}
    for side, mine in ((0, a), (1, b)):
        for sequence, inside in mine:
            for name in inside:
                times[side, sequence, name] = times.get((side, sequence, name), 0) + 1
    parent = list(range(len(only)))

    def root(n: int) -> int:
        while parent[n] != n:
            n = parent[n]
        return n

    met: dict[tuple[str, str], int] = {}
    for n, (_, (sequence, inside)) in enumerate(only):
        for name in inside:
            if times.get((0, sequence, name)) == times.get((1, sequence, name)) == 1:
                parent[root(n)] = root(met.setdefault((sequence, name), n))
    groups: dict[int, tuple[set[Content], set[Content]]] = {}
    for n, (side, kernel) in enumerate(only):
        groups.setdefault(root(n), (set(), set()))[side].add(kernel)
    return list(groups.values())


def exchanged(
    start: CompilationSession,
    a: FusedPlan,
    b: FusedPlan,
    group: tuple[Collection[Content], Collection[Content]],
    choices: Mapping[Content, KernelChoice],
) -> CompilationSession | None:
    """Return the first plan with some of its kernels made as in the second one; None if they cannot be separated.

    Args:
        start: the session in which fusion has begun.
        a: the first plan.
        b: the second plan.
        group: the kernels of the first that are left out, and those of the second that take their place.
        choices: the kernel choices.
    """
    out, into = set(group[0]), set(group[1])
    wanted = (set(a.kernels) - out) | into
    kept = a.plan, [step for step, made in a.steps() if not made or not made <= out]
    taken = b.plan, [step for step, made in b.steps() if made & into]
    orders: list[Parts] = [[kept, taken], [taken, kept]]
    if wanted == set(b.kernels):  # every fusion is exchanged
        orders = [[(b.plan, b.plan.steps)]]
    for parts in orders:
        session = start.fork()
        try:
            for plan, steps in parts:
                _apply(session, plan, steps)
            kernels = _kernels(session)
            if set(kernels) == wanted:
                for content, choice in choices.items():
                    session.set_kernel(f"{content[0]}/{kernels[content]}", choice)
                return session
        except (FusionError, PlanError):
            continue
    return None


def _apply(session: CompilationSession, plan: CompilationPlan, steps: Sequence[FusionStep]) -> None:
    binding = PlanBinding(plan, session.fusion_base)
    for step in steps:
        session.apply(binding.bind_action(step.action))
        binding.note_fusions(step, session.fusion.made[-1])
