"""Kernels of softmax, normalisations, cross-entropy and their gradients, and why they are not fewer.

python -m experiments.benchmarks.norm_kernels [--out results/fusion/norms.md]

The reasons are those of `executable.explain()`: for each boundary between two kernels the rule that forbids a fusion,
or the estimated time without and with it.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler.api import compile as compile_hlo
from compiler.runtime.boundaries import Boundary
from compiler.support.safe_names import markdown_cell
from env.suites import find_program
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import write_text

PROGRAMS = (
    "softmax",
    "layer_norm_forward",
    "layer_norm_backward",
    "rms_norm",
    "log_softmax_gather",
    "softmax_cross_entropy_grad",
    "column_stats",
    "masked_softmax_2048x2048",
    "column_softmax_2048x2048",
    "column_moments_2048x2048",
    "two_column_sums_4096x1024",
    "logsumexp_1024x4096",
    "cross_entropy_256x10000",
    "cross_entropy_grad_256x10000",
    "batch_norm_train_32x64x28x28",
    "batch_norm_gradient",
    "f16_layer_norm_gradient",
)


@dataclass(frozen=True)
class Row:
    """The kernels of one program.

    Attributes:
        name: name of the program.
        kinds: kinds of the kernels, in program order.
        reasons: the boundaries between kernels, by reason.
    """

    name: str
    kinds: tuple[str, ...]
    reasons: Counter[str]

    def to_markdown(self) -> str:
        """Return the row of the table."""
        kinds = Counter(self.kinds)
        shown = ", ".join(f"{n} {k}" for k, n in kinds.items())
        why = "; ".join(f"{n}x {r}" for r, n in self.reasons.most_common())
        return f"| {self.name} | {len(self.kinds)} | {shown} | {markdown_cell(why)} |"


def row(name: str) -> Row:
    """Compile a program and return its kernels with the reasons for the boundaries between them."""
    exe = compile_hlo(find_program(name).text())
    return Row(name, tuple(k.kind for k in exe.kernels), Counter(map(_reason, exe.explain().boundaries)))


def _reason(boundary: Boundary) -> str:
    if boundary.refusal is not None:
        return boundary.kind_of_reason
    if boundary.after > boundary.before:
        return "a fusion would take longer, by the cost model"
    return "a fusion would save nothing that counts, by the cost model"


def table(rows: Sequence[Row]) -> str:
    """Return the results as Markdown."""
    made = provenance()
    head = [
        "# Kernels of normalisations",
        "",
        f"`python -m experiments.benchmarks.norm_kernels`, commit {made['commit']}, {made['date']}, {made['machine']}.",
        "",
        "What the default compilation makes for the CPU. A boundary is a value that one kernel writes and another",
        "reads; kernels without a boundary between them read the same arrays or none in common.",
        "",
        "| program | kernels | kinds | boundaries, by reason |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *(r.to_markdown() for r in rows)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/fusion/norms.md"))
    out: Path = parser.parse_args(arguments).out
    out.parent.mkdir(parents=True, exist_ok=True)
    text = table([row(name) for name in PROGRAMS])
    write_text(out, text)
    print(text)
    return 0


if __name__ == "__main__":
    with plain_errors():
        sys.exit(main())
