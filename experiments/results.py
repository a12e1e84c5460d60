"""Results of an evaluation of fusion strategies: JSON files under results/, and tables."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from compiler.errors import HlogymError
from compiler.support.files import check_folder, write_file
from compiler.support.json_reading import read_object
from compiler.support.safe_names import markdown_cell, one_line
from env.statistics import Interval
from env.summaries import Nested, SpeedupSummary, probability_of_improvement, summarise
from experiments.console import error_console, factor, ratio, stdout, timing

__all__ = [
    "Evaluation",
    "ProgramResult",
    "ResultError",
    "StrategyResult",
    "check_output",
    "check_writable",
    "fresh_stem",
    "print_skipped",
    "read_newest",
    "write_bytes",
    "write_text",
]

T = TypeVar("T")
STANDARD_OUTPUT = Path("-")
"""The output file that means standard output."""
REFERENCE = "default"
"""The strategy that all speedups are relative to: what `compile` does without arguments."""
MEAN_ROW = "speedup, geometric mean"
"""The label of the row of a table that has the mean speedups."""
FORMER_REFERENCE = "none"
"""The one that earlier evaluations are relative to, whose files do not name it."""


class ResultError(HlogymError, RuntimeError):
    """A result that cannot be read or written."""


@dataclass(frozen=True)
class StrategyResult:
    """The result of one strategy on one program.

    Attributes:
        seconds: time per call, end to end; None if the strategy failed.
        speedup: speedup over the reference strategy, from interleaved timings; None if either failed.
        kernels: number of kernels of the compiled program.
        measurements: number of plans measured to find this one.
        failure: why there is no time.
        ratios: the speedup of each round, from timings next to each other; empty in earlier evaluations.
    """

    seconds: Interval | None
    speedup: Interval | None
    kernels: int = 0
    measurements: int = 0
    failure: str = ""
    ratios: tuple[float, ...] = ()


@dataclass(frozen=True)
class ProgramResult:
    """The results of all strategies on one program.

    Attributes:
        program: name of the program.
        split: its split within the suite.
        seen: whether the policy was trained on it; otherwise it is held out.
        noise: speedup of the reference over itself (A/A); differences within it are not significant.
        strategies: results by strategy.
    """

    program: str
    split: str
    seen: bool
    noise: Interval
    strategies: Mapping[str, StrategyResult]


@dataclass(frozen=True)
class Evaluation:
    """The results of all strategies on all programs, with their provenance and that of the policy."""

    backend: str
    budget: int
    strategies: tuple[str, ...]
    programs: tuple[ProgramResult, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    reference: str = REFERENCE

    @property
    def contenders(self) -> tuple[str, ...]:
        """The strategies other than the reference."""
        return tuple(s for s in self.strategies if s != self.reference)

    def summary(self, strategy: str, seen: bool) -> SpeedupSummary | None:
        """Return the summary over the seen or the held-out programs, or None if none of them has a speedup."""
        speedups = self.speedups(strategy, seen)
        return summarise(speedups) if speedups else None

    def speedups(self, strategy: str, seen: bool) -> dict[str, list[list[float]]]:
        """Return the speedups over the reference by program and round, of the programs that have one."""
        found = {
            p.program: p.strategies[strategy] for p in self.programs if p.seen is seen and strategy in p.strategies
        }
        return {n: [list(s.ratios) or [s.speedup.value]] for n, s in found.items() if s.speedup is not None}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that `read` reads."""
        return {
            "kind": "evaluation",
            "provenance": dict(self.provenance),
            "policy": dict(self.policy),
            "backend": self.backend,
            "budget": self.budget,
            "reference": self.reference,
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
        """Read an evaluation from a results file.

        Raises:
            ResultError: the file cannot be read or is not an evaluation.
        """
        # Earlier versions wrote unknown bounds as Infinity.
        data = read_object(path, ResultError, finite=False)
        try:
            if data["kind"] != "evaluation":
                raise ValueError(f"it holds a {data['kind']!r:.80}")
            return Evaluation(
                checked(data["backend"], str),
                checked(data["budget"], int),
                tuple(checked(s, str) for s in checked(data["strategies"], list)),
                tuple(_program_result(p) for p in checked(data["programs"], list)),
                checked(data["provenance"], dict),
                checked(data["policy"], dict),
                checked(data.get("reference", FORMER_REFERENCE), str),
            )
        except KeyError as error:
            raise ResultError(f"{path} is not an evaluation: {error} is missing") from error
        except (TypeError, ValueError) as error:
            raise ResultError(f"{path} is not an evaluation: {error}") from error


def checked(value: Any, kind: type[T]) -> T:
    """Return the value if it has the given type.

    Raises:
        ValueError: the value has another type; a bool is not accepted as an int.
    """
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"expected {kind.__name__}, got {value!r:.80}")
    return value


