"""Check passes, fusion and native code on HLO programs of other projects, such as those in XLA's tests.

    python -m tests.sweeps.real_texts --programs FILE.jsonl [--checks passes native counts] [--only PART] [--every N]
        [--outcomes FILE.jsonl] [--out results/passes/real_texts.md]

Each line of FILE.jsonl is {"path", "line", "text"}, as written by `tests.sweeps.xla_texts`. Each program is parsed,
verified and, if it is for one device and not too large, checked by `real_text_checks` in a process with limits of time
and memory; a crash or a timeout is a finding. Outcomes are appended to --outcomes; those already there are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import resource
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from experiments.benchmarks.op_counts import geometric_mean
from experiments.provenance import provenance
from tests.sweeps.real_text_checks import CHECKS, FAILED, OK, SKIPPED, Outcome, check
from tests.sweeps.xla_texts import SourceText

SECONDS = {"passes": 90, "native": 90, "counts": 60}
MEMORY = 6 << 30
SIMPLIFIER = "xla/hlo/transforms/simplifiers/algebraic_simplifier_test.cc"
BATCH = 400
"""Checks per worker process; XLA never frees the memory of compiled programs."""


@dataclass(frozen=True)
class Row:
    """The outcome of a check of one program.

    Attributes:
        place: file and line of the program.
        check: name of the check.
        outcome: its outcome.
    """

    place: str
    check: str
    outcome: Outcome


def read_texts(path: Path, only: str, every: int) -> list[SourceText]:
    """Read the programs whose path contains `only`, and return every `every`-th of them."""
    with path.open(encoding="utf-8") as lines:
        found = [SourceText(**json.loads(line)) for line in lines]
    return [t for t in found if only in t.path][::every]


def read_rows(path: Path | None) -> list[Row]:
    """Read the outcomes of a file; return none if it does not exist."""
    if path is None or not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Row(f["place"], f["check"], Outcome(**f["outcome"])) for f in found]


def sweep(programs: Sequence[SourceText], checks: Sequence[str], done: set[tuple[str, str]]) -> Iterator[Row]:
    """Yield the outcomes of all checks of all programs that are not in `done`."""
    worker = _Worker()
    for name in checks:
        for t in programs:
            if (t.place, name) in done:
                continue
            worker = worker if worker.left else _Worker.after(worker)
            yield Row(t.place, name, worker.run(name, t.text))
    worker.stop()


class _Worker:
    """A process that checks programs one at a time, until it dies, times out or has done its batch."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,))
        self.process.start()
        theirs.close()
        self.left = BATCH

    @classmethod
    def after(cls, other: _Worker) -> _Worker:
        other.stop()
        return cls()

    def run(self, name: str, text: str) -> Outcome:
        """Return the outcome of a check; a crash and a timeout are outcomes, too."""
        self.left -= 1
        failure = SKIPPED if name == "counts" else FAILED  # `counts` runs XLA, whose crashes are not findings
        try:
            self.pipe.send((name, text))
            if self.pipe.poll(SECONDS[name]):
                found: Outcome = self.pipe.recv()
                return found
            reason = f"not done after {SECONDS[name]} s"
        except (EOFError, OSError):
            reason = "the process died"
        self.left = 0
        self.process.kill()
        return Outcome(failure, reason)

    def stop(self) -> None:
        """Let the process end."""
        with contextlib.suppress(OSError):
            self.pipe.send(None)
        self.process.join(5)
        self.process.kill()


