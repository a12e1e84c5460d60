"""Random modules: each must verify and round trip, and the interpreter must compute on it what XLA computes.

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
    (7, 17723): "XLA reads another row: it makes slices of a gather of a gather and loses the inner clamping, see "
    "tests/interpreter/test_gather_of_gather.py",
}
"""Differences looked into and found to be XLA's, by seed and number."""
XLA_FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"


def check_round_trip(module: HloModule) -> None:
    """AssertionError unless the module verifies, and its text reads back as the same text and program."""
    verify(module)
    text = str(module)
    again = parse(text)
    assert str(again) == text, f"the second print differs:\n{text}"
    assert again.fingerprint() == module.fingerprint(), f"read back, the fingerprint differs:\n{text}"


def check_values(module: HloModule, args: list[np.ndarray[Any, Any]]) -> None:
    """AssertionError unless the interpreter and XLA agree on these arguments."""
    text = str(module)
    told = Reference.of(module, args).difference(run_xla(text, args))
    assert told is None, f"XLA's results differ: {told}\n{text}"


def _look_at(seed: int, number: int, compared: bool) -> tuple[Counter[str], str | None]:
    """What ops a module uses, and what is wrong with it in one line and whole, if anything."""
    rng = np.random.default_rng((seed, number))
    module = random_module(rng, 40)
    ops = Counter(i.opcode.text for c in module.computations for i in c.instructions)
    try:
        check_round_trip(module)
        if compared:
            check_values(module, random_inputs(module, rng))
    except Exception as e:  # whatever it is, it is what this program looks for
        return ops, f"{type(e).__name__}: {e}"
    return ops, None


def _work(pipe: Connection, seed: int, compared: int) -> None:
    # What XLA says about its own failures is in the outcome already.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for number in iter(pipe.recv, None):
        pipe.send(_look_at(seed, number, number < compared))
        compile_xla.cache_clear()


class _Worker:
    """A process of its own, because XLA:CPU aborts on some programs; a new one after each BATCH modules."""

    BATCH = 500

    def __init__(self, seed: int, compared: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, seed, compared), daemon=True)
        self.process.start()
        theirs.close()
        self.left = self.BATCH

    def look_at(self, number: int) -> tuple[Counter[str], str | None] | None:
        """What `_look_at` says, or None when the process died of it."""
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
    """What a run has seen."""

    ops: Counter[str] = field(default_factory=Counter)
    modules: int = 0
    problems: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)


def fuzz(count: int, compared: int, seed: int) -> Found:
    """Look at `count` modules, `compared` of which are also run on both sides."""
    found = Found()
    worker = _Worker(seed, compared)
    for number in range(count):
        if not worker.left:
            worker.stop()
            worker = _Worker(seed, compared)
        seen = worker.look_at(number)
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
    """The command line; the exit status is 0 only when every module is as it must be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--compared", type=int, default=20_000, help="how many of them are run, too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/fuzz/random_modules.md"))
    options = parser.parse_args()
    # Read by XLA when a worker starts it: unoptimised machine code compiles faster and computes the same.
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
        listed = f"Unexplained: {listed}\n" + "".join(f"- looked into, {k}\n" for k in found.known)
    died = ", ".join(str(n) for n in found.aborted)
    aborted = f"XLA:CPU aborts its process on {len(found.aborted)} of them, which are not compared" + (
        f": {died}." if died else "."
    )
    command = (
        f"python -m tests.fuzz.compare_modules --count {options.count} --compared {compared} --seed {options.seed}"
    )
    origin = provenance()
    return (
        f"# Random modules\n\n{options.count:,} modules verified and round-tripped, {compared:,} of them run by the "
        f"interpreter and by XLA on the same arguments. {aborted}\n\n"
        f"- command: `{command}`\n- commit: {origin['commit']}\n- machine: {origin['machine']}\n"
        f"- date: {origin['date']}\n- instructions: {found.ops.total():,}\n\n"
        f"## Differences\n\n{listed}\n## Ops used\n\n"
        f"| op | times |\n|---|---:|\n{used}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
