"""The ladder of "Operator Fusion in XLA" as kernel counts: XLA's fusion rules, and what the default compilation makes.

python -m experiments.benchmarks.fusion_ladder [--out results/fusion/ladder.md]

The rungs are the Cartpole programs of the suite quickstart. For the columns of rules, loops stay loops and only passes
that XLA has run before fusion. Kernels of one number, such as the counter of the loop, are not counted: XLA computes
them on the host or within other kernels.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler.api import compile as compile_hlo
from compiler.fusion.policies import make_policy
from compiler.ir import HloInstruction, HloModule
from compiler.passes import PassPipeline
from compiler.passes.pipelines.default import XLA_ORDER, default_pipeline, passes
from compiler.runtime.thunks import KernelThunk
from compiler.session import CompilationSession
from compiler.text import parse
from env.suites import find_program
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import write_text

OURS = frozenset(
    {
        "state-splitting", "concatenate-sinking", "slice-movement", "unit-dimension-movement",
        "while-loop-slice-sinking",
    }
)  # fmt: skip
"""Passes that XLA does not have and that change what a loop carries."""
UNROLL = ("while-loop-unroller{factor=10}", "tuple-simplifier", "algebraic-simplifier", "cse", "dce")
XLA = "instruction,merger,multi-output,horizontal"
CONCATENATES = "instruction{code_duplication=1000,keep_expensive=false},merger,multi-output,horizontal"
"""XLA's rules without those that keep a concatenate and what it reads several times apart, as in the paper's patch."""


@dataclass(frozen=True)
class Rung:
    """One step of the paper's ladder: a program, the fusion rules, and whether the loop is unrolled by 10."""

    name: str
    program: str
    rules: str = XLA
    unrolled: bool = False


RUNGS = (
    Rung("naive", "cartpole_naive"),
    Rung("precomputed randoms", "cartpole_precomputed"),
    Rung("concatenate fused", "cartpole_precomputed", CONCATENATES),
    Rung("concatenate removed", "cartpole_split"),
    Rung("unrolled by 10", "cartpole_split", XLA, True),
)


def rule_counts(rung: Rung) -> Mapping[str, int]:
    """Return the number of kernels that XLA's fusion rules leave in the loop and outside of it."""
    order = [p for p in XLA_ORDER if p not in OURS]
    pipeline = PassPipeline("xla", passes(*order, *(UNROLL if rung.unrolled else ())))
    session = CompilationSession(parse(find_program(rung.program).text()), pipeline=pipeline)
    session.run_passes()
    session.run_fusion_policy(make_policy(rung.rules))
    entry = session.module.entry
    found = [k for k in session.kernels() if _is_array(k)]
    outside = sum(k.parent is entry for k in found)
    return {"in the loop": len(found) - outside, "outside": outside}


def our_kinds(rung: Rung) -> tuple[list[str], int]:
    """Return the kinds of the kernels of the default compilation, and the number of its other steps, such as copies."""
    pipeline = (*UNROLL, default_pipeline()) if rung.unrolled else None
    exe = compile_hlo(_module(rung), pipeline=pipeline)
    return [k.kind for k in exe.kernels], sum(not isinstance(t, KernelThunk) for t in exe.thunks)


def _module(rung: Rung) -> HloModule:
    return parse(find_program(rung.program).text())


def _is_array(i: HloInstruction) -> bool:
    return any(s.num_elements > 1 for s in i.shape.leaves())


def table() -> str:
    """Return the results as Markdown."""
    made = provenance()
    lines = [
        "# Kernels of the paper's ladder",
        "",
        f"`python -m experiments.benchmarks.fusion_ladder`, commit {made['commit']}, {made['date']}, "
        f"{made['machine']}.",
        "",
        "Cartpole of 2048 environments, as in *Operator Fusion in XLA* (arXiv 2301.13062). The rules are those of",
        f"XLA's passes, `{XLA}`; for *concatenate fused*, `{CONCATENATES}`.",
        "The last columns are what `hlogym.compile` makes by default.",
        "",
        "| rung | XLA's rules: kernels in the loop | outside | default: kernels | copies and other steps |",
        "|---|---|---|---|---|",
    ]
    for rung in RUNGS:
        counts = rule_counts(rung)
        kinds, others = our_kinds(rung)
        shown = ", ".join(f"{kinds.count(k)} {k}" for k in dict.fromkeys(kinds))
        lines.append(f"| {rung.name} | {counts['in the loop']} | {counts['outside']} | {shown} | {others} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/fusion/ladder.md"))
    out: Path = parser.parse_args(arguments).out
    out.parent.mkdir(parents=True, exist_ok=True)
    text = table()
    write_text(out, text)
    print(text)
    return 0


if __name__ == "__main__":
    with plain_errors():
        sys.exit(main())
