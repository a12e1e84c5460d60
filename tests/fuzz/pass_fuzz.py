"""Fuzz passes: run random sequences of passes on random modules, and reduce failures to few passes and small modules.

python -m tests.fuzz.pass_fuzz [--modules 10000] [--seed 0] [--workers 1] [--save tests/regressions/passes]
    [--out results/fuzz/passes.md]
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import FrameType

import numpy as np

from compiler.errors import InterpreterError
from compiler.ir import HloInstruction, HloModule
from compiler.ir.computation import has_side_effect
from compiler.ir.verifier import check_module
from compiler.passes import PASSES, make_pass
from compiler.passes.infrastructure.pipeline import run_pass
from compiler.text import parse
from experiments.delta_debugging import reduce_list, reduce_module
from experiments.provenance import provenance
from tests.fuzz.random_modules import random_inputs, random_module
from tests.passes.programs import difference, reference, run

LONGEST = 60
ITERATIONS = 10_000
"""Limit of loop iterations; loops of random modules are short unless a pass or the reduction makes them endless."""

SECONDS = 60
"""Time limit of a module and its sequence, which usually take a fraction of a second."""

VARIANTS = (
    "while-loop-unroller{factor=2,full=false}",
    "while-loop-unroller{factor=3,full=false}",
    "float-normalization{narrow=f16}",
    "dot-strength-reduction{max_contracted=64}",
    "slice-movement{split=true}",
    "distribution{float_terms=false}",
)
"""Passes with options, in addition to all passes with their default options."""

SINGLE_SWEEPS = (0.0, 0.5, 1.0)
"""Shares of the passes of a sequence that run for only one sweep; chosen at random per module."""


@dataclass(frozen=True)
class Failure:
    """A module, a sequence of passes that fails on it, and a description of the failure."""

    seed: int
    what: str
    passes: tuple[str, ...]
    text: str


def pass_texts() -> list[str]:
    """Return the passes from which sequences are sampled."""
    return [*PASSES, *VARIANTS]


def check(module: HloModule, passes: Sequence[str], inputs_seed: int = 0) -> str | None:
    """Return what goes wrong when the passes run on a copy of the module, or None."""
    work = module.clone()
    args = random_inputs(module, np.random.default_rng(inputs_seed))
    want = reference(module, args, ITERATIONS)
    found = apply(work, passes)
    if found is not None:
        return found
    try:
        differing = difference(run(work, args, ITERATIONS), want)
    except InterpreterError as e:
        return f"no results: {e}"
    return None if differing is None else f"results differ: {differing}"


def apply(module: HloModule, passes: Sequence[str]) -> str | None:
    """Run the passes on the module; return a wrong `changed`, an invalid module or another failure, or None."""
    before = str(module)
    for text in passes:
        try:
            changed = run_pass(_pass(text), module, verify=False)
        except Exception as e:  # any exception is a finding
            return f"{text} raised {type(e).__name__}: {e}"
        after = str(module)
        if changed != (after != before):
            return f"{text} said changed={changed}, which is wrong"
        findings = stale_caches(module) or (check_module(module) if changed else [])
        if findings:
            return f"{text} left an invalid module: {findings[0]}"
        before = after
    return None


_pass = cache(make_pass)


def stale_caches(module: HloModule) -> list[str]:
    """Return errors in what computations cache about their order, their calls and their control edges."""
    findings = []
    for c in module.computations:
        done: set[HloInstruction] = set()
        for i in c.instructions:
            if c.order_is_known and not done.issuperset((*i.operands, *i.control_predecessors)):
                findings.append(f"{c.name} is marked as ordered, but %{i.name} precedes an operand")
            if i.control_predecessors and not c.may_have_control_edges:
                findings.append(f"{c.name} is marked as free of control edges, but %{i.name} has some")
            done.add(i)
        expected = [i for i in c.instructions if i.called_computations() or has_side_effect(i)]
        if not set(c.notable).issuperset(expected):
            findings.append(f"{c.name} does not record all its calls and side effects")
    return findings


def fuzz_one(seed: int, instructions: int = 40) -> Failure | None:
    """Run a random sequence on a random module; return the reduced failure, or None."""
    rng = np.random.default_rng(seed)
    module = random_module(rng, instructions)
    passes = [str(p) for p in rng.choice(pass_texts(), int(rng.integers(1, LONGEST + 1)))]
    single = rng.random(len(passes)) < rng.choice(SINGLE_SWEEPS)
    passes = [f"{p}@1" if once else p for p, once in zip(passes, single, strict=True)]
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(SECONDS)
    try:
        what = check(module, passes)
    except _TooLateError:
        return Failure(seed, f"timed out after {SECONDS} s", tuple(passes), str(module))
    finally:
        signal.alarm(0)
    return None if what is None else reduce_failure(seed, module, passes, what)


class _TooLateError(BaseException):
    """Raised by the alarm; not an Exception, so that handlers of findings do not catch it."""


def _too_late(signum: int, frame: FrameType | None) -> None:
    raise _TooLateError


def reduce_failure(seed: int, module: HloModule, passes: Sequence[str], what: str) -> Failure:
    """Reduce a failure by delta debugging to few passes and a small module."""
    kind = what.split(":")[0].split(" said")[0]
    few = reduce_list(passes, partial(_still, module, kind))
    small = reduce_module(module, lambda m: _still(m, kind, few))
    few = reduce_list(few, partial(_still, small, kind))
    return Failure(seed, check(small, few) or what, tuple(few), str(small))


def _still(module: HloModule, kind: str, passes: Sequence[str]) -> bool:
    try:
        found = check(module, passes)
    except InterpreterError:
        return False  # the reduced module cannot be evaluated
    return found is not None and found.startswith(kind)


def save(failure: Failure, folder: Path) -> Path:
    """Write a counter-example as a regression test: the passes in a comment, then the module."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{make_pass(failure.passes[-1]).name}_{failure.seed}.hlo"
    path.write_text(f"// passes: {';'.join(failure.passes)}\n{failure.text}\n", encoding="utf-8")
    return path


