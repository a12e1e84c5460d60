"""Strategies that make plans for a program: fusion policies, searches that measure, and learned policies."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agents.deviations import Deviation, PlanBuilder, PolicyDraws
from agents.plan_search import PlanSearch
from agents.search_run import Budget, SearchRun, run_search
from agents.searches import SEARCHES, PolicySamples, make_search
from compiler.errors import HlogymError, UnknownNameError
from compiler.fusion.policies import DEFAULT_POLICY, POLICIES, RandomFusion, make_policy
from compiler.fusion.policies import SEARCHES as SEARCHING
from compiler.fusion.protocol import FusionPolicy
from compiler.ir import HloModule
from compiler.ir.verifier import verify
from compiler.learned.fusion_policy import LearnedFusionPolicy
from compiler.loops import FULL, KeepLoops, LoopPolicy, LoopSite, unroll_factor_of
from compiler.plan import CompilationPlan
from compiler.policy import Policy
from compiler.session import CompilationSession
from compiler.text import parse
from env.measurement import Measurer
from env.suites import Program

__all__ = [
    "STRATEGIES",
    "Found",
    "NoPlanError",
    "Starts",
    "draws_of",
    "find_plan",
    "found_by",
    "is_search",
    "is_strategy",
    "make_plan",
    "random_plans",
]

_RULES = tuple(p for p in POLICIES if p not in ("none", *SEARCHING, *SEARCHES))
"""The fusion policies that decide without a search."""
STRATEGIES = (
    "none",
    *_RULES,
    *SEARCHES,
    "learned",
    "learned+search",
)
"""The strategies of `find_plan`; "none", the fusion policies and "learned" measure nothing. Searches take options in
braces."""
MAX_BODY = 400
MAX_RANDOM_FUSIONS = 500


class NoPlanError(HlogymError, RuntimeError):
    """A search in which every plan failed: the number of plans and the reasons."""


@dataclass(frozen=True)
class Found:
    """A plan, and the number of plans measured to find it.

    Attributes:
        failures: number of those that failed.
        reason: why the last of them failed.
    """

    plan: CompilationPlan
    measurements: int = 0
    failures: int = 0
    reason: str = ""


@dataclass(frozen=True)
class RandomLoops:
    """Takes a random choice for each loop, but does not unroll beyond MAX_BODY instructions.

    Random fusions of larger bodies take minutes to draw and seconds to compile, and the plans are never good.
    """

    seed: int

    def choose_loop(self, site: LoopSite, module: HloModule) -> str:
        """Return a choice that depends on the seed and the loop only."""
        del module
        copies = {c: _copies(c, site.trip_count) for c in site.choices}
        fitting = [c for c, n in copies.items() if n == 1 or n * site.size <= MAX_BODY]
        return random.Random(f"{self.seed} {site.position}").choice(fitting)


def _copies(choice: str, trips: int | None) -> int:
    """Return how many copies of the body of a loop a choice makes."""
    if choice == FULL:
        return trips or 1
    return unroll_factor_of(choice) or 1


class Starts:
    """Sessions after the default passes, one per program; each plan starts from a fork of one."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._sessions: dict[str, CompilationSession] = {}

    def module(self, program: Program) -> HloModule:
        """Return a program, parsed and verified."""
        module = parse(program.text(), filename=str(program.path))
        verify(module)
        return module

    def session(self, program: Program) -> CompilationSession:
        """Return a new session for a program, with its passes done and its loops to be decided."""
        if program.name not in self._sessions:
            session = CompilationSession(self.module(program), backend=self.backend)
            session.run_passes()
            self._sessions[program.name] = session
        return self._sessions[program.name].fork()

    def builder(self, program: Program, policy: PolicyDraws | None = None) -> PlanBuilder:
        """Return what builds the plans of a program next to those of a policy; see `PlanBuilder`."""
        return PlanBuilder(self.module(program), self.backend, policy)


