"""Checks of the arguments that environments are made with."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.errors import OptionError
from compiler.support.untrusted import as_integer, short_repr

__all__ = ["checked_cost", "checked_flag", "checked_steps"]


def checked_steps(max_steps: object) -> int:
    """Return the greatest number of steps of an episode; OptionError unless it is a positive integer."""
    steps = as_integer(max_steps)
    if steps is None or steps < 1:
        raise OptionError(f"max_steps must be a positive integer, not {short_repr(max_steps)}")
    return steps


def checked_flag(name: str, value: object) -> bool:
    """Return an argument that is True or False; OptionError for others, such as the string "no", which is true."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be True or False, not {short_repr(value)}")
    return value


def checked_cost(step_cost: Any) -> float:
    """Return what each step costs; OptionError unless it is a finite number."""
    if (
        isinstance(step_cost, bool)
        or not isinstance(step_cost, int | float | np.floating)
        or not math.isfinite(step_cost)
    ):
        raise OptionError(f"step_cost must be a finite number, not {short_repr(step_cost)}")
    return float(step_cost)
