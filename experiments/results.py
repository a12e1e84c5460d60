"""The result of an evaluation: programs by strategies, as JSON under results/ and as tables."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from compiler.errors import HlogymError
from env.statistics import Interval, geometric_mean, share_slower
from experiments.console import factor, timing

__all__ = ["Evaluation", "ProgramResult", "ResultError", "StrategyResult", "Summary", "check_writable", "write_text"]

REFERENCE = "none"
"""The strategy that all speedups are relative to: the program without fusion."""


class ResultError(HlogymError, RuntimeError):
    """A result that cannot be written or read, and why."""


@dataclass(frozen=True)
class StrategyResult:
    """One strategy on one program.

    Attributes:
        seconds: of a call, end to end, or None when it failed.
        speedup: over the program without fusion, measured in turns with it.
        kernels: how many the program became.
        measurements: how many plans were measured to find this one.
        failure: why there is no time.
    """

    seconds: Interval | None
    speedup: Interval | None
    kernels: int = 0
    measurements: int = 0
    failure: str = ""


@dataclass(frozen=True)
class ProgramResult:
    """All strategies on one program.

    Attributes:
        split: what its suite says it is for.
        seen: whether the policy learned on it; what was not seen is held out.
        noise: ratio of the unfused program to itself (A/A): differences inside it are none.
    """

    program: str
    split: str
    seen: bool
    noise: Interval
    strategies: Mapping[str, StrategyResult]


@dataclass(frozen=True)
class Summary:
    """One strategy over many programs: geometric mean of speedups, share slower than without fusion, the worst."""

    speedup: Interval
    slower: float
    worst: float
    programs: int


@dataclass(frozen=True)
class Evaluation:
    """Programs by strategies, with where it all comes from."""

    backend: str
    budget: int
    strategies: tuple[str, ...]
    programs: tuple[ProgramResult, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)

    def summary(self, strategy: str, seen: bool) -> Summary | None:
        """Of the programs that were seen, or held out; None when there is no time among them."""
        found = [p.strategies[strategy].speedup for p in self.programs if p.seen is seen and strategy in p.strategies]
        speedups = [s for s in found if s is not None]
        if not speedups:
            return None
        values = [s.value for s in speedups]
        return Summary(geometric_mean(values), share_slower(speedups), min(values), len(values))

    def to_json(self) -> dict[str, Any]:
        """For results/."""
        return {
            "kind": "evaluation",
            "provenance": dict(self.provenance),
            "policy": dict(self.policy),
            "backend": self.backend,
            "budget": self.budget,
            "strategies": list(self.strategies),
            "programs": [
                {
                    "program": p.program,
                    "split": p.split,
                    "seen": p.seen,
                    "noise": p.noise.to_json(),
                    "strategies": {n: _strategy_json(s) for n, s in p.strategies.items()},
                }
                for p in self.programs
            ],
        }

    @staticmethod
    def read(path: Path) -> Evaluation:
        """From a file under results/.

        Raises:
            ResultError: it cannot be read or is no evaluation.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["kind"] != "evaluation":
                raise ValueError(f"it holds a {data['kind']}")
            return Evaluation(
                data["backend"],
                data["budget"],
                tuple(data["strategies"]),
                tuple(_program_result(p) for p in data["programs"]),
                data["provenance"],
                data["policy"],
            )
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ResultError(f"{path} is no evaluation: {error}") from error


def _strategy_json(s: StrategyResult) -> dict[str, Any]:
    return {
        "seconds": s.seconds.to_json() if s.seconds else None,
        "speedup": s.speedup.to_json() if s.speedup else None,
        "kernels": s.kernels,
        "measurements": s.measurements,
        "failure": s.failure,
    }


def _program_result(data: Mapping[str, Any]) -> ProgramResult:
    strategies = {
        name: StrategyResult(
            Interval.from_json(s["seconds"]) if s["seconds"] else None,
            Interval.from_json(s["speedup"]) if s["speedup"] else None,
            s["kernels"],
            s["measurements"],
            s["failure"],
        )
        for name, s in data["strategies"].items()
    }
    return ProgramResult(data["program"], data["split"], data["seen"], Interval.from_json(data["noise"]), strategies)


def evaluation_rows(evaluation: Evaluation) -> list[list[str]]:
    """Header and body of the table of times; the geometric means of the speedups stand at the end."""
    rows = [["program", "", *evaluation.strategies]]
    for p in sorted(evaluation.programs, key=lambda p: (not p.seen, p.program)):
        cells = [_cell(p.strategies.get(s)) for s in evaluation.strategies]
        rows.append([p.program, "seen" if p.seen else "held out", *cells])
    for seen in (True, False):
        summaries = [evaluation.summary(s, seen) for s in evaluation.strategies]
        if any(summaries):
            label = "seen" if seen else "held out"
            rows.append(["speedup, geometric mean", label, *(factor(s.speedup) if s else "-" for s in summaries)])
            rows.append(["share made slower", label, *(f"{s.slower:.0%}" if s else "-" for s in summaries)])
    return rows


def _cell(result: StrategyResult | None) -> str:
    if result is None:
        return "-"
    return timing(result.seconds) if result.seconds else f"failed ({result.failure.split(':')[0]})"


def rich_table(rows: Sequence[Sequence[str]], title: str) -> Table:
    """Rows with a header, for the terminal."""
    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD)
    for i, name in enumerate(rows[0]):
        table.add_column(name, justify="left" if i < 2 else "right", no_wrap=i < 2)
    for row in rows[1:]:
        # The interval below its value keeps the table as narrow as a terminal is.
        table.add_row(*(cell.replace(" [", "\n[dim]\\[") + "[/dim]" if " [" in cell else cell for cell in row))
    return table


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows with a header, for a file people read."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines) + "\n"


def check_writable(folder: Path) -> None:
    """Find out before the work, not after it.

    Raises:
        ResultError: the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ResultError(f"cannot write to the folder {folder}: {error.strerror}; name another one") from error


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        ResultError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror}") from error


def newest(paths: Iterable[Path]) -> Path | None:
    """The file written last."""
    return max(paths, key=lambda p: p.stat().st_mtime, default=None)
