"""Plots of results, as SVG elements for an HTML page or as image files."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from compiler.support.safe_names import plot_label
from env.statistics import Interval
from env.summaries import performance_profile
from experiments.results import Evaluation, write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "learning_curve", "order_bars", "profile_lines", "save_figure", "scaling_lines", "speedup_bars", "svg",
]  # fmt: skip

COLORS = {
    "none": "#9aa0a6",
    "greedy": "#c58b2c",
    "priority": "#3b6fb6",
    "default": "#1f3f73",
    "random": "#d9772e",
    "beam": "#8a5fb0",
    "learned": "#2a8f5b",
    "learned+search": "#145c39",
}
_TICKS = tuple(m * 10.0**e for e in range(-2, 4) for m in (1, 1.5, 2, 3, 5, 7))
_OTHER_COLORS = ("#b0527a", "#5b8f9a", "#7d7d3a", "#a3503f")
_STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "hlogym",
}


def speedup_bars(evaluation: Evaluation) -> Figure:
    """Plot speedups over the reference with intervals, one group of bars per program, held-out ones on top."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as NewFigure
    from matplotlib.ticker import FixedLocator, NullLocator

    strategies = evaluation.contenders
    programs = sorted(evaluation.programs, key=lambda p: (p.seen, p.program), reverse=True)
    height = 0.8 / max(1, len(strategies))
    with rc_context(_STYLE):
        figure = NewFigure(figsize=(9, 1.4 + 0.14 * len(programs) * (len(strategies) + 1)), layout="constrained")
        axes = figure.subplots()
        for k, strategy in enumerate(strategies):
            found = [(i, p.strategies[strategy].speedup) for i, p in enumerate(programs) if strategy in p.strategies]
            shown = [(i, s) for i, s in found if s is not None]
            values = [s.value for _, s in shown]
            errors = _error_bars([s for _, s in shown])
            places = [i + 0.4 - (k + 0.5) * height for i, _ in shown]
            widths = [v - 1 for v in values]
            axes.barh(places, widths, height * 0.9, left=1.0, color=_color(strategy, k), label=plot_label(strategy))
            axes.errorbar(values, places, xerr=errors, fmt="none", ecolor="#333333", elinewidth=0.8, capsize=1.5)
        axes.axvline(1.0, color="#555555", linewidth=1)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}x")
        low, high = axes.get_xlim()
        axes.xaxis.set_major_locator(FixedLocator([t for t in _TICKS if low <= t <= high]))
        axes.xaxis.set_minor_locator(NullLocator())
        names = [f"{plot_label(p.program)}{'' if p.seen else ' *'}" for p in programs]
        axes.set_yticks(range(len(programs)), names)
        axes.set_xlabel(f"speedup over {plot_label(evaluation.reference)} (log scale); * not seen in training")
        axes.grid(False, axis="y")
        axes.margins(y=0.01)
        figure.legend(loc="outside upper left", ncols=max(1, len(strategies)))
    return figure


def profile_lines(evaluation: Evaluation) -> Figure | None:
    """Plot for each strategy the share of programs by speedup, with intervals; None without speedups.

    The programs are those that were held out, if there are any.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure as NewFigure

    held_out = any(not p.seen for p in evaluation.programs)
    found = {s: evaluation.speedups(s, seen=not held_out) for s in evaluation.contenders}
    found = {s: speedups for s, speedups in found.items() if speedups}
    if not found:
        return None
    values = [np.median(rounds) for speedups in found.values() for (rounds,) in speedups.values()]
    thresholds = np.geomspace(min(*values, 0.9), max(*values, 1.1), 60).tolist()
    with rc_context(_STYLE):
        figure = NewFigure(figsize=(9, 3.4), layout="constrained")
        axes = figure.subplots()
        for k, (strategy, speedups) in enumerate(found.items()):
            shares = performance_profile(speedups, thresholds)
            color = _color(strategy, k)
            axes.step(thresholds, [s.value for s in shares], where="mid", color=color, label=plot_label(strategy))
            bounds = [max(0.0, s.low) for s in shares], [min(1.0, s.high) for s in shares]
            axes.fill_between(thresholds, *bounds, step="mid", color=color, alpha=0.12, linewidth=0)
        axes.axvline(1.0, color="#555555", linewidth=1)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}x")
        axes.xaxis.set_minor_formatter(lambda x, _: f"{x:g}x")
        axes.set_xlabel(f"speedup over {plot_label(evaluation.reference)}")
        axes.set_ylabel("share of programs with at least that")
        axes.legend()
    return figure


def order_bars(ratios: Mapping[str, Interval]) -> Figure:
    """Plot op counts relative to the baseline with intervals, one bar per pass order; shorter is better."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as NewFigure

    names = list(ratios)[::-1]
    with rc_context(_STYLE):
        figure = NewFigure(figsize=(9, 0.9 + 0.3 * len(names)), layout="constrained")
        axes = figure.subplots()
        values = [ratios[n].value for n in names]
        bounds = [ratios[n] for n in names]
        errors = _error_bars(bounds)
        places = range(len(names))
        axes.barh(places, values, 0.7, color=[_order_color(n) for n in names])
        axes.errorbar(values, places, xerr=errors, fmt="none", ecolor="#333333", elinewidth=0.8, capsize=2)
        axes.set_yticks(places, [plot_label(n) for n in names])
        axes.axvline(1.0, color="#555555", linewidth=1)
        axes.set_xlabel("op count relative to XLA's order run once (geometric mean, 95% interval)")
        axes.grid(False, axis="y")
    return figure


