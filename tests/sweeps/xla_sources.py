"""Holds us against XLA on every HLO text in XLA's own sources: reading, printing, verifying, running.

    python -m tests.sweeps.xla_sources --source PATH [--revision REVISION ...] [--run-every N] [--out FILE]

PATH is a checkout of XLA, or a git directory with --revision; nothing of it stays here. The texts are looked at in a
process of their own, because XLA aborts on some. --log keeps what was said of each text as JSON lines, and texts that
stand in it already are not looked at again.
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

from tests.sweeps.xla_source_check import Said, check
from tests.sweeps.xla_source_report import Row, report
from tests.sweeps.xla_texts import SourceText, add_source_options, source_texts

XLA_FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
"""Unoptimised machine code compiles faster and computes the same."""
MEMORY = 12 << 30
"""Bytes of address space a process may have."""
BATCH = 400
"""Texts a process looks at before a new one takes over: what XLA keeps adds up."""


def _work(pipe: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for text, run in iter(pipe.recv, None):
        for said in check(text, run):
            pipe.send(said)
        pipe.send(None)


class _Worker:
    """A process that looks at texts, one at a time."""

    def __init__(self) -> None:
        # Forked from a server that has imported everything and started nothing, so that a new start costs little.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.sweeps.xla_source_check"])
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.left = BATCH

    def look_at(self, text: str, run: bool, seconds: float) -> dict[str, str]:
        """What was said in each step; `ended` says why the process did not come to the last one."""
        said: dict[str, str] = {}
        self.left -= 1
        try:
            self.pipe.send((text, run))
            while self.pipe.poll(seconds):
                step: Said | None = self.pipe.recv()
                if step is None:
                    return said
                said[step.step] = step.outcome
            return {**said, "ended": f"not finished after {seconds:.0f} s"}
        except (EOFError, OSError):
            return {**said, "ended": "the process aborted"}

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()


def look(texts: Sequence[tuple[SourceText, bool]], seconds: float) -> Iterator[Row]:
    """What was said of each text, as it is done; with each, whether to run it, too."""
    worker = _Worker()
    for text, run in texts:
        said = worker.look_at(text.text, run, seconds)
        if "ended" in said or worker.left <= 0:
            worker.stop()
            worker = _Worker()
        yield Row(text.path, text.line, text.revision, text.digest, said)
    worker.stop()


def _logged(path: Path | None) -> dict[str, Row]:
    if path is None or not path.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return {r.digest: r for r in rows}


def _shown(arguments: Sequence[str]) -> Iterator[str]:
    """The command line without what is of this machine alone."""
    before = ""
    for argument in arguments:
        if before == "--source":
            yield "xla"
        elif "--log" not in (before, argument):
            yield argument
        before = argument


def main() -> int:
    """The command line; the exit status is 0 only when no text shows a difference without a known cause."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_source_options(parser)
    parser.add_argument("--run-every", type=int, default=0, help="compile and run each nth text on both sides, too")
    parser.add_argument("--seconds", type=float, default=20.0, help="longest time for a step")
    parser.add_argument("--only", nargs="*", default=[], help="texts of files with one of these in their paths")
    parser.add_argument("--log", type=Path, help="JSON lines of what was said; read first when it is there")
    parser.add_argument("--out", type=Path, help="file for the table (default: only print it)")
    options = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {XLA_FLAGS}".strip()
    texts = list(source_texts(options.source, options.revision))
    texts = [t for t in texts if not options.only or any(o in t.path for o in options.only)]
    known = _logged(options.log)
    rows = [known[t.digest] for t in texts if t.digest in known]
    every = options.run_every
    todo = [(t, every > 0 and n % every == 0) for n, t in enumerate(texts) if t.digest not in known]
    with (options.log or Path(os.devnull)).open("a", encoding="utf-8") as log:
        for n, row in enumerate(look(todo, options.seconds), 1):
            rows.append(row)
            log.write(json.dumps(asdict(row)) + "\n")
            log.flush()
            if n % 100 == 0:
                print(f"{n} of {len(todo)} texts", file=sys.stderr, flush=True)
    text, bad = report(rows, "python -m tests.sweeps.xla_sources " + " ".join(_shown(sys.argv[1:])))
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
