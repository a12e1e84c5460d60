"""Op counts after hlogym's pipelines and after XLA:CPU's, by program; writes a table to results/.

python -m experiments.benchmarks.op_counts [SUITE|FOLDER|FILE...] [--out results/passes/op_counts.md]

Counts every instruction that the entry reaches. Bodies of loops, functions and fusions count once each; parameters,
constants, tuples and their elements do not count. For the linear algebra suite, flops are also compared.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import env.suites
from compiler.analysis.flops import module_flops
from compiler.errors import HlogymError
from compiler.passes import PipelineRun
from compiler.passes.infrastructure.base import op_count
from compiler.passes.pipelines.default import default_pipeline, xla_order
from compiler.support.safe_names import markdown_cell
from compiler.text import parse
from env.suites import Program, load_suite
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import write_text

SUITES = ("quickstart", "jax", "linear_algebra")


@dataclass(frozen=True)
class Row:
    """The counts for one program.

    Attributes:
        name: name of the program.
        written: ops before any pass.
        ours: ops after the default pipeline.
        once: ops after hlogym's passes, run once in XLA's order.
        xla: ops after XLA:CPU's passes; None if XLA failed.
        flops: flops as written, after the default pipeline, and after XLA:CPU.
        seconds: time of the default pipeline.
        note: why XLA failed; empty if it did not.
    """

    name: str
    written: int
    ours: int
    once: int
    xla: int | None
    flops: tuple[int, int, int | None]
    seconds: float
    note: str = ""


def measure(program: Program) -> Row:
    """Run the pipelines and XLA on one program and count."""
    text = program.text()
    written = parse(text, fill_elided=True)
    ours, once = written.clone(), written.clone()
    start = time.perf_counter()
    PipelineRun().run(default_pipeline(), ours)
    seconds = time.perf_counter() - start
    xla_order().run(once)
    note, xla_ops, xla_flops = "", None, None
    try:
        theirs = parse(xla_optimized(str(written)), fill_elided=True)
        xla_ops, xla_flops = op_count(theirs), module_flops(theirs)
    except (HlogymError, RuntimeError) as error:
        note = (str(error).splitlines() or ["?"])[0][:80]
    flops = (module_flops(written), module_flops(ours), xla_flops)
    return Row(program.name, op_count(written), op_count(ours), op_count(once), xla_ops, flops, seconds, note)


def xla_optimized(text: str) -> str:
    """Return the HLO text that XLA:CPU produces with all its passes, including fusion."""
    from jax._src import xla_bridge
    from jax._src.lib import _jax, hlo  # type: ignore[attr-defined]  # no public name compiles HLO text

    client: Any = xla_bridge.get_backend("cpu")
    computation = hlo.XlaComputation(hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
    mlir = _jax.mlir.xla_computation_to_mlir_module(computation)
    devices = _jax.DeviceList(tuple(client.devices()[:1]))
    executable = client.compile_and_load(mlir, devices, _jax.CompileOptions())
    return str(executable.hlo_modules()[0].to_string())


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive numbers; NaN if there are none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def table(title: str, rows: Sequence[Row]) -> list[str]:
    """Return the lines of a Markdown table with ratios and their geometric means."""
    lines = [
        f"## {title}",
        "",
        "| program | as written | hlogym | hlogym once, XLA's order | XLA:CPU | hlogym / XLA | hlogym ms |",
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for r in rows:
        ratio = f"{r.ours / r.xla:.2f}" if r.xla else r.note or "-"
        lines.append(
            f"| {markdown_cell(r.name)} | {r.written} | {r.ours} | {r.once} | {r.xla or '-'} | {ratio} "
            f"| {r.seconds * 1e3:.0f} |"
        )
    both = [r for r in rows if r.xla and r.ours]
    mean = geometric_mean([r.ours / r.xla for r in both if r.xla])
    order = geometric_mean([r.ours / r.once for r in rows if r.ours and r.once])
    lines += [
        "",
        f"Geometric mean of hlogym / XLA:CPU over {len(both)} programs: **{mean:.3f}**; of hlogym / the same passes "
        f"once in XLA's order: {order:.3f}.",
        "",
    ]
    return lines


def flops_table(rows: Sequence[Row], minimum: dict[str, Any]) -> list[str]:
    """Return the lines of a Markdown table that compares flops with the hand-derived minimum."""
    lines = [
        "## Linear algebra: flops",
        "",
        "| program | as written | minimum | hlogym | XLA:CPU | derivation of the minimum |",
    ]
    lines.append("|---|---|---|---|---|---|")
    for r in rows:
        entry = minimum[r.name]
        least = entry["minimum_flops"]
        theirs = "-" if r.flops[2] is None else str(r.flops[2])
        name = markdown_cell(r.name)
        lines.append(f"| {name} | {r.flops[0]} | {least} | {r.flops[1]} | {theirs} | {entry['derivation']} |")
    reached = sum(r.flops[1] == minimum[r.name]["minimum_flops"] for r in rows)
    by_xla = sum(r.flops[2] is not None and r.flops[2] <= minimum[r.name]["minimum_flops"] for r in rows)
    lines += ["", f"hlogym reaches the minimum on {reached} of {len(rows)} programs, XLA:CPU on {by_xla}.", ""]
    return lines


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "suites", nargs="*", default=SUITES, help="suites, folders or HLO files (default: all suites of hlogym)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results/passes/op_counts.md"), help="results file (default: %(default)s)"
    )
    options = parser.parse_args()
    origin = provenance()
    lines = [
        "# Op counts after optimisation",
        "",
        f"- command: `python -m experiments.benchmarks.op_counts {' '.join(sys.argv[1:])}`".rstrip(),
        f"- commit: {origin['commit']}",
        f"- machine: {origin['machine']}",
        f"- date: {origin['date']}",
        "",
    ]
    for name in options.suites:
        suite = load_suite(name)
        rows = [measure(p) for p in suite.programs]
        lines += table(suite.name, rows)
        if suite.name == "linear_algebra":
            lines += flops_table(rows, _minimums())
    text = "\n".join(lines)
    write_text(options.out, text)
    print(text)


def _minimums() -> dict[str, Any]:
    manifest = Path(env.suites.__file__).parent / "linear_algebra" / "manifest.json"
    return {e["name"]: e for e in json.loads(manifest.read_text(encoding="utf-8"))["programs"]}


if __name__ == "__main__":
    with plain_errors():
        main()
