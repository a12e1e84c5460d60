"""The plans that the search finds for the programs of a suite: what the network imitates, and the headroom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler.text import parse
from env.suites import Program, load_suite
from experiments.emulated_gpu.plans import Found, search_plan
from experiments.emulated_gpu.settings import EmulatedSettings
from experiments.headroom import drawn_by_family, refuse_test_programs
from experiments.yardstick.rows import collect

__all__ = ["Searched", "drawn", "search_suite", "with_loops"]


@dataclass(frozen=True)
class Searched:
    """A program, and what the search found for it."""

    program: Program
    found: Found


def drawn(suite: str, per_family: int, wanted: Callable[[Program], bool] = lambda _: True) -> list[Program]:
    """Return programs of a suite that is not held out for tests, at most so many of each family.

    Raises:
        ManifestError: the suite has programs held out for tests.
    """
    programs = drawn_by_family([p for p in load_suite(suite).programs if wanted(p)], per_family)
    refuse_test_programs(suite, programs)
    return programs


def with_loops(suite: str, per_family: int) -> list[Program]:
    """Return programs of a suite that have loops, at most so many of each family, as `drawn` does."""
    return drawn(suite, per_family, lambda p: " while(" in p.text())


def search_suite(
    programs: Sequence[Program], settings: EmulatedSettings, path: Path, only_loops: bool = False
) -> list[Searched]:
    """Return what the search finds for programs; a file keeps it, from which an interrupted run continues.

    Programs that are too large, take no time or cannot be compiled are left out.
    """
    used = {n: getattr(settings, n) for n in ("backend", "completion", "evaluations", "work", "instructions")}
    rows = collect(
        path, used, programs,
        lambda p: search_plan(parse(p.text(), filename=str(p.path)), settings, only_loops).to_json(), len(programs),
    )  # fmt: skip
    by_name = {p.name: p for p in programs}
    return [Searched(by_name[r["program"]], Found.from_json(r)) for r in rows if r.get("rules")]
