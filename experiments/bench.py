"""`hlogym bench`: compare hlogym with other compilers, interleaved in one process, after comparing their outputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from compiler.backends.registry import find_backend
from compiler.errors import HlogymError, UnknownNameError
from env.reference import Reference, drawn_reference, fresh_outputs
from env.statistics import Interval, geometric_mean, median_interval, ratio_interval
from env.suites import SUITE_NAMES, Program, load_suite
from experiments.console import error_console, factor, progress, stdout, timing
from experiments.inputs import entry_inputs, program_of, read_module, read_valid_module
from experiments.peers import PEERS, Contestant, make_peer
from experiments.provenance import provenance
from experiments.results import check_output, rich_table, write_text
from experiments.run import WrongResultError, compile_program

__all__ = ["bench_programs"]

SAMPLE_SECONDS = 5e-3
OURS = "hlogym"


class BenchError(HlogymError, RuntimeError):
    """A program that failed, or a requested peer that could run no program."""


@dataclass(frozen=True)
class Row:
    """The timings of one program.

    Attributes:
        program: its name.
        seconds: time per call by contestant.
        ratios: time of each peer divided by hlogym's; above one, hlogym is faster.
        failures: the reason for each contestant that was not timed.
        unchecked: why comparing the outputs proves nothing; None if it does.
    """

    program: str
    seconds: dict[str, Interval]
    ratios: dict[str, Interval]
    failures: dict[str, str]
    unchecked: str | None = None


def bench_programs(
    names: Sequence[str],
    against: Sequence[str],
    policy: str | None,
    backend: str,
    rounds: int,
    json_file: Path | None,
    seed: int,
) -> None:
    """Run `hlogym bench`; see its `--help`."""
    for peer in against:
        if peer not in PEERS:
            raise UnknownNameError("peer", peer, PEERS)
    backend = find_backend(backend).name
    if json_file is not None:
        check_output(json_file)
    programs = [p for name in names for p in _programs(name)]
    rows: list[Row] = []
    with progress() as bar:
        task = bar.add_task("timing", total=len(programs))
        for program in programs:
            bar.update(task, description=f"timing {program.name}")
            try:
                rows.append(_bench(program, against, policy, backend, rounds, seed))
            except (HlogymError, OSError, UnicodeError) as error:  # the other programs are still timed
                rows.append(Row(program.name, {}, {}, {OURS: str(error)}))
            bar.update(task, advance=1)
    stdout.print(rich_table(_table(rows, against), "Time per call; below each peer's time, its ratio to hlogym's"))
    for row in rows:
        if row.unchecked is not None:
            error_console.print(f"{row.program}: {row.unchecked}", markup=False)
        for peer, reason in row.failures.items():
            error_console.print(f"{row.program}: {peer} left out: {reason}")
    if json_file is not None:
        write_text(json_file, json.dumps({"kind": "bench", "provenance": provenance(), "rows": _json(rows)}, indent=1))
    _check(rows, against)


def _check(rows: Sequence[Row], against: Sequence[str]) -> None:
    """Check that hlogym ran every program and that each peer ran at least one.

    Raises:
        BenchError: hlogym failed on a program, or a peer could run none of the programs.
    """
    failed = [row.program for row in rows if OURS in row.failures]
    if failed:
        raise BenchError(f"{len(failed)} of {len(rows)} programs failed, for the reasons above: {', '.join(failed)}")
    absent = [peer for peer in against if rows and all(peer in row.failures for row in rows)]
    if absent:
        raise BenchError(f"not compared with {', '.join(absent)}, for the reasons above")


def _programs(name: str) -> tuple[Program, ...]:
    if name in SUITE_NAMES or Path(name).is_dir():
        return load_suite(name).programs
    try:
        return (program_of(name),)
    except UnknownNameError:
        if get_close_matches(name, SUITE_NAMES, n=1):
            raise UnknownNameError("program or suite", name, SUITE_NAMES) from None
        raise


def _bench(program: Program, against: Sequence[str], policy: str | None, backend: str, rounds: int, seed: int) -> Row:
    module = read_valid_module(program)
    reference = drawn_reference(module, lambda number: entry_inputs(program, module, seed + number))
    arrays = reference.inputs
    contestants = [_ours(program, policy, backend, reference)]
    failures: dict[str, str] = {}
    for peer in against:
        try:
            contestant = make_peer(peer, read_module(program), arrays)
            contestant.sample(1)
        except Exception as error:  # another compiler may raise anything; the comparison continues without it
            failures[peer] = (str(error).splitlines() or [type(error).__name__])[0]
        else:
            contestants.append(contestant)
    ready: list[Contestant] = []
    for c in contestants:
        try:
            finding = reference.difference(c.outputs(), program.tolerance)
        except Exception as error:
            if c.name == OURS:
                raise
            finding = (str(error).splitlines() or [type(error).__name__])[0]
        if finding is not None and c.name == OURS:
            raise WrongResultError(f"{program.name}: the compiled program differs from the interpreter: {finding}")
        if finding is not None:
            failures[c.name] = f"its outputs differ: {finding}"
        else:
            ready.append(c)
    samples = _in_turns(ready, rounds)
    ratios = {n: ratio_interval(s, samples[OURS]) for n, s in samples.items() if n != OURS}
    seconds = {n: median_interval(s) for n, s in samples.items()}
    return Row(program.name, seconds, ratios, failures, reference.unchecked)


def _ours(program: Program, policy: str | None, backend: str, reference: Reference) -> Contestant:
    executable = compile_program(read_module(program), backend, policy, None)
    arrays = reference.inputs

    return Contestant(
        OURS, lambda: fresh_outputs(executable, reference), lambda n: float(np.mean(executable.benchmark(arrays, n)))
    )


def _in_turns(contestants: Sequence[Contestant], rounds: int) -> dict[str, list[float]]:
    repeats = {c.name: max(1, min(200, round(SAMPLE_SECONDS / max(c.sample(2), 1e-9)))) for c in contestants}
    samples: dict[str, list[float]] = {c.name: [] for c in contestants}
    order = list(contestants)
    for _ in range(rounds):
        for c in order:
            samples[c.name].append(c.sample(repeats[c.name]))
        order.reverse()
    return samples


def _table(rows: Sequence[Row], against: Sequence[str]) -> list[list[str]]:
    table = [["program", "", OURS, *against]]
    for row in rows:
        cells = [timing(row.seconds[n]) if n in row.seconds else "-" for n in (OURS, *against)]
        table.append([row.program, "", *cells])
        if row.ratios:
            table.append(["", "", "", *(factor(row.ratios[n]) if n in row.ratios else "-" for n in against)])
    if against and len(rows) > 1:
        means = [[r.ratios[n].value for r in rows if n in r.ratios] for n in against]
        table.append(["geometric mean", "", "", *(factor(geometric_mean(m)) if m else "-" for m in means)])
    return table


def _json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {
            "program": r.program,
            "seconds": {n: s.to_json() for n, s in r.seconds.items()},
            "ratios": {n: s.to_json() for n, s in r.ratios.items()},
            "failures": r.failures,
            "unchecked": r.unchecked,
        }
        for r in rows
    ]
