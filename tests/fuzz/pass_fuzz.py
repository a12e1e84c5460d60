"""Random modules through random sequences of passes; what fails is reduced to a small module and few passes.

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
"""Random modules loop a few times; more is a loop that reduction, or a pass, has made endless."""

SECONDS = 60
"""A module and its sequence take a fraction of one; what takes so long is a finding of its own."""

VARIANTS = (
    "while-loop-unroller{factor=2,full=false}",
    "while-loop-unroller{factor=3,full=false}",
    "float-normalization{narrow=f16}",
    "dot-strength-reduction{max_contracted=64}",
    "slice-movement{split=true}",
    "distribution{float_terms=false}",
)
"""Passes with options that change what they do; every pass with its defaults comes beside these."""

SINGLE_SWEEPS = (0.0, 0.5, 1.0)
"""Shares of a sequence held to one sweep an application; a module draws one of them."""


@dataclass(frozen=True)
class Failure:
    """A module and passes that together break it; `what` says how."""

    seed: int
    what: str
    passes: tuple[str, ...]
    text: str


def pass_texts() -> list[str]:
    """What sequences are drawn from."""
    return [*PASSES, *VARIANTS]


def check(module: HloModule, passes: Sequence[str], inputs_seed: int = 0) -> str | None:
    """What goes wrong when the passes run over a copy of the module; None when nothing does."""
    work = module.clone()
    args = random_inputs(module, np.random.default_rng(inputs_seed))
    want = reference(module, args, ITERATIONS)
    found = apply(work, passes)
    if found is not None:
        return found
    try:
        differing = difference(run(work, args, ITERATIONS), want)
    except InterpreterError as e:
        return f"results are missing: {e}"
    return None if differing is None else f"results differ: {differing}"


def apply(module: HloModule, passes: Sequence[str]) -> str | None:
    """Run the passes over the module; what is wrong with it or with what they say of it, None when nothing is."""
    before = str(module)
    for text in passes:
        try:
            changed = run_pass(_pass(text), module, verify=False)
        except Exception as e:  # whatever it raises is the finding
            return f"{text} raised {type(e).__name__}: {e}"
        after = str(module)
        if changed != (after != before):
            return f"{text} said changed={changed}, and the text says otherwise"
        findings = wrong_accounts(module) or (check_module(module) if changed else [])
        if findings:
            return f"{text} left an invalid module: {findings[0]}"
        before = after
    return None


_pass = cache(make_pass)


def wrong_accounts(module: HloModule) -> list[str]:
    """What computations remember of themselves and is not so: their order, their calls, their control edges."""
    findings = []
    for c in module.computations:
        done: set[HloInstruction] = set()
        for i in c.instructions:
            if c.order_is_known and not done.issuperset((*i.operands, *i.control_predecessors)):
                findings.append(f"{c.name} says it is in order, and %{i.name} stands before what it needs")
            if i.control_predecessors and not c.may_have_control_edges:
                findings.append(f"{c.name} says it has no control edges, and %{i.name} has")
            done.add(i)
        telling = [i for i in c.instructions if i.called_computations() or has_side_effect(i)]
        if not set(c.notable).issuperset(telling):
            findings.append(f"{c.name} does not keep all its calls and effects")
    return findings


def fuzz_one(seed: int, instructions: int = 40) -> Failure | None:
    """One module and one sequence, both drawn from `seed`; a failure comes back reduced."""
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
        return Failure(seed, f"not done after {SECONDS} s", tuple(passes), str(module))
    finally:
        signal.alarm(0)
    return None if what is None else reduce_failure(seed, module, passes, what)


class _TooLateError(BaseException):
    """Past everything that takes an exception for a finding."""


def _too_late(signum: int, frame: FrameType | None) -> None:
    raise _TooLateError


def reduce_failure(seed: int, module: HloModule, passes: Sequence[str], what: str) -> Failure:
    """The failure with as few passes and as small a module as delta debugging finds."""
    kind = what.split(":")[0].split(" said")[0]
    few = reduce_list(passes, partial(_still, module, kind))
    small = reduce_module(module, lambda m: _still(m, kind, few))
    few = reduce_list(few, partial(_still, small, kind))
    return Failure(seed, check(small, few) or what, tuple(few), str(small))


def _still(module: HloModule, kind: str, passes: Sequence[str]) -> bool:
    try:
        found = check(module, passes)
    except InterpreterError:
        return False  # the smaller module has no results to compare with
    return found is not None and found.startswith(kind)


def save(failure: Failure, folder: Path) -> Path:
    """Write a counter-example as a regression test: the passes in a comment, then the module."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{make_pass(failure.passes[-1]).name}_{failure.seed}.hlo"
    path.write_text(f"// passes: {';'.join(failure.passes)}\n{failure.text}\n", encoding="utf-8")
    return path


def read_regression(path: Path) -> tuple[HloModule, list[str]]:
    """Module and passes of a saved counter-example."""
    first, _, text = path.read_text(encoding="utf-8").partition("\n")
    return parse(text), first.removeprefix("// passes: ").split(";")


def fuzz(seeds: Sequence[int], workers: int) -> Iterator[Failure | None]:
    """`fuzz_one` for each seed."""
    if workers == 1:
        yield from map(fuzz_one, seeds)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(fuzz_one, seeds, chunksize=16)


def report(seeds: Sequence[int], failures: Sequence[Failure], seconds: float) -> str:
    """The table for results/."""
    origin = provenance()
    lines = [
        "# Random modules through random pass sequences",
        "",
        f"- command: `python -m tests.fuzz.pass_fuzz {' '.join(sys.argv[1:])}`",
        f"- commit: {origin['commit']}",
        f"- machine: {origin['machine']}",
        f"- date: {origin['date']}",
        "",
        f"{len(seeds)} modules (seeds {seeds[0]} to {seeds[-1]}) of up to 40 instructions, each through 1 to "
        f"{LONGEST} passes drawn from {len(pass_texts())}; {seconds:.0f} s. "
        "Each pass runs to its own fixed point or, by a share drawn for the module, one sweep. Checked: the verifier "
        "and what computations remember of themselves after each pass, that `changed` agrees with the text, and the "
        "interpreter's results before and after the sequence.",
        "",
        f"Failures: {len(failures)}",
        "",
    ]
    lines += [f"- seed {f.seed}: {'; '.join(f.passes)}: {f.what}" for f in failures]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run from the command line; the exit status says whether anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="stop after so long, whatever is left")
    parser.add_argument("--save", type=Path, help="folder for reduced counter-examples")
    parser.add_argument("--out", type=Path, help="markdown file for the summary")
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
