"""Run the conformance cases on the interpreter and on XLA:CPU, and write a table by opcode and element type.

python -m tests.sweeps.conformance [--opcode NAME ...] [--new] [--out results/conformance]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compiler.ir.opcodes import Opcode
from experiments.provenance import provenance
from tests.sweeps.registry import NO_CASES, all_cases, whole_sweep
from tests.sweeps.worker import FAIL, KNOWN, NO_OURS, NO_XLA, PASS, Outcome, sweep

Key = tuple[str, str, str]


def known(folder: Path) -> dict[Key, Outcome]:
    """Read the outcomes of an earlier sweep from a folder, by opcode, element type and name."""
    before = json.loads((folder / "opcodes.json").read_text(encoding="utf-8"))
    found = [Outcome(**o) for o in before["outcomes"]]
    return {(o.opcode, o.element_type, o.name): o for o in found}


def write_table(outcomes: list[Outcome], folder: Path, command: str, only: set[str], new: bool) -> None:
    """Write `opcodes.md` and `opcodes.json` to a folder.

    Args:
        outcomes: the outcomes of this sweep.
        folder: the folder to write to.
        command: the command line, recorded in the files.
        only: if not empty, replace only the outcomes of these opcodes in the existing table.
        new: add the outcomes to the existing table.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = {k: v for k, v in provenance().items() if k in ("commit", "date", "machine")}
    header: dict[str, Any] = {"command": command, **made}
    if only or new:
        before = json.loads((folder / "opcodes.json").read_text(encoding="utf-8"))
        outcomes = [o for o in known(folder).values() if new or o.opcode not in only] + outcomes
        header = {k: before[k] for k in header}
        header["run again since"] = [*before.get("run again since", []), {"command": command, **made}]
    header |= {"cases": len(outcomes), "results": dict(Counter(o.result for o in outcomes))}
    payload = {**header, "without_cases": NO_CASES, "outcomes": [asdict(o) for o in outcomes]}
    (folder / "opcodes.json").write_text(json.dumps(payload, indent=1) + "\n", encoding="utf-8")
    (folder / "opcodes.md").write_text("\n".join(_markdown(header, outcomes)) + "\n", encoding="utf-8")


def _markdown(header: dict[str, Any], outcomes: list[Outcome]) -> Iterator[str]:
    yield "# The interpreter against XLA:CPU, by opcode and element type"
    yield ""
    for key, value in header.items():
        yield f"- {key}: {value}"
    yield ""
    yield "Each cell gives the number of cases that agree / that XLA:CPU runs; `-`: XLA:CPU runs none of them."
    yield ""
    yield "| opcode | element types |"
    yield "|---|---|"
    cells: dict[str, dict[str, Counter[str]]] = {}
    for o in outcomes:
        cells.setdefault(o.opcode, {}).setdefault(o.element_type, Counter())[o.result] += 1
    for opcode in sorted(cells):
        yield f"| {opcode} | " + ", ".join(_cell(t, counts) for t, counts in cells[opcode].items()) + " |"
    yield ""
    yield "## Opcodes without separate cases"
    yield ""
    for opcode, why in sorted(NO_CASES.items()):
        yield f"- {opcode}: {why}"
    for result in (FAIL, NO_OURS, KNOWN, NO_XLA):
        found = [o for o in outcomes if o.result == result]
        if not found:
            continue
        yield ""
        yield f"## {result}: {len(found)}"
        yield ""
        reasons: dict[str, list[Outcome]] = {}
        for o in found:
            reasons.setdefault(f"{o.opcode}: {o.reason}", []).append(o)
        for reason, group in sorted(reasons.items()):
            where = ", ".join(f"{o.element_type} {o.name}" for o in group[:6]) + (", ..." if len(group) > 6 else "")
            yield f"- {reason} ({len(group)}: {where})"


def _cell(element_type: str, counts: Counter[str]) -> str:
    ran = counts[PASS] + counts[FAIL] + counts[NO_OURS] + counts[KNOWN]
    return f"{element_type} {counts[PASS]}/{ran}" if ran else f"{element_type} -"


def main() -> int:
    """Run from the command line; return exit status 1 if a case fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--opcode", nargs="*", choices=sorted(o.text for o in Opcode), help="run only these opcodes (default: all)"
    )
    parser.add_argument("--new", action="store_true", help="run only cases that the table in --out does not have yet")
    parser.add_argument("--out", type=Path, help="folder for opcodes.md and opcodes.json (default: only print)")
    options = parser.parse_args()
    wanted = set(options.opcode or ())
    had = known(options.out) if options.new else {}
    every = whole_sweep() if not wanted or "custom-call" in wanted else all_cases()
    outcomes = sweep(
        c for c in every if (not wanted or c.opcode in wanted) and (c.opcode, c.element_type, c.name) not in had
    )
    for o in outcomes:
        if o.result in (FAIL, NO_OURS):
            print(f"{o.opcode} {o.element_type} {o.name}: {o.result}: {o.reason}")
    print(dict(Counter(o.result for o in outcomes)))
    if options.out:
        arguments = " ".join(sys.argv[1:])
        write_table(
            outcomes, options.out, f"python -m tests.sweeps.conformance {arguments}".strip(), wanted, options.new
        )
    return int(any(o.result == FAIL for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
