"""Runs conformance cases: the interpreter against XLA:CPU, and writes the table of opcode x element type x result.

python -m tests.sweeps.conformance [--opcode NAME ...] [--out results/conformance]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import multiprocessing
import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from compiler.errors import HlogymError
from compiler.interpreter import evaluate
from compiler.ir.opcodes import Opcode
from compiler.text import parse
from tests.oracle import XlaError, compile_xla, run_xla
from tests.sweeps.case import Case, difference
from tests.sweeps.known import reason
from tests.sweeps.registry import NO_CASES, all_cases

PASS, FAIL, NO_XLA, NO_OURS = "pass", "FAIL", "unsupported by XLA:CPU", "not supported here"
KNOWN = "known to differ"


@dataclass(frozen=True)
class Outcome:
    """What came of one case."""

    opcode: str
    element_type: str
    name: str
    result: str
    reason: str = ""


def run(case: Case) -> Outcome:
    """Run one case on both sides."""

    def outcome(result: str, reason: str = "") -> Outcome:
        return Outcome(case.opcode, case.element_type, case.name, result, reason)

    try:
        wanted = run_xla(case.text, case.args)
    except XlaError as e:
        return outcome(NO_XLA, _first_line(str(e)))
    finally:
        compile_xla.cache_clear()
    try:
        found = evaluate(parse(case.text), case.args)
    except HlogymError as e:
        return outcome(NO_OURS, _first_line(str(e)))
    told = difference(found, wanted, case.tolerance)
    if told is None:
        return outcome(PASS)
    why = reason(case)
    return outcome(FAIL, told) if why is None else outcome(KNOWN, why)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]


def write_table(outcomes: list[Outcome], folder: Path, command: str) -> None:
    """`opcodes.md` and `opcodes.json` in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    header = {
        "command": command,
        "commit": _commit(),
        "machine": f"{os.cpu_count()} cores, {_cpu()}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cases": len(outcomes),
        "results": dict(Counter(o.result for o in outcomes)),
    }
    payload = {**header, "without_cases": NO_CASES, "outcomes": [asdict(o) for o in outcomes]}
    (folder / "opcodes.json").write_text(json.dumps(payload, indent=1) + "\n", encoding="utf-8")
    (folder / "opcodes.md").write_text("\n".join(_markdown(header, outcomes)) + "\n", encoding="utf-8")


def _markdown(header: dict[str, object], outcomes: list[Outcome]) -> Iterator[str]:
    yield "# The interpreter against XLA:CPU, by opcode and element type"
    yield ""
    for key, value in header.items():
        yield f"- {key}: {value}"
    yield ""
    yield "Each cell says how many cases agree, of how many that XLA:CPU ran; `-` where XLA:CPU runs none of them."
    yield ""
    yield "| opcode | element types |"
    yield "|---|---|"
    cells: dict[str, dict[str, Counter[str]]] = {}
    for o in outcomes:
        cells.setdefault(o.opcode, {}).setdefault(o.element_type, Counter())[o.result] += 1
    for opcode in sorted(cells):
        yield f"| {opcode} | " + ", ".join(_cell(t, counts) for t, counts in cells[opcode].items()) + " |"
    yield ""
    yield "## Opcodes without cases of their own"
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
        for told, group in sorted(reasons.items()):
            where = ", ".join(f"{o.element_type} {o.name}" for o in group[:6]) + (", ..." if len(group) > 6 else "")
            yield f"- {told} ({len(group)}: {where})"


def _cell(element_type: str, counts: Counter[str]) -> str:
    ran = counts[PASS] + counts[FAIL] + counts[NO_OURS] + counts[KNOWN]
    return f"{element_type} {counts[PASS]}/{ran}" if ran else f"{element_type} -"


def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def sweep(cases: Iterable[Case]) -> list[Outcome]:
    """Outcomes of all cases, with the count on stderr as they run.

    XLA:CPU aborts the process on some programs, so cases run in a process of their own, started anew after each abort.
    """
    outcomes = []
    worker = _Worker()
    for n, case in enumerate(cases, 1):
        found = worker.run(case)
        if found is None:
            reason = "XLA:CPU aborts the process"
            found = Outcome(case.opcode, case.element_type, case.name, NO_XLA, reason)
            worker = _Worker()
        outcomes.append(found)
        if n % 50 == 0:
            print(f"\r{n} cases", end="", file=sys.stderr, flush=True)
    worker.stop()
    print(f"\r{len(outcomes)} cases", file=sys.stderr)
    return outcomes


class _Worker:
    """A process that runs cases, one at a time."""

    def __init__(self) -> None:
        # Forked from a server that has imported everything and started nothing, so that a new start costs little.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.sweeps.conformance"])
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def run(self, case: Case) -> Outcome | None:
        """The outcome, or None when the process died."""
        try:
            self.pipe.send(case)
            found: Outcome = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return None
        return found

    def stop(self) -> None:
        """Let the process end."""
        self.pipe.close()
        self.process.join()


def _work(pipe: Connection) -> None:
    # What XLA says about its own failures is in the outcome already.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(run(pipe.recv()))


def main() -> int:
    """The command line; exit status 1 when a case fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--opcode", nargs="*", choices=sorted(o.text for o in Opcode), help="only these")
    parser.add_argument("--out", type=Path, help="folder for opcodes.md and opcodes.json (default: only say)")
    options = parser.parse_args()
    wanted = set(options.opcode or ())
    outcomes = sweep(c for c in all_cases() if not wanted or c.opcode in wanted)
    for o in outcomes:
        if o.result in (FAIL, NO_OURS):
            print(f"{o.opcode} {o.element_type} {o.name}: {o.result}: {o.reason}")
    print(dict(Counter(o.result for o in outcomes)))
    if options.out:
        arguments = " ".join(sys.argv[1:])
        write_table(outcomes, options.out, f"python -m tests.sweeps.conformance {arguments}".strip())
    return int(any(o.result == FAIL for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
