"""Verify an entry: compile its decisions here, check the outputs, and time them beside the default plan."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compiler.api import decide_all
from compiler.errors import HlogymError
from compiler.ir import HloModule
from compiler.plan import CompilationPlan
from compiler.policy import Policy, default_policy
from compiler.session import CompilationSession
from compiler.support.plugins import extension_names
from env.gate import Verdict
from env.measurement import MeasurementError, Measurer, MeasurerOptions
from env.store import PlanStore
from env.suites import SUITE_NAMES, Program, Suite, load_suite
from env.suites.loading import GROUP
from experiments.inputs import read_valid_module
from experiments.leaderboard.entry import Entry, EntryError
from experiments.leaderboard.result import ProgramRow, Verified
from experiments.provenance import provenance

__all__ = ["Measuring", "decided_plans", "suite_of", "verify_entry"]


@dataclass(frozen=True)
class Measuring:
    """How entries are measured.

    Attributes:
        processes: number of fresh processes in which each program is raced against its default plan.
        rounds: ABBA blocks of a race at most.
        seconds: limit of the time spent on the blocks.
        seed: seed of the inputs.
    """

    processes: int = 2
    rounds: int = 25
    seconds: float = 1.0
    seed: int = 0

    def options(self, backend: str, trust_builds: bool) -> MeasurerOptions:
        """Return the options of a measurer."""
        return MeasurerOptions(backend, self.rounds, seed=self.seed, seconds=self.seconds, trust_builds=trust_builds)


def suite_of(entry: Entry, own: Path | None = None) -> Suite:
    """Return the suite of an entry: one of hlogym or of another distribution, or the folder `own` if that is its name.

    Raises:
        EntryError: there is no such suite, or it was made for another one than `own`.
        HlogymError: the suite cannot be used.
    """
    where = f"{entry.folder}/entry.json"
    if own is not None:
        name = own.resolve().name
        if entry.suite != name:
            raise EntryError(f"{where}: the entry is for the suite {entry.suite!r}, and --suite names {name!r}")
        return load_suite(own)
    # A path in an entry could lead to programs that the author has made.
    known = [*SUITE_NAMES, *extension_names(GROUP)]
    if entry.suite not in known:
        raise EntryError(
            f"{where}: there is no suite {entry.suite!r}; suites are {', '.join(known)}. `--suite FOLDER` names another"
        )
    return load_suite(entry.suite)


def decided_plans(
    entry: Entry, programs: Sequence[Program], step: Callable[[str], None] = lambda _: None
) -> dict[str, CompilationPlan]:
    """Return the plan of an entry for each program, after it was checked that it can be replayed.

    Raises:
        EntryError: a plan is missing, made for another program, or cannot be replayed; or the policy fails.
    """
    if entry.policy is None:
        names = {p.name for p in programs}
        if missing := [p.name for p in programs if p.name not in entry.plans]:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise EntryError(f"{entry.folder} has no plan for the program {missing[0]!r}{more} of {entry.suite}")
        if foreign := sorted(entry.plans.keys() - names):
            raise EntryError(f"{entry.folder} has a plan for {foreign[0]!r:.80}, which is not in {entry.suite}")
    plans = {}
    for program in programs:
        step(f"{program.name}: compiling")
        module = read_valid_module(program)
        try:
            session = CompilationSession(module, entry.backend)
            if entry.policy is None:
                session.replay(entry.plans[program.name])
            else:
                decide_all(session, entry.policy)
            plans[program.name] = session.plan
        except HlogymError as error:
            raise EntryError(f"{entry.folder}: {program.name}: {' '.join(str(error).split())}") from error
    return plans


def verify_entry(
    entry: Entry,
    suite: Suite,
    how: Measuring,
    step: Callable[[str], None] = lambda _: None,
    made_by: Mapping[str, Any] | None = None,
) -> Verified:
    """Return the result of an entry, measured on this machine.

    Args:
        entry: the entry.
        suite: its programs.
        how: how to measure.
        step: called with a description before each program is compiled, and before it is measured.
        made_by: command, commit, machine and date; those of the present by default.

    Raises:
        EntryError: the entry is refused, because a plan is not for its program, fails, or computes something else.
        MeasurementError: nothing can be measured on this machine, or a default plan cannot be.
    """
    plans = decided_plans(entry, suite.programs, step)
    trained_on = _training_programs(entry.policy)
    rows = []
    with ExitStack() as stack:
        measurer, itself = (
            stack.enter_context(Measurer(PlanStore(":memory:"), how.options(entry.backend, trust)))
            for trust in (True, False)
        )
        for program in suite.programs:
            step(f"{program.name}: measuring")
            rows.append(_row(entry, program, plans[program.name], measurer, itself, how, program.name in trained_on))
        gate = str(measurer.options.gate)
    measured = {**asdict(how), "gate": gate, "threads": os.environ.get("HLOGYM_NUM_THREADS", "all")}
    return Verified(entry.facts(), measured, made_by or provenance(), tuple(rows))


def _row(
    entry: Entry,
    program: Program,
    plan: CompilationPlan,
    measurer: Measurer,
    itself: Measurer,
    how: Measuring,
    seen: bool,
) -> ProgramRow:
    verdicts = []
    for _ in range(how.processes):
        measurer.restart()
        verdicts.append(_raced(entry, program, plan, measurer))
    module = read_valid_module(program)
    noise = _raced(entry, program, _default_plan(module, entry.backend), itself).speedup
    same_sign = len({v.speedup.value > 1 for v in verdicts}) == 1
    return ProgramRow(
        program.name,
        hashlib.sha256(program.text().encode()).hexdigest(),
        verdicts[-1].default.value,
        tuple(v.speedup for v in verdicts),
        same_sign and all(v.counts for v in verdicts),
        noise,
        seen,
    )


def _raced(entry: Entry, program: Program, plan: CompilationPlan, measurer: Measurer) -> Verdict:
    found = measurer.measure(program, plan, remeasure=True)
    if found.failure == "program":  # no plan is at fault
        raise MeasurementError(f"{program.label}: {' '.join(found.message.split())}")
    if found.verdict is None:
        raise EntryError(f"{entry.folder}: {program.name}: {' '.join(found.reason.split())}")
    return found.verdict


def _default_plan(module: HloModule, backend: str) -> CompilationPlan:
    session = CompilationSession(module, backend)
    decide_all(session, default_policy(backend))
    return session.plan


def _training_programs(policy: Policy | None) -> frozenset[str]:
    """Return the programs that the policy says it was trained on."""
    programs = {} if policy is None else policy.provenance.get("programs", ())
    return frozenset(p for p in programs if isinstance(p, str)) if isinstance(programs, Sequence) else frozenset()
