"""Check that random modules verify and round-trip, and that the interpreter computes XLA's results on them.

python -m tests.fuzz.compare_modules [--count 20000] [--compared 20000] [--seed 0] [--out FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from compiler.ir import HloModule
from compiler.ir.verifier import verify
from compiler.text import parse
from env.reference import Reference
from experiments.provenance import provenance
from tests.fuzz.random_modules import random_inputs, random_module
from tests.oracle import compile_xla, run_xla

KNOWN = {
    (7, 17723): "XLA reads a wrong row: it turns a gather of a gather into slices and loses the inner clamping, see "
    "tests/interpreter/test_gather_of_gather.py",
}
"""Differences caused by bugs of XLA, by seed and number."""
XLA_FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"


def check_round_trip(module: HloModule) -> None:
    """Assert that the module verifies, and that parsing its text gives the same text and fingerprint."""
    verify(module)
    text = str(module)
    again = parse(text)
    assert str(again) == text, f"the second print differs:\n{text}"
    assert again.fingerprint() == module.fingerprint(), f"after parsing, the fingerprint differs:\n{text}"


def check_values(module: HloModule, args: list[np.ndarray[Any, Any]]) -> None:
    """Assert that the interpreter and XLA agree on the given arguments."""
    text = str(module)
    finding = Reference.of(module, args).difference(run_xla(text, args))
    assert finding is None, f"XLA's results differ: {finding}\n{text}"


def _check(seed: int, number: int, compared: bool) -> tuple[Counter[str], str | None]:
    """Return the op counts of a module, and what is wrong with it, or None."""
    rng = np.random.default_rng((seed, number))
    module = random_module(rng, 40)
    ops = Counter(i.opcode.text for c in module.computations for i in c.instructions)
    try:
        check_round_trip(module)
        if compared:
            check_values(module, random_inputs(module, rng))
    except Exception as e:  # any exception is a finding
        return ops, f"{type(e).__name__}: {e}"
    return ops, None


def _work(pipe: Connection, seed: int, compared: int) -> None:
    # Suppress XLA's messages; its errors are part of the outcome.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for number in iter(pipe.recv, None):
        pipe.send(_check(seed, number, number < compared))
        compile_xla.cache_clear()


class _Worker:
    """A separate process, because XLA:CPU aborts on some programs; it is replaced after BATCH modules."""

    BATCH = 500

    def __init__(self, seed: int, compared: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, seed, compared), daemon=True)
        self.process.start()
        theirs.close()
        self.left = self.BATCH

    def check(self, number: int) -> tuple[Counter[str], str | None] | None:
        """Return the result of `_check`, or None if the process died."""
        self.left -= 1
        try:
            self.pipe.send(number)
            found: tuple[Counter[str], str | None] = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            self.left = 0
            return None
        return found

    def stop(self) -> None:
        """Let the process end."""
        with contextlib.suppress(OSError):
            self.pipe.send(None)
        self.process.join()


@dataclass
class Found:
    """The findings of a run."""

    ops: Counter[str] = field(default_factory=Counter)
    modules: int = 0
    problems: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)


def fuzz(count: int, compared: int, seed: int) -> Found:
    """Check `count` modules; run the first `compared` of them in the interpreter and on XLA."""
    found = Found()
    worker = _Worker(seed, compared)
    for number in range(count):
        if not worker.left:
            worker.stop()
            worker = _Worker(seed, compared)
        seen = worker.check(number)
        found.modules += 1
        if seen is None:
            found.aborted.append(number)
            continue
        found.ops.update(seen[0])
        known = KNOWN.get((seed, number))
        if seen[1] is not None and known is not None:
            found.known.append(f"module {number}: {known}")
        elif seen[1] is not None:
            found.problems.append(f"module {number}: {seen[1].splitlines()[0]}")
            print(f"module {number} of seed {seed}: {seen[1]}\n", file=sys.stderr, flush=True)
        if found.modules % 1000 == 0:
            print(f"{found.modules} modules, {len(found.problems)} problems", file=sys.stderr, flush=True)
    worker.stop()
    return found


def main() -> int:
    """Run from the command line; return exit status 1 if there is a problem without a known cause."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=20_000, help="number of modules (default: %(default)s)")
    parser.add_argument(
        "--compared", type=int, default=20_000, help="number of modules that are also run (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the modules (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("results/fuzz/random_modules.md"), help="results file (default: %(default)s)"
    )
    options = parser.parse_args()
    # XLA reads the flags when a worker starts. Compilation without optimisation is faster.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {XLA_FLAGS}".strip()
    found = fuzz(options.count, options.compared, options.seed)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(_report(options, found), encoding="utf-8")
    return 1 if found.problems else 0


def _report(options: argparse.Namespace, found: Found) -> str:
    compared = min(options.count, options.compared)
    used = "\n".join(f"| {name} | {n:,} |" for name, n in found.ops.most_common())
    listed = "".join(f"- {p}\n" for p in found.problems) or "None.\n"
    if found.known:
        listed = f"Without a known cause: {listed}\n" + "".join(f"- known: {k}\n" for k in found.known)
    died = ", ".join(str(n) for n in found.aborted)
    aborted = f"XLA:CPU aborts on {len(found.aborted)} of them, which are not compared" + (
        f": {died}." if died else "."
    )
    command = (
        f"python -m tests.fuzz.compare_modules --count {options.count} --compared {compared} --seed {options.seed}"
    )
    origin = provenance()
    return (
        f"# Random modules\n\n{options.count:,} modules were verified and round-tripped; {compared:,} of them were run "
        f"by the interpreter and by XLA on the same arguments. {aborted}\n\n"
        f"- command: `{command}`\n- commit: {origin['commit']}\n- machine: {origin['machine']}\n"
        f"- date: {origin['date']}\n- instructions: {found.ops.total():,}\n\n"
        f"## Differences\n\n{listed}\n## Ops used\n\n"
        f"| op | count |\n|---|---:|\n{used}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
