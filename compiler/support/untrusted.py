"""Values that come from outside: taken for what they are, and shown briefly in messages."""

from __future__ import annotations

import reprlib

import numpy as np

__all__ = ["is_name", "shown", "whole_number"]

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlevel = 2


def shown(value: object) -> str:
    """A value for a message: its repr, cut short, on one line."""
    try:
        return " ".join(_SHORT.repr(value).split())
    except Exception:  # what a foreign __repr__ may raise, and integers of too many digits do
        return f"a {type(value).__name__}"


def whole_number(value: object) -> int | None:
    """A whole number of Python or of numpy as an int; None for everything else, True and False included."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return None
    return int(value)


def is_name(value: object) -> bool:
    """Whether a value can be a name: a text that is not empty and holds no control characters or lone surrogates."""
    return isinstance(value, str) and value != "" and value.isprintable()
