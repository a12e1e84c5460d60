"""The table of what `xla_sources` found."""

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
    ("FRONTEND_ATTRIBUTES", "a word that its test replaces"),
    ("cannot parse as an instruction name", "elements as operands (`t#1`), newer than this jaxlib"),
    ("expects '=' in instruction", "a computation without a header whose name has a percent sign"),
    ("called by more than one async op", "two async-starts that share a computation"),
)
"""Why we read a text that XLA refuses, by what XLA says."""
LISTED = 12
"""Texts named for a cause at most."""


@dataclass(frozen=True)
class Row:
    """What was said of one text, step by step."""

    path: str
    line: int
    revision: str
    digest: str
    said: dict[str, str]

    @property
    def where(self) -> str:
        """The file and the line, for people who have XLA's source."""
        return f"{self.path.rpartition('/')[2]}:{self.line}"


@dataclass(frozen=True)
class Finding:
    """A row's place in a table; `bad` when nobody knows why it is not as it should be."""

    table: str
    cause: str
    bad: bool = False


def findings(row: Row) -> Iterator[Finding]:
    """Where a row counts: reading, then verification and values where they were tried."""
    yield _reading(row.said)
    if "compile" in row.said or "run" in row.said:
        yield _verification(row.said)
    if "run" in row.said or row.said.get("compile") == OK == row.said.get("verify"):
        yield _values(row.said)


def _reading(said: dict[str, str]) -> Finding:
    ours, theirs = said.get("parse", ""), said.get("xla_parse")
    broken = next((f"we crash: {_short(s)}" for s in said.values() if s.startswith("crashes")), None)
    if broken is not None:
        return Finding("reading", broken, True)
    if ours.startswith("not tried"):
        return Finding("reading", f"not tried: {ours.partition(': ')[2]}")
    if said.get("round_trip", OK) != OK:
        return Finding("reading", f"our print does not read back: {_short(said['round_trip'])}", True)
    if theirs is None:
        return Finding(
            "reading", f"XLA's reader: {said.get('ended', 'nothing said')}; we {'read' if ours == OK else 'refuse'} it"
        )
    if theirs != OK:
        return _refused_by_xla(said, theirs)
    if ours != OK:
        return Finding("reading", f"only XLA reads it; we say: {_short(ours)}", True)
    if said.get("verify") != OK:
        return Finding("reading", "both read it; our verifier refuses it")
    agree = said.get("agree", OK)
    if agree.startswith("known"):
        return Finding("reading", f"both read it; {agree.partition(': ')[2]}")
    return Finding(
        "reading", "both read it, as the same program" if agree == OK else f"both read it; {_short(agree)}", agree != OK
    )


def _refused_by_xla(said: dict[str, str], theirs: str) -> Finding:
    if said["parse"] != OK:
        return Finding("reading", "both refuse it")
    if said.get("verify") != OK:
        return Finding("reading", "XLA's parser refuses it, our verifier does")
    why = next((why for sign, why in NEWER if sign in theirs), None)
    return Finding("reading", f"only we read it: {why or 'another reason'}", why is None)


def _verification(said: dict[str, str]) -> Finding:
    ours, compiled = said.get("verify", "refuses"), said.get("compile", "")
    if compiled.startswith("not tried"):
        return Finding("verification", compiled)
    if ours == OK:
        return Finding("verification", "both take it" if compiled == OK else f"we take it; XLA:CPU: {_kind(compiled)}")
    return Finding("verification", "both refuse it" if compiled != OK else "we refuse it, XLA:CPU takes it")


def _kind(complaint: str) -> str:
    """A complaint of XLA's compiler without names and numbers."""
    for sign, kind in (
        ("NOT_FOUND", "nobody registered its custom call"),
        ("UNIMPLEMENTED", "not implemented on CPU"),
        ("mhlo.unknown", "jaxlib's way through MLIR does not know the op"),
        ("hlo verifier", "its verifier, after the way through MLIR changed the program"),
        ("bitcast", "bitcasts with layouts"),
        ("layout minor_to_major", "bitcasts with layouts"),
        ("UNKNOWN", "jaxlib's way through MLIR refuses it"),
    ):
        if sign in complaint:
            return kind
    return "another reason"


def _values(said: dict[str, str]) -> Finding:
    run = said.get("run")
    if run is None:
        return Finding("values", f"not compared: {said.get('ended', 'nothing said')}")
    if run.startswith("known"):
        return Finding("values", f"differ: {run.partition(': ')[2]}")
    if run.startswith("not run"):
        return Finding("values", "not compared: XLA:CPU fails when it runs it")
    if run.startswith("refuses"):
        return Finding("values", f"we refuse to run it: {re.sub(r'%[^:]*: ', '', _short(run))}")
    return Finding("values", "agree" if run == OK else "differ", run != OK)


def _short(said: str) -> str:
    first = said.splitlines()[0].partition(": ")[2] or said
    return re.sub(r"^<text>:\d+:\d+: ", "", first)[:160]


def report(rows: Sequence[Row], command: str) -> tuple[str, int]:
    """The table, and the number of differences without a known cause."""
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
        "# The HLO texts in XLA's own sources",
        "",
        f"- command: `{command}`",
        *(f"- {k}: {made[k]}" for k in ("commit", "date", "machine")),
        f"- texts: {len(rows):,} of {len({r.path for r in rows}):,} files: string literals of XLA's tests and its .hlo "
        "files, each text once",
        f"- without a known cause: {bad}",
        "",
        *_ABOUT,
    ]
    for table, about in _TABLES.items():
        found = sorted((f for f in counted if f.table == table), key=lambda f: (not f.bad, -counted[f].total()))
        if not found:
            continue
        lines += ["", f"## {about}", "", f"| outcome | {' | '.join(r or 'texts' for r in revisions)} | such as |"]
        lines += ["|---|" + "---:|" * len(revisions) + "---|"]
        for f in found:
            such = ", ".join(named[f][: LISTED if f.bad else 3]) if counted[f].total() < 1000 else ""
            cells = (f"**{f.cause}**" if f.bad else f.cause, *(f"{counted[f][r]:,}" for r in revisions), such)
            lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join(lines) + "\n", bad


_ABOUT = (
    "Reading: our parser and verifier against jaxlib's parser. `As the same program`: what XLA prints of the text,",
    "and of our print of it, has the fingerprint of what we read, and our print reads back as itself. Many texts",
    "are meant to be refused: they stand in tests of XLA's parser and verifier. Verification and values: each nth",
    "text, modules for one device of at most 20 million elements; fusions are calls there and bitcasts reshapes,",
    "because XLA:CPU compiles only those that it made itself. Inputs are random; results are held against the",
    "tolerance of the coarsest type in the module. Texts are named by file and line of XLA's source.",
)
_TABLES = {
    "reading": "Reading",
    "verification": "Verification, by what XLA:CPU compiles",
    "values": "Values, interpreter against XLA:CPU",
}