def positive(interval: Interval) -> Interval:
    """Return the interval if its value is positive and finite.

    Raises:
        ValueError: it is not.
    """
    if not 0 < interval.value < math.inf:
        raise ValueError(f"expected a positive number, got {interval.value}")
    return interval


def _strategy_json(s: StrategyResult) -> dict[str, Any]:
    return {
        "seconds": s.seconds.to_json() if s.seconds else None,
        "speedup": s.speedup.to_json() if s.speedup else None,
        "kernels": s.kernels,
        "measurements": s.measurements,
        "failure": s.failure,
        "ratios": list(s.ratios),
    }


def _program_result(value: Any) -> ProgramResult:
    data = checked(value, dict)
    return ProgramResult(
        checked(data["program"], str),
        checked(data["split"], str),
        checked(data["seen"], bool),
        Interval.from_json(checked(data["noise"], list)),
        {name: _strategy_result(checked(s, dict)) for name, s in checked(data["strategies"], dict).items()},
    )


def _strategy_result(s: Mapping[str, Any]) -> StrategyResult:
    return StrategyResult(
        None if s["seconds"] is None else positive(Interval.from_json(checked(s["seconds"], list))),
        None if s["speedup"] is None else positive(Interval.from_json(checked(s["speedup"], list))),
        checked(s["kernels"], int),
        checked(s["measurements"], int),
        checked(s["failure"], str),
        tuple(positive(Interval(float(r), 0.0, 0.0)).value for r in checked(s.get("ratios", []), list)),
    )


def evaluation_rows(evaluation: Evaluation) -> list[list[str]]:
    """Return the header and body of the table of times; the last rows summarise the speedups."""
    rows = [["program", "", *evaluation.strategies]]
    for p in sorted(evaluation.programs, key=lambda p: (not p.seen, p.program)):
        cells = [_cell(p.strategies.get(s)) for s in evaluation.strategies]
        rows.append([p.program, "seen" if p.seen else "held out", *cells])
    for seen in (True, False):
        summaries = [evaluation.summary(s, seen) for s in evaluation.strategies]
        if any(summaries):
            label = "seen" if seen else "held out"
            rows.append([MEAN_ROW, label, *(factor(s.mean) if s else "-" for s in summaries)])
            rows.append(["speedup, median", label, *(factor(s.median) if s else "-" for s in summaries)])
            rows.append(["speedup, worst", label, *(ratio(s.worst) if s else "-" for s in summaries)])
            rows.append(["share of slower programs", label, *(f"{s.slower:.0%}" if s else "-" for s in summaries)])
            odds = [_improvement(evaluation.speedups(s, seen)) for s in evaluation.strategies]
            rows.append(["share of faster rounds", label, *odds])
    return rows


def _improvement(speedups: Nested) -> str:
    """Return the probability that a round is faster than the reference's beside it; ties count half."""
    same = {name: [[1.0]] for name in speedups}
    return f"{probability_of_improvement(speedups, same).value:.0%}" if speedups else "-"


def _cell(result: StrategyResult | None) -> str:
    if result is None:
        return "-"
    return timing(result.seconds) if result.seconds else f"failed ({result.failure.split(':')[0]})"


