"""Parses, verifies, round-trips and runs every HLO file of a folder, such as XLA's own benchmark programs.

    python -m tests.sweeps.xla_benchmarks DIR [--reference] [--run] [--out results/conformance]

XLA keeps its programs under xla/tools/benchmarks/hlo and xla/backends/cpu/benchmarks/{hlo,huge_hlo} of its source tree.
With --reference, jaxlib's parser must take what we print, and agree on it. With --run, programs for one device are run
on XLA:CPU and in the interpreter with the same inputs, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from compiler.errors import HlogymError
from compiler.ir.module import HloModule
from compiler.ir.opcodes import Opcode
from compiler.ir.verifier import check_module
from compiler.text import parse
from experiments.provenance import provenance
from tests.oracle import XlaError
from tests.sweeps.xla_benchmark_run import Run

OK = "yes"


@dataclass(frozen=True)
class Row:
    """What came of one file; empty where it was not tried."""

    program: str
    size: int
    instructions: int = 0
    parses: str = ""
    verifies: str = ""
    round_trips: str = ""
    reference: str = ""
    run: Run | None = None

    @property
    def failed(self) -> bool:
        read = (self.parses, self.verifies, self.round_trips, self.reference)
        return any(not r.startswith(OK) for r in read if r) or (
            self.run is not None and self.run.result.startswith("differs")
        )


def check(path: Path, reference: bool) -> tuple[Row, HloModule | None]:
    """Everything but the run."""
    row = Row(path.name, path.stat().st_size)
    try:
        module = parse(path.read_text(encoding="utf-8"), filename=path.name, fill_elided=True)
    except HlogymError as e:
        return replace(row, parses=str(e).splitlines()[0]), None
    findings = check_module(module)
    printed = str(module)
    row = replace(
        row,
        instructions=module.instruction_count,
        parses=OK,
        verifies=f"{findings[0]} ({len(findings)} in all)" if findings else OK,
        round_trips=OK if str(parse(printed)) == printed else "the second print differs",
    )
    if reference:
        row = replace(row, reference=_jaxlib_reads(module, printed, path.read_text(encoding="utf-8")))
    return row, module


def _jaxlib_reads(module: HloModule, printed: str, original: str) -> str:
    """Whether jaxlib's parser sees in our print what we see, or at least what it sees in the original."""
    from jax._src.lib import hlo  # type: ignore[attr-defined]  # no public name parses HLO text

    options = hlo.HloPrintOptions()
    options.print_large_constants = True
    try:
        theirs = parse(hlo.hlo_module_from_text(printed).to_string(options)).fingerprint()
    except XlaError as e:
        complaint = next((line for line in str(e).splitlines() if "error: " in line), str(e))
        return f"refused: {complaint.rpartition('error: ')[2].partition('.')[0]}"
    if theirs == module.fingerprint():
        return OK
    said = parse(hlo.hlo_module_from_text(original).to_string(options), fill_elided=True).fingerprint()
    return "yes, as on the original" if theirs == said else "another program"


def why_not_run(module: HloModule, text: str, limit: float) -> str | None:
    """The reason why one process on one CPU cannot run a program, or None."""
    header = text.partition("\n")[0]
    partitions = re.search(r"(?:num_partitions|replica_count)=(\d+)", header)
    if partitions and int(partitions.group(1)) > 1:
        return f"for {partitions.group(1)} devices"
    opcodes = {i.opcode for c in module.computations for i in c.instructions}
    if any(o.text.startswith(("all-", "reduce-scatter", "collective-")) for o in opcodes):
        return "for several devices (collectives)"
    size = sum(leaf.byte_size for shape in module.parameter_shapes for leaf in shape.leaves())
    if size > limit * 1e9:
        return f"parameters take {size / 1e9:.1f} GB"
    targets = {str(i.attr("custom_call_target")) for c in module.computations for i in c.instructions
               if i.opcode is Opcode.CUSTOM_CALL}  # fmt: skip
    foreign = sorted(t for t in targets if t.startswith("te_"))
    return f"custom call {foreign[0]} is not in jaxlib" if foreign else None


