"""Console output of the commands: consoles, progress bars, and human-readable durations."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from compiler.support.safe_names import one_line, printable
from env.statistics import Interval

__all__ = [
    "PlainConsole",
    "bounds",
    "clock",
    "duration",
    "error_console",
    "factor",
    "pace",
    "progress",
    "ratio",
    "stdout",
    "timing",
]


class PlainConsole(Console):
    """A console that prints strings verbatim: without markup or emoji codes, and with control characters escaped.

    Pass a `rich.text.Text` to print styled output.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the escaped text; Rich calls this for every string, including those in tables and titles."""
        return super().render_str(printable(text), **options)


def is_terminal() -> bool:
    """Return whether standard output is a terminal; False if it is closed."""
    return sys.stdout is not None and sys.stdout.isatty()


# Output that is redirected to a file or a log need not fit into 80 columns.
stdout = PlainConsole(width=None if is_terminal() else 140)
error_console = PlainConsole(stderr=True)

PERIOD = 60.0
"""Seconds between lines about progress where there is no terminal."""
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


class _Description(TextColumn):
    """A column with the task's description as plain text, without markup."""

    def render(self, task: Task) -> Text:
        return Text(one_line(task.description))


class _Pace(ProgressColumn):
    """A column with the rate of a task and the time it still takes, as far as they are known."""

    def render(self, task: Task) -> Text:
        return Text(pace(task.speed, task.time_remaining))


class _SoFar(ProgressColumn):
    """A column with what a task has achieved so far, such as the best speedup: its field `so_far`."""

    def render(self, task: Task) -> Text:
        return Text(one_line(str(task.fields.get("so_far", ""))))


def pace(rate: float | None, left: float | None) -> str:
    """Return a rate per second and the seconds that are left in a few words, such as `12/s, 1 min 20 s left`."""
    parts = []
    if rate:
        number, unit = (rate, "s") if rate >= 1 else (60 * rate, "min")
        parts.append(f"{number:.0f}/{unit}" if number >= 10 else f"{number:.1f}/{unit}")
    if left is not None:
        parts.append(f"{clock(left)} left")
    return ", ".join(parts)


def clock(seconds: float) -> str:
    """Return a duration of seconds to hours as a person says it, such as `1 min 20 s`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole // 60 % 60} min"


@contextmanager
def progress() -> Iterator[Progress]:
    """Show a progress bar on stderr and remove it at the end; print a line every minute if stderr is not a terminal.

    The bar has the rate and the time left, and what the field `so_far` of a task says: `bar.update(task, so_far=...)`.
    """
    with Progress(
        SpinnerColumn(),
        _Description(""),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        _Pace(),
        _SoFar(),
        console=error_console,
        transient=True,
        disable=not error_console.is_terminal,
    ) as bar:
        if error_console.is_terminal:
            yield bar
            return
        ended = threading.Event()
        printer = threading.Thread(target=_print_progress, args=(bar, ended), daemon=True)
        printer.start()
        try:
            yield bar
        finally:
            ended.set()
            printer.join()


def _print_progress(bar: Progress, ended: threading.Event) -> None:
    """Print a line per task from time to time, for logs, until the event is set."""
    while not ended.wait(PERIOD):
        for task in bar.tasks:
            if not task.finished:
                error_console.print(progress_line(task), soft_wrap=True)


def progress_line(task: Task) -> str:
    """Return the state of a task in one line."""
    total = "" if task.total is None else f"/{task.total:.0f}"
    elapsed = f"{clock(task.elapsed)} elapsed" if task.elapsed is not None else ""
    parts = [elapsed, pace(task.speed, task.time_remaining), str(task.fields.get("so_far", ""))]
    return f"{task.description}: {task.completed:.0f}{total}, {', '.join(p for p in parts if p)}"


def duration(seconds: float) -> str:
    """Return a duration with three significant digits and a unit, such as `1.23 ms`."""
    if not math.isfinite(seconds):
        return "-"
    scale, unit = next(((s, u) for s, u in _UNITS if seconds >= s), _UNITS[-1])
    return f"{_digits(seconds / scale)} {unit}"


def timing(interval: Interval) -> str:
    """Return a duration and its interval in the same unit, such as `1.23 ms [1.20, 1.31]`."""
    scale, unit = next(((s, u) for s, u in _UNITS if interval.value >= s), _UNITS[-1])
    v = interval.scaled(1 / scale)
    return f"{_digits(v.value)} {unit} [{_digits(v.low)}, {_digits(v.high)}]"


def factor(interval: Interval) -> str:
    """Return a ratio and its interval, if that is known, such as `1.23x [1.20, 1.31]`."""
    return f"{ratio(interval.value)} {bounds(interval)}".rstrip()


def ratio(value: float, digits: int = 2) -> str:
    """Return a ratio such as `1.23x`; ones far from 1 have three significant digits instead of places."""
    return f"{_plain(value, digits)}x"


def _plain(value: float, digits: int) -> str:
    if value == 0 or 10.0**-digits <= abs(value) < 1000 or not math.isfinite(value):
        return f"{value:.{digits}f}"
    return f"{value:.3g}"


def bounds(interval: Interval, digits: int = 2) -> str:
    """Return the bounds of an interval, such as `[1.20, 1.31]`; nothing if they are unknown."""
    return f"[{_plain(interval.low, digits)}, {_plain(interval.high, digits)}]" if interval.is_known else ""


def _digits(value: float) -> str:
    if value >= 1e6:
        return f"{value:.3g}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
