"""Benchmark of pooling: a call of oneDNN, or slices that our kernels combine with the ops before and after the window.

python -m experiments.benchmarks.poolings [--rounds 30] [--out results/kernels/pooling.md]

The programs are windows alone, and with a bias before and a maximum with 0 after them. They are called in turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler.fusion.policies import make_policy
from compiler.runtime.executable import Executable
from compiler.session import CompilationSession
from compiler.text import parse
from experiments.benchmarks.turns import check_alike, milliseconds_in_turns, normal_arguments
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import write_text


@dataclass(frozen=True)
class Case:
    """Windows over an array of f32 whose last dimension are features.

    Attributes:
        op: "maximum" or "add".
        sizes: batch, space and features.
        size, stride: of the windows, in each dimension of space.
        padded: whether there is padding of one element on both sides.
    """

    op: str
    sizes: tuple[int, ...]
    size: int
    stride: int
    padded: bool = False

    @property
    def name(self) -> str:
        """The name of the row."""
        rank, padded = len(self.sizes) - 2, ", padded" if self.padded else ""
        window = "x".join([str(self.size)] * rank)
        return f"{self.op} of {window} stride {self.stride}{padded}, {'x'.join(map(str, self.sizes))}"

    def text(self, around: bool) -> str:
        """Return the program, with a bias before and a maximum after the windows if `around`."""
        batch, *space, features = self.sizes
        pad = int(self.padded)
        result = (batch, *((n + 2 * pad - self.size) // self.stride + 1 for n in space), features)
        x, r = (f"f32[{','.join(map(str, s))}]" for s in (self.sizes, result))
        window = " ".join(
            f"{name}={'x'.join([outer, *[inner] * len(space), outer])}"
            for name, outer, inner in (
                ("size", "1", str(self.size)), ("stride", "1", str(self.stride)), ("pad", "0_0", f"{pad}_{pad}"),
            )
        )  # fmt: skip
        last = len(self.sizes) - 1
        lines = [f"%x = {x} parameter(0)"]
        if around:
            lines += [f"%b = f32[{features}] parameter(1)", f"%bs = {x} broadcast(%b), dimensions={{{last}}}"]
            lines.append(f"%a = {x} add(%x, %bs)")
        start = "-inf" if self.op == "maximum" else "0"
        lines.append(f"%i = f32[] constant({start})")
        lines.append(
            f"%w = {r} reduce-window(%{'a' if around else 'x'}, %i), window={{{window}}}, to_apply=%combine"
        )  # fmt: skip
        if around:
            lines += ["%z = f32[] constant(0)", f"%zs = {r} broadcast(%z), dimensions={{}}"]
            lines.append(f"%m = {r} maximum(%w, %zs)")
        lines[-1] = "ROOT " + lines[-1]
        inside = ("%l = f32[] parameter(0)", "%r = f32[] parameter(1)", f"ROOT %o = f32[] {self.op}(%l, %r)")
        combine = "%combine {\n  " + "\n  ".join(inside) + "\n}"
        return f"HloModule pooling\n\n{combine}\n\nENTRY %main {{\n  " + "\n  ".join(lines) + "\n}\n"


_PLAIN: Sequence[tuple[tuple[int, ...], int, int]] = (
    ((8, 56, 56, 64), 3, 2), ((8, 112, 112, 64), 3, 2), ((1, 28, 28, 32), 3, 2), ((8, 28, 28, 256), 3, 1),
    ((16, 32, 32, 16), 3, 2), ((8, 56, 56, 3), 3, 2), ((4, 28, 28, 64), 5, 2), ((4, 28, 28, 64), 6, 2),
    ((4, 28, 28, 64), 7, 1), ((32, 14, 14, 512), 4, 2), ((8, 512, 64), 5, 1), ((2, 16, 28, 28, 32), 3, 2),
)  # fmt: skip
_PADDED: Sequence[tuple[tuple[int, ...], int, int]] = (
    ((8, 56, 56, 64), 3, 2), ((8, 112, 112, 64), 3, 2), ((8, 28, 28, 256), 3, 1), ((16, 32, 32, 16), 3, 2),
)  # fmt: skip
CASES = (
    *(Case(op, *row) for op in ("maximum", "add") for row in _PLAIN),
    *(Case(op, *row, padded=True) for op in ("maximum", "add") for row in _PADDED),
)


def build(case: Case, around: bool, expansion: str) -> Executable:
    """Return the program with its windows computed by an expansion: "keep" is the library."""
    session = CompilationSession(parse(case.text(around)), "cpu")
    session.run_passes()
    for site in session.expansions():
        session.set_expansion(site, expansion)
    session.run_fusion_policy(make_policy("default"))
    return session.finish()


def measure(case: Case, around: bool, rounds: int) -> tuple[float, float]:
    """Return the least milliseconds per call of the library and of our kernels.

    Raises:
        ValueError: their results differ.
    """
    arguments = normal_arguments(parse(case.text(around)))
    programs = [build(case, around, e) for e in ("keep", "slices")]
    check_alike(case.name, programs, arguments, rtol=1e-4, atol=1e-4)
    library, ours = milliseconds_in_turns(programs, arguments, rounds)
    return min(library), min(ours)


def main() -> None:
    """Measure all windows and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("results/kernels/pooling.md"))
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows, ratios = [], dict[bool, list[tuple[float, float]]]()
    for case in CASES:
        alone, around = (measure(case, a, options.rounds) for a in (False, True))
        found = alone[0] / alone[1], around[0] / around[1]
        ratios.setdefault(case.padded, []).append(found)
        times = " | ".join(f"{t:.3f}" for t in (*alone, *around))
        rows.append(f"| {case.name} | {times} | {found[0]:.2f} | {found[1]:.2f} |")
        print(rows[-1], flush=True)
    for padded, of in ratios.items():
        means = " | ".join(f"{statistics.geometric_mean(column):.2f}" for column in zip(*of, strict=True))
        rows.append(f"| geometric mean, {'padded' if padded else 'not padded'} | | | | | {means} |")
    facts = provenance()
    lines = [
        "# Pooling: our kernels beside oneDNN", "",
        f"- command: `python -m experiments.benchmarks.poolings --rounds {options.rounds}`",
        f"- commit: {facts['commit']}", f"- machine: {facts['machine']}", f"- date: {facts['date']}",
        f"- load: {load:.1f} running processes on average before the start", "",
        "Milliseconds per call, the minimum of interleaved calls, and oneDNN's time divided by ours. With more: a bias",
        "before the windows and a maximum with 0 after them, which our kernel computes too.", "",
        "| windows | oneDNN, alone | ours, alone | oneDNN, with more | ours, with more | alone | with more |",
        "|---|--:|--:|--:|--:|--:|--:|", *rows,
    ]  # fmt: skip
    write_text(options.out, "\n".join(lines) + "\n")


if __name__ == "__main__":
    with plain_errors():
        main()
