"""Parse, verify, round-trip and run all HLO files of a folder, such as XLA's benchmark programs.

    python -m tests.sweeps.xla_benchmarks DIR [--reference] [--run] [--out results/conformance]

XLA's programs are in xla/tools/benchmarks/hlo and xla/backends/cpu/benchmarks/{hlo,huge_hlo} of its source tree. With
--reference, jaxlib's parser must accept the printed module and read the same program. With --run, programs for one
device run on XLA:CPU and in the interpreter with the same inputs, each in its own process.
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
    """The outcome of one file; the fields of steps that were not tried are empty."""

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
    """Parse, verify and round-trip a file; return the row, and the module if it parses."""
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
        verifies=f"{findings[0]} ({len(findings)} in total)" if findings else OK,
        round_trips=OK if str(parse(printed)) == printed else "the second print differs",
    )
    if reference:
        row = replace(row, reference=_jaxlib_reads(module, printed, path.read_text(encoding="utf-8")))
    return row, module


def _jaxlib_reads(module: HloModule, printed: str, original: str) -> str:
    """Return whether jaxlib's parser reads the same program from the printed module, or the same as from the file."""
    from jax._src.lib import hlo  # type: ignore[attr-defined]  # no public name parses HLO text

    options = hlo.HloPrintOptions()
    options.print_large_constants = True
    try:
        theirs = parse(hlo.hlo_module_from_text(printed).to_string(options)).fingerprint()
    except XlaError as e:
        complaint = next((line for line in str(e).splitlines() if "error: " in line), str(e))
        return f"rejected: {complaint.rpartition('error: ')[2].partition('.')[0]}"
    if theirs == module.fingerprint():
        return OK
    from_file = parse(hlo.hlo_module_from_text(original).to_string(options), fill_elided=True).fingerprint()
    return "yes, as from the file" if theirs == from_file else "another program"


def why_not_run(module: HloModule, text: str, limit: float) -> str | None:
    """Return why a program cannot run in one process on one CPU, or None."""
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
    """Run a program in its own process."""
    command = [sys.executable, "-m", "tests.sweeps.xla_benchmark_run", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return Run(f"timed out after {timeout:.0f} s")
    if done.returncode:
        last = done.stderr.strip().splitlines() or [""]
        return Run(f"the process exited with status {done.returncode}: {last[-1][:200]}")
    return Run(**json.loads(done.stdout.strip().splitlines()[-1]))


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield one row per file."""
    for path in sorted(options.folder.rglob("*.hlo")):
        if options.only and not any(name in path.name for name in options.only):
            continue
        if not path.stat().st_size:
            yield Row(path.name, 0, run=Run("the file is empty in this copy of the source tree"))
            continue
        row, module = check(path, options.reference)
        if options.run and module is not None:
            why = why_not_run(module, path.read_text(encoding="utf-8"), options.parameters_gb)
            row = replace(row, run=Run(why) if why else run_apart(path, options.timeout))
        yield row


def markdown(row: Row) -> str:
    """Return a row of the Markdown table."""
    run = row.run or Run("")
    ran = run.result.startswith(("agrees", "differs"))
    numbers = (f"{run.error:.1e}", f"{run.finite:.0%}", f"{run.xla_s:.1f}", f"{run.ours_s:.1f}") if ran else ("",) * 4
    read = (row.parses, row.verifies, row.round_trips, row.reference)
    cells = (row.program, f"{row.instructions:,}" if row.parses else "", *read, run.result, *numbers)
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


HEADER = (
    "| program | instructions | parses | verifies | round-trips | jaxlib reads the same program |"
    " interpreter and XLA:CPU | largest error | finite | XLA s | interpreter s |\n"
    "|---|---:|---|---|---|---|---|---:|---:|---:|---:|"
)


def write_table(found: list[Row], path: Path) -> None:
    """Write the results page in Markdown."""
    made = provenance()
    ran = [r for r in found if r.run is not None and r.run.result.startswith(("agrees", "differs"))]
    agree = sum(r.run is not None and r.run.result == "agrees" for r in ran)
    read = [r for r in found if r.parses]
    good = sum(
        r.parses == r.verifies == r.round_trips == OK and not r.reference.startswith(("another", "rejected"))
        for r in read
    )
    lines = [
        "# XLA's benchmark programs",
        "",
        f"- command: python -m tests.sweeps.xla_benchmarks DIR {' '.join(Path(a).name for a in sys.argv[2:])}",
        *(f"- {k}: {made[k]}" for k in ("commit", "date", "machine")),
        f"- files: {len(found)}, of which {len(read)} are available; {good} of them parse, verify and round-trip",
        f"- run on XLA:CPU and in the interpreter: {len(ran)}, of which {agree} agree",
        "",
        "The largest error is relative to the largest number of the same result. Inputs are random and the same for"
        " both; XLA's seconds include compilation.",
        "",
        HEADER,
        *(markdown(r) for r in found),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Run from the command line; return exit status 1 if a program fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder with HLO files")
    parser.add_argument("--only", nargs="*", help="only programs whose names contain one of these")
    parser.add_argument("--reference", action="store_true", help="compare with what jaxlib's parser reads")
    parser.add_argument("--run", action="store_true", help="run on XLA:CPU and in the interpreter")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds per program (default: %(default)g)")
    parser.add_argument(
        "--parameters-gb", type=float, default=2.5,
        help="do not run programs with larger parameters, in GB (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="folder for xla_benchmarks.md (default: only print)")
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
