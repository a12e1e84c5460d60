r"""Names made safe for the place where they are shown or kept: one function for each place.

Names of programs, runs, policies and instructions come from files that anybody may have written. Terminals act on
control characters, Markdown on `|`, HTML on `<`, matplotlib on `$`, file systems on `/`, MLflow refuses most of them.
rich needs no function here, because `experiments.console` prints text without reading markup in it.
"""

from __future__ import annotations

import hashlib
import html
import posixpath
import re
import unicodedata

__all__ = [
    "file_name",
    "html_text",
    "markdown_cell",
    "metric_name",
    "one_line",
    "plot_label",
    "printable",
    "why_no_file_name",
    "why_no_name",
]

MAX_NAME = 250
_KEPT = 100
_WIDTH = 48

# C0, DEL and C1; marks that turn the direction of writing; separators of lines; surrogates, which cannot be encoded.
_INVISIBLE = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_CONTROL = re.compile(f"[\x00-\x1f{_INVISIBLE}]")
_CONTROL_BUT_LAYOUT = re.compile(f"[\x00-\x08\x0b-\x1f{_INVISIBLE}]")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)
_HASHED = re.compile(r"-[0-9a-f]{10}$")


# ---- what can be a name


def why_no_name(name: object) -> str | None:
    """Why something cannot name a program, or None when it can.

    A name is a text of 1 to 250 characters without control characters or spaces around it, and no path that leads
    elsewhere.
    """
    if not isinstance(name, str):
        return f"a name must be a text, not {name!r:.80}"
    if not name.strip():
        return "a name must not be empty"
    if len(name) > MAX_NAME:
        return f"a name has at most {MAX_NAME} characters, {name[:40]!a}... has {len(name)}"
    if (found := _CONTROL.search(name)) is not None:
        return f"the name {name!a} has the control character {found.group()!a}"
    if name != name.strip():
        return f"the name {name!r} begins or ends with a space"
    parts = re.split(r"[/\\]", name)
    if parts[0] == "" or "." in parts or ".." in parts:
        return f"the name {name!r} is a path that leads elsewhere"
    return None


def why_no_file_name(name: str) -> str | None:
    """Why a text cannot name a file or folder on every usual system, or None when it can."""
    if (reason := why_no_name(name)) is not None:
        return reason
    if (found := re.search(r'[/\\<>:"|?*]', name)) is not None:
        return f"the name {name!r} has the character {found.group()!r}"
    if name.startswith((".", "-")) or name.endswith("."):
        return f"the name {name!r} begins with a dot or a dash, or ends with a dot"
    if _RESERVED.match(name):
        return f"the name {name!r} is reserved on some systems"
    if len(name.encode()) > _KEPT * 2:
        return f"the name {name[:40]!r}... is longer than {_KEPT * 2} bytes"
    return None


# ---- where names are kept


def file_name(name: str, suffix: str = "") -> str:
    """The name of a file for something of this name.

    Different names have different files, on systems too that do not tell upper from lower case: a name that has to be
    changed, or that looks as if it had been, gets a hash of what it was.

    Args:
        name: any text.
        suffix: ending of the file, with its dot.
    """
    ascii_only = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    kept = re.sub(r"[^a-z0-9._+-]", "_", ascii_only.lower()).lstrip("._+-")[:_KEPT].rstrip("._-")
    if _RESERVED.match(kept):
        kept = f"_{kept}"
    unchanged = kept == name and kept != "" and not _HASHED.search(kept)
    return f"{kept if unchanged else _hashed(kept, name)}{suffix}"


def metric_name(name: str) -> str:
    """The name of a metric, parameter or tag in MLflow; different names stay different.

    MLflow takes letters, digits and `_-./ `, 250 characters, and no path that leads elsewhere.
    """
    kept = re.sub(r"[^\w./ -]", "_", name)[: 2 * _KEPT]
    normal = posixpath.normpath(kept)
    if normal != kept or normal.startswith((".", "/")):
        kept = kept.replace("/", "_").lstrip(".")
    unchanged = kept == name and kept != "" and not _HASHED.search(kept)
    return kept if unchanged else _hashed(kept, name)


def _hashed(kept: str, name: str) -> str:
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{kept or 'name'}-{digest}"


# ---- where names are shown


def printable(text: str) -> str:
    """A text for a terminal or a log: control characters, but for line breaks and tabs, are spelled out."""
    return _CONTROL_BUT_LAYOUT.sub(_spelled, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """A text for a place that has one line: all control characters are spelled out."""
    return _CONTROL.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode("ascii")


def markdown_cell(text: str) -> str:
    """A text as the cell of a Markdown table: nothing in it is a cell's end, markup, a link, HTML or mathematics."""
    escaped = re.sub(r"([\\`*|<>&$~])", r"\\\1", one_line(text))
    # Underscores within words mean nothing, and a bracket means something before a target alone.
    escaped = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", escaped)
    return re.sub(r"\](?=[(\[:])", r"\\]", escaped)


def html_text(text: str) -> str:
    """A text for the body of an HTML page or an attribute in quotes."""
    return html.escape(printable(text))


def plot_label(text: str) -> str:
    """A text for a plot: no mathematics between dollars, nothing that a legend hides, short enough to leave a plot."""
    line = one_line(text)
    if len(line) > _WIDTH:
        line = f"{line[: _WIDTH - 16]}…{line[-15:]}"
    if line.startswith("_"):  # matplotlib leaves such labels out of legends
        line = f" {line}"
    return line.replace("$", r"\$")
