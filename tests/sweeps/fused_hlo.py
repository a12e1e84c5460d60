"""Fused HLO as interchange: what XLA:CPU and we ourselves make of the text of every compiled program.

    python -m tests.sweeps.fused_hlo [--suites quickstart,jax] [--out results/conformance]

Each program is compiled, and the text of the fused module is handed to XLA:CPU, and read back and compiled by us with
its fusions. Both results are compared with the interpreter's. XLA aborts its process on some programs, so a process of
its own works on the programs and is started again after a crash. Takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from compiler import CompileOptions, compile, parse
from compiler.backends.xla.fused_modules import FusedXlaProgram, module_for_xla, xla_refusal
from compiler.errors import HlogymError
from compiler.ir import HloInstruction, HloModule, Opcode
from env.reference import Reference
from env.suites import Program, load_suite, random_inputs
from experiments.provenance import provenance

EQUAL = "equal"
TIMEOUT = 300.0
"""Seconds after which a program counts as hanging in XLA."""


def examine(program: Program) -> dict[str, Any]:
    """Return a row of the table for one program; XLA may abort this process."""
    module = parse(program.text())
    inputs = random_inputs(program, [(s.dtype, s.dimensions) for s in module.entry.parameter_shapes], 0)
    reference = Reference.of(module, inputs)
    executable = compile(module)
    again = compile(str(executable.module), options=CompileOptions(keep_fusions=True))
    same = [k.symbol for k in again.kernels] == [k.symbol for k in executable.kernels]
    finding = reference.difference(again(*(a.copy() for a in inputs)), program.tolerance)
    row: dict[str, Any] = {"ours": finding or (EQUAL if same else "equal, with other kernels")}
    all_fusions = fusions_of(executable.module)
    refusals = Counter(r for f in all_fusions if (r := xla_refusal(f)) is not None)
    try:
        fused = module_for_xla(executable.module)
    except HlogymError as e:
        return {**row, "fusions": 0, "dissolved": len(all_fusions), "xla": str(e)}
    row |= {"fusions": len(all_fusions) - refusals.total(), "dissolved": refusals.total(), "reasons": dict(refusals)}
    print(json.dumps({"partial": row}), flush=True)
    try:
        theirs = FusedXlaProgram(str(fused))
        found = reference.difference(theirs(*inputs), program.tolerance)
    except HlogymError as e:
        return {**row, "xla": str(e)}
    return {**row, "xla": found or EQUAL}


def fusions_of(module: HloModule) -> list[HloInstruction]:
    """Return the fusion instructions of the control flow of a module."""
    return [i for c in module.control_flow_computations() for i in c.instructions if i.opcode is Opcode.FUSION]


def work(names: Sequence[str]) -> None:
    """Examine programs and print a line of JSON for each."""
    programs = {f"{s}/{p.name}": p for s in {n.partition("/")[0] for n in names} for p in load_suite(s).programs}
    for name in names:
        print(json.dumps({"start": name}), flush=True)
        try:
            row = examine(programs[name])
        except HlogymError as e:
            row = {"ours": f"{type(e).__name__}: {e}", "xla": ""}
        print(json.dumps({"row": row}), flush=True)


def rows_of(names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the row of each program; a program on which the worker dies gets the reason that it printed."""
    left = list(names)
    while left:
        done = 0
        partial: dict[str, Any] = {}
        with subprocess.Popen(
            [sys.executable, "-m", "tests.sweeps.fused_hlo", "--worker", *left],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as worker:  # fmt: skip
            try:
                out, err = worker.communicate(timeout=TIMEOUT * len(left))
            except subprocess.TimeoutExpired:
                worker.kill()
                out, err = worker.communicate()
        for line in out.splitlines():
            message = json.loads(line) if line.startswith("{") else {}
            partial = message.get("partial", {} if "start" in message else partial)
            if "row" in message:
                yield left[done], message["row"]
                done += 1
        if done < len(left):
            reason = next((t for t in err.splitlines() if "Check failed" in t), f"exit status {worker.returncode}")
            yield left[done], {**partial, "xla": f"XLA aborts: {_short(reason)}"}
            done += 1
        left = left[done:]


def _short(reason: str) -> str:
    """Return a reason without the time and the thread that XLA prints in front of it."""
    return re.sub(r"^F\d+ [\d:.]+\s+\d+ ", "", reason)[:200]


def table(rows: Sequence[tuple[str, dict[str, Any]]], suites: str) -> str:
    """Return the report in Markdown."""
    about = provenance()
    xla_equal = sum(r.get("xla") == EQUAL for _, r in rows)
    ours_equal = sum(r.get("ours") == EQUAL for _, r in rows)
    reasons = Counter[str]()
    for _, r in rows:
        reasons.update(r.get("reasons", {}))
    lines = [
        "# Fused HLO as interchange", "",
        f"- command: `python -m tests.sweeps.fused_hlo --suites {suites}`",
        *(f"- {key}: {about[key]}" for key in ("commit", "date", "machine")), "",
        "The text of each compiled program, fusions in place, is given to XLA:CPU (jaxlib, its layout assignment "
        "switched off, because that removes the layouts inside of fusions) and read back by us with `keep_fusions`. "
        "Both results are compared with the interpreter's on the same inputs. `dissolved`: fusions that XLA:CPU has no "
        "code for; `hlogym opt --fused --for-xla` inlines them.",
        "", "Fusions dissolved, and why:", "",
        *(f"- {count}: {reason}" for reason, count in reasons.most_common()), "",
        f"{len(rows)} programs: {xla_equal} equal on XLA:CPU, {ours_equal} equal with the same kernels when read back.",
        "",
        "| program | fusions for XLA | dissolved | XLA:CPU | read back |",
        "|---|---:|---:|---|---|",
    ]  # fmt: skip
    for name, r in rows:
        cells = [name, r.get("fusions", ""), r.get("dissolved", ""), r.get("xla", ""), r.get("ours", "")]
        lines.append("| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table, or examine programs as the worker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", default="quickstart,jax")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", nargs="+")
    options = parser.parse_args(arguments)
    if options.worker:
        work(options.worker)
        return 0
    names = [f"{s}/{p.name}" for s in options.suites.split(",") for p in load_suite(s).programs]
    rows = []
    for name, row in rows_of(names):
        print(name, row, flush=True)
        rows.append((name, row))
    report = table(rows, options.suites)
    if options.out is not None:
        (options.out / "fused_hlo.md").write_text(report, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
