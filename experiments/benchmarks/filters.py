"""Benchmark of filters: convolutions with few features and large windows, as compiled by default, beside peers.

python -m experiments.benchmarks.filters [--rounds 10] [--out results/kernels/filters.md]

Peers are stock XLA, and oneDNN for the convolutions of which it has one. The programs are called in turns, and their
results compared first. Each uses the threads that it takes by itself.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler import compile
from compiler.errors import HlogymError
from compiler.runtime.executable import Executable
from compiler.text import parse
from experiments.benchmarks.convolutions import FIRST, LAST, Case, build
from experiments.benchmarks.turns import check_alike, milliseconds_in_turns, normal_arguments
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import write_text


def image(name: str, batch: int, features: int, size: int, kernel: int, outputs: int = 0, last: bool = False) -> Case:
    """Return a filter of images that keeps their size, for each feature by itself unless `outputs` are given."""
    groups = 1 if outputs else features
    outputs = outputs or features
    half, inputs = kernel // 2, features // groups
    window = f"size={kernel}x{kernel} pad={half}_{half}x{half}_{half}"
    if last:
        x, k, out = (batch, size, size, features), (kernel, kernel, inputs, outputs), (batch, size, size, outputs)
    else:
        x, k, out = (batch, features, size, size), (outputs, inputs, kernel, kernel), (batch, outputs, size, size)
    return Case(name, x, k, out, window, LAST if last else FIRST, groups)


CONVOLUTIONS = (
    image("blur 5x5 of 4x3x128x128", 4, 3, 128, 5),
    image("blur 11x11 of 4x3x128x128", 4, 3, 128, 11),
    image("blur 11x11 of 4x128x128x3", 4, 3, 128, 11, last=True),
    image("filter 15x15 of 8x1x256x256", 8, 1, 256, 15),
    image("filter 31x31 of 1x3x256x256", 1, 3, 256, 31),
    image("depthwise 5x5 of 4x64x56x56", 4, 64, 56, 5),
    image("3x3 to 1 feature of 1x64x64x64", 1, 64, 64, 3, 1),
    image("3x3 to 1 feature of 1x64x64x64, features last", 1, 64, 64, 3, 1, last=True),
    image("3x3 to 3 features of 1x64x64x64", 1, 64, 64, 3, 3),
    image("9x9 to 1 feature of 2x3x128x128", 2, 3, 128, 9, 1),
    Case("101 of 1x1x100000", (1, 1, 100_000), (1, 1, 101), (1, 1, 100_000), "size=101 pad=50_50", "bf0_oi0->bf0"),
    Case("1001 of 1x1x10000", (1, 1, 10_000), (1, 1, 1001), (1, 1, 10_000), "size=1001 pad=500_500", "bf0_oi0->bf0"),
    Case(
        "5x5x5 of 2x1x32x64x64", (2, 1, 32, 64, 64), (1, 1, 5, 5, 5), (2, 1, 32, 64, 64),
        "size=5x5x5 pad=2_2x2_2x2_2", "bf012_oi012->bf012",
    ),
    Case(
        "transposed 2x2 of 4x128x14x14", (4, 128, 14, 14), (128, 64, 2, 2), (4, 64, 28, 28),
        "size=2x2 pad=1_1x1_1 lhs_dilate=2x2 rhs_reversal=1x1", "bf01_io01->bf01",
    ),
    Case(
        "transposed 16x16 of 8x192x14x14", (8, 192, 14, 14), (192, 3, 16, 16), (8, 3, 224, 224),
        "size=16x16 pad=15_15x15_15 lhs_dilate=16x16 rhs_reversal=1x1", "bf01_io01->bf01",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Windows:
    """Maxima or sums of windows around all elements, or the gradient of such maxima."""

    name: str
    shape: Sequence[int]
    size: int
    function: str = "maximum"
    is_gradient: bool = False

    def text(self) -> str:
        """Return the program."""
        t, half = f"f32[{','.join(map(str, self.shape))}]", self.size // 2
        ones, moving = ["1"] * (len(self.shape) - 2), [str(self.size)] * 2
        pads = ["0_0"] * (len(self.shape) - 2) + [f"{half}_{half}"] * 2
        window = f"window={{size={'x'.join([*ones, *moving])} pad={'x'.join(pads)}}}"
        scalars = "{ a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT r = "
        if self.is_gradient:
            body = f"s = {t} parameter(1)\n z = f32[] constant(0)\n ROOT w = {t} select-and-scatter(x, s, z), "
            body += f"{window}, select=larger, scatter=add"
        else:
            start = "0" if self.function == "add" else "-inf"
            body = f"i = f32[] constant({start})\n ROOT w = {t} reduce-window(x, i), {window}, to_apply={self.function}"
        return (
            f"HloModule windows\nadd {scalars}f32[] add(a, b) }}\nmaximum {scalars}f32[] maximum(a, b) }}\n"
            f"larger {scalars}pred[] compare(a, b), direction=GE }}\nENTRY e {{ x = {t} parameter(0)\n {body} }}\n"
        )


WINDOWS = (
    Windows("maximum of 5x5, 4x64x56x56", (4, 64, 56, 56), 5),
    Windows("maximum of 13x13, 4x256x20x20", (4, 256, 20, 20), 13),
    Windows("maximum of 31x31, 2x3x128x128", (2, 3, 128, 128), 31),
    Windows("sum of 15x15, 4x3x256x256", (4, 3, 256, 256), 15, "add"),
    Windows("gradient of maximum of 5x5, 2x16x64x64", (2, 16, 64, 64), 5, is_gradient=True),
    Windows("gradient of maximum of 13x13, 2x16x64x64", (2, 16, 64, 64), 13, is_gradient=True),
)


def library_of(case: Case | Windows) -> Executable | None:
    """Return the program with the call of oneDNN, or None if it has none."""
    if isinstance(case, Windows):
        return None
    try:
        return build(case, fused=False, ours=False)
    except HlogymError:
        return None


def measure(case: Case | Windows, rounds: int) -> list[float | None]:
    """Return the median milliseconds per call of our program, of XLA and of oneDNN, None where it has no call.

    Raises:
        ValueError: their results differ.
    """
    text = case.text() if isinstance(case, Windows) else case.text(fused=False)
    library = library_of(case)
    programs = [compile(text), compile(text, backend="xla"), *([] if library is None else [library])]
    arguments = normal_arguments(parse(text))
    check_alike(case.name, programs, arguments, rtol=1e-3, atol=1e-2)
    times: list[float | None] = [statistics.median(t) for t in milliseconds_in_turns(programs, arguments, rounds, True)]
    return [*times, *([None] if library is None else [])]


def main() -> None:
    """Measure all programs and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("results/kernels/filters.md"))
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows, ratios = [], []
    for case in (*CONVOLUTIONS, *WINDOWS):
        ours, *peers = measure(case, options.rounds)
        known = [p for p in peers if p is not None]
        if ours is None:
            raise ValueError(f"{case.name} was not measured")
        ratios.append(min(known) / ours)
        times = " | ".join("" if t is None else f"{t:.3f}" for t in (ours, *peers))
        rows.append(f"| {case.name} | {times} | {ratios[-1]:.2f}x |")
        print(rows[-1], flush=True)
    facts = provenance()
    lines = [
        "# Filters and large windows", "",
        f"- command: `python -m experiments.benchmarks.filters --rounds {options.rounds}`",
        f"- commit: {facts['commit']}", f"- machine: {facts['machine']}", f"- date: {facts['date']}",
        f"- load: {load:.1f} running processes on average before the start", "",
        "Milliseconds per call, the median of interleaved calls, and the time of the faster peer divided by ours. The",
        "sizes are those of the input.", "",
        "| program | hlogym | XLA | oneDNN | ratio |", "|---|--:|--:|--:|--:|", *rows,
        f"| geometric mean | | | | {statistics.geometric_mean(ratios):.2f}x |",
    ]  # fmt: skip
    write_text(options.out, "\n".join(lines) + "\n")


if __name__ == "__main__":
    with plain_errors():
        main()
