"""Fuzz schedules: random schedules of random kernels, as C, against the interpreter.

python -m tests.fuzz.schedules [--kernels 5000] [--seed 0] [--out results/fuzz/schedules.md]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from compiler.codegen.schedules.schedule import FIELD_RANGES, Schedule
from compiler.errors import UnsupportedError
from compiler.ir.printing import PrintOptions, print_instruction
from experiments.provenance import provenance
from tests.codegen import running
from tests.codegen.random_kernels import random_kernel

BATCH = 50
"""Number of kernels that are compiled at a time."""
PREFERRED = {
    "tile": (0, 8, 16, 33, 64),
    "columns": (1, 7, 16, 64, 100, 256),
    "grain": (1_000, 2_000, 20_000),
    "unroll": (1, 2, 3, 4, 8),
    "accumulators": (1, 2, 3, 4, 8),
    "splits": (0, 1, 2, 3, 7, 64),
    "across": (0, 1, 8, 24, 48),
    "axis": (0,),
    "product.row_block": (8, 16, 64, 200),
    "product.column_block": (16, 32, 128, 512),
    "product.shared_rows": (16, 256),
    "product.task_products": (1 << 12, 1 << 18),
}
"""Values that matter for kernels of a few thousand elements; other fields take any value of their range."""


@dataclass
class Outcome:
    """The results of a run.

    Attributes:
        counts: number of kernels by outcome: "right", "wrong", "refused", "not buildable".
        kinds: number of kernels that ran, by kind.
        problems: a description of each wrong kernel.
    """

    counts: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def random_schedule(rng: np.random.Generator) -> Schedule:
    """Return a schedule in which each field is either the default or a random value."""
    chosen = {}
    for name, allowed in FIELD_RANGES.items():
        values = PREFERRED.get(name, allowed)
        if rng.random() < 0.6:
            chosen[name] = int(values[int(rng.integers(len(values)))])
    return Schedule.from_json(chosen)


def fuzz(kernels: int, seed: int) -> Outcome:
    """Run random schedules of random kernels and return how the results compare with the interpreter's."""
    outcome = Outcome()
    rng = np.random.default_rng(seed)
    made = 0
    while made < kernels:
        batch: list[tuple[str, Schedule, running.Case]] = []
        while len(batch) < min(BATCH, kernels - made):
            fused, schedule = random_kernel(rng), random_schedule(rng)
            text = "\n".join(print_instruction(i, PrintOptions()) for i in fused.instructions)
            try:
                running.kernel_of(fused, "c")
            except UnsupportedError:
                outcome.counts["not buildable"] += 1
                continue
            try:
                case = running.case_of(fused, running.random_args(fused.parameter_shapes, rng), "c", schedule)
            except UnsupportedError:
                outcome.counts["refused"] += 1
                continue
            batch.append((text, schedule, case))
        for (text, schedule, case), found in zip(batch, running.run_c([c for *_, c in batch]), strict=True):
            problem = running.problem(found, case)
            outcome.counts["right" if problem is None else "wrong"] += 1
            outcome.kinds[case.spec.kind] += 1
            if problem is not None:
                outcome.problems.append(f"{schedule.to_json()}: {problem}\n{text}")
        made += len(batch)
    return outcome


def main(arguments: list[str]) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kernels", type=int, default=5000, help="number of kernels that are run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write a report in Markdown")
    options = parser.parse_args(arguments)
    origin, start = provenance(), time.monotonic()
    outcome = fuzz(options.kernels, options.seed)
    counts, seconds = outcome.counts, time.monotonic() - start
    for problem in outcome.problems:
        print(problem)
    lines = [
        "# Random schedules of random kernels",
        "",
        f"- command: `python -m tests.fuzz.schedules {' '.join(arguments)}`",
        *(f"- {key}: {origin[key]}" for key in ("commit", "machine", "date")),
        "",
        f"{counts['right'] + counts['wrong']} random kernels in C (seed {options.seed}), each with a random schedule; "
        f"{seconds:.0f} s. Random fields: {', '.join(FIELD_RANGES)}. {counts['refused']} schedules were refused with a "
        "reason. Checked: every element of every output against the interpreter.",
        "",
        f"Kinds: {', '.join(f'{n} {kind}' for kind, n in outcome.kinds.most_common())}.",
        "",
        f"Wrong results: {counts['wrong']}",
    ]
    print("\n".join(lines))
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
