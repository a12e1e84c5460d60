r"""Escape or replace names from untrusted files for each destination: one function per destination.

Names of programs, runs, policies and instructions come from files of unknown origin. Control characters affect
terminals, `|` breaks Markdown tables, `<` HTML, `$` matplotlib and `/` paths; MLflow refuses most of them. rich needs
no function here, because `experiments.console` prints text without interpreting markup.
"""

from __future__ import annotations

import hashlib
import html
import posixpath
import re
import shlex
import unicodedata

__all__ = [
    "file_name",
    "html_text",
    "markdown_cell",
    "metric_name",
    "one_line",
    "plot_label",
    "printable",
    "shell_command",
    "why_no_file_name",
    "why_no_name",
]

MAX_NAME = 250
_KEPT = 100
_WIDTH = 48

# C0, DEL and C1 controls; marks that change the writing direction; line separators; surrogates, which do not encode.
_INVISIBLE = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_CONTROL = re.compile(f"[\x00-\x1f{_INVISIBLE}]")
_CONTROL_BUT_LAYOUT = re.compile(f"[\x00-\x08\x0b-\x1f{_INVISIBLE}]")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)
_HASHED = re.compile(r"-[0-9a-f]{10}$")


# ---- validity of names


def why_no_name(name: object) -> str | None:
    """Return why a value cannot be the name of a program, or None if it can.

    A name is a string of 1 to 250 characters without control characters, without surrounding spaces, and not an
    absolute path or one with `.` or `..` in it.
    """
    if not isinstance(name, str):
        return f"a name must be a string, not {name!r:.80}"
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
        return f"the name {name!r} is an absolute path or has '.' or '..' in it"
    return None


def why_no_file_name(name: str) -> str | None:
    """Return why a string cannot name a file or folder on every common system, or None if it can."""
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


# ---- file and metric names


def file_name(name: str, suffix: str = "") -> str:
    """Return a valid file name for a name.

    Different names get different file names, also on case-insensitive file systems: a hash of the name is appended if
    the name had to be changed, or if it already looks like one with a hash.

    Args:
        name: any string.
        suffix: suffix of the file, with its dot.
    """
    ascii_only = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    kept = re.sub(r"[^a-z0-9._+-]", "_", ascii_only.lower()).lstrip("._+-")[:_KEPT].rstrip("._-")
    if _RESERVED.match(kept):
        kept = f"_{kept}"
    unchanged = kept == name and kept != "" and not _HASHED.search(kept)
    return f"{kept if unchanged else _hashed(kept, name)}{suffix}"


def metric_name(name: str) -> str:
    """Return a valid MLflow name of a metric, parameter or tag; different names stay different.

    MLflow allows letters, digits and `_-./ `, up to 250 characters, and no path that leaves its folder.
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


# ---- display


def printable(text: str) -> str:
    """Escape control characters except line breaks and tabs, for a terminal or a log."""
    return _CONTROL_BUT_LAYOUT.sub(_escape, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Escape all control characters, so that the string stays on one line."""
    return _CONTROL.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode("ascii")


def shell_command(*words: object) -> str:
    """Return a command that a shell splits into exactly these words, such as paths with spaces or quotes."""
    return shlex.join(map(str, words))


def markdown_cell(text: str) -> str:
    """Escape a string as a cell of a Markdown table, so that it has no markup, links, HTML or mathematics."""
    escaped = re.sub(r"([\\`*|<>&$~])", r"\\\1", one_line(text))
    # Underscores within words are not markup, and a bracket is only before a link target.
    escaped = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", escaped)
    return re.sub(r"\](?=[(\[:])", r"\\]", escaped)


def html_text(text: str) -> str:
    """Escape a string for the body of an HTML page or a quoted attribute."""
    return html.escape(printable(text))


def plot_label(text: str) -> str:
    """Escape and shorten a string for a plot: no math mode, not hidden from legends, narrow enough for the figure."""
    line = one_line(text)
    if len(line) > _WIDTH:
        line = f"{line[: _WIDTH - 16]}…{line[-15:]}"
    if line.startswith("_"):  # matplotlib omits such labels from legends
        line = f" {line}"
    return line.replace("$", r"\$")
