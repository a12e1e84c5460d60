"""Collection of kernel times: programs of suites are compiled, and choices of their kernels are measured alone."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from compiler.analysis.cost_model import CostModel
from compiler.api import decide
from compiler.backends.cpu import toolchain
from compiler.codegen.kernel_spec import KernelSpec
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import HlogymError
from compiler.fusion.policies import DEFAULT_POLICY, make_policy
from compiler.fusion.policies.basic import RandomFusion
from compiler.fusion.protocol import FusionPolicy
from compiler.runtime.kernel_sites import KernelSite
from compiler.session import CompilationSession
from compiler.support.threads import available_cores
from compiler.text import parse
from env.suites import ManifestError, Program
from experiments.kernel_times.dataset import FORMAT, KernelTimes, append_lines, read_dataset
from experiments.kernel_times.timing import MAX_SOURCE, TimingOptions, draw_choices, time_choices
from experiments.provenance import provenance

__all__ = ["CollectOptions", "begin_dataset", "by_turns", "collect"]

SPLITS = ("train", "validation")
MAX_HLO = 60_000
"""Longest text of a kernel that is stored, in characters; longer ones have large constants."""
MAX_INSTRUCTIONS = 3_000
"""Number of instructions of the largest program that is compiled."""


TINY = 5e-7
"""Estimated seconds of kernels whose time is mostly that of a call."""


@dataclass(frozen=True)
class CollectOptions:
    """What is collected.

    Attributes:
        choices: greatest number of choices per kernel, the default included.
        per_program: greatest number of kernels of a program that are measured for each of the two fusions.
        batch: number of kernels that are compiled together.
        threads: numbers of threads of the measurements.
        seconds: time after which no batch begins; None for no limit.
        seed: of the random fusions and the drawn choices.
        timing: how kernels are timed.
    """

    choices: int = 8
    per_program: int = 5
    batch: int = 24
    threads: tuple[int, ...] = (1,)
    seconds: float | None = None
    seed: int = 0
    timing: TimingOptions = field(default_factory=TimingOptions)


@dataclass(frozen=True)
class _Found:
    """A kernel of a program with the choices to be measured."""

    site: KernelSite
    program: Program
    fusion: str
    choices: dict[KernelChoice, KernelSpec | None]


def collect(programs: Sequence[Program], out: Path, options: CollectOptions) -> Iterator[tuple[int, int]]:
    """Measure kernels of programs and append them to a dataset; yield the numbers of programs and kernels so far.

    A collection that was interrupted continues. Each family occurs once before any occurs twice.

    Raises:
        ManifestError: a program is held out for tests.
        DatasetError: `out` exists and is no dataset.
    """
    if any(p.split not in SPLITS for p in programs):
        raise ManifestError("the programs include some held out for tests, which must not guide what is learned")
    known: set[str] = set()
    done: set[str] = set()
    if out.exists():
        _, kernels, done = read_dataset(out)
        known = {k.fingerprint for k in kernels}
    else:
        begin_dataset(out, cores=available_cores())
    start = time.monotonic()
    found: list[_Found] = []
    finished: list[str] = []
    for program in by_turns(programs, options.seed):
        if options.seconds is not None and time.monotonic() - start > options.seconds:
            break
        if program.name in done:
            continue
        found += _kernels(program, known, options)
        finished.append(program.name)
        if len(found) >= options.batch:
            append_lines(out, [*_measured(found, options), {"done": finished}])
            done.update(finished)
            found, finished = [], []
            yield len(done), len(known)
    append_lines(out, [*_measured(found, options), {"done": finished}])
    yield len(done) + len(finished), len(known)


def begin_dataset(out: Path, **facts: Any) -> None:
    """Write the first line of a dataset: some facts, and where it comes from."""
    origin = provenance()
    origin["command"] = origin["command"].replace("hlogym", "python -m experiments.kernel_times", 1)
    append_lines(out, [{"format": FORMAT, **facts, **origin}])


class OfFamily(Protocol):
    """A program, or a kernel of one."""

    @property
    def family(self) -> str: ...


Member = TypeVar("Member", bound=OfFamily)


def by_turns(members: Sequence[Member], seed: int) -> list[Member]:
    """Return members of families in a random order in which each family occurs once before any occurs twice."""
    shuffled = list(members)
    random.Random(seed).shuffle(shuffled)
    turns: dict[str, int] = {}
    placed: list[tuple[int, Member]] = []
    for member in shuffled:
        turn = turns[member.family] = turns.get(member.family, -1) + 1
        placed.append((turn, member))
    return [member for _, member in sorted(placed, key=lambda pair: pair[0])]


def _kernels(program: Program, known: set[str], options: CollectOptions) -> list[_Found]:
    """Return new kernels of a program with default and with random fusions; programs that fail have none."""
    rng = random.Random(f"{options.seed} {program.name}")
    found: list[_Found] = []
    try:
        module = parse(program.text())
        if sum(len(c.instructions) for c in module.computations) > MAX_INSTRUCTIONS:
            return []
        policies: dict[str, FusionPolicy] = {
            "default": make_policy(DEFAULT_POLICY),
            "random": RandomFusion(rng.randrange(1 << 30), stop_probability=rng.choice((0.0, 0.05, 0.2))),
        }
        for name, policy in policies.items():
            session = CompilationSession(module, "cpu")
            decide(session, policy)
            sites = _in_random_order(session.kernel_sites(), rng)
            new = 0
            for site in sites:
                if new >= options.per_program:
                    break
                if site.fingerprint in known or not _is_usable(site):
                    continue
                known.add(site.fingerprint)
                choices = draw_choices(site, options.choices, rng)
                found.append(_Found(site, program, name, choices))
                new += 1
    except HlogymError:
        return found
    return found


def _in_random_order(sites: Sequence[KernelSite], rng: random.Random) -> list[KernelSite]:
    """Return sites in a random order in which tiny kernels tend to be late: there are many, and all take no time."""
    keys = {s.id: rng.random() * (1.0 if _seconds(s) < TINY else 0.3) for s in sites}
    return sorted(sites, key=lambda s: keys[s.id])


def _seconds(site: KernelSite) -> float:
    """Return the estimate of the analytic cost model."""
    return CostModel(site.device).instruction(site.instruction)


def _is_usable(site: KernelSite) -> bool:
    spec = site.spec
    return (spec is None or len(spec.source) <= MAX_SOURCE) and len(str(site.module())) <= MAX_HLO


def _measured(found: Sequence[_Found], options: CollectOptions) -> list[dict[str, Any]]:
    specs = [s for kernel in found for s in kernel.choices.values() if s is not None]
    toolchain.each_object(specs, toolchain.toolchain())
    rows = []
    for kernel in found:
        site, program = kernel.site, kernel.program
        try:
            times = time_choices(site, list(kernel.choices), options.threads, options.timing)
        except HlogymError:
            continue
        if times:
            row = KernelTimes(
                site.fingerprint, str(site.module()), program.name, program.family, program.split, kernel.fusion,
                site.device.units, tuple(times),
            )  # fmt: skip
            rows.append(row.to_json())
    return rows
