"""One-line descriptions and HTML tables of objects, for terminals and notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from compiler.support.safe_names import printable

__all__ = ["counted", "first_of", "html_table", "text_table", "time_text"]

SHOWN = 20
"""Greatest number of entries of a list in a table."""
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def time_text(seconds: float) -> str:
    """Return a duration with three significant digits and a unit, such as `1.23 ms`."""
    scale, unit = next((u for u in _UNITS if seconds >= u[0]), _UNITS[-1])
    return f"{seconds / scale:.3g} {unit}"


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun: `1 kernel`, `2 kernels`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def first_of(entries: Sequence[object], most: int = SHOWN) -> str:
    """Return the first entries of a list separated by semicolons, and how many more there are."""
    more = [f"and {len(entries) - most:,} more"] if len(entries) > most else []
    return "; ".join([*map(str, entries[:most]), *more])


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in HTML. Every cell is escaped, because names in programs may contain markup."""

    def row(tag: str, cells: Iterable[object]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(printable(str(c)))}</{tag}>" for c in cells) + "</tr>"

    body = "".join(row("td", cells) for cells in rows)
    return (
        f"<table><caption>{escape(printable(caption))}</caption><thead>{row('th', head)}</thead>"
        f"<tbody>{body}</tbody></table>"
    )


def text_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as text: the first column to the left, the others to the right."""
    cells = [list(map(str, r)) for r in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(c.ljust(w) if n == 0 else c.rjust(w) for n, (c, w) in enumerate(zip(r, widths, strict=True)))
        for r in cells
    ]
    return printable("\n".join(line.rstrip() for line in lines))