def run_apart(path: Path, timeout: float) -> Run:
    """A program run in a process of its own."""
    command = [sys.executable, "-m", "tests.sweeps.xla_benchmark_run", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return Run(f"not finished after {timeout:.0f} s")
    if done.returncode:
        last = done.stderr.strip().splitlines() or [""]
        return Run(f"the process ended with status {done.returncode}: {last[-1][:200]}")
    return Run(**json.loads(done.stdout.strip().splitlines()[-1]))


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """One row for each file, as it is done."""
    for path in sorted(options.folder.rglob("*.hlo")):
        if options.only and not any(name in path.name for name in options.only):
            continue
        if not path.stat().st_size:
            yield Row(path.name, 0, run=Run("the copy of the source tree at hand lacks the file"))
            continue
        row, module = check(path, options.reference)
        if options.run and module is not None:
            why = why_not_run(module, path.read_text(encoding="utf-8"), options.parameters_gb)
            row = replace(row, run=Run(why) if why else run_apart(path, options.timeout))
        yield row


def markdown(row: Row) -> str:
    """A line of the table."""
    run = row.run or Run("")
    ran = run.result.startswith(("agrees", "differs"))
    numbers = (f"{run.error:.1e}", f"{run.finite:.0%}", f"{run.xla_s:.1f}", f"{run.ours_s:.1f}") if ran else ("",) * 4
    read = (row.parses, row.verifies, row.round_trips, row.reference)
    cells = (row.program, f"{row.instructions:,}" if row.parses else "", *read, run.result, *numbers)
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


HEADER = (
    "| program | instructions | parses | verifies | round-trips | jaxlib agrees on the text | interpreter and XLA:CPU |"
    " largest error | finite | XLA s | ours s |\n|---|---:|---|---|---|---|---|---:|---:|---:|---:|"
)


def write_table(found: list[Row], path: Path) -> None:
    """The table with where it comes from."""
    made = provenance()
    ran = [r for r in found if r.run is not None and r.run.result.startswith(("agrees", "differs"))]
    agree = sum(r.run is not None and r.run.result == "agrees" for r in ran)
    read = [r for r in found if r.parses]
    good = sum(
        r.parses == r.verifies == r.round_trips == OK and not r.reference.startswith(("another", "refused"))
        for r in read
    )
    lines = [
        "# XLA's benchmark programs",
        "",
        f"- command: python -m tests.sweeps.xla_benchmarks DIR {' '.join(Path(a).name for a in sys.argv[2:])}",
        *(f"- {k}: {made[k]}" for k in ("commit", "date", "machine")),
        f"- files: {len(found)}, of which {len(read)} are at hand; {good} of them parse, verify and round-trip",
        f"- run on both sides: {len(ran)}, of which {agree} agree",
        "",
        "The largest error is relative to the largest number of the same result (for integers: the share of elements"
        " that differ). Inputs are random and the same on both sides; seconds include compilation.",
        "",
        HEADER,
        *(markdown(r) for r in found),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """The command line; the exit status is 0 only when nothing fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", help="programs with one of these in their names")
    parser.add_argument("--reference", action="store_true", help="hold what we print against jaxlib's parser")
    parser.add_argument("--run", action="store_true", help="run on both sides")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds a program may run on both sides together")
    parser.add_argument("--parameters-gb", type=float, default=2.5, help="do not run programs with larger parameters")
    parser.add_argument("--out", type=Path, help="folder for xla_benchmarks.md (default: only say)")
    options = parser.parse_args()
    print(HEADER)
    found = []
    for row in rows(options):
        found.append(row)
        print(markdown(row), flush=True)
    if options.out:
        write_table(found, options.out / "xla_benchmarks.md")
    return int(any(row.failed for row in found))


if __name__ == "__main__":
    sys.exit(main())
