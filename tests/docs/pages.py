"""The written pages of the documentation as blocks, so that tests can run what they show."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]*)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        start, end: where its text is in the page.
    """

    language: str
    title: str
    text: str
    start: int
    end: int


def blocks_of(markdown: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return [Block(m[1], m[2] or "", m[3], m.start(3), m.end(3)) for m in _BLOCK.finditer(markdown)]


def masked(output: str) -> list[str]:
    """Return the lines of an output in which numbers, units of time and the widths of columns do not count."""
    text = re.sub(r"(?:; |^)noisy: .*", "", output, flags=re.MULTILINE)  # on a busy machine
    text = re.sub(r"\b\d+ (?:h|min) \d+ (?:min|s)\b", "1 s", text)
    text = re.sub(r"\b[0-9a-f]{32}\b", "#", text)
    text = re.sub(r"-?\d[\d.,]*(?:e[+-]?\d+)?", "#", text)
    text = re.sub(r"# ?(?:ns|us|ms|s)\b", "# time", text)
    text = re.sub(r"[─━]+", "", text)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return [line for line in lines if line]
