"""Parser of attribute values that are kept verbatim."""

from __future__ import annotations

import re

from compiler.ir.attributes import Raw
from compiler.ir.quoting import quote
from compiler.text.scanner import Scanner

_RAW_WORD = re.compile(r"[^\s,{}()\[\]\"]+")
_DEVICES = re.compile(r"\[[\d,\s]*\](?:\s*<=\s*\[[\d,\s]*\](?:\s*T\([\d,\s]*\))?)?")
_MESH = re.compile(r"(?:mesh|maximal_mesh)(?=\s*\[)")
_DEVICE_IDS = re.compile(r"\s*,\s*device_ids\s*=")
_SPACES = re.compile(r"\s+")


def parse_raw(s: Scanner) -> Raw:
    """Parse balanced text, a quoted string, or a word, and keep it verbatim."""
    s.skip()
    if s.peek("{") or s.peek("("):
        return Raw(s.balanced())
    if s.peek('"'):
        return Raw(quote(s.string()))
    if (mesh := s.match(_MESH)) is not None:
        return _mesh(s, mesh.group())
    if (devices := s.match(_DEVICES)) is not None:
        return Raw(_SPACES.sub("", devices.group()))
    m = s.match(_RAW_WORD)
    if m is None:
        s.fail(f"expected the attribute's value, found {s.next_token()}")
    return Raw(m.group())


def _mesh(s: Scanner, word: str) -> Raw:
    """Parse replica groups given by mesh axes: `mesh['x'=2,'y'=4], device_ids=(...) {'x'}`."""
    text = word + s.balanced()
    if _DEVICE_IDS.match(s.text, s.pos):
        s.accept(",")
        s.accept("device_ids")
        s.accept("=")
        text += f", device_ids={s.balanced()}"
    return Raw(f"{text} {s.balanced()}" if s.peek("{") else text)