def rich_table(rows: Sequence[Sequence[str]], title: str, styles: Mapping[tuple[int, int], str] | None = None) -> Table:
    """Return a table for the terminal; the first row is the header.

    Args:
        rows: the cells.
        title: above the table.
        styles: of cells, by number of row below the header and of column.
    """
    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD)
    for i, name in enumerate(rows[0]):
        if i < 2:
            table.add_column(one_line(name), no_wrap=True, max_width=60, overflow="ellipsis")
        else:
            table.add_column(one_line(name), justify="right")
    for number, row in enumerate(rows[1:]):
        cells = [Text(one_line(cell)) if i < 2 else _two_lines(cell) for i, cell in enumerate(row)]
        for i, cell in enumerate(cells):
            cell.stylize((styles or {}).get((number, i), ""))
        table.add_row(*cells)
    return table


def _two_lines(cell: str) -> Text:
    """Return a cell with the interval below its value, so that the table fits into a terminal."""
    value, bracket, interval = one_line(cell).partition(" [")
    return Text.assemble(value, ("\n[" + interval, "dim")) if bracket else Text(value)


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; the first row is the header."""
    lines = ["| " + " | ".join(map(markdown_cell, row)) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines) + "\n"


def markdown_facts(facts: Mapping[str, Any]) -> list[str]:
    """Return the facts as lines of a Markdown list."""
    return [f"- {markdown_cell(str(k))}: {markdown_cell(str(v))}" for k, v in facts.items()]


def check_writable(folder: Path) -> None:
    """Check that a folder can be written, and create it, before any work is done.

    Raises:
        ResultError: the folder cannot be created or written.
    """
    try:
        check_folder(folder)
    except OSError as error:
        raise ResultError(f"cannot write to the folder {folder}: {error.strerror}; name another one") from error


def check_output(output: Path, *inputs: Path) -> None:
    """Check that a file can be written, before any work is done; `-` is standard output, and messages go to stderr.

    Raises:
        ResultError: the file cannot be written, or it is one of the inputs, which would be overwritten.
    """
    stdout.stderr = output == STANDARD_OUTPUT  # what else is printed must not mix with the file
    if output == STANDARD_OUTPUT:
        return
    if output.is_dir():
        raise ResultError(f"cannot write {output}: it is a folder; name a file")
    if output.exists() and any(i.exists() and output.samefile(i) for i in inputs):
        raise ResultError(f"{output} is an input of this command and would be overwritten; name another output file")
    if not output.exists() or output.is_file():  # a pipe or a device needs no new folder entry
        check_writable(output.parent)


def write_text(path: Path, text: str) -> None:
    """Write a file atomically.

    Raises:
        ResultError: the file cannot be written.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically.

    Raises:
        ResultError: the file cannot be written.
    """
    if path == STANDARD_OUTPUT:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    try:
        write_file(path, data)
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror}") from error


def fresh_stem(folder: Path, stem: str, suffix: str) -> str:
    """Create an empty file with a new name in a folder and return the stem of the name: `stem`, `stem-2`, ...

    The empty file reserves the name against other processes.

    Raises:
        ResultError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for n in itertools.count(1):
            found = stem if n == 1 else f"{stem}-{n}"
            with contextlib.suppress(FileExistsError):
                (folder / f"{found}{suffix}").touch(exist_ok=False)
                break
    except OSError as error:
        raise ResultError(f"cannot write to the folder {folder}: {error.strerror}; name another one") from error
    return found


def _newest_first(paths: Iterable[Path]) -> list[Path]:
    """Return files by the time when they were written; empty ones are reserved names and are left out."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError):  # gone in the meantime
            status = path.stat()
            if status.st_size and path.is_file():
                found.append((status.st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)]


def print_skipped(error: HlogymError) -> None:
    """Print in one line why a file is not shown."""
    error_console.print(f"skipped: {one_line(str(error))}", soft_wrap=True)


def read_newest(paths: Iterable[Path], read: Callable[[Path], T]) -> tuple[Path, T] | None:
    """Return the newest file that can be read and its result, or None if there are no files.

    Why newer files were skipped is printed.

    Raises:
        HlogymError: there are files, but none can be read; the message describes the newest.
    """
    errors: list[HlogymError] = []
    for path in _newest_first(paths):
        try:
            found = read(path)
        except HlogymError as error:
            errors.append(error)
            continue
        for skipped in errors:
            print_skipped(skipped)
        return path, found
    if errors:
        raise errors[0]
    return None
