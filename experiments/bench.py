"""`hlogym bench`: compare hlogym with other compilers, interleaved, after comparing their outputs.

In the suites "kernels" and "models" the peers run programs that were written for them (`experiments.natives`), each in
a process of its own. For any other program they run a translation of its HLO, in this process.
"""

from __future__ import annotations

import fnmatch
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from compiler.backends.registry import find_backend
from compiler.errors import HlogymError, UnknownNameError
from compiler.policy import resolve_policy
from compiler.text import parse
from env.reference import Reference, drawn_reference, fresh_outputs
from env.statistics import geometric_mean, median_interval, ratio_interval
from env.suites import SUITE_NAMES, Program, load_suite
from env.suites.loading import declared_suite
from experiments.bench_rows import OURS, Row, bench_markdown, bench_table, cost_markdown, cost_table, rows_json, summary
from experiments.command_tracking import track_bench
from experiments.console import error_console, progress, stdout
from experiments.inputs import entry_inputs, program_of, read_module, read_valid_module
from experiments.interruption import keeping
from experiments.mlflow_store import check_store
from experiments.natives.peers import NATIVE_SUITES, NativePeer, native_difference
from experiments.noise import LoadWatch, print_noise, style_of
from experiments.peak_memory import peak_memory
from experiments.peers import Contestant, check_peer, make_peer
from experiments.provenance import provenance
from experiments.results import check_output, rich_table, write_text
from experiments.run import WrongResultError, compile_program
from experiments.sampling import warm_sample

__all__ = ["bench_programs"]

SAMPLE_SECONDS = 2e-3
WARM_UP = "HloModule warm_up  ENTRY e { x = f32[4] parameter(0) ROOT y = f32[4] add(x, x) }"


class BenchError(HlogymError, RuntimeError):
    """A program that failed, or a requested peer that could run no program."""


@dataclass(frozen=True)
class Settings:
    """What one run of the command compares, and how."""

    against: Sequence[str]
    policy: str | None
    backend: str
    rounds: int
    seed: int
    cold: bool
    native: Mapping[str, NativePeer]


def bench_programs(
    names: Sequence[str],
    against: Sequence[str],
    policy: str | None,
    backend: str,
    rounds: int,
    json_file: Path | None,
    seed: int,
    markdown_file: Path | None = None,
    only: str = "*",
    cold: bool = False,
    as_json: bool = False,
    tracked: Path | None = None,
) -> None:
    """Run `hlogym bench`; see its `--help`. The MLflow store of the folder `tracked`, if given, records the results."""
    for peer in against:
        check_peer(peer)
    backend = find_backend(backend).name
    resolve_policy(policy, backend)  # before any program is timed, so that a policy that cannot be used is one error
    for file in (json_file, markdown_file):
        if file is not None:
            check_output(file)
    if tracked is not None:
        check_store(tracked)
    programs = [p for name in names for p in _programs(name) if fnmatch.fnmatch(p.name, only)]
    if not programs:
        raise BenchError(f"no program of {', '.join(names)} has a name that matches --only {only!r}")
    rows: list[Row] = []
    watch = LoadWatch()
    with ExitStack() as stack, progress() as bar:
        cache = _empty_caches(stack) if cold else None
        native = {peer: NativePeer(peer, cache) for peer in against}
        for process in native.values():
            stack.callback(process.close)
        settings = Settings(against, policy, backend, rounds, seed, cold, native)
        task = bar.add_task("timing", total=len(programs))
        files = [f for f in (json_file, markdown_file) if f is not None]
        stack.enter_context(keeping(lambda: _keep(rows, len(programs), against, cold, files)))
        for program in programs:
            bar.update(task, description=f"timing {program.name}")
            try:
                rows.append(_bench(program, settings))
            except (HlogymError, OSError, UnicodeError) as error:  # the other programs are still timed
                rows.append(Row(program.name, {}, {}, {OURS: str(error)}))
            bar.update(task, advance=1, so_far=_so_far(rows))
            # Written now, so that it is kept if a later program ends the process.
            _write(rows, against, f"Benchmark: {' '.join(names)}", json_file, markdown_file, cold)
    noise = watch.why_noisy()
    if as_json:
        print(_results(rows, noise))
    else:
        _print(rows, against, cold, noise)
    for file in (f for f in (json_file,) if f is not None and noise is not None):
        write_text(file, _results(rows, noise))
    print_noise(noise)
    if tracked is not None:
        settings_shown = {"backend": backend, "rounds": rounds, "seed": seed, "policy": policy or "default"}
        track_bench(tracked, programs, settings_shown, rows, against, noise)
    _check(rows, against)


