"""One episode: the decisions of a compilation in turn, each with a list of candidates. Does not depend on Gymnasium."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from compiler.analysis.cost_model import CostModel
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import HlogymError
from compiler.expansions import ExpansionSite
from compiler.fusion.actions import FusionAction
from compiler.fusion.policies import DEFAULT_POLICY, make_policy
from compiler.learned.features.candidates import MAX_CANDIDATES, STOP, Candidate
from compiler.learned.features.decisions import decision_graph
from compiler.learned.features.expansions import expansion_candidates
from compiler.learned.features.fusion import FusionFeatures
from compiler.learned.features.kernels import kernel_candidates
from compiler.learned.features.loops import loop_candidates
from compiler.learned.features.programs import ModuleFeatures
from compiler.learned.pointer_network import DecisionGraph
from compiler.loops import LoopSite
from compiler.passes.infrastructure.registry import PASSES
from compiler.plan import Phase
from compiler.runtime.kernel_sites import KernelSite
from compiler.session import CompilationSession

__all__ = ["COMPLETION_POLICY", "Episode", "Move"]

COMPLETION_POLICY = DEFAULT_POLICY
"""Fuses at the end of episodes that do not decide fusion, so that they end with a whole compilation."""


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


class Episode:
    """The decisions of some phases, one after the other; the other phases take their defaults.

    Args:
        session: takes the decisions; at its start if "passes" is among the phases, else after its passes.
        phases: what is decided, in the order of compilation.
    """

    def __init__(self, session: CompilationSession, phases: Sequence[Phase]) -> None:
        self.session = session
        self.taken: list[str] = []
        self._left = list(phases)
        self._fuses = "fusion" in phases
        self._idle_passes: set[str] = set()
        self._kernels: list[KernelSite] | None = None  # those to decide; None before their phase
        self._kernel_facts: ModuleFeatures | None = None
        self._features: FusionFeatures | None = None
        self._moves: list[Move] = []
        self._candidates: list[Candidate] = []
        self._facts: FusionFeatures | ModuleFeatures | None = None
        self._look()
        if self.done:  # nothing to decide: offer to stop, because an episode has at least one step
            self._left = ["fusion"]
            self._offer([Stop("fusion")], [STOP], self._module_features())

    @property
    def done(self) -> bool:
        """Whether every decision has been taken."""
        return not self._left

    @property
    def moves(self) -> Sequence[Move]:
        """The legal decisions now, in a fixed order; at most MAX_CANDIDATES."""
        return self._moves

    @property
    def phase(self) -> Phase:
        """The phase of the next decision; "done" after the last one."""
        return self._left[0] if self._left else "done"

    def graph(self) -> DecisionGraph:
        """Return the features of the current decision; candidate i is move i. After the end there are no candidates."""
        if self._facts is None:
            self._facts = self._module_features()
        extra = self._facts.instructions() if isinstance(self._facts, ModuleFeatures) else ()
        move = self._moves[0] if self._moves else None
        kernel = move.site.features() if isinstance(move, KernelMove) else ()
        return decision_graph(self._candidates, self._facts, "fusion" if self.done else self.phase, extra, kernel)

    def take(self, index: int) -> str | None:
        """Take a move; return None, or the reason why it cannot be taken, in which case nothing has changed."""
        if self.done:
            return "the episode is over"
        if not 0 <= index < len(self._moves):
            return f"action {index} is not among the {len(self._moves)} legal ones"
        move = self._moves[index]
        try:
            self._do(move)
        except HlogymError as error:
            return f"{move}: {error}"
        self.taken.append(str(move))
        self._look()
        return None

    def _do(self, move: Move) -> None:
        match move:
            case FusionAction():
                self.session.apply(move)
            case ExpansionMove(site, choice):
                self.session.set_expansion(site, choice)
            case LoopChoice(site, choice):
                self.session.set_loop(site, choice)
            case PassChoice(name):
                changed = self.session.apply_pass(name)
                self._idle_passes = set() if changed else {*self._idle_passes, name}
            case KernelMove(site, choice):
                self.session.set_kernel(site, choice)
                self._undecided_kernels().pop(0)
            case Stop():
                self._left.pop(0)

    # ---- the next decision

    def _look(self) -> None:
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
            self._left.pop(0)
        self._moves, self._candidates, self._facts = [], [], None

    def _offer(
        self, moves: Sequence[Move], candidates: Sequence[Candidate], facts: FusionFeatures | ModuleFeatures
    ) -> bool:
        self._moves, self._candidates, self._facts = list(moves), list(candidates), facts
        return True

    def _offer_passes(self) -> bool:
        # A pass that changed nothing is left out until another pass changes something.
        names = [n for n in sorted(PASSES) if n not in self._idle_passes][: MAX_CANDIDATES - 1]
        moves: list[Move] = [*(PassChoice(n) for n in names), Stop("passes")]
        return self._offer(moves, [*(Candidate("pass", pass_name=n) for n in names), STOP], self._module_features())

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

    def _offer_fusions(self) -> bool:
        if self._features is None:
            self._features = FusionFeatures(self.session.fusion)
        actions, candidates = self._features.choices()
        return bool(actions) and self._offer([*actions, Stop("fusion")], candidates, self._features)

    def _offer_kernel(self) -> bool:
        left = self._undecided_kernels()
        while left:
            choices = left[0].offered(MAX_CANDIDATES)
            if len(choices) > 1:
                moves = [KernelMove(left[0], c) for c in choices]
                if self._kernel_facts is None:
                    self._kernel_facts = self._module_features()  # these decisions do not change the module
                return self._offer(moves, kernel_candidates(left[0], choices), self._kernel_facts)
            left.pop(0)
        return False

    def _undecided_kernels(self) -> list[KernelSite]:
        """Return the kernels that have not been decided; fusion is completed first if it is not a phase."""
        if self._kernels is None:
            if not self._fuses:
                self.session.run_fusion_policy(make_policy(COMPLETION_POLICY))
            self._kernels = self.session.kernel_sites()
        return self._kernels

    def _module_features(self) -> ModuleFeatures:
        return ModuleFeatures(self.session.module, CostModel(self.session.device))

    # ---- the result

    def seconds(self) -> float:
        """Return the estimated time of the module now, by the cost model."""
        if self._features is not None:
            return self._features.total_seconds()
        return self.session.cost().seconds

    def complete(self) -> CompilationSession:
        """Return a session that continues from here with the defaults; once fusion has begun, that of the episode."""
        if self._features is not None or self._kernels is not None:
            return self.session
        rest = self.session.fork()
        rest.run_fusion_policy(make_policy(COMPLETION_POLICY))
        return rest
