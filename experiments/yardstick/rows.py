"""Rows of a yardstick run, one per program, in a file that a later run continues."""

from __future__ import annotations

import functools
import json
import math
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from compiler.errors import HlogymError
from compiler.support.safe_names import markdown_cell
from env.suites import Program, load_suite
from experiments.console import error_console
from experiments.provenance import provenance
from experiments.results import ResultError, write_text

__all__ = [
    "Row",
    "collect",
    "drawn_programs",
    "failure_lines",
    "forget_rows_of_other_code",
    "read_rows",
    "write_page",
    "write_rows",
]

Row: TypeAlias = dict[str, Any]
_FACTS = ("commit", "machine", "date")
_FOLDERS = re.compile(r"(?<![\w./])/(?:[^\s/:()]+/)+")
"""The folders of an absolute path."""
SUITES = "jax,kernels,models,linear_algebra,quickstart"


def drawn_programs(suites: str, seed: int = 0) -> list[Program]:
    """Return the programs of suites in a random order that depends on the seed only."""
    programs = list(load_suite(suites).programs)
    random.Random(seed).shuffle(programs)
    return programs


def collect(
    path: Path,
    settings: Mapping[str, Any],
    programs: Sequence[Program],
    measure: Callable[[Program], Row],
    limit: int,
    end_after: float = math.inf,
) -> list[Row]:
    """Return the rows of programs: those in the file, if it has the same settings, and new ones, which are added to it.

    A program that fails has a row with the reason under "failure", and is not tried again. The run ends once `limit`
    programs have rows without "failure" or "skipped". After `end_after` seconds, no further program is measured.

    Raises:
        ResultError: the file has other settings, or cannot be read or written.
    """
    rows = {row["program"]: row for row in read_rows(path, settings, ("program",))}
    used: list[Row] = []
    end = time.monotonic() + end_after
    for program in programs:
        if sum(_is_whole(row) for row in used) >= limit:
            break
        if program.name in rows:
            used.append(rows[program.name])
            continue
        start = time.monotonic()
        if start > end:
            break
        try:
            row = measure(program)
        except HlogymError as error:
            row = {"failure": " ".join(str(error).split())[:200]}
        rows[program.name] = {"program": program.name, **row}
        used.append(rows[program.name])
        done = f"{sum(_is_whole(row) for row in used)}/{limit} {program.name}: {time.monotonic() - start:.1f} s"
        error_console.print(f"{done} {row.get('failure', '')}", markup=False, soft_wrap=True)
        write_rows(path, settings, rows.values())
    return used


def write_rows(path: Path, settings: Mapping[str, Any], rows: Iterable[Row]) -> None:
    """Write a file of rows, from which a run with the same settings continues.

    Rows that the file did not have are recorded as this run's, with its commit, machine and date.
    """
    kept, runs = list(rows), _recorded_runs(path)
    added = len(kept) - sum(r["rows"] for r in runs)
    if added > 0:
        if runs and all(runs[-1].get(n) == v for n, v in _this_run().items()):
            added += runs.pop()["rows"]
        runs.append({**_this_run(), "rows": added})
    write_text(path, "\n".join(map(json.dumps, ({"settings": dict(settings), "runs": runs}, *kept))) + "\n")


def _recorded_runs(path: Path) -> list[Row]:
    """Return which runs added how many rows to a file; rows of which that is not recorded are those of one run."""
    try:
        head, *rows = path.read_text(encoding="utf-8").splitlines()
        runs = [dict(r) for r in json.loads(head).get("runs", ())]
        unknown = len(rows) - sum(int(r["rows"]) for r in runs)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return [*([{"rows": unknown}] if unknown > 0 else []), *runs]


@functools.cache
def _this_run() -> dict[str, str]:
    facts = provenance()
    return {n: str(facts[n]) for n in _FACTS}


def read_rows(path: Path, settings: Mapping[str, Any], fields: Sequence[str], ignored: Sequence[str] = ()) -> list[Row]:
    """Return the rows that an earlier run has written; none if there is no file.

    Args:
        path: the file.
        settings: of this run; those of the file must be the same.
        fields: what each row has.
        ignored: settings that may differ, because they say which rows there are.

    Raises:
        ResultError: the file has other settings, or cannot be read.
    """
    if not path.is_file():
        return []
    try:
        head, *rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if lacking := next((field for row in rows for field in fields if field not in row), None):
            raise ValueError(f"a row has no {lacking!r}")
    except (OSError, ValueError, TypeError) as error:
        raise ResultError(f"{path} cannot be continued: {error}; remove it, and the run starts again") from error
    given, wanted = ({k: v for k, v in of.items() if k not in ignored} for of in (head.get("settings", {}), settings))
    if given != wanted:
        raise ResultError(f"{path} was written with other settings; remove it, or name another file with --out")
    return rows


def forget_rows_of_other_code(path: Path, settings: Mapping[str, Any]) -> None:
    """Remove a file of rows that `collect` wrote with the same settings but another "code", if there is one.

    What was measured with another compiler is not part of this one's results.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8").split("\n", 1)[0])["settings"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if isinstance(found, dict) and found != dict(settings) and {**found, "code": settings["code"]} == dict(settings):
        path.unlink()


def failure_lines(rows: Sequence[Row]) -> list[str]:
    """Return a line of Markdown about each program that failed, without the folders of the files that it names."""
    failed = [r for r in rows if "failure" in r]
    return [f"- not measured: {r['program']}: {_FOLDERS.sub('', str(r['failure']))}" for r in failed]


def _is_whole(row: Row) -> bool:
    return "failure" not in row and "skipped" not in row


def write_page(
    path: Path,
    title: str,
    command: str,
    lines: Sequence[str],
    table: Sequence[Sequence[str]],
    rows_file: Path | None = None,
) -> str:
    """Write a page of results in Markdown; return it.

    Args:
        path: of the page.
        title: its title.
        command: that makes it.
        lines: text.
        table: rows of cells, the first one the header.
        rows_file: what the page is made from, if `collect` or `write_rows` wrote it: the page names the commits, the
            machines and the dates of the runs that measured its rows. Else it names those of this run.
    """
    runs = [] if rows_file is None else _recorded_runs(rows_file)
    facts = {n: _told(runs, n) for n in _FACTS} if runs else _this_run()
    rows = ["| " + " | ".join(map(markdown_cell, row)) + " |" for row in table]
    rows.insert(1, "|" + "---|" * len(table[0]))
    text = "\n".join(
        [
            f"# {title}", "", f"- command: `{command}`", f"- commit: {facts['commit']}",
            f"- machine: {facts['machine']}", f"- date: {facts['date']}", "", *lines, "", *rows, "",
        ]
    )  # fmt: skip
    write_text(path, text)
    return text


def _told(runs: Sequence[Row], fact: str) -> str:
    """Return a fact of runs, with the number of rows of each value where they differ."""
    found: dict[str, int] = {}
    for run in runs:
        value = str(run.get(fact, "not recorded"))
        found[value] = found.get(value, 0) + int(run["rows"])
    return (
        next(iter(found)) if len(found) == 1 else ", ".join(f"{v} ({n} row{'s' * (n > 1)})" for v, n in found.items())
    )
