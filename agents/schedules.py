"""Schedules of hyperparameters over a training run."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["SCHEDULES", "schedule"]

SCHEDULES = ("constant", "linear")


def schedule(value: float, kind: str) -> Callable[[float], float]:
    """Return a hyperparameter as a function of the remaining share of the training, from 1 down to 0.

    Args:
        value: at the start.
        kind: "constant", or "linear": in proportion to what remains, down to 0, where it stays, because the last
            rollout may end after the last step.
    """
    return (lambda remaining: value * max(0.0, remaining)) if kind == "linear" else (lambda _: value)