def read_regression(path: Path) -> tuple[HloModule, list[str]]:
    """Read the module and passes of a saved counter-example."""
    first, _, text = path.read_text(encoding="utf-8").partition("\n")
    return parse(text), first.removeprefix("// passes: ").split(";")


def fuzz(seeds: Sequence[int], workers: int) -> Iterator[Failure | None]:
    """Yield the result of `fuzz_one` for each seed."""
    if workers == 1:
        yield from map(fuzz_one, seeds)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(fuzz_one, seeds, chunksize=16)


def report(seeds: Sequence[int], failures: Sequence[Failure], seconds: float) -> str:
    """Return the results page in Markdown."""
    origin = provenance()
    lines = [
        "# Random pass sequences on random modules",
        "",
        f"- command: `python -m tests.fuzz.pass_fuzz {' '.join(sys.argv[1:])}`",
        f"- commit: {origin['commit']}",
        f"- machine: {origin['machine']}",
        f"- date: {origin['date']}",
        "",
        f"{len(seeds)} modules (seeds {seeds[0]} to {seeds[-1]}) of up to 40 instructions; on each of them 1 to "
        f"{LONGEST} passes ran, sampled from {len(pass_texts())}; {seconds:.0f} s. "
        "A pass runs until nothing changes or, for a random share of the sequence, for one sweep. Checks: after each "
        "pass, the module verifies, computations have correct caches, and `changed` is correct; after the sequence, "
        "the interpreter's results are the same.",
        "",
        f"Failures: {len(failures)}",
        "",
    ]
    lines += [f"- seed {f.seed}: {'; '.join(f.passes)}: {f.what}" for f in failures]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run from the command line and exit with status 1 if a module failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=int, default=1000, help="number of modules (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first module (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="number of processes (default: %(default)s)")
    parser.add_argument("--seconds", type=float, help="time limit in seconds (default: none)")
    parser.add_argument("--save", type=Path, help="folder for reduced counter-examples (default: do not save)")
    parser.add_argument("--out", type=Path, help="Markdown file for the summary (default: only print)")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.modules)
    start, failures, kinds = time.perf_counter(), [], Counter[str]()
    done = 0
    for failure in fuzz(seeds, options.workers):
        done += 1
        late = options.seconds is not None and time.perf_counter() - start > options.seconds
        if failure is None and late:
            break
        if failure is None:
            continue
        failures.append(failure)
        kinds[failure.passes[-1]] += 1
        print(f"seed {failure.seed}: {'; '.join(failure.passes)}: {failure.what}", flush=True)
        if options.save is not None:
            print(f"  saved as {save(failure, options.save)}", flush=True)
    text = report(seeds[:done], failures, time.perf_counter() - start)
    print(text, kinds)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text, encoding="utf-8")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
