"""Time of parsing and verifying per instruction, for 100 to 40,000 instructions; writes a table to results/.

python -m experiments.benchmarks.parse_scaling [--out results/benchmarks/parse_scaling.md]
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from compiler.ir.verifier import verify
from compiler.text import parse
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import write_text

SIZES = (100, 300, 1000, 3000, 10_000, 20_000, 40_000)
REPEATS = 3


class Measurement(NamedTuple):
    """One row: sizes in instructions, characters and bytes, times in processor seconds (best of REPEATS)."""

    instructions: int
    characters: int
    parse: float
    verify: float
    peak_bytes: int


def program(instructions: int) -> str:
    """Return a long program like those of JAX: blocks of a dot, an activation, a reduction and data movement."""
    lines = [
        "HloModule scaling",
        "add_f32 {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT sum = f32[] add(a, b)\n}\n",
        "ENTRY main {",
        "  x.0 = f32[32,64]{1,0} parameter(0)",
        "  w = f32[64,64]{1,0} parameter(1)",
        "  zero = f32[] constant(0)",
    ]
    block = (
        "dot.{n} = f32[32,64]{{1,0}} dot(x.{p}, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}{m}",
        "tanh.{n} = f32[32,64]{{1,0}} tanh(dot.{n}){m}",
        "sum.{n} = f32[32]{{0}} reduce(tanh.{n}, zero), dimensions={{1}}, to_apply=add_f32{m}",
        "wide.{n} = f32[32,64]{{1,0}} broadcast(sum.{n}), dimensions={{0}}{m}",
        "part.{n} = f32[32,32]{{1,0}} slice(wide.{n}), slice={{[0:32], [16:48]}}{m}",
        "both.{n} = f32[32,64]{{1,0}} concatenate(part.{n}, part.{n}), dimensions={{1}}{m}",
        "less.{n} = pred[32,64]{{1,0}} compare(tanh.{n}, both.{n}), direction=LT{m}",
        "x.{n} = f32[32,64]{{1,0}} select(less.{n}, tanh.{n}, both.{n}){m}",
    )
    for n in range(1, max(2, (instructions - 3) // len(block) + 1)):
        metadata = f', metadata={{op_name="jit(main)/layer_{n}" source_file="model.py" source_line={n}}}'
        lines += ["  " + line.format(n=n, p=n - 1, m=metadata) for line in block]
    lines[-1] = lines[-1].replace("  x.", "  ROOT x.", 1)
    return "\n".join([*lines, "}\n"])


def best(run: Callable[[], Any]) -> float:
    """Return the least processor seconds of REPEATS runs."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def measure(instructions: int) -> Measurement:
    """Time parsing and verifying a program of this size."""
    text = program(instructions)
    module = parse(text)
    parse_time, verify_time = best(lambda: parse(text)), best(lambda: verify(module))
    tracemalloc.start()
    kept = parse(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return Measurement(kept.instruction_count, len(text), parse_time, verify_time, peak)


def report(rows: list[Measurement], command: str) -> str:
    """Return the results page in Markdown."""
    commit = provenance()["commit"]
    lines = [
        "# Parsing and verifying by program size",
        "",
        f"- command: `{command}`",
        f"- commit: {commit}",
        f"- machine: {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; one core used",
        f"- date: {datetime.date.today().isoformat()}",
        "- processor time, best of three",
        "",
        "| instructions | text | parse | verify | both, per instruction | peak memory, per instruction |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {r.instructions:,} | {r.characters / 1e6:.2f} MB | {r.parse:.3f} s | {r.verify:.3f} s "
        f"| {(r.parse + r.verify) / r.instructions * 1e6:.1f} us | {r.peak_bytes / r.instructions / 1e3:.2f} kB |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--out", type=Path, default=Path("results/benchmarks/parse_scaling.md"),
        help="results file (default: %(default)s)",
    )  # fmt: skip
    out = parser.parse_args().out
    rows = []
    for size in SIZES:
        rows.append(measure(size))
        print(f"{rows[-1].instructions:>7,} instructions: {rows[-1].parse + rows[-1].verify:.3f} s", file=sys.stderr)
    write_text(out, report(rows, "python -m experiments.benchmarks.parse_scaling"))
    print(f"written to {out}")
    return 0


if __name__ == "__main__":
    with plain_errors():
        sys.exit(main())
