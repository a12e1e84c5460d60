"""Loop decisions: the loops of a module, the choices for each, and how a choice is applied."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from compiler.analysis.cost_model import CostModel, device_model
from compiler.analysis.loop_marks import mark_kernel_loop, unroll_factor
from compiler.analysis.structure import shape_key
from compiler.analysis.trip_count import trip_count_of
from compiler.analysis.while_loop import Induction, LoopView, induction, view_loop
from compiler.codegen.build_target import C_TARGET, CUDA_TARGET, BuildTarget
from compiler.codegen.languages import C
from compiler.codegen.templates import loop_kernel, loop_state
from compiler.errors import PlanError
from compiler.fusion.digests import Digests
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.ir.computation import has_side_effect
from compiler.passes.loops.loop_editing import Loops
from compiler.passes.loops.while_loop_flattening import flatten, flattened_copy, is_flattened
from compiler.passes.loops.while_loop_unroller import guarded_refusal, unroll_by, unroll_fully, unroll_guarded
from compiler.support.bounded_table import BoundedTable

KEEP, FULL, KERNEL = "keep", "full", "kernel"
"""Choices for a loop, besides those of `unroll_choice`: leave it, unroll it fully, run it inside one kernel."""
_UNROLL = "unroll-"
FACTORS = (2, 4, 8)
MAX_FULL_TRIPS = 64
MAX_INSTRUCTIONS = 2000
GUARDED, GUARDED_SECONDS = 4, 8e-5
"""Iterations after which the host asks whether there are more, at most, and the estimated seconds that they may take:
it waits some 20 microseconds each time, and the last ones may run for nothing."""


@dataclass(frozen=True)
class LoopSite:
    """A loop whose treatment can be chosen.

    Attributes:
        id: computation and name of the while.
        position: its index among the loops of the module in its current form.
        trip_count: number of iterations; None when it is unknown.
        size: number of instructions of its body.
        choices: the legal choices, "keep" first.
    """

    id: str
    position: int
    trip_count: int | None
    size: int
    choices: tuple[str, ...]


@runtime_checkable
class LoopPolicy(Protocol):
    """Chooses how to treat one loop."""

    def choose_loop(self, site: LoopSite, module: HloModule) -> str:
        """Return one of `site.choices`."""
        ...


class KeepLoops:
    """Keeps every loop as it is."""

    def choose_loop(self, site: LoopSite, module: HloModule) -> str:
        """Return "keep"."""
        del site, module
        return KEEP


class KernelLoops:
    """Runs a loop inside one kernel where that is possible and worthwhile, and keeps other loops as they are."""

    def choose_loop(self, site: LoopSite, module: HloModule) -> str:
        """Return the choice for one loop."""
        loop = find_loop(module, site) if KERNEL in site.choices else None
        return KEEP if loop is None or _is_better_kept(loop) else KERNEL


def _is_better_kept(loop: HloInstruction) -> bool:
    """Check whether kernels of the body are at least as fast as a kernel of the loop."""
    if _needs_joining(loop):
        return loop_state.computes_functions(loop)
    return loop_state.has_axis(loop) and loop_state.is_crowded(loop)


def _is_better_unrolled(site: LoopSite, module: HloModule) -> bool:
    """Check for a short loop whose kernel needs joined dimensions, but whose copies fuse with what is around it."""
    loop = find_loop(module, site)
    if loop is None or (site.trip_count or MAX_FULL_TRIPS) >= MAX_FULL_TRIPS or not _needs_joining(loop):
        return False
    return not any(i.opcode in (Opcode.REDUCE, Opcode.SORT) for i in loop.attributes["body"].instructions)


def _needs_joining(loop: HloInstruction) -> bool:
    """Check for a loop that has a kernel only after its dimensions are joined."""
    view = view_loop(loop)
    return view is not None and is_flattened(view) and not loop_state.has_axis(loop)


@dataclass(frozen=True)
class KernelOrUnrolledLoops:
    """Runs a loop inside one kernel where that is possible, and unrolls others by the greatest factor that fits.

    On a GPU, each iteration of a loop that has no kernel launches kernels of its own, which take longer to launch than
    small ones take to run. Copies of the body share launches, and fusion works across them.

    Attributes:
        factor: greatest factor.
        instructions: greatest number of instructions of the unrolled body: larger ones take long to fuse, and launches
            are a small part of their time.
    """

    factor: int = 8
    instructions: int = 800

    def choose_loop(self, site: LoopSite, module: HloModule) -> str:
        """Return the choice for one loop."""
        if KERNEL in site.choices and not _is_better_unrolled(site, module) and not _is_slow_in_blocks(site, module):
            return KERNEL
        most = min(self.factor, self.instructions // max(1, site.size))
        if site.trip_count is None:
            loop = find_loop(module, site)
            most = 0 if loop is None else min(most, GUARDED, int(GUARDED_SECONDS / max(_work_seconds(loop), 1e-9)))
            return KEEP if most < min(FACTORS) else UnrollLoops(most).choose_loop(site, module)
        return UnrollLoops(most).choose_loop(site, module)


def _is_slow_in_blocks(site: LoopSite, module: HloModule) -> bool:
    """Check for a loop that only blocks of threads can run, but slower than the kernels of its body."""
    loop = find_loop(module, site)
    view = None if loop is None else view_loop(loop)
    if loop is None or view is None or not loop_kernel.is_slow_in_blocks(loop, device_model("gpu").launch):
        return False
    return not _has_kernel(view, _JOINED, CUDA_TARGET)


def _work_seconds(loop: HloInstruction) -> float:
    """Return the estimated seconds of an iteration on a GPU, without those to launch its kernels."""
    device = device_model("gpu")
    model = CostModel(device)
    body = loop.attributes["body"].instructions
    return sum(max(0.0, model.instruction(i) - device.launch - device.parallel_launch) for i in body)


@dataclass(frozen=True)
class UnrollLoops:
    """Unrolls by the greatest possible factor up to `factor`; 0: fully where that is possible, else not at all."""

    factor: int = 4

    def choose_loop(self, site: LoopSite, module: HloModule) -> str:
        """Return the choice for one loop."""
        del module
        if self.factor == 0:
            return FULL if FULL in site.choices else KEEP
        fitting = [n for n in FACTORS if n <= self.factor and unroll_choice(n) in site.choices]
        return unroll_choice(max(fitting)) if fitting else KEEP


def unroll_choice(factor: int) -> str:
    """Return the choice to unroll a loop by a factor, as plans name it."""
    return f"{_UNROLL}{factor}"


def unroll_factor_of(choice: str) -> int | None:
    """Return the factor of a choice made by `unroll_choice`, or None for any other choice."""
    factor = choice.removeprefix(_UNROLL)
    return int(factor) if choice.startswith(_UNROLL) and factor.isdecimal() else None


class KnownLoops(BoundedTable[Hashable, bool]):
    """Whether a loop can run inside one kernel, by its digest and target. To find out, its kernel is generated."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_MOST_KNOWN)


