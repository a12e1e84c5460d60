"""Stock XLA with and without our passes: `python -m experiments.benchmarks.xla_passes --suite jax,kernels,models`.

Both programs run in turns on the same arguments; the ratio of a program is that of its fastest samples. Their outputs
must agree. The table in results/reach is made on one core at real-time priority:
`chrt -f 20 taskset -c 1 python -m experiments.benchmarks.xla_passes --rounds 7 --out results/reach/xla_passes.md`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
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
from env.comparison import difference
from env.reference import Reference
from env.statistics import geometric_mean
from env.suites import Program, load_suite
from experiments.inputs import entry_inputs, read_module
from experiments.provenance import provenance
from experiments.results import markdown_facts, markdown_table, write_text

Array = npt.NDArray[Any]
SLOWER = 0.97
"""Programs below this ratio count as slower."""


@dataclass(frozen=True)
class Row:
    """One program: seconds per call of stock XLA and of XLA after our passes, or why there are none.

    Attributes:
        plain: seconds of stock XLA; 0 if it was not timed, or if our passes leave the module as it is.
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


def measure(program: Program, rounds: int, old: bool = False, policy: str | None = None) -> Row:
    """Time a program with and without our passes, in turns."""
    module = read_module(program)
    arrays = entry_inputs(program, module, 0)
    try:
        plain = compile(module, "xla", options=CompileOptions(optimize=False))
        ours = _ours(module, old, policy)
        finding = _difference(program, module, plain(*arrays), ours(*arrays), arrays)
        if finding is not None:
            return Row(program.name, problem=f"differs from the interpreter: {finding}")
    except HlogymError as error:
        return Row(program.name, problem=(str(error).splitlines() or ["?"])[0])
    applied = ours.plan.passes if ours.plan is not None else ()
    if not isinstance(plain, XlaExecutable) or str(plain.text) == str(ours.text):
        return Row(program.name, applied=applied)
    once = max(1e-7, min(plain.benchmark(arrays, 3)))
    repeats = int(max(2, min(200, 0.01 / once)))
    best = [math.inf, math.inf]
    for n in range(2 * rounds):
        exe = (plain, ours)[(n + n // 2) % 2]  # each goes first in half of the rounds
        best[(n + n // 2) % 2] = min(best[(n + n // 2) % 2], *exe.benchmark(arrays, repeats))
    return Row(program.name, best[0], best[1], applied)


def _difference(
    program: Program, module: HloModule, plain: Sequence[Array], ours: Sequence[Array], arrays: Sequence[Any]
) -> str | None:
    """Compare our outputs with XLA's; return how those that do not match closely differ from the interpreter's."""
    if difference(ours, plain, program.tolerance) is None:
        return None
    return Reference.of(module, arrays).difference(ours, program.tolerance)


def _ours(module: HloModule, old: bool, policy: str | None) -> XlaExecutable:
    made = compile(module, "xla", pipeline=default_pipeline() if old else None, fusion_policy=policy)
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
    parser.add_argument("--without-test", action="store_true", help="leave out test programs, to choose passes by")
    parser.add_argument("--out", type=Path, default=None, help="file of the table (Markdown)")
    args = parser.parse_args()
    found = [p for s in args.suite.split(",") for p in load_suite(s).programs if fnmatch(p.name, args.only)]
    programs = [p for p in found if p.split != "test" or not args.without_test]
    rows = []
    for program in programs[:: args.every]:
        rows.append(measure(program, args.rounds, args.default_pipeline, args.policy))
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
    main()
