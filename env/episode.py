"""One episode: the decisions of a compilation in turn, each with a list of candidates. Does not depend on Gymnasium."""

from __future__ import annotations

import copy
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, overload

from compiler.analysis.cost_model import CostModel, module_cost
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.default_fusion import Completion, default_completion, fuse_by_default
from compiler.errors import HlogymError
from compiler.expansions import ExpansionSite
from compiler.fusion.actions import FusionAction
from compiler.ir import HloModule
from compiler.learned.features.candidates import (
    CANDIDATE_FEATURES,
    MAX_CANDIDATES,
    STOP,
    AlikeCandidates,
    Candidate,
    alike_passes,
)
from compiler.learned.features.compact import CompactGraph
from compiler.learned.features.decisions import ShownNodes, compact_decision
from compiler.learned.features.expansions import expansion_candidates
from compiler.learned.features.fusion import FusionFeatures, Offer
from compiler.learned.features.kernels import kernel_candidates
from compiler.learned.features.loops import loop_candidates
from compiler.learned.features.programs import ModuleFeatures, NodeRows
from compiler.learned.pointer_network import DecisionGraph
from compiler.loops import LoopSite
from compiler.passes.infrastructure.registry import PASSES
from compiler.plan import Phase
from compiler.runtime.kernel_sites import KernelSite, OfferedChoices
from compiler.session import CompilationSession

__all__ = [
    "Episode",
    "KernelMoves",
    "Move",
    "Offers",
    "Stop",
]


@dataclass(frozen=True)
class ExpansionMove:
    """Decide how an op is computed."""

    site: ExpansionSite
    choice: str

    def __str__(self) -> str:
        return f"expansion {self.site.id}: {self.choice}"


@dataclass(frozen=True)
class LoopChoice:
    """Decide how a loop runs."""

    site: LoopSite
    choice: str

    def __str__(self) -> str:
        return f"loop {self.site.id}: {self.choice}"


@dataclass(frozen=True)
class PassChoice:
    """Run one pass."""

    name: str

    def __str__(self) -> str:
        return f"pass {self.name}"


@dataclass(frozen=True)
class KernelMove:
    """Decide how a kernel is computed."""

    site: KernelSite
    choice: KernelChoice

    def __str__(self) -> str:
        return f"kernel {self.site.id}: {self.choice}"


@dataclass(frozen=True)
class Stop:
    """End this phase."""

    phase: Phase

    def __str__(self) -> str:
        return f"stop {self.phase}"


Move: TypeAlias = FusionAction | ExpansionMove | LoopChoice | PassChoice | KernelMove | Stop


@dataclass(frozen=True)
class Decision:
    """A move without its module, so that it can be made again on another one.

    Attributes:
        phase: when it is made.
        site: the id of a site; empty for passes, fusions and stops.
        choice: the choice of a site, the name of a pass, or the fusion; None to stop.
    """

    phase: Phase
    site: str
    choice: str | KernelChoice | FusionAction | None

    @staticmethod
    def of(move: Move) -> Decision:
        """Return the decision that a move is."""
        match move:
            case FusionAction():
                return Decision("fusion", "", move)
            case ExpansionMove(site, choice):
                return Decision("expansions", site.id, choice)
            case LoopChoice(loop, choice):
                return Decision("loops", loop.id, choice)
            case PassChoice(name):
                return Decision("passes", "", name)
            case KernelMove(kernel, chosen):
                return Decision("kernels", kernel.id, chosen)
            case Stop(phase):
                return Decision(phase, "", None)


@dataclass(frozen=True)
class _Before:
    """What an episode was before a decision, apart from its session."""

    left: tuple[Phase, ...]
    kernels: list[KernelSite] | None
    decided_kernels: int
    kernel_texts: tuple[str, ...]


@dataclass
class _Unchanged:
    """What stays as it is while passes change nothing, or while kernels are decided.

    Attributes:
        facts: of the module, or of one with the same text.
        shown: its nodes in numbers, if they were asked for without the candidates of kernels.
        key: of the module, if it was asked for.
    """

    facts: ModuleFeatures
    shown: ShownNodes | None = None
    key: str | None = None


@dataclass(frozen=True)
class Offers:
    """What the moves of an episode are.

    Attributes:
        splits: whether fissions are among them.
        passes: the passes to choose from, as text; None: all, with their default options.
    """

    splits: bool = False
    passes: tuple[str, ...] | None = None


