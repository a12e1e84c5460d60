"""Checks of the arguments that environments are made with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.errors import OptionError, UnknownNameError
from compiler.support.untrusted import as_integer, short_repr

__all__ = ["checked_cost", "checked_count", "checked_flag", "checked_render_mode"]


def checked_count(name: str, value: object) -> int:
    """Return an argument that is a positive integer; OptionError for others."""
    count = as_integer(value)
    if count is None or count < 1:
        raise OptionError(f"{name} must be a positive integer, not {short_repr(value)}")
    return count


def checked_flag(name: str, value: object) -> bool:
    """Return an argument that is True or False; OptionError for others, such as the string "no", which is true."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be True or False, not {short_repr(value)}")
    return value


def checked_render_mode(mode: object, known: Sequence[str]) -> str | None:
    """Return a render mode; raise UnknownNameError unless it is None or in `known`."""
    if mode is None or (isinstance(mode, str) and mode in known):
        return mode
    raise UnknownNameError("render mode", mode if isinstance(mode, str) else short_repr(mode), known)


def checked_cost(step_cost: Any) -> float:
    """Return what each step costs; OptionError unless it is a finite number."""
    if (
        isinstance(step_cost, bool)
        or not isinstance(step_cost, int | float | np.floating)
        or not math.isfinite(step_cost)
    ):
        raise OptionError(f"step_cost must be a finite number, not {short_repr(step_cost)}")
    return float(step_cost)
