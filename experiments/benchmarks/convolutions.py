"""Benchmark of convolutions: our kernels, alone and with an epilogue, beside oneDNN.

python -m experiments.benchmarks.convolutions [--rounds 30] [--threads 1] [--out results/kernels/convolutions.md]

"alone" compares the generated kernel of a convolution with the call of oneDNN. "fused" compares one kernel for a
convolution, a bias, a residual and a maximum with 0 with oneDNN and a kernel for the other ops. The programs are called
in turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler.codegen.schedules.kernel_choice import GENERATED, KernelChoice
from compiler.ir import Opcode
from compiler.runtime.executable import CallOptions, Configurable, Executable
from compiler.session import CompilationSession
from compiler.text import parse
from experiments.benchmarks.turns import check_alike, contains, milliseconds_in_turns, normal_arguments
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import write_text

PAD = "size=3x3 pad=1_1x1_1"
HALVED, STEM = "size=3x3 stride=2x2 pad=0_1x0_1", "size=7x7 stride=2x2 pad=3_3x3_3"
LAST, FIRST = "b01f_01io->b01f", "bf01_oi01->bf01"


@dataclass(frozen=True)
class Case:
    """One convolution of f32."""

    name: str
    x: Sequence[int]
    kernel: Sequence[int]
    result: Sequence[int]
    window: str = PAD
    labels: str = LAST
    groups: int = 1

    def text(self, fused: bool) -> str:
        """Return the program, with an epilogue if it is to be fused."""
        x, k, r = (f"f32[{','.join(map(str, s))}]" for s in (self.x, self.kernel, self.result))
        f = self.labels.split("->")[1].index("f")
        window = f"window={{{self.window}}}, dim_labels={self.labels}, feature_group_count={self.groups}"
        lines = [
            f"%x = {x} parameter(0)", f"%k = {k} parameter(1)", f"%c = {r} convolution(%x, %k), {window}",
        ]  # fmt: skip
        if fused:
            lines += [
                f"%b = f32[{self.result[f]}] parameter(2)", f"%r = {r} parameter(3)",
                f"%w = {r} broadcast(%b), dimensions={{{f}}}", f"%s = {r} add(%c, %w)", f"%t = {r} add(%s, %r)",
                "%z = f32[] constant(0)", f"%y = {r} broadcast(%z), dimensions={{}}", f"%a = {r} maximum(%t, %y)",
            ]  # fmt: skip
        lines[-1] = "ROOT " + lines[-1]
        return "HloModule convolution\n\nENTRY %main {\n  " + "\n  ".join(lines) + "\n}\n"


CASES = (
    Case("3x3, 1x56x56x64", (1, 56, 56, 64), (3, 3, 64, 64), (1, 56, 56, 64)),
    Case("3x3, 1x28x28x128", (1, 28, 28, 128), (3, 3, 128, 128), (1, 28, 28, 128)),
    Case("3x3, 1x14x14x256", (1, 14, 14, 256), (3, 3, 256, 256), (1, 14, 14, 256)),
    Case("3x3, 1x7x7x512", (1, 7, 7, 512), (3, 3, 512, 512), (1, 7, 7, 512)),
    Case("3x3, 8x32x32x16", (8, 32, 32, 16), (3, 3, 16, 16), (8, 32, 32, 16)),
    Case("3x3, stride 2, 1x56x56x64", (1, 56, 56, 64), (3, 3, 64, 128), (1, 28, 28, 128), HALVED),
    Case("7x7, stride 2, 1x112x112x3", (1, 112, 112, 3), (7, 7, 3, 64), (1, 56, 56, 64), STEM),
    Case("5, 4x256x64", (4, 256, 64), (5, 64, 64), (4, 256, 64), "size=5 pad=2_2", "b0f_0io->b0f"),
    Case("3x3, 8 groups, 1x28x28x128", (1, 28, 28, 128), (3, 3, 16, 128), (1, 28, 28, 128), groups=8),
    Case("3x3, depthwise, 1x28x28x128", (1, 28, 28, 128), (3, 3, 1, 128), (1, 28, 28, 128), groups=128),
    Case("3x3, 1x64x56x56, features first", (1, 64, 56, 56), (64, 64, 3, 3), (1, 64, 56, 56), PAD, FIRST),
    Case("3x3, 1x256x14x14, features first", (1, 256, 14, 14), (256, 256, 3, 3), (1, 256, 14, 14), PAD, FIRST),
)  # fmt: skip


def build(case: Case, fused: bool, ours: bool) -> Executable:
    """Return a program in which a convolution is the call of oneDNN, or computed by our kernel."""
    session = CompilationSession(parse(case.text(fused)), "cpu", [])
    for site in session.expansions():
        session.set_expansion(site, "keep")
    while True:
        entry = session.fusion.module.entry
        named = {i.name for i in entry.instructions if contains(i, Opcode.CONVOLUTION)}
        actions = [a for a in session.actions() if a.kind == "producer-consumer"]
        around = [a for a in actions if not named.isdisjoint((a.producer, *a.consumers))]
        offered = around if ours else [a for a in actions if a not in around]
        if not offered:
            break
        session.apply(offered[0])
    for k in session.kernel_sites():
        if k.instruction.opcode is Opcode.CONVOLUTION:
            session.set_kernel(k, KernelChoice(GENERATED if ours else "onednn"))
    return session.finish()


def measure(case: Case, fused: bool, rounds: int, threads: int) -> tuple[float, float]:
    """Return the least milliseconds per call of our kernel and of oneDNN.

    Raises:
        ValueError: their results differ.
    """
    arguments = normal_arguments(parse(case.text(fused)))
    programs = [build(case, fused, ours) for ours in (True, False)]
    for program in programs:
        if isinstance(program, Configurable):
            program.call_options = CallOptions(num_threads=threads)
    check_alike(case.name, programs, arguments, rtol=1e-3, atol=1e-2)
    ours, library = milliseconds_in_turns(programs, arguments, rounds)
    return min(ours), min(library)


def main() -> None:
    """Measure all convolutions and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/kernels/convolutions.md"))
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows, ratios = [], []
    for case in CASES:
        alone, fused = (measure(case, f, options.rounds, options.threads) for f in (False, True))
        found = [ours / library for ours, library in (alone, fused)]
        ratios.append(found)
        times = " | ".join(f"{t:.3f}" for t in (*alone, *fused))
        rows.append(f"| {case.name} | {times} | {found[0]:.2f} | {found[1]:.2f} |")
        print(rows[-1], flush=True)
    means = " | ".join(f"{statistics.geometric_mean(column):.2f}" for column in zip(*ratios, strict=True))
    facts = provenance()
    lines = [
        "# Convolutions: our kernels beside oneDNN", "",
        f"- command: `python -m experiments.benchmarks.convolutions --rounds {options.rounds} "
        f"--threads {options.threads}`",
        f"- commit: {facts['commit']}", f"- machine: {facts['machine']}", f"- date: {facts['date']}",
        f"- load: {load:.1f} running processes on average before the start", "",
        "Milliseconds per call, the minimum of interleaved calls. Fused: the convolution with a bias, a residual and a",
        "maximum with 0, as one kernel, or as oneDNN and a kernel.", "",
        "| convolution | ours, alone | oneDNN, alone | ours, fused | oneDNN, fused | alone | fused |",
        "|---|--:|--:|--:|--:|--:|--:|", *rows, f"| geometric mean | | | | | {means} |",
    ]  # fmt: skip
    write_text(options.out, "\n".join(lines) + "\n")


if __name__ == "__main__":
    with plain_errors():
        main()