_MOST_KNOWN = 1000


def loop_sites(
    module: HloModule,
    known: KnownLoops | None = None,
    target: BuildTarget | None = None,
    without: Collection[str] = (),
) -> list[LoopSite]:
    """Return the loops of the module, inner loops first.

    Args:
        module: the program.
        known: what earlier calls found, for any module and target, and what this one adds; None: nothing.
        target: what kernels are built for; None: C with its defaults.
        without: the ids of loops that are left out, so that their choices need not be found.
    """
    kernels = _Kernels(KnownLoops() if known is None else known, target or C_TARGET)
    views = list(Loops(module).views())
    return [_site(n, v, induction(v), kernels) for n, v in enumerate(views) if loop_id(v) not in without]


def loop_id(view: LoopView) -> str:
    """Return the name of a loop in plans."""
    parent = view.instruction.parent
    return f"{parent.name if parent else '?'}/{view.instruction.name}"


@dataclass(frozen=True)
class _Kernels:
    """Answers whether loops can run inside one kernel of a target."""

    known: KnownLoops
    target: BuildTarget

    def has(self, view: LoopView, counter: Induction | None) -> bool:
        """Check whether a loop can, which depends on its body, its values and its trip count.

        If the trip count is known only at run time, it also depends on the condition and on which results are read.
        """
        return any(self._known(view, counter, form) for form in _FORMS)

    def joins(self, view: LoopView, counter: Induction | None) -> bool:
        """Check whether the dimensions of a loop are to be joined for its kernel; see `WhileLoopFlattening`.

        On a GPU that is only done if positions have no kernel otherwise: threads run positions that carry several
        elements, and compute what packs them, as fast.
        """
        is_wanted = self.target.language == C.name or not self._known(view, counter, _AS_IT_IS)
        return is_wanted and self._known(view, counter, _JOINED)

    def _known(self, view: LoopView, counter: Induction | None, form: str) -> bool:
        loop, digests = view.instruction, Digests()
        trips = None if counter is None else counter.trip_count
        end = None if counter is not None else (digests.computation(view.condition), tuple(map(bool, view.results)))
        what = digests.computation(view.body), shape_key(loop.shape), trip_count_of(loop), trips, end
        key = what, self.target, form
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = _has_kernel(view, form, self.target)
        return found


