"""Passes, fusion and native code over HLO texts that others wrote, such as those in the tests of XLA's source tree.

    python -m tests.sweeps.real_texts --texts FILE.jsonl [--checks passes native counts] [--only PART] [--every N]
        [--outcomes FILE.jsonl] [--out results/passes/real_texts.md]

Each line of the texts is {"path", "line", "text"}, as `tests.sweeps.xla_texts` finds them. Each text is read, verified
and, when it is for one device and of moderate size, checked as `real_text_checks` says, in a process with limits of
time and memory: dying or not ending is a finding. Outcomes are appended as they come; those there already are kept.
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
"""Checks a process does before a new one takes its place: XLA keeps what it compiled."""


@dataclass(frozen=True)
class Row:
    """The outcome of a check of the text at a place."""

    place: str
    check: str
    outcome: Outcome


def read_texts(path: Path, only: str, every: int) -> list[SourceText]:
    """The texts of a file whose path has `only` in it, each `every`-th of them."""
    with path.open(encoding="utf-8") as lines:
        found = [SourceText(**json.loads(line)) for line in lines]
    return [t for t in found if only in t.path][::every]


def read_rows(path: Path | None) -> list[Row]:
    """The outcomes that a file has already."""
    if path is None or not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Row(f["place"], f["check"], Outcome(**f["outcome"])) for f in found]


def sweep(texts: Sequence[SourceText], checks: Sequence[str], done: set[tuple[str, str]]) -> Iterator[Row]:
    """The outcomes of all checks of all texts that are not done."""
    worker = _Worker()
    for name in checks:
        for t in texts:
            if (t.place, name) in done:
                continue
            worker = worker if worker.left else _Worker.after(worker)
            yield Row(t.place, name, worker.run(name, t.text))
    worker.stop()


class _Worker:
    """A process that checks texts, one at a time, until it dies, takes too long or has done its batch."""

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
        """The outcome of a check; a process that dies of it, or goes on too long, is one too."""
        self.left -= 1
        ours = SKIPPED if name == "counts" else FAILED  # where XLA dies, nothing of ours has failed
        try:
            self.pipe.send((name, text))
            if self.pipe.poll(SECONDS[name]):
                found: Outcome = self.pipe.recv()
                return found
            told = f"not done after {SECONDS[name]} s"
        except (EOFError, OSError):
            told = "the process died"
        self.left = 0
        self.process.kill()
        return Outcome(ours, told)

    def stop(self) -> None:
        """Let the process end."""
        with contextlib.suppress(OSError):
            self.pipe.send(None)
        self.process.join(5)
        self.process.kill()


def _work(pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what XLA and gcc complain of
    for name, text in iter(pipe.recv, None):
        try:
            outcome = check(name, text)
        except Exception as e:  # whatever it is, it is what this program looks for
            outcome = Outcome(FAILED, f"raised {type(e).__name__}: {str(e)[:300]}")
        pipe.send(outcome)


def report(rows: Sequence[Row], command: str) -> str:
    """The table for results/."""
    origin = provenance()
    lines = [
        "# HLO texts of XLA's source tree through passes, fusion and native code",
        "",
        f"- command: `{command}`",
        f"- commit: {origin['commit']}",
        f"- machine: {origin['machine']}",
        f"- date: {origin['date']}",
        "",
        "| check | texts | ok | failed | not tried |",
        "|---|---|---|---|---|",
    ]
    for name in CHECKS:
        of = [r for r in rows if r.check == name]
        if of:
            n = Counter(r.outcome.result for r in of)
            lines.append(f"| {name} | {len(of)} | {n[OK]} | {n[FAILED]} | {n[SKIPPED]} |")
    lines += ["", "`passes`: each pass to its fixed point and in one sweep, random sequences, the default pipeline:"]
    lines += [
        "the module verifies, `changed` is what the text says, the interpreter's results stay. `native`: C through"
    ]
    lines += [
        "gcc gives the interpreter's results, with the default passes and fusion, and without passes under random"
    ]
    lines += ["fusion. `counts`: op counts after our default pipeline and in the module XLA:CPU runs.", ""]
    lines += [*_failures(rows), *_reasons(rows), *_counts(rows)]
    return "\n".join(lines) + "\n"


def _failures(rows: Sequence[Row]) -> Iterator[str]:
    failed = [r for r in rows if r.outcome.result == FAILED]
    yield f"## Failures: {len(failed)}"
    yield ""
    yield from (f"- {r.place}, {r.check}: {r.outcome.told}" for r in failed)
    yield ""


def _reasons(rows: Sequence[Row]) -> Iterator[str]:
    for name in CHECKS:
        why = Counter(_kind(r.outcome.told) for r in rows if r.check == name and r.outcome.result == SKIPPED)
        if not why:
            continue
        yield f"## Not tried: {name}"
        yield ""
        yield "| why | texts |"
        yield "|---|---|"
        yield from (f"| {kind} | {n} |" for kind, n in why.most_common())
        yield ""


def _kind(told: str) -> str:
    return told.partition(": ")[0]


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
    yield f"Ours are fewer than XLA:CPU's on {len(fewer)} texts, as many on {len(equal)}, more on {len(more)}; "
    yield f"geometric mean of ours / XLA:CPU's over {len(both)} texts where both are above zero: **{mean:.3f}**."
    yield ""
    yield "Source files whose texts keep more ops than XLA:CPU leaves, by how many texts:"
    yield ""
    yield "| file | texts | with more ops | ops more |"
    yield "|---|---|---|---|"
    texts = Counter(_file(r) for r in of)
    beaten = Counter(_file(r) for r in more)
    for file, n in beaten.most_common(40):
        ops = sum(r.outcome.counts["ours"] - r.outcome.counts["XLA"] for r in more if _file(r) == file)
        yield f"| {file} | {texts[file]} | {n} | {ops} |"
    yield ""
    yield f"The texts of `{SIMPLIFIER}` on which ours keep more ops, of {texts[SIMPLIFIER]} counted:"
    yield ""
    yield "| line | written | ours | XLA:CPU |"
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
    """The command line; the exit status says whether anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--checks", nargs="+", choices=CHECKS, default=list(CHECKS))
    parser.add_argument("--only", default="", help="a part of the paths of the texts to take")
    parser.add_argument("--every", type=int, default=1, help="take each so many-th text")
    parser.add_argument("--outcomes", type=Path, help="append outcomes here, and do not repeat those there")
    parser.add_argument("--out", type=Path, help="markdown file for the tables")
    options = parser.parse_args()
    texts = read_texts(options.texts, options.only, options.every)
    rows = read_rows(options.outcomes)
    done = {(r.place, r.check) for r in rows}
    for n, row in enumerate(sweep(texts, options.checks, done), 1):
        rows.append(row)
        if row.outcome.result == FAILED:
            print(f"{row.place}, {row.check}: {row.outcome.told}", flush=True)
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
