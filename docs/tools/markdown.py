"""Pieces of Markdown: tables, fenced listings, anchors."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["fenced", "indented", "sentence", "table"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; bars in cells are escaped, and line breaks become spaces."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    """Return the text on one line with bars escaped, except in code, which the table does not interpret."""
    parts = " ".join(text.split()).split("`")
    return "`".join(p if n % 2 else p.replace("|", "\\|") for n, p in enumerate(parts))


def fenced(text: str, language: str, title: str = "") -> str:
    """Return a listing in a fence that no line of the text closes."""
    named = f' title="{title}"' if title else ""
    return f"````{language}{named}\n{text.rstrip()}\n````"


def indented(text: str) -> str:
    """Return the text four columns further in, as the body of a tab or of a note."""
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())


def sentence(doc: str | None) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join((doc or "").strip().split("\n\n")[0].split())
