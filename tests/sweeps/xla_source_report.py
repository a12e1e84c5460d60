"""The report of `xla_sources`."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.provenance import provenance
from tests.sweeps.xla_source_check import OK

NEWER = (
    ("AsyncUpdate", "an async chain through other instructions, newer than this jaxlib"),
    ("unexpected attribute", "an attribute newer than this jaxlib"),
    ("expects a list starting with", "a sharding newer than this jaxlib"),
    ("device_ids=", "a mesh newer than this jaxlib"),
    ("sub-attribute column", "a table of source locations newer than this jaxlib"),
    ("FRONTEND_ATTRIBUTES", "a placeholder that the test replaces"),
    ("cannot parse as an instruction name", "elements as operands (`t#1`), newer than this jaxlib"),
    ("expects '=' in instruction", "a computation without a header whose name has a percent sign"),
    ("called by more than one async op", "two async-starts that share a computation"),
)
"""Why hlogym reads a program that XLA rejects, by a part of XLA's error message."""
LISTED = 12
"""Maximum number of programs listed for a cause."""


@dataclass(frozen=True)
class Row:
    """The outcomes of one program, by step."""

    path: str
    line: int
    revision: str
    digest: str
    outcomes: dict[str, str]

    @property
    def where(self) -> str:
        """The name of the file and the line in it."""
        return f"{self.path.rpartition('/')[2]}:{self.line}"


@dataclass(frozen=True)
class Finding:
    """A row of a report table; `bad` marks a difference without a known cause."""

    table: str
    cause: str
    bad: bool = False


def findings(row: Row) -> Iterator[Finding]:
    """Yield the findings of a row: on reading, and on verification and values if they were tried."""
    yield _reading(row.outcomes)
    if "compile" in row.outcomes or "run" in row.outcomes:
        yield _verification(row.outcomes)
    if "run" in row.outcomes or row.outcomes.get("compile") == OK == row.outcomes.get("verify"):
        yield _values(row.outcomes)


def _reading(outcomes: dict[str, str]) -> Finding:
    ours, theirs = outcomes.get("parse", ""), outcomes.get("xla_parse")
    broken = next((f"hlogym crashes: {_short(s)}" for s in outcomes.values() if s.startswith("crashes")), None)
    if broken is not None:
        return Finding("reading", broken, True)
    if ours.startswith("not tried"):
        return Finding("reading", f"not tried: {ours.partition(': ')[2]}")
    if outcomes.get("round_trip", OK) != OK:
        return Finding("reading", f"the printed module does not round-trip: {_short(outcomes['round_trip'])}", True)
    if theirs is None:
        verb = "reads" if ours == OK else "rejects"
        return Finding("reading", f"XLA's parser: {outcomes.get('ended', 'no outcome')}; hlogym {verb} it")
    if theirs != OK:
        return _rejected_by_xla(outcomes, theirs)
    if ours != OK:
        return Finding("reading", f"only XLA reads it; hlogym: {_short(ours)}", True)
    if outcomes.get("verify") != OK:
        return Finding("reading", "both read it; hlogym's verifier rejects it")
    agree = outcomes.get("agree", OK)
    if agree.startswith("known"):
        return Finding("reading", f"both read it; {agree.partition(': ')[2]}")
    return Finding(
        "reading", "both read it, as the same program" if agree == OK else f"both read it; {_short(agree)}", agree != OK
    )


def _rejected_by_xla(outcomes: dict[str, str], theirs: str) -> Finding:
    if outcomes["parse"] != OK:
        return Finding("reading", "both reject it")
    if outcomes.get("verify") != OK:
        return Finding("reading", "rejected by XLA's parser and by hlogym's verifier")
    why = next((why for sign, why in NEWER if sign in theirs), None)
    return Finding("reading", f"only hlogym reads it: {why or 'another reason'}", why is None)


def _verification(outcomes: dict[str, str]) -> Finding:
    ours, compiled = outcomes.get("verify", "rejects"), outcomes.get("compile", "")
    if compiled.startswith("not tried"):
        return Finding("verification", compiled)
    if ours == OK:
        return Finding(
            "verification",
            "both accept it" if compiled == OK else f"only hlogym accepts it; XLA:CPU: {_kind(compiled)}",
        )
    return Finding("verification", "both reject it" if compiled != OK else "only XLA:CPU accepts it")


