"""`hlogym leaderboard entry`, `verify` and `page`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from compiler.backends.registry import find_backend
from compiler.plan import CompilationPlan
from compiler.policy import policy_names
from compiler.support.safe_names import shell_command
from env.suites import ManifestError, SealedError, load_suite
from experiments.console import factor, progress, stdout
from experiments.interruption import keeping
from experiments.leaderboard.entry import Entry, EntryError, read_entry
from experiments.leaderboard.page import leaderboard_page
from experiments.leaderboard.result import Verified, ranked, read_result, result_file, write_result
from experiments.leaderboard.verification import Measuring, suite_of, verify_entry
from experiments.leaderboard.writing import write_entry
from experiments.policy_arguments import find_policy
from experiments.provenance import provenance
from experiments.results import ResultError, check_output, check_writable, write_text

__all__ = ["make_entry", "make_page", "verify_entries"]


def make_entry(
    output: Path,
    name: str,
    author: str,
    suite: str,
    policy: str | None,
    plans: Path | None,
    about: str,
    backend: str,
    decides: Sequence[str],
) -> None:
    """Run `hlogym leaderboard entry`: write an entry from a policy, or from a folder with a plan per program."""
    source: dict[str, CompilationPlan] | str | Path
    with contextlib.suppress(SealedError, ManifestError):  # such a suite exists
        load_suite(suite)
    if plans is not None:
        source = _read_plans(plans, suite)
    elif policy in policy_names():
        source = str(policy)
    else:
        source = Path(find_policy(str(policy)))
    write_entry(output, name, author, Path(suite).name if Path(suite).is_dir() else suite, source, about,
                find_backend(backend).name, decides)  # fmt: skip
    stdout.print(
        f"entry     {output}; next: {shell_command('hlogym', 'leaderboard', 'verify', output)}", soft_wrap=True
    )


def _read_plans(folder: Path, suite: str) -> dict[str, CompilationPlan]:
    """Return the plan of each program of a suite, from the file `PROGRAM.json` in a folder."""
    programs = load_suite(suite).programs
    missing = [p.name for p in programs if not (folder / f"{p.name}.json").is_file()]
    if missing:
        raise EntryError(
            f"{folder} has no plan {missing[0]}.json, which the suite {suite} needs; "
            f"{shell_command('hlogym', 'tune', missing[0], '-o', folder / f'{missing[0]}.json')} makes one"
        )
    return {p.name: CompilationPlan.load(folder / f"{p.name}.json") for p in programs}


def verify_entries(folders: Sequence[Path], results: Path, how: Measuring, suite: Path | None, as_json: bool) -> None:
    """Run `hlogym leaderboard verify`: check all entries first, then measure one after the other."""
    check_writable(results)
    entries = [read_entry(folder) for folder in folders]
    suites = [suite_of(entry, suite) for entry in entries]
    done: list[tuple[Verified, Path]] = []
    made_by = provenance()  # of the code that runs, even if files change meanwhile
    with progress() as bar, keeping(lambda: _kept(done, len(entries))):
        task = bar.add_task("verifying", total=2 * sum(len(s.programs) for s in suites))
        for entry, programs in zip(entries, suites, strict=True):

            def step(what: str, name: str = entry.name) -> None:
                bar.update(task, advance=1, description=f"{name}: {what}")

            verified = verify_entry(entry, programs, how, step, made_by)
            path = result_file(results, entry.name, entry.checksum)
            write_result(verified, path)
            done.append((verified, path))
    if as_json:
        print(json.dumps([v.to_json() for v, _ in done], indent=2))
        return
    stdout.print(_table([v for v, _ in done]))
    for v, _ in done:
        if v.noisy:
            stdout.print(
                f"{v.entry['name']}: the machine was noisy: on {v.noisy} of {len(v.rows)} programs the default plan "
                "may have differed from itself by more than 3%",
                soft_wrap=True,
            )
    for _, path in done:
        stdout.print(f"result    {path}", soft_wrap=True)


def _kept(done: Sequence[tuple[Verified, Path]], number: int) -> str:
    files = "".join(f"; result {path}" for _, path in done)
    return f"{len(done)} of {number} entries were verified{files}"


def _table(results: Sequence[Verified]) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style="bold", title="Speedup over the default plan", title_justify="left")
    table.add_column("entry")
    for name in ("suite", "programs", "geometric mean", "median", "worst", "over 3% slower"):
        table.add_column(name, justify="right")
    for r in ranked(results):
        s = r.summary
        table.add_row(
            str(r.entry["name"]), str(r.entry["suite"]), str(len(r.rows)), factor(s.mean), f"{s.median.value:.2f}x",
            f"{s.worst:.2f}x", f"{r.slower:.0%}",
        )  # fmt: skip
    return table


def make_page(folders: Sequence[Path], results: Path, output: Path) -> None:
    """Run `hlogym leaderboard page`: write the page of entries that were verified on this machine and not changed."""
    check_output(output)
    verified = [_result_of(read_entry(folder), results) for folder in folders]
    write_text(output, leaderboard_page(verified))
    stdout.print(f"page      {output}", soft_wrap=True)


def _result_of(entry: Entry, results: Path) -> Verified:
    path = result_file(results, entry.name, entry.checksum)
    if not path.exists():
        raise ResultError(
            f"there is no result for the files of {entry.folder} in {results}: the entry was not verified, or was "
            f"changed afterwards; run `{shell_command('hlogym', 'leaderboard', 'verify', entry.folder)}`"
        )
    return read_result(path, entry)