def _work(pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # suppress messages of XLA and gcc
    for name, text in iter(pipe.recv, None):
        try:
            outcome = check(name, text)
        except Exception as e:  # any exception is a finding
            outcome = Outcome(FAILED, f"raised {type(e).__name__}: {str(e)[:300]}")
        pipe.send(outcome)


def report(rows: Sequence[Row], command: str) -> str:
    """Return the results page in Markdown."""
    origin = provenance()
    lines = [
        "# Passes, fusion and native code on the HLO programs of XLA's source tree",
        "",
        f"- command: `{command}`",
        f"- commit: {origin['commit']}",
        f"- machine: {origin['machine']}",
        f"- date: {origin['date']}",
        "",
        "| check | programs | ok | failed | not tried |",
        "|---|---|---|---|---|",
    ]
    for name in CHECKS:
        of = [r for r in rows if r.check == name]
        if of:
            n = Counter(r.outcome.result for r in of)
            lines.append(f"| {name} | {len(of)} | {n[OK]} | {n[FAILED]} | {n[SKIPPED]} |")
    lines += [
        "",
        "`passes`: after each pass (to its fixed point and in one sweep), random sequences and the default pipeline,",
        "the module verifies, `changed` is correct, and the interpreter's results are the same. `native`: compiled C",
        "code gives the interpreter's results, with the default passes and fusion, and without passes under random",
        "fusion. `counts`: op counts after the default pipeline and after XLA:CPU's passes.",
        "",
    ]
    lines += [*_failures(rows), *_reasons(rows), *_counts(rows)]
    return "\n".join(lines) + "\n"


def _failures(rows: Sequence[Row]) -> Iterator[str]:
    failed = [r for r in rows if r.outcome.result == FAILED]
    yield f"## Failures: {len(failed)}"
    yield ""
    yield from (f"- {r.place}, {r.check}: {r.outcome.reason}" for r in failed)
    yield ""


def _reasons(rows: Sequence[Row]) -> Iterator[str]:
    for name in CHECKS:
        why = Counter(_kind(r.outcome.reason) for r in rows if r.check == name and r.outcome.result == SKIPPED)
        if not why:
            continue
        yield f"## Not tried: {name}"
        yield ""
        yield "| reason | programs |"
        yield "|---|---|"
        yield from (f"| {kind} | {n} |" for kind, n in why.most_common())
        yield ""


def _kind(reason: str) -> str:
    return reason.partition(": ")[0]


def _counts(rows: Sequence[Row]) -> Iterator[str]:
    of = [r for r in rows if r.check == "counts" and r.outcome.result == OK]
    if not of:
        return
    fewer, equal, more = (
        [r for r in of if s == (r.outcome.counts["ours"] > r.outcome.counts["XLA"]) - _fewer(r)] for s in (-1, 0, 1)
    )
    both = [r.outcome.counts for r in of if r.outcome.counts["ours"] and r.outcome.counts["XLA"]]
    mean = geometric_mean([c["ours"] / c["XLA"] for c in both])
    yield "## Op counts"
    yield ""
    yield f"hlogym has fewer ops than XLA:CPU on {len(fewer)} programs, as many on {len(equal)}, more on {len(more)}."
    yield f"Geometric mean of hlogym / XLA:CPU over {len(both)} programs where both are above zero: **{mean:.3f}**."
    yield ""
    yield "Source files with programs on which hlogym has more ops than XLA:CPU:"
    yield ""
    yield "| file | programs | programs with more ops | additional ops |"
    yield "|---|---|---|---|"
    programs = Counter(_file(r) for r in of)
    beaten = Counter(_file(r) for r in more)
    for file, n in beaten.most_common(40):
        ops = sum(r.outcome.counts["ours"] - r.outcome.counts["XLA"] for r in more if _file(r) == file)
        yield f"| {file} | {programs[file]} | {n} | {ops} |"
    yield ""
    yield f"Programs of `{SIMPLIFIER}` on which hlogym has more ops, of {programs[SIMPLIFIER]} programs counted:"
    yield ""
    yield "| line | as written | hlogym | XLA:CPU |"
    yield "|---|---|---|---|"
    for r in more:
        if _file(r) == SIMPLIFIER:
            c = r.outcome.counts
            yield f"| {r.place.rpartition(':')[2]} | {c['written']} | {c['ours']} | {c['XLA']} |"


def _fewer(row: Row) -> int:
    return int(row.outcome.counts["ours"] < row.outcome.counts["XLA"])


def _file(row: Row) -> str:
    return row.place.rpartition(":")[0]


def main() -> int:
    """Run from the command line; return exit status 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, required=True, help="file of programs (JSON lines)")
    parser.add_argument("--checks", nargs="+", choices=CHECKS, default=list(CHECKS), help="checks (default: all)")
    parser.add_argument("--only", default="", help="check only programs whose path contains this")
    parser.add_argument("--every", type=int, default=1, help="check only every n-th program (default: %(default)s)")
    parser.add_argument("--outcomes", type=Path, help="append outcomes to this file, and skip the checks it contains")
    parser.add_argument("--out", type=Path, help="Markdown file for the results (default: none)")
    options = parser.parse_args()
    programs = read_texts(options.programs, options.only, options.every)
    rows = read_rows(options.outcomes)
    done = {(r.place, r.check) for r in rows}
    for n, row in enumerate(sweep(programs, options.checks, done), 1):
        rows.append(row)
        if row.outcome.result == FAILED:
            print(f"{row.place}, {row.check}: {row.outcome.reason}", flush=True)
        if options.outcomes is not None:
            with options.outcomes.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
        if n % 100 == 0:
            print(f"\r{n} done", end="", file=sys.stderr, flush=True)
    command = " ".join(["python -m tests.sweeps.real_texts", *(Path(a).name if "/" in a else a for a in sys.argv[1:])])
    text = report(rows, command)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    return int(any(r.outcome.result == FAILED for r in rows))


if __name__ == "__main__":
    sys.exit(main())