def _kind(complaint: str) -> str:
    """Return the kind of an error message of XLA's compiler."""
    for sign, kind in (
        ("NOT_FOUND", "its custom call is not registered"),
        ("UNIMPLEMENTED", "not implemented on CPU"),
        ("mhlo.unknown", "jaxlib's conversion through MLIR does not support the op"),
        ("hlo verifier", "rejected by its verifier after the conversion through MLIR changed the program"),
        ("bitcast", "bitcasts with layouts"),
        ("layout minor_to_major", "bitcasts with layouts"),
        ("UNKNOWN", "jaxlib's conversion through MLIR fails"),
    ):
        if sign in complaint:
            return kind
    return "another reason"


def _values(outcomes: dict[str, str]) -> Finding:
    run = outcomes.get("run")
    if run is None:
        return Finding("values", f"not compared: {outcomes.get('ended', 'no outcome')}")
    if run.startswith("known"):
        return Finding("values", f"differ: {run.partition(': ')[2]}")
    if run.startswith("not run"):
        return Finding("values", "not compared: XLA:CPU fails at run time")
    if run.startswith("rejects"):
        return Finding("values", f"the interpreter rejects it: {re.sub(r'%[^:]*: ', '', _short(run))}")
    return Finding("values", "agree" if run == OK else "differ", run != OK)


def _short(outcome: str) -> str:
    first = outcome.splitlines()[0].partition(": ")[2] or outcome
    return re.sub(r"^<text>:\d+:\d+: ", "", first)[:160]


def report(rows: Sequence[Row], command: str) -> tuple[str, int]:
    """Return the report in Markdown, and the number of differences without a known cause."""
    revisions = list(dict.fromkeys(r.revision for r in rows))
    counted: dict[Finding, Counter[str]] = defaultdict(Counter)
    named: dict[Finding, list[str]] = defaultdict(list)
    for row in rows:
        for finding in findings(row):
            counted[finding][row.revision] += 1
            named[finding].append(row.where)
    bad = sum(c.total() for f, c in counted.items() if f.bad)
    made = provenance()
    lines = [
        "# The HLO programs in XLA's sources",
        "",
        f"- command: `{command}`",
        *(f"- {k}: {made[k]}" for k in ("commit", "date", "machine")),
        f"- programs: {len(rows):,} from {len({r.path for r in rows}):,} files: string literals in XLA's tests, and "
        ".hlo files, without duplicates",
        f"- differences without a known cause: {bad}",
        "",
        *_ABOUT,
    ]
    for table, about in _TABLES.items():
        found = sorted((f for f in counted if f.table == table), key=lambda f: (not f.bad, -counted[f].total()))
        if not found:
            continue
        lines += ["", f"## {about}", "", f"| outcome | {' | '.join(r or 'programs' for r in revisions)} | examples |"]
        lines += ["|---|" + "---:|" * len(revisions) + "---|"]
        for f in found:
            examples = ", ".join(named[f][: LISTED if f.bad else 3]) if counted[f].total() < 1000 else ""
            cells = (f"**{f.cause}**" if f.bad else f.cause, *(f"{counted[f][r]:,}" for r in revisions), examples)
            lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join(lines) + "\n", bad


_ABOUT = (
    "Reading compares hlogym's parser and verifier with jaxlib's parser. Two readings are the same program if the",
    "module that XLA prints for the original, and the one that it prints for hlogym's print, have the fingerprint",
    "of the module that hlogym read. Many programs are meant to be rejected: they are from tests of XLA's parser",
    "and verifier. Verification and values are checked for every n-th program, if it is for one device and has at",
    "most 20 million elements. Fusions are replaced by calls and bitcasts by reshapes, because XLA:CPU compiles",
    "only those that it made itself. Inputs are random. Programs are identified by file and line in XLA's source.",
)
_TABLES = {
    "reading": "Reading",
    "verification": "Verification, by what XLA:CPU compiles",
    "values": "Values, interpreter compared with XLA:CPU",
}