def make_plan(session: CompilationSession, fusion: FusionPolicy, loops: LoopPolicy) -> CompilationPlan:
    """Return the plan that two policies make."""
    session.run_loop_policy(loops)
    session.run_fusion_policy(fusion)
    return session.plan


def random_plans(starts: Starts, program: Program, seed: int) -> Iterator[CompilationPlan]:
    """Yield random plans without end: random loop choices, then random fusions that may stop early."""
    rng = random.Random(seed)
    while True:
        stop = rng.choice((0.0, 0.0, 0.02, 0.1))
        fusion = RandomFusion(seed=rng.getrandbits(32), stop_probability=stop, max_actions=MAX_RANDOM_FUSIONS)
        yield make_plan(starts.session(program), fusion, RandomLoops(rng.getrandbits(32)))


def draws_of(policy: LearnedFusionPolicy | Policy, backend: str) -> PolicyDraws:
    """Return what a learned policy decides with a seed, or without one; only its fusions and loops can be drawn."""
    whole = (
        Policy(policy.name, fusion=policy) if isinstance(policy, LearnedFusionPolicy) else policy.for_backend(backend)
    )

    def draw(seed: int | None) -> Policy:
        fusion = whole.fusion
        return replace(whole, fusion=replace(fusion, seed=seed)) if isinstance(fusion, LearnedFusionPolicy) else whole

    return draw


def find_plan(
    strategy: str,
    starts: Starts,
    program: Program,
    measurer: Measurer,
    budget: int,
    policy: LearnedFusionPolicy | Policy | None = None,
    seed: int = 0,
) -> Found:
    """Return a strategy's plan for a program.

    Args:
        strategy: one of STRATEGIES.
        starts: sessions of the backend to plan for.
        program: the program.
        measurer: measures plans for the strategies that search.
        budget: number of plans that they may measure.
        policy: of "learned" and "learned+search".
        seed: of all random draws.

    Raises:
        UnknownNameError: no such strategy, or a learned one without a policy.
        NoPlanError: every plan of the strategy failed.
    """
    if strategy == "learned" and policy is not None:
        return Found(starts.builder(program, draws_of(policy, starts.backend)).build(Deviation()).plan)
    if strategy == "none":
        return Found(make_plan(starts.session(program), make_policy("none"), KeepLoops()))
    if strategy in _RULES:
        session = starts.session(program)
        fusion = session.default_fusion() if strategy == DEFAULT_POLICY else strategy
        return Found(make_plan(session, make_policy(fusion), session.default_loops()))
    if strategy == "learned+search" and policy is not None:
        search: PlanSearch = PolicySamples(seed=seed)
        builder = starts.builder(program, draws_of(policy, starts.backend))
    elif is_search(strategy):
        search, builder = make_search(strategy, seed), starts.builder(program)
    else:
        raise UnknownNameError("strategy", strategy, STRATEGIES)
    return found_by(run_search(search, builder, program, measurer, Budget(budget)), program, builder)


def found_by(run: SearchRun, program: Program, builder: PlanBuilder) -> Found:
    """Return the best plan of a search, which is the default plan if none is faster.

    Raises:
        NoPlanError: every plan failed.
    """
    if run.trials and run.failures == run.measurements:
        raise NoPlanError(
            f"{program.name}: each of the {run.measurements} plans that were measured has failed; "
            f"the last reason: {run.reason}"
        )
    best = run.best() or PlanBuilder(builder.module, builder.backend).build(Deviation()).plan
    return Found(best, run.measurements, run.failures, run.reason)


def is_strategy(name: str) -> bool:
    """Check whether `find_plan` knows a strategy; options of a search are not checked."""
    return name in STRATEGIES or is_search(name)


def is_search(name: str) -> bool:
    """Check whether a strategy is a search of `agents.searches`, perhaps with options."""
    return name.partition("{")[0] in SEARCHES
