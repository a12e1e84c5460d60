"""Compare hlogym with XLA on all HLO programs in XLA's sources: parsing, printing, verifying, running.

    python -m tests.sweeps.xla_sources --source PATH [--revision REVISION ...] [--run-every N] [--out FILE]

PATH is a checkout of XLA, or a git directory if --revision is given. The programs are checked in a separate process,
because XLA aborts on some of them. --log stores the outcomes as JSON lines; programs that it already contains are not
checked again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path

from tests.sweeps.xla_source_check import StepResult, check
from tests.sweeps.xla_source_report import Row, report
from tests.sweeps.xla_texts import SourceText, add_source_options, source_texts

XLA_FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
"""Compilation without optimisation is faster."""
MEMORY = 12 << 30
"""Limit of a worker's address space in bytes."""
BATCH = 400
"""Programs per worker process; XLA never frees the memory of compiled programs."""


def _work(pipe: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for text, run in iter(pipe.recv, None):
        for result in check(text, run):
            pipe.send(result)
        pipe.send(None)


class _Worker:
    """A process that checks programs one at a time."""

    def __init__(self) -> None:
        # The fork server has imported all modules and started no threads, so starting a worker is cheap.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.sweeps.xla_source_check"])
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.left = BATCH

    def check(self, text: str, run: bool, seconds: float) -> dict[str, str]:
        """Return the outcome of each step; `ended` is why the process did not reach the last step."""
        outcomes: dict[str, str] = {}
        self.left -= 1
        try:
            self.pipe.send((text, run))
            while self.pipe.poll(seconds):
                step: StepResult | None = self.pipe.recv()
                if step is None:
                    return outcomes
                outcomes[step.step] = step.outcome
            return {**outcomes, "ended": f"timed out after {seconds:.0f} s"}
        except (EOFError, OSError):
            return {**outcomes, "ended": "the process aborted"}

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()


def check_all(programs: Sequence[tuple[SourceText, bool]], seconds: float) -> Iterator[Row]:
    """Yield the outcomes of each program; a program is given with whether to run it."""
    worker = _Worker()
    for text, run in programs:
        outcomes = worker.check(text.text, run, seconds)
        if "ended" in outcomes or worker.left <= 0:
            worker.stop()
            worker = _Worker()
        yield Row(text.path, text.line, text.revision, text.digest, outcomes)
    worker.stop()


def _logged(path: Path | None) -> dict[str, Row]:
    if path is None or not path.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return {r.digest: r for r in rows}


def _shown(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the command line without paths of this machine."""
    before = ""
    for argument in arguments:
        if before == "--source":
            yield "xla"
        elif "--log" not in (before, argument):
            yield argument
        before = argument


def main() -> int:
    """Run from the command line; return exit status 1 if there is a difference without a known cause."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_source_options(parser)
    parser.add_argument(
        "--run-every", type=int, default=0, help="compile and run every n-th program; 0: none (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit of a step (default: %(default)g)")
    parser.add_argument("--only", nargs="*", default=[], help="only files whose paths contain one of these")
    parser.add_argument("--log", type=Path, help="append outcomes to this file, and skip the programs it contains")
    parser.add_argument("--out", type=Path, help="Markdown file for the report (default: only print)")
    options = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {XLA_FLAGS}".strip()
    programs = list(source_texts(options.source, options.revision))
    programs = [t for t in programs if not options.only or any(o in t.path for o in options.only)]
    known = _logged(options.log)
    rows = [known[t.digest] for t in programs if t.digest in known]
    every = options.run_every
    todo = [(t, every > 0 and n % every == 0) for n, t in enumerate(programs) if t.digest not in known]
    with (options.log or Path(os.devnull)).open("a", encoding="utf-8") as log:
        for n, row in enumerate(check_all(todo, options.seconds), 1):
            rows.append(row)
            log.write(json.dumps(asdict(row)) + "\n")
            log.flush()
            if n % 100 == 0:
                print(f"{n} of {len(todo)} programs", file=sys.stderr, flush=True)
    text, bad = report(rows, "python -m tests.sweeps.xla_sources " + " ".join(_shown(sys.argv[1:])))
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