_AS_IT_IS, _JOINED, _BLOCKS = _FORMS = ("as it is", "joined dimensions", "blocks")
"""How a loop becomes a kernel: by positions, by positions of joined dimensions, or run by blocks of threads."""


def _has_kernel(view: LoopView, form: str, target: BuildTarget) -> bool:
    loop = flattened_copy(view) if form == _JOINED else view.instruction
    return loop is not None and loop_kernel.loop_refusal(loop, target, in_blocks=form == _BLOCKS) is None


def _site(position: int, view: LoopView, counter: Induction | None, kernels: _Kernels) -> LoopSite:
    size = len(view.body)
    choices = [KEEP]
    pure = not any(has_side_effect(i) for i in view.condition.instructions)
    if counter is None:
        # Where the host has to wait for each condition, it may as well wait for every second or eighth one.
        waits = kernels.target.language != C.name and unroll_factor(view.instruction) == 1
        if waits and guarded_refusal(view) is None:
            choices += [unroll_choice(n) for n in FACTORS if n * (size + len(view.condition)) <= MAX_INSTRUCTIONS]
        choices += [KERNEL] if pure and kernels.has(view, counter) else []
    elif pure:
        innermost = all(i.opcode is not Opcode.WHILE for i in view.body.instructions)
        fresh = innermost and unroll_factor(view.instruction) == 1
        factors = [n for n in FACTORS if fresh and counter.trip_count >= 2 * n and n * size <= MAX_INSTRUCTIONS]
        choices += [unroll_choice(n) for n in factors]
        if counter.trip_count <= MAX_FULL_TRIPS and counter.trip_count * size <= MAX_INSTRUCTIONS:
            choices.append(FULL)
        if kernels.has(view, counter):
            choices.append(KERNEL)
    return LoopSite(loop_id(view), position, None if counter is None else counter.trip_count, size, tuple(choices))


def find_loop(module: HloModule, site: LoopSite) -> HloInstruction | None:
    """Return the while instruction of a site, or None when the module has no such loop."""
    computation, _, name = site.id.partition("/")
    found = module.find(computation)
    return None if found is None else found.find(name)


def find_site(
    module: HloModule, site_id: str, known: KnownLoops | None = None, target: BuildTarget | None = None
) -> LoopSite:
    """Return a loop by its id; `known` and `target` as in `loop_sites`.

    Raises:
        PlanError: there is none; the message lists the loops of the module.
    """
    views = list(Loops(module).views())
    for n, view in enumerate(views):
        if loop_id(view) == site_id:
            return _site(
                n, view, induction(view), _Kernels(KnownLoops() if known is None else known, target or C_TARGET)
            )
    raise PlanError(f"there is no loop {site_id!r}; loops: {', '.join(map(loop_id, views)) or 'none'}")


def apply_loop_choice(
    module: HloModule,
    position: int,
    choice: str,
    known: KnownLoops | None = None,
    target: BuildTarget | None = None,
) -> bool:
    """Apply a choice to the loop at a position; return whether the module changed.

    `known` and `target` are as in `loop_sites`.

    Raises:
        PlanError: there is no such loop, or it does not have this choice.
    """
    loops = Loops(module)
    views = list(loops.views())
    if position >= len(views):
        raise PlanError(f"there is no loop at position {position}; the module has {len(views)}")
    view = views[position]
    counter = induction(view)
    kernels = _Kernels(KnownLoops() if known is None else known, target or C_TARGET)
    site = _site(position, view, counter, kernels)
    if choice not in site.choices:
        raise PlanError(f"loop {site.id!r} cannot be treated as {choice!r}; choices: {', '.join(site.choices)}")
    if choice == KERNEL:
        if kernels.joins(view, counter):
            flatten(view, loops)
        mark_kernel_loop(view.instruction)
        return True
    if choice == KEEP:
        return False
    factor = unroll_factor_of(choice)
    if counter is None:
        assert factor is not None  # noqa: S101 - it is among the choices of a loop without a counter
        unroll_guarded(view, factor, loops)
    elif factor is None:
        unroll_fully(view, counter, loops)
    else:
        unroll_by(view, counter, factor, loops)
    module.remove_unreachable()
    return True