ALL_PASSES = Offers()
_PASS_END = re.compile("[{@]")
"""Where the name of a pass ends in its text."""


class KernelMoves(Sequence[Move]):
    """The moves that decide how a kernel is computed; they are made when they are looked up.

    Attributes:
        site: the kernel.
        choices: what is offered for it.
    """

    def __init__(self, site: KernelSite, choices: OfferedChoices) -> None:
        self.site, self.choices = site, choices

    def __len__(self) -> int:
        return len(self.choices)

    @overload
    def __getitem__(self, index: int) -> Move: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Move]: ...

    def __getitem__(self, index: int | slice) -> Move | Sequence[Move]:
        if isinstance(index, slice):
            return [KernelMove(self.site, c) for c in self.choices[index]]
        return KernelMove(self.site, self.choices[index])


class Episode:
    """The decisions of some phases, one after the other; the other phases take their defaults.

    The moves are found when they are asked for, so that decisions can be repeated without finding them again.

    Args:
        session: takes the decisions; at its start if "passes" is among the phases, else after its passes.
        phases: what is decided, in the order of compilation.
        offers: what the moves are.
        default_loops: whether the default policy decides loops, once what comes before them is decided.
    """

    def __init__(
        self,
        session: CompilationSession,
        phases: Sequence[Phase],
        offers: Offers = ALL_PASSES,
        default_loops: bool = False,
    ) -> None:
        self._offers, self._default_loops = offers, default_loops
        self.session = session
        self._left: tuple[Phase, ...] = tuple(phases)
        self._fuses = "fusion" in phases
        self._idle_passes: frozenset[str] = frozenset()
        self._texts: tuple[str, ...] = ()  # expansions and loops, because the module does not show what was kept
        self._kernel_texts: tuple[str, ...] = ()
        self._kernels: list[KernelSite] | None = None  # None before their phase
        self._decided_kernels = 0
        self._unchanged: _Unchanged | None = None  # while passes are decided; forks share it
        self._fused: _Unchanged | None = None  # while kernels are decided
        self._features: FusionFeatures | None = None
        self._cost_model, self._rows = CostModel(session.device), NodeRows()  # forks share them
        self._undo: list[_Before] = []
        self._moves: Sequence[Move] = []
        self._candidates: Sequence[Candidate] | AlikeCandidates = []
        self._facts: FusionFeatures | ModuleFeatures | None = None
        self._fusions: Offer | None = None
        self._looked = self._only_stops = False
        if self.done:  # nothing to decide: offer to stop, because an episode has at least one step
            self._left, self._looked, self._only_stops = tuple(phases[-1:]), False, True

    def fork(self) -> Episode:
        """Return an independent copy, which cannot take back what was decided before."""
        other = copy.copy(self)
        other.session = self.session.fork()
        other._undo = []
        other._features = other._kernels = other._fused = None
        other._decided_kernels = 0
        other._looked = False
        return other

    @property
    def key(self) -> Hashable:
        """What is equal for states that offer the same moves: the module up to names, and what is left to decide."""
        self._look()
        fusing = self._features is not None
        module = "" if fusing else self._module_key()
        fused = self.session.fusion.fingerprint if fusing else ""
        return (self._left, self._idle_passes, module, fused, () if fusing else self._texts, self._kernel_texts)

    def _module_key(self) -> str:
        """Return the canonical key of the module."""
        known = self._unchanged or self._when_fused()
        if known is None:
            return self.session.module.canonical_key()
        if known.key is None:
            known.key = self.session.module.canonical_key()
        return known.key

    @property
    def done(self) -> bool:
        """Whether every decision has been taken."""
        self._look()
        return not self._left

    @property
    def moves(self) -> Sequence[Move]:
        """The legal decisions now, in a fixed order; at most MAX_CANDIDATES."""
        self._look()
        return self._moves

    @property
    def phase(self) -> Phase:
        """The phase of the next decision; "done" after the last one."""
        self._look()
        return self._left[0] if self._left else "done"

    @property
    def is_fusing(self) -> bool:
        """Whether fusion has begun; decisions from then on can be undone."""
        self._look()
        return self._features is not None or self._kernels is not None

    def graph(self) -> DecisionGraph:
        """Return the features of the current decision; candidate i is move i. After the end there are no candidates."""
        return self.compact_graph().expanded(CANDIDATE_FEATURES)

    def compact_graph(self) -> CompactGraph:
        """Return `graph` in the types of observations."""
        self._look()
        if self._features is not None and self._facts is self._features and self._fusions is not None:
            return self._features.compact_graph(self._fusions)
        return self._module_graph()

    def _module_graph(self) -> CompactGraph:
        fused = self._when_fused()
        if self._facts is None:
            self._facts = self._module_features() if fused is None else fused.facts
        extra = self._facts.instructions() if isinstance(self._facts, ModuleFeatures) else ()
        move = self._moves[0] if self._moves else None
        kernel = move.site.features() if isinstance(move, KernelMove) else ()
        known = self._unchanged if self._moves else fused  # the candidates of kernels show more nodes
        shown = None if known is None else known.shown
        if shown is None:
            shown = ShownNodes.of(self._candidates, self._facts, extra)
            if known is not None:
                known.shown = shown
        return compact_decision(self._candidates, self._facts, "fusion" if self.done else self.phase, shown, kernel)

    def take(self, index: int) -> str | None:
        """Take a move; return None, or the reason why it cannot be taken, in which case nothing has changed."""
        if self.done:
            return "the episode is over"
        if not 0 <= index < len(self.moves):
            return f"action {index} is not among the {len(self.moves)} legal ones"
        move = self.moves[index]
        try:
            self.decide(Decision.of(move))
        except HlogymError as error:
            return f"{move}: {error}"
        return None

    def decide(self, decision: Decision) -> None:
        """Make a decision.

        Raises:
            HlogymError: it is not possible; nothing has changed.
        """
        before = _Before(self._left, self._kernels, self._decided_kernels, self._kernel_texts)
        if decision.phase == "fusion" and not self._only_stops:
            self._begin_fusion()  # the moves may not have been looked at, as where decisions are repeated
        match decision.choice:
            case None:
                self._unchanged = None  # what follows may change the module before it decides anything
            case FusionAction() as action:
                self.session.apply(action)
            case KernelChoice() as chosen:
                self.session.set_kernel(decision.site, chosen)
                self._decided_kernels = 1 + [k.id for k in self._kernel_sites()].index(decision.site)
                self._kernel_texts = (*self._kernel_texts, f"{decision.site}: {chosen}")
            case name:
                self._decide_by_name(decision.phase, decision.site, name)
        left = self._left
        while left and left[0] != decision.phase:
            left = left[1:]
        self._left = left if decision.choice is not None else left[1:]
        self._undo.append(before)
        self._looked = False

    def _decide_by_name(self, phase: Phase, site: str, choice: str) -> None:
        if phase == "passes":
            changed = self.session.apply_pass(choice)
            self._idle_passes = frozenset() if changed else self._idle_passes | {choice}
            self._unchanged = None if changed else self._unchanged
        elif phase == "expansions":
            self.session.set_expansion(site, choice)
            self._texts = (*self._texts, f"{site}: {choice}")
        else:
            self.session.set_loop(site, choice)
            self._texts = (*self._texts, f"{site}: {choice}")

    def undo(self, decision: Decision) -> None:
        """Take back the last decision, which was made after fusion had begun."""
        if decision.choice is not None:
            self.session.undo()
        before = self._undo.pop()
        if before.kernels is not self._kernels:
            self._fused = None
        self._left, self._kernels, self._decided_kernels = before.left, before.kernels, before.decided_kernels
        self._kernel_texts = before.kernel_texts
        self._looked = False

    # ---- the next decision

    def _look(self) -> None:
        if self._looked:
            return
        self._looked = True
        if self._only_stops and self._left:
            self._offer([Stop(self._left[0])], [STOP], self._module_features())
            return
        while self._left:
            match self._left[0]:
                case "passes":
                    offered = self._offer_passes()
                case "expansions":
                    offered = self._offer_expansion()
                case "loops":
                    offered = self._offer_loop()
                case "kernels":
                    offered = self._offer_kernel()
                case _:
                    offered = self._offer_fusions()
            if offered:
                return
            self._left = self._left[1:]
        self._moves, self._candidates, self._facts = [], [], None

    def _offer(
        self,
        moves: Sequence[Move],
        candidates: Sequence[Candidate] | AlikeCandidates,
        facts: FusionFeatures | ModuleFeatures,
    ) -> bool:
        self._moves, self._candidates, self._facts = moves, candidates, facts
        return True

    def _offer_passes(self) -> bool:
        # A pass that changed nothing is left out until another pass changes something.
        offered = sorted(PASSES) if self._offers.passes is None else self._offers.passes
        names = [n for n in offered if n not in self._idle_passes][: MAX_CANDIDATES - 1]
        moves: list[Move] = [*(PassChoice(n) for n in names), Stop("passes")]
        self._unchanged = self._unchanged or _Unchanged(self._module_features())
        return self._offer(moves, alike_passes([_PASS_END.split(n)[0] for n in names]), self._unchanged.facts)

    def _offer_expansion(self) -> bool:
        site = next(iter(self.session.expansions()), None)
        if site is None:
            return False
        moves = [ExpansionMove(site, c) for c in site.choices]
        return self._offer(moves, expansion_candidates(site, self.session.module), self._module_features())

    def _offer_loop(self) -> bool:
        site = next((s for s in self.session.loops() if len(s.choices) > 1), None)
        if site is None:
            return False
        moves = [LoopChoice(site, c) for c in site.choices]
        return self._offer(moves, loop_candidates(site, self.session.module), self._module_features())

    def _run_default_loops(self) -> None:
        """Decide the loops by the default policy, if this is what decides them and has not been done."""
        if self._default_loops:
            self.session.run_loop_policy()
            self._default_loops = False

    def _begin_fusion(self) -> FusionFeatures:
        if self._features is None:
            self._run_default_loops()
            self._features = FusionFeatures(self.session.fusion, self._offers.splits)
        return self._features

    def _offer_fusions(self) -> bool:
        features = self._begin_fusion()
        self._fusions = features.offer()
        if not self._fusions.entries:
            return False
        self._moves = [*(e.action for e in self._fusions.entries), Stop("fusion")]
        self._candidates, self._facts = [], features
        return True

    def _offer_kernel(self) -> bool:
        sites = self._kernel_sites()
        while self._decided_kernels < len(sites):
            site = sites[self._decided_kernels]
            choices = site.shared_offer(MAX_CANDIDATES)
            if len(choices) > 1:
                fused = self._when_fused()
                facts = self._module_features() if fused is None else fused.facts
                return self._offer(KernelMoves(site, choices), kernel_candidates(site, choices), facts)
            self._decided_kernels += 1
        return False

    def _kernel_sites(self) -> list[KernelSite]:
        """Return the kernels; fusion is completed first if it is not a phase."""
        if self._kernels is None:
            self._run_default_loops()
            if not self._fuses:
                self.session.run_fusion_policy()
            self._kernels = self.session.kernel_sites()
        return self._kernels

    def _when_fused(self) -> _Unchanged | None:
        """Return what stays as it is while kernels are decided, which does not change the module; None before."""
        if self._fused is None and self._kernels is not None:
            self._fused = _Unchanged(self._features_of(self.session.kernel_module()))
        return self._fused

    def _module_features(self) -> ModuleFeatures:
        return self._features_of(self.session.module)

    def _features_of(self, module: HloModule) -> ModuleFeatures:
        return ModuleFeatures(module, self._cost_model, self._rows)

    # ---- the result

    def seconds(self) -> float:
        """Return the estimated time of the module now, by the cost model."""
        if self._features is not None:
            return self._features.total_seconds()
        self._look()
        if isinstance(self._facts, ModuleFeatures):
            return self._facts.total_seconds()
        return module_cost(self.session.module, self._cost_model).seconds

    def complete(self) -> CompilationSession:
        """Return a session that continues from here with the defaults; once fusion has begun, that of the episode."""
        if self._features is not None or self._kernels is not None:
            return self.session
        rest = self._after_default_loops() if self._default_loops else self.session.fork()
        fuse_by_default(rest)
        return rest

    def default_completion(self) -> Completion:
        """Return the plan that continues from here with the defaults, and its estimated time."""
        return default_completion(self._after_default_loops() if self._default_loops else self.session)

    def _after_default_loops(self) -> CompilationSession:
        rest = self.session.fork()
        rest.run_loop_policy()
        return rest
