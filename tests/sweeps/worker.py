"""Run conformance cases in a separate process, because XLA:CPU aborts the process on some programs."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from compiler.errors import HlogymError
from compiler.interpreter import evaluate
from compiler.text import parse
from tests.oracle import XlaError, compile_xla, run_xla
from tests.sweeps.case import Case, difference
from tests.sweeps.known import reason

PASS, FAIL, NO_XLA, NO_OURS = "pass", "FAIL", "unsupported by XLA:CPU", "not supported here"
KNOWN = "known to differ"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one case."""

    opcode: str
    element_type: str
    name: str
    result: str
    reason: str = ""


def run(case: Case) -> Outcome:
    """Run one case on XLA:CPU and on the interpreter, and compare."""

    def outcome(result: str, why: str = "") -> Outcome:
        return Outcome(case.opcode, case.element_type, case.name, result, why)

    try:
        wanted = run_xla(case.text, case.args)
    except XlaError as e:
        return outcome(NO_XLA, _first_line(str(e)))
    finally:
        compile_xla.cache_clear()
    try:
        found = evaluate(parse(case.text), case.args)
    except HlogymError as e:
        return outcome(NO_OURS, _first_line(str(e)))
    finding = difference(found, wanted, case.tolerance)
    if finding is None:
        return outcome(PASS)
    why = reason(case)
    return outcome(FAIL, finding) if why is None else outcome(KNOWN, why)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]


def sweep(cases: Iterable[Case]) -> list[Outcome]:
    """Run all cases and return their outcomes; progress is printed to stderr."""
    outcomes = []
    worker = _Worker()
    for n, case in enumerate(cases, 1):
        found = worker.run(case)
        if found is None:
            why = "XLA:CPU aborts the process"
            found = Outcome(case.opcode, case.element_type, case.name, NO_XLA, why)
            worker = _Worker()
        outcomes.append(found)
        if n % 50 == 0:
            print(f"\r{n} cases", end="", file=sys.stderr, flush=True)
    worker.stop()
    print(f"\r{len(outcomes)} cases", file=sys.stderr)
    return outcomes


class _Worker:
    """A process that runs cases, one at a time."""

    def __init__(self) -> None:
        # The fork server has imported all modules and started no threads, so starting a worker is cheap.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def run(self, case: Case) -> Outcome | None:
        """Return the outcome, or None if the process died."""
        try:
            self.pipe.send(case)
            found: Outcome = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return None
        return found

    def stop(self) -> None:
        """Let the process end."""
        self.pipe.close()
        self.process.join()


def _work(pipe: Connection) -> None:
    # Without this, custom calls to LAPACK crash. JAX does the same when it lowers such a call.
    importlib.import_module("jaxlib.cpu._lapack").initialize()
    # Suppress XLA's messages; its errors are part of the outcome.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(run(pipe.recv()))