def _so_far(rows: Sequence[Row]) -> str:
    """Return the geometric mean of the ratios to the better peer so far, if there are any."""
    ratios = [r.ratios[r.best].value for r in rows if r.best is not None]
    return f"{geometric_mean(ratios).value:.2f}x the better peer" if ratios else ""


def _keep(rows: Sequence[Row], number: int, against: Sequence[str], cold: bool, files: Sequence[Path]) -> str:
    """Print the rows of an interrupted comparison, which are already in its files; return what was kept."""
    if rows:
        _print(rows, against, cold, "interrupted")
    where = f", in {' and '.join(map(str, files))}" if files and rows else ""
    return f"{len(rows)} of {number} programs were timed{where}"


def _empty_caches(stack: ExitStack) -> Path:
    """Let everything that is compiled from now on find no compiled code; return the folder that peers use instead."""
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="hlogym-bench-")))
    # With one arena, the memory that a thread of a peer has freed can be given back before a call is measured.
    values = {"HLOGYM_CACHE": str(folder / "hlogym"), "MALLOC_ARENA_MAX": "1"}
    previous = {name: os.environ.get(name) for name in values}
    os.environ.update(values)

    def restore() -> None:
        for name, value in previous.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value

    stack.callback(restore)
    compile_program(parse(WARM_UP), "cpu", None, None)  # imports what the first compilation needs
    return folder / "peers"


def _write(
    rows: Sequence[Row],
    against: Sequence[str],
    title: str,
    json_file: Path | None,
    markdown_file: Path | None,
    cold: bool,
) -> None:
    if json_file is not None:
        write_text(json_file, _results(rows))
    if markdown_file is not None:
        make = cost_markdown if cold else bench_markdown
        write_text(markdown_file, make(rows, against, title, provenance()))


def _results(rows: Sequence[Row], noise: str | None = None) -> str:
    facts = {"kind": "bench", "provenance": provenance(), "noise": noise, "rows": rows_json(rows)}
    return json.dumps(facts, indent=1)


def _print(rows: Sequence[Row], against: Sequence[str], cold: bool, noise: str | None) -> None:
    if cold:
        stdout.print(rich_table(cost_table(rows, against), "Time to the first result; peak memory of a call"))
    else:
        _print_times(rows, against, noise)
    for row in rows:
        if row.unchecked is not None:
            error_console.print(f"{row.program}: {row.unchecked}", markup=False)
        for peer, reason in row.failures.items():
            error_console.print(f"{row.program}: {peer} left out: {reason}")


def _print_times(rows: Sequence[Row], against: Sequence[str], noise: str | None) -> None:
    title = "Time per call; ratio: the faster peer's time divided by ours" if against else "Time per call"
    ratios = [None if r.best is None else r.ratios[r.best] for r in rows]
    column = len(against) + 2
    styles = {(n, column): style_of(ratio, noise) for n, ratio in enumerate(ratios)}
    stdout.print(rich_table(bench_table(rows, against), title, styles))
    for line in summary(rows, against):
        stdout.print(line)
    known = [(row.program, ratio) for row, ratio in zip(rows, ratios, strict=True) if ratio is not None]
    if same := [name for name, ratio in known if not style_of(ratio)]:
        stdout.print(f"within the noise of the timings: {len(same)} of {len(known)} ratios", soft_wrap=True)


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
    if name in SUITE_NAMES or Path(name).is_dir() or ("," in name and not Path(name).exists()):
        return load_suite(name).programs
    if (declared := declared_suite(name)) is not None:
        return declared.programs
    try:
        return (program_of(name),)
    except UnknownNameError as error:
        if get_close_matches(name, SUITE_NAMES, n=1) or "did you mean" not in str(error):
            raise UnknownNameError("program or suite", name, SUITE_NAMES) from None
        raise


