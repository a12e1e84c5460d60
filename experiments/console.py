"""What commands print: one console, progress bars, durations as people read them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from env.statistics import Interval

__all__ = ["duration", "error_console", "factor", "progress", "stdout", "timing"]

# Where there is no terminal, a table is read in a file or a log, and is not to be squeezed into 80 columns.
stdout = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
error_console = Console(stderr=True, highlight=False)

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


@contextmanager
def progress() -> Iterator[Progress]:
    """A progress display on stderr, gone when done; nothing where stderr is no terminal."""
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=error_console,
        transient=True,
        disable=not error_console.is_terminal,
    ) as bar:
        yield bar


def duration(seconds: float) -> str:
    """Three significant digits with a unit: `1.23 ms`."""
    if not math.isfinite(seconds):
        return "-"
    scale, unit = next(((s, u) for s, u in _UNITS if seconds >= s), _UNITS[-1])
    return f"{_digits(seconds / scale)} {unit}"


def timing(interval: Interval) -> str:
    """A duration and its interval in the same unit: `1.23 ms [1.20, 1.31]`."""
    scale, unit = next(((s, u) for s, u in _UNITS if interval.value >= s), _UNITS[-1])
    v = interval.scaled(1 / scale)
    return f"{_digits(v.value)} {unit} [{_digits(v.low)}, {_digits(v.high)}]"


def factor(interval: Interval) -> str:
    """A ratio and its interval: `1.23x [1.20, 1.31]`."""
    return f"{interval.value:.2f}x [{interval.low:.2f}, {interval.high:.2f}]"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
