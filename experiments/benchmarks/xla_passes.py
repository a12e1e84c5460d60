"""Stock XLA with and without our passes: `python -m experiments.benchmarks.xla_passes --suite jax,kernels,models`.

Both programs run in turns on the same arguments; the ratio of a program is that of its fastest samples. Their outputs
must agree. A program of which XLA makes the same module either way is unchanged and not timed. Freed memory is kept, so
that no result costs page faults. The same program compiled again may take several percent more or less, by where its
buffers are: a ratio more than 3% from 1 is measured three times, each time compiled again, and the median counts.
The table in results/reach is made on one core,
with the samples at real-time priority:
`taskset -c 1 python -m experiments.benchmarks.xla_passes --rounds 7 --real-time --out results/reach/xla_passes.md`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy.typing as npt

from compiler.api import CompileOptions, compile
from compiler.backends.xla.executable import XlaExecutable
from compiler.errors import HlogymError
from compiler.ir import HloModule
from compiler.passes.pipelines.default import default_pipeline
from compiler.text import parse
from env.comparison import difference
from env.real_time import real_time
from env.reference import Reference
from env.statistics import geometric_mean
from env.suites import Program, load_suite
from experiments.benchmarks.steady_heap import keep_freed_memory
from experiments.inputs import entry_inputs, read_module
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import markdown_facts, markdown_table, write_text

Array = npt.NDArray[Any]
SLOWER = 0.97
"""Programs below this ratio count as slower."""
AGAIN = 2
"""How many times a program is compiled and timed again if its ratio is not close to 1."""


@dataclass(frozen=True)
class Row:
    """One program: seconds per call of stock XLA and of XLA after our passes, or why there are none.

    Attributes:
        plain: seconds of stock XLA; 0 if it was not timed, or if XLA makes the same module of both.
        passes: seconds with our passes; 0 like `plain`.
        applied: the passes that changed the module.
        problem: why the program was not timed; empty if it was.
    """

    program: str
    plain: float = 0.0
    passes: float = 0.0
    applied: tuple[str, ...] = ()
    problem: str = ""

    @property
    def ratio(self) -> float:
        """The speedup by our passes."""
        return self.plain / self.passes if self.passes else 1.0


@dataclass(frozen=True)
class Settings:
    """How programs are compiled and timed.

    Attributes:
        rounds: pairs of timings per compilation.
        default_pipeline: run the pipeline of the other backends.
        policy: the fusion policy; None leaves fusion to XLA.
        undisturbed: take samples at real-time priority.
    """

    rounds: int = 7
    default_pipeline: bool = False
    policy: str | None = None
    undisturbed: bool = False


def measure(program: Program, settings: Settings) -> Row:
    """Time a program with and without our passes, in turns."""
    row = _measure_once(program, settings)
    if row.problem or SLOWER <= row.ratio <= 1 / SLOWER:
        return row
    rows = [row, *(_measure_once(program, settings) for _ in range(AGAIN))]
    return sorted(rows, key=lambda r: r.ratio)[len(rows) // 2]


def _measure_once(program: Program, settings: Settings) -> Row:
    module = read_module(program)
    arrays = entry_inputs(program, module, 0)
    try:
        plain = compile(module, "xla", options=CompileOptions(optimize=False))
        ours = _ours(module, settings)
        finding = _difference(program, module, plain(*arrays), ours(*arrays), arrays)
        if finding is not None:
            return Row(program.name, problem=f"differs from the interpreter: {finding}")
    except HlogymError as error:
        return Row(program.name, problem=(str(error).splitlines() or ["?"])[0])
    applied = ours.plan.passes if ours.plan is not None else ()
    if not isinstance(plain, XlaExecutable) or _are_equal(plain, ours):
        return Row(program.name, applied=applied)
    before, after = _fastest((plain, ours), arrays, settings)
    return Row(program.name, before, after, applied)


def _are_equal(a: XlaExecutable, b: XlaExecutable) -> bool:
    """Check whether XLA made the same module of two programs, apart from names."""
    return a.text == b.text or parse(a.text).fingerprint() == parse(b.text).fingerprint()


def _fastest(programs: tuple[XlaExecutable, XlaExecutable], arrays: Sequence[Any], settings: Settings) -> list[float]:
    """Return the seconds of the fastest call of two programs that run in turns."""
    once = max(1e-7, min(programs[0].benchmark(arrays, 3)))
    repeats = int(max(2, min(200, 0.01 / once)))
    best = [math.inf, math.inf]
    for n in range(2 * settings.rounds):
        which = (n + n // 2) % 2  # each goes first in half of the rounds
        with real_time() if settings.undisturbed else nullcontext():
            best[which] = min(best[which], *programs[which].benchmark(arrays, repeats))
    return best


def _difference(
    program: Program, module: HloModule, plain: Sequence[Array], ours: Sequence[Array], arrays: Sequence[Any]
) -> str | None:
    """Compare our outputs with XLA's; return how those that do not match closely differ from the interpreter's."""
    if difference(ours, plain, program.tolerance) is None:
        return None
    return Reference.of(module, arrays).difference(ours, program.tolerance)


def _ours(module: HloModule, settings: Settings) -> XlaExecutable:
    pipeline = default_pipeline() if settings.default_pipeline else None
    made = compile(module, "xla", pipeline=pipeline, fusion_policy=settings.policy)
    if not isinstance(made, XlaExecutable):
        raise TypeError("not a program of XLA")
    return made


def main() -> None:
    """Measure the programs of some suites and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", default="jax,kernels,models", help="suites, separated by commas")
    parser.add_argument("--only", default="*", help="only programs whose names match")
    parser.add_argument("--every", type=int, default=1, help="only every n-th program")
    parser.add_argument("--rounds", type=int, default=7, help="pairs of timings per program")
    parser.add_argument("--default-pipeline", action="store_true", help="run the pipeline of the other backends")
    parser.add_argument("--policy", default=None, help="fusion policy; none by default")
    parser.add_argument("--real-time", action="store_true", help="time at real-time priority, if the user may")
    parser.add_argument("--without-test", action="store_true", help="leave out test programs, to choose passes by")
    parser.add_argument("--out", type=Path, default=None, help="file of the table (Markdown)")
    args = parser.parse_args()
    keep_freed_memory()
    found = [p for s in args.suite.split(",") for p in load_suite(s).programs if fnmatch(p.name, args.only)]
    programs = [p for p in found if p.split != "test" or not args.without_test]
    settings = Settings(args.rounds, args.default_pipeline, args.policy, args.real_time)
    rows = []
    for program in programs[:: args.every]:
        rows.append(measure(program, settings))
        print(program.name, rows[-1].problem or f"{rows[-1].ratio:.3f}", " ".join(rows[-1].applied), flush=True)
    timed = [r for r in rows if not r.problem]
    slower = [r for r in timed if r.ratio < SLOWER]
    mean = geometric_mean([r.ratio for r in timed]).value
    names = ", ".join(r.program for r in slower) or "none"
    summary = f"{len(timed)} programs, geometric mean {mean:.3f}x, {len(slower)} slower by more than 3%: {names}"
    print(summary)
    if args.out is not None:
        cells = [
            [r.program, f"{r.plain * 1e6:.1f}", f"{r.passes * 1e6:.1f}", f"{r.ratio:.2f}x", r.problem]
            if r.plain
            else [r.program, "", "", "" if r.problem else "unchanged", r.problem]
            for r in rows
        ]
        table = markdown_table(
            [["program", "XLA (us)", "after our passes (us)", "speedup", "not timed because"], *cells]
        )
        lines = ["# Stock XLA with our passes", "", summary, "", table, "", *markdown_facts(provenance())]
        write_text(args.out, "\n".join(lines) + "\n")


if __name__ == "__main__":
    with plain_errors():
        main()
