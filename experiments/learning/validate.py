"""Compare a policy with the rules on programs that it was not trained on.

    python -m experiments.learning.validate [--policy learned] [--suite corpus/validation] [--per-family N] [--out F.md]

For each program the plan of the policy is raced against that of the rules, in ABBA blocks in one process; outputs are
checked. Writes a page, and .jsonl beside it, from which an interrupted run continues.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agents.search import Starts
from compiler.api import decide_all
from compiler.policy import Policy, resolve_policy
from compiler.session import CompilationSession
from env.measurement import Measurer
from env.store import PlanStore
from env.suites import Program, open_test_programs
from env.summaries import SpeedupSummary, summarise
from experiments.learning.bandits import draw_programs, learnable_programs, measurer_options
from experiments.learning.settings import LearningSettings, add_settings, given_settings
from experiments.module_command import plain_errors
from experiments.provenance import compiler_digest
from experiments.yardstick.rows import Row, collect, failure_lines, forget_rows_of_other_code, write_page

__all__ = ["Validation", "main", "validate_policy"]

FOLDER = Path("results/learning")


@dataclass(frozen=True)
class Validation:
    """What validation shows.

    Attributes:
        rows: one per program.
        summary: of the speedups that count by the gate, with 1 for others; None if nothing could be measured.
        not_worse: share of the programs that are not slower beyond the noise floor.
        needed: the least share with which the policy may be the default.
        gate: when a difference counts.
    """

    rows: Sequence[Row]
    summary: SpeedupSummary | None
    not_worse: float
    needed: float
    gate: str

    @property
    def measured(self) -> list[Row]:
        """The rows of programs that could be measured."""
        return [r for r in self.rows if "speedup" in r]

    @property
    def passed(self) -> bool:
        """Whether the policy may be the default: enough programs, seldom slower, and faster on the whole."""
        s = self.summary
        return s is not None and len(self.measured) >= 50 and self.not_worse >= self.needed and s.mean.low >= 1

    def lines(self) -> list[str]:
        """Return the result as sentences."""
        s = self.summary
        if s is None:
            return ["No program could be measured."]
        changed = [r for r in self.measured if r["changed"]]
        failed = [r for r in self.rows if "failure" in r]
        decided = [r["decide_seconds"] for r in self.measured]
        return [
            f"- programs: {s.programs}, of which the policy compiles {len(changed)} differently; {len(failed)} failed",
            f"- geometric mean: {s.mean.value:.4f}x [{s.mean.low:.4f}, {s.mean.high:.4f}]; "
            f"median {s.median.value:.3f}x; best {s.best:.2f}x; worst {s.worst:.3f}x",
            f"- faster: {s.faster:.1%}, slower: {s.slower:.1%}; a difference counts {self.gate}, and is 1 otherwise",
            f"- not slower beyond the noise floor: {self.not_worse:.1%} (needed to be the default: {self.needed:.0%} "
            "of at least 50 programs, and a mean whose interval is not below 1)",
            f"- time of all decisions beyond those of the rules: at most {max(decided):.2f} s",
            f"- may be the default: {'yes' if self.passed else 'no'}",
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the result for the description of the policy."""
        return {"passed": self.passed, "programs": len(self.measured), "lines": self.lines()}


def validation_row(measurer: Measurer, program: Program, policy: Policy) -> Row:
    """Race the plan of a policy against that of the rules.

    Raises:
        HlogymError: the program cannot be compiled or measured.
    """
    starts = Starts(measurer.options.backend)
    rules, learned = (CompilationSession(starts.module(program), starts.backend) for _ in range(2))
    start = time.process_time()
    decide_all(rules, resolve_policy("heuristic", rules.backend))
    middle = time.process_time()
    decide_all(learned, policy)
    extra = (time.process_time() - middle) - (middle - start)
    changed = rules.plan != learned.plan
    facts = {"family": program.family, "decide_seconds": round(max(0.0, extra), 4), "changed": changed}
    if not changed:
        return {**facts, "speedup": [1.0, 1.0, 1.0], "counts": False}
    measurer.measure_reference(program)
    found = measurer.measure(program, learned.plan)
    if found.verdict is None:
        return {"failure": found.reason}
    v = found.verdict
    if v.counts:  # a difference must show again in a fresh process
        measurer.restart()
        second = measurer.measure(program, learned.plan, remeasure=True).verdict
        v = v if second is None or second.counts else second
    return {
        **facts, "speedup": [v.speedup.value, v.speedup.low, v.speedup.high], "counts": v.counts,
        "seconds": v.default.value,
    }  # fmt: skip


