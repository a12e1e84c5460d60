"""Validation and short display of untrusted values."""

from __future__ import annotations

import reprlib

import numpy as np

__all__ = ["as_integer", "is_name", "short_repr"]

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlevel = 2


def short_repr(value: object) -> str:
    """Return the repr of a value for a message, shortened and on one line."""
    try:
        return " ".join(_SHORT.repr(value).split())
    except Exception:  # __repr__ may raise anything; integers with too many digits raise ValueError
        return f"a {type(value).__name__}"


def as_integer(value: object) -> int | None:
    """Return a Python or numpy integer as an int, and None for everything else, including booleans."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return None
    return int(value)


def is_name(value: object) -> bool:
    """Check whether a value is a non-empty string without control characters and lone surrogates."""
    return isinstance(value, str) and value != "" and value.isprintable()
