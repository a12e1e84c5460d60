"""Quoted strings with C escapes: octal, hexadecimal and the usual letters.

Strings may contain any bytes (custom calls carry binary data); bytes that are not UTF-8 are represented by Python's
surrogate escapes.
"""

from __future__ import annotations

import re

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_TO_ESCAPE = re.compile(r'[\\"\x00-\x1f\x7f\udc80-\udcff]')
_NAMED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def quote(text: str) -> str:
    """Return a string in double quotes, escaped."""
    return f'"{_TO_ESCAPE.sub(_escaped, text)}"'


def unescape(text: str) -> str:
    """Resolve the escapes in the contents of a quoted string."""
    if "\\" not in text:
        return text
    raw = _ESCAPE.sub(_resolved, text.encode("utf-8", "surrogateescape"))
    return raw.decode("utf-8", "surrogateescape")


def unquote(text: str) -> str:
    """Return the contents of a string in double quotes; return any other string unchanged."""
    return unescape(text[1:-1]) if len(text) > 1 and text[0] == text[-1] == '"' else text


def _escaped(m: re.Match[str]) -> str:
    c = m.group()
    return _NAMED.get(c) or f"\\{ord(c) & 0xFF:03o}"


def _resolved(m: re.Match[bytes]) -> bytes:
    s = m.group(1)
    if s[:1] == b"x" and len(s) > 1:
        return bytes([int(s[1:], 16)])
    if s[:1] in b"01234567":
        return bytes([int(s, 8) & 0xFF])
    return _LETTERS.get(s, s)