def validate_policy(
    policy: Policy, settings: LearningSettings, state: Path, *, with_test_programs: bool = False
) -> Validation:
    """Compare a policy with the rules on the programs of the settings; a file of an interrupted run is continued.

    A file that was written with other sources of the compiler is begun again.

    Raises:
        ManifestError: the suite has programs that are held out for tests, and they are not wanted.
        MeasurementError: nothing can be measured on this machine.
    """
    s = settings.validate
    choose = draw_programs if with_test_programs else learnable_programs
    programs = choose(s.suite, s.per_family, settings.seed)
    facts = {"policy": policy.label, "backend": settings.backend, "suite": s.suite, "per_family": s.per_family,
             "rounds": s.rounds, "seconds": s.seconds, "seed": settings.seed, "code": compiler_digest()}  # fmt: skip
    forget_rows_of_other_code(state, facts)
    with Measurer(PlanStore(":memory:"), measurer_options(settings, s.rounds, s.seconds)) as measurer:
        rows = collect(state, facts, programs, lambda p: validation_row(measurer, p, policy), len(programs))
        gate = str(measurer.options.gate)
    measured = [r for r in rows if "speedup" in r]
    counted = {r["program"]: [[r["speedup"][0] if r["counts"] else 1.0]] for r in measured}
    summary = summarise(counted) if measured else None
    return Validation(rows, summary, 0.0 if summary is None else 1 - summary.slower, s.not_worse, gate)


def write_validation(validation: Validation, policy: str, command: str, out: Path) -> str:
    """Write the page of a validation, whose rows are in the file beside it; return it."""
    changed = sorted((r for r in validation.measured if r["changed"]), key=lambda r: float(r["speedup"][0]))
    table = [["program", "rules, us", "speedup", "counts"]]
    for r in changed:
        value, low, high = r["speedup"]
        shown = f"{value:.3f}x [{low:.3f}, {high:.3f}]"
        table.append([r["program"], f"{r.get('seconds', 0) * 1e6:.1f}", shown, "yes" if r["counts"] else "-"])
    failed = failure_lines(validation.rows)
    head = f"Policy {policy} against the rules; the table has the programs that it compiles differently."
    lines = [head, "", *validation.lines(), *failed]
    return write_page(out, "The learned policy beside the rules", command, lines, table, out.with_suffix(".jsonl"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="learned", help="name or folder (default: %(default)s)")
    parser.add_argument("--suite", default=None, help="comma-separated suites (default: those of the settings)")
    parser.add_argument("--per-family", type=int, default=None, help="programs of each family at most")
    parser.add_argument("--open-test", metavar="PURPOSE", help="open sealed test programs and record it")
    add_settings(parser)
    parser.add_argument("--out", type=Path, default=None, help="page to write (default: results/learning/POLICY.md)")
    o = parser.parse_args(arguments)
    settings = given_settings(o)
    s = replace(settings.validate, suite=o.suite or settings.validate.suite)
    s = replace(s, per_family=o.per_family or s.per_family)
    policy = resolve_policy(o.policy, settings.backend)
    out = o.out or FOLDER / f"{policy.name.replace(':', '-')}.md"
    with open_test_programs(o.open_test, policy.label, [out.parent]) if o.open_test else nullcontext():
        found = validate_policy(
            policy, replace(settings, validate=s), out.with_suffix(".jsonl"), with_test_programs=bool(o.open_test)
        )
    command = f"python -m experiments.learning.validate --policy {policy.name} --suite {s.suite}"
    command += f" --per-family {s.per_family}"
    if o.open_test:
        command += f" --open-test {shlex.quote(o.open_test)}"
    sys.stdout.write(write_validation(found, policy.label, command, out))


if __name__ == "__main__":
    with plain_errors():
        main()
