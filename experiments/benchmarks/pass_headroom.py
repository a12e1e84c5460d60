"""Measured speedup over the default pipeline that a random search over pass orders finds; writes to results/.

    python -m experiments.benchmarks.pass_headroom [--suite jax/test,test] [--draws 40] [--rounds 11]
        [--out results/passes/headroom.md]

Randomly chosen passes run before the default pipeline. Some of the different programs that result are timed together
with the default's, interleaved, after checking their outputs. The best one is timed again to avoid selection bias.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from compiler.errors import HlogymError
from compiler.ir import HloModule
from compiler.passes import PASSES, PassPipeline, make_pass
from compiler.passes.pipelines.default import default_pipeline
from compiler.session import CompilationSession
from compiler.support.safe_names import markdown_cell
from compiler.text import parse
from env.measurement import Measurer, MeasurerOptions
from env.statistics import Interval, geometric_mean
from env.store import PlanStore
from env.suites import Program, load_suite
from experiments.console import error_console
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import write_text

VARIANTS = (
    "while-loop-unroller{factor=2,full=false}",
    "while-loop-unroller{factor=4,full=false}",
    "while-loop-unroller{max_trips=1000,max_ops=8000}",
    "slice-movement{split=true}",
)
LONGEST, TIMED = 8, 6
MAX_INSTRUCTIONS, MAX_AFTERWARDS = 600, 2500
"""Limits before and after the passes; fully unrolled loops take minutes to fuse."""


@dataclass(frozen=True)
class Row:
    """The result on one program.

    Attributes:
        program: name of the program.
        different: number of different programs that the random passes produced.
        best: speedup of the best of them over the default; None if none was measured.
        passes: the passes of the best one.
        noise: speedup of the default over itself.
    """

    program: str
    different: int
    best: Interval | None
    passes: tuple[str, ...]
    noise: Interval


def search(program: Program, draws: int, rng: np.random.Generator, measurer: Measurer) -> Row:
    """Sample passes, sort the resulting programs by the cost model, and time a selection of them.

    Raises:
        HlogymError: the program does not compile.
    """
    module = parse(program.text(), filename=str(program.path))
    candidates = [t for t in (*PASSES, *VARIANTS) if t != "float-normalization"]
    default = _optimised(module, ())
    seen, found = {str(default.module)}, []
    default.run_fusion_policy()
    for _ in range(draws):
        passes = tuple(str(t) for t in rng.choice(candidates, int(rng.integers(1, LONGEST + 1))))
        session = _optimised(module, passes)
        text = str(session.module)
        if text in seen or session.module.instruction_count > MAX_AFTERWARDS:
            continue
        seen.add(text)
        session.run_fusion_policy()
        found.append((session.cost().seconds, passes, session.plan))
    found.sort(key=lambda f: f[0])
    timed = [*found[: TIMED // 2], *found[TIMED // 2 :: max(1, len(found) // TIMED)]][:TIMED]
    plans = {f"{n}": plan for n, (_, _, plan) in enumerate(timed)}
    compared = measurer.compare(program, {"default": default.plan, **plans})
    speedups = {n: compared.speedup(n, "default").value for n in plans if n in compared.samples}
    best = max(speedups, key=speedups.__getitem__, default=None)
    final = {"default": default.plan, "again": default.plan} | ({} if best is None else {"best": plans[best]})
    compared = measurer.compare(program, final)
    return Row(
        program.name,
        len(found),
        None if best is None else compared.speedup("best", "default"),
        () if best is None else timed[int(best)][1],
        compared.speedup("again", "default"),
    )


def _optimised(module: HloModule, passes: Sequence[str]) -> CompilationSession:
    session = CompilationSession(module)
    session.run_passes(PassPipeline("drawn", (*map(make_pass, passes), default_pipeline())))
    return session


def report(rows: Sequence[Row], command: str, suite: str, draws: int, failures: Sequence[str]) -> str:
    """Return the results page in Markdown."""
    facts = provenance()
    best = geometric_mean([1.0 if r.best is None else r.best.value for r in rows])
    noise = geometric_mean([r.noise.value for r in rows])
    clear = [r for r in rows if r.best is not None and r.best.low > max(1.03, r.noise.high)]
    lines = [
        "# Measured headroom of the pass order",
        "",
        f"- command: `{command}`",
        f"- commit: {facts['commit']}",
        f"- machine: {facts['machine']}",
        f"- date: {facts['date']}",
        f"- programs: {len(rows)} of {suite}, those with at most {MAX_INSTRUCTIONS} instructions",
        "",
        f"For each program, {draws} random sequences of up to {LONGEST} passes ran before the default pipeline. At "
        f"most {TIMED} of the different programs that resulted were timed, and the best of them was timed again "
        f"together with the default's. Geometric mean of its speedup with the 95% interval: "
        f"{best.value:.3f}x [{best.low:.3f}, {best.high:.3f}]; of the default over itself: "
        f"{noise.value:.3f}x [{noise.low:.3f}, {noise.high:.3f}]. Significantly faster than the default: "
        f"{', '.join(r.program for r in clear) or 'none'}.",
        "",
        "| program | different programs | speedup of the best | default over itself | passes before the default |",
        "|---|---:|---|---|---|",
    ]
    lines += [
        f"| {markdown_cell(r.program)} | {r.different} | {'-' if r.best is None else _shown(r.best)} "
        f"| {_shown(r.noise)} "
        f"| {', '.join(r.passes) if r in clear else ''} |"
        for r in rows
    ]
    lines += ["", *(f"- not measured: {f}" for f in failures)]
    return "\n".join(lines).rstrip() + "\n"


def _shown(value: Interval) -> str:
    return f"{value.value:.2f}x [{value.low:.2f}, {value.high:.2f}]"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="jax/test,test", help="comma-separated suites (default: %(default)s)")
    parser.add_argument(
        "--draws", type=int, default=40, help="random pass sequences per program (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=11, help="interleaved timings (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random passes (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("results/passes/headroom.md"), help="results file (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(options.seed)
    rows, failures = [], []
    with Measurer(PlanStore(":memory:"), MeasurerOptions(rounds=options.rounds)) as measurer:
        for program in load_suite(options.suite).programs:
            if parse(program.text()).instruction_count > MAX_INSTRUCTIONS:
                continue
            error_console.print(program.name)
            try:
                rows.append(search(program, options.draws, rng, measurer))
            except (HlogymError, KeyError) as error:  # continue with the other programs
                failures.append(f"{program.name}: {type(error).__name__}: {error}")
    command = f"python -m experiments.benchmarks.pass_headroom --suite {options.suite} --draws {options.draws}"
    text = report(
        rows, f"{command} --rounds {options.rounds} --seed {options.seed}", options.suite, options.draws, failures
    )
    write_text(options.out, text)
    sys.stdout.write(text)


if __name__ == "__main__":
    with plain_errors():
        main()