def _order_color(name: str) -> str:
    searched = name.partition(" (")[0]
    if searched in COLORS:
        return COLORS[searched]
    if name.startswith(("XLA", "our")):
        return COLORS["default"]
    return COLORS["learned+search"] if "sampled" in name else COLORS["learned"]


def learning_curve(points: Sequence[Mapping[str, Any]], what: str = "speedup over no fusion") -> Figure | None:
    """Plot the speedup of training episodes over environment steps; return None if there are fewer than two points.

    Args:
        points: objects with the number of `timesteps` and the mean `speedup` of the episodes since the last point.
        what: the label of the vertical axis.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure as NewFigure

    found = [(p["timesteps"], p["speedup"]) for p in points if p.get("speedup")]
    if len(found) < 2:
        return None
    steps, speedups = np.array(found, dtype=np.float64).T
    with rc_context(_STYLE):
        figure = NewFigure(figsize=(9, 3.2), layout="constrained")
        axes = figure.subplots()
        axes.plot(steps, speedups, color="#9fceb5", linewidth=1.2, label="mean over the episodes of an update")
        axes.plot(steps, _smooth(speedups), color=COLORS["learned"], linewidth=2.2, label="running mean of 5 updates")
        axes.axhline(1.0, color="#555555", linewidth=1)
        axes.set_xlabel("environment steps")
        axes.set_ylabel(what)
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}x")
        axes.legend()
    return figure


def scaling_lines(series: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str) -> Figure:
    """Plot one line per series on logarithmic axes, with the slope of linear growth dashed.

    Args:
        series: points (size, time) by name; the first point of the first series anchors the dashed line.
        x: the label of the horizontal axis.
        y: the label of the vertical axis.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure as NewFigure

    with rc_context(_STYLE):
        figure = NewFigure(figsize=(9, 4.5), layout="constrained")
        axes = figure.subplots()
        for k, (name, points) in enumerate(series.items()):
            sizes, times = np.array(sorted(points), dtype=np.float64).T
            axes.plot(sizes, times, marker="o", markersize=4, color=_color("", k), label=plot_label(name))
        every = [size for points in series.values() for size, _ in points]
        size, time = min(next(iter(series.values())))
        ends = np.array([min(every), max(every)], dtype=np.float64)
        axes.plot(ends, time * ends / size, color="#888888", linestyle="--", linewidth=1, label="linear")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.legend(fontsize=8)
    return figure


def _smooth(values: np.ndarray[Any, np.dtype[np.float64]], width: int = 5) -> list[float]:
    return [float(np.mean(values[max(0, i - width + 1) : i + 1])) for i in range(len(values))]


def _color(strategy: str, position: int) -> str:
    return COLORS.get(strategy, _OTHER_COLORS[position % len(_OTHER_COLORS)])


def svg(figure: Figure) -> str:
    """Return the figure as an SVG element for an HTML page."""
    buffer = io.BytesIO()
    _save(figure, buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue().decode()
    return text[text.index("<svg") :]


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure to a file; the suffix of its name chooses the format.

    Raises:
        ResultError: the file cannot be written.
    """
    buffer = io.BytesIO()
    _save(figure, buffer, format=path.suffix.removeprefix("."), dpi=150)
    write_bytes(path, buffer.getvalue())


def _save(figure: Figure, to: IO[bytes], **options: Any) -> None:
    with warnings.catch_warnings():
        # Characters that the font lacks are drawn as boxes; the warning would not help the user.
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(to, **options)


def _error_bars(intervals: Sequence[Interval]) -> list[list[float]]:
    """Return the lengths of the error bars below and above the values; 0 where the bounds are unknown."""
    known = [s if s.is_known else Interval(s.value, s.value, s.value) for s in intervals]
    return [[max(0.0, s.value - s.low) for s in known], [max(0.0, s.high - s.value) for s in known]]