def _bench(program: Program, settings: Settings) -> Row:
    module = read_valid_module(program)
    reference = drawn_reference(module, lambda number: entry_inputs(program, module, settings.seed + number))
    ours, seconds, size = _ours(program, settings, reference)
    first: dict[str, float] = {OURS: seconds}
    peak: dict[str, float | None] = {OURS: size}
    finding = reference.difference(ours.outputs(), program.tolerance)
    if finding is not None:
        raise WrongResultError(f"{program.name}: the compiled program differs from the interpreter: {finding}")
    ready = [ours]
    failures: dict[str, str] = {}
    for peer in settings.against:
        try:
            if program.suite in NATIVE_SUITES:
                loaded = settings.native[peer].load(program, settings.seed)
                contestant, first[peer], peak[peer] = loaded.contestant, loaded.seconds, loaded.peak_bytes
                finding = native_difference(contestant.outputs(), reference.outputs, loaded.rtol)
            else:
                contestant = make_peer(peer, read_module(program), reference.inputs)
                finding = reference.difference(contestant.outputs(), program.tolerance)
        except Exception as error:  # another compiler may raise anything; the comparison continues without it
            failures[peer] = (str(error).splitlines() or [type(error).__name__])[0]
            continue
        if finding is None:
            ready.append(contestant)
        else:
            failures[peer] = f"its outputs differ: {finding}"
    samples = {} if settings.cold else _in_turns(ready, settings.rounds)
    ratios = {n: ratio_interval(s, samples[OURS]) for n, s in samples.items() if n != OURS}
    return Row(
        program.name,
        {n: median_interval(s) for n, s in samples.items()},
        ratios,
        failures,
        reference.unchecked,
        {n: min(s) for n, s in samples.items()},
        first,
        peak,
    )


def _ours(program: Program, settings: Settings, reference: Reference) -> tuple[Contestant, float, float | None]:
    """Return hlogym's contestant, the seconds from the text to the first result, and the peak memory of a call."""
    arrays = reference.inputs
    start = time.perf_counter()
    executable = compile_program(read_module(program), settings.backend, settings.policy, None)
    seconds = time.perf_counter() - start
    start_of_call = time.perf_counter()
    executable(*arrays)
    seconds += time.perf_counter() - start_of_call
    peak = None
    if settings.cold:
        # The first call of an executable allocates what later calls keep, so its memory is counted. As for the peers, a
        # call before it has loaded code and made what all programs of a process share, such as stacks of threads.
        again = compile_program(read_module(program), settings.backend, settings.policy, None)
        peak = peak_memory(lambda: again(*arrays))

    size = None if peak is None else peak + sum(np.asarray(a).nbytes for a in arrays)
    ours = Contestant(
        OURS, lambda: fresh_outputs(executable, reference), lambda n: warm_sample(lambda: executable(*arrays), n)
    )
    return ours, seconds, size


def _in_turns(contestants: Sequence[Contestant], rounds: int) -> dict[str, list[float]]:
    repeats = {c.name: max(1, min(200, round(SAMPLE_SECONDS / max(c.sample(2), 1e-9)))) for c in contestants}
    samples: dict[str, list[float]] = {c.name: [] for c in contestants}
    order = list(contestants)
    for _ in range(rounds):
        for c in order:
            samples[c.name].append(c.sample(repeats[c.name]))
        order.reverse()
    return samples
