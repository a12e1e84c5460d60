"""Plots of results, as SVG elements for an HTML page or as image files."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

from compiler.support.safe_names import plot_label
from env.statistics import Interval
from env.summaries import performance_profile
from experiments.results import Evaluation, write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "dots_with_mean", "learning_curve", "order_bars", "profile_lines", "ratio_axis", "ratio_ticks", "save_figure",
    "scaling_lines", "speedup_bars", "svg",
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
_TICK_STEPS = ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))
"""Ticks within a decade, the finest first."""
_CHARACTER = 0.0175
"""Width of a character as a share of an axis beside the longest labels that `plot_label` makes."""
_LEGEND_WIDTH = 92
"""Characters that fit into a line of a legend."""
_LINEAR_SPAN = 30
"""Ratio of the greatest to the least speedup beyond which a learning curve has a logarithmic axis."""
_WIDEST_ERROR = 1e3
"""Error bars of ratios reach down to this fraction of their value at most, because logarithms have no zero."""
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

    strategies = evaluation.contenders
    programs = sorted(evaluation.programs, key=lambda p: (p.seen, p.program), reverse=True)
    height = 0.8 / max(1, len(strategies))
    with rc_context(_STYLE):
        figure = NewFigure(figsize=(9, 1.4 + 0.14 * len(programs) * (len(strategies) + 1)), layout="constrained")
        axes = figure.subplots()
        seen: list[float] = []
        for k, strategy in enumerate(strategies):
            found = [(i, p.strategies[strategy].speedup) for i, p in enumerate(programs) if strategy in p.strategies]
            shown = [(i, s) for i, s in found if s is not None]
            values = [s.value for _, s in shown]
            errors = _error_bars([s for _, s in shown])
            seen += [b for v, low, high in zip(values, *errors, strict=True) for b in (v - low, v + high)]
            places = [i + 0.4 - (k + 0.5) * height for i, _ in shown]
            widths, left = [abs(v - 1) for v in values], [min(v, 1.0) for v in values]
            axes.barh(places, widths, height * 0.9, left=left, color=_color(strategy, k), label=plot_label(strategy))
            axes.errorbar(values, places, xerr=errors, fmt="none", ecolor="#333333", elinewidth=0.8, capsize=1.5)
        axes.axvline(1.0, color="#555555", linewidth=1)
        axes.set_xlim(*_around([1.0, *seen]))
        ratio_axis(axes)
        names = [f"{plot_label(p.program)}{'' if p.seen else ' *'}" for p in programs]
        axes.set_yticks(range(len(programs)), names)
        axes.set_xlabel(f"speedup over {plot_label(evaluation.reference)} (log scale); * not seen in training")
        axes.grid(False, axis="y")
        axes.margins(y=0.01)
        _legend_above(figure)
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
        ratio_axis(axes)
        axes.set_xlabel(f"speedup over {plot_label(evaluation.reference)}")
        axes.set_ylabel("share of programs with at least that")
        _legend_above(figure)
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
        if speedups.min() > 0 and speedups.max() > _LINEAR_SPAN * speedups.min():
            ratio_axis(axes, "y")
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:.4g}x")
        _legend_above(figure)
    return figure


def dots_with_mean(rows: Sequence[tuple[str, Interval, Sequence[float]]], what: str) -> Figure:
    """Plot ratios as points, one line of them per row, each with its mean and interval as a diamond.

    Args:
        rows: label, mean and ratios; the first one is on top.
        what: the label of the axis.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure as NewFigure

    with rc_context(_STYLE):
        figure = NewFigure(figsize=(9, 1.1 + 0.45 * len(rows)), layout="constrained")
        axes = figure.subplots()
        seen = [1.0]
        for place, (_, mean, each) in enumerate(rows):
            errors = _error_bars([mean])
            seen += [mean.value - errors[0][0], mean.value + errors[1][0], *each]
            axes.plot(each, [place] * len(each), "o", color="#9fceb5", markersize=5, alpha=0.8)
            axes.errorbar([mean.value], [place], xerr=errors, fmt="D", color="#145c39", capsize=3, markersize=6)
        axes.axvline(1.0, color="#555555", linewidth=1)
        axes.set_yticks(range(len(rows)), [plot_label(label) for label, _, _ in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(*_around(seen))
        ratio_axis(axes)
        axes.grid(False, axis="y")
        axes.set_xlabel(f"{what} (log scale)")
    return figure


def _around(values: Sequence[float]) -> tuple[float, float]:
    """Return limits of a logarithmic axis around positive values, with a margin."""
    logs = [math.log10(v) for v in values]
    margin = max(0.004, 0.05 * (max(logs) - min(logs)))
    return 10 ** max(-300.0, min(logs) - margin), 10 ** min(300.0, max(logs) + margin)


def ratio_axis(axes: Axes, which: Literal["x", "y"] = "x") -> None:
    """Make an axis of ratios logarithmic, with ticks whose labels do not overprint at any values."""
    from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis, (low, high) = (axes.xaxis, axes.get_xlim()) if which == "x" else (axes.yaxis, axes.get_ylim())
    low, high = sorted((low, high))
    if high < low * 1.02:  # a point or two that hardly differ
        middle = math.sqrt(low) * math.sqrt(high)
        low, high = middle / 1.01, middle * 1.01
        (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_locator(FixedLocator(ratio_ticks(low, high)))
    axis.set_major_formatter(lambda x, _: _ratio(x))


def ratio_ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two positive ones, at distances at which labels do not touch on a log axis."""
    from matplotlib.ticker import MaxNLocator

    span = math.log10(high) - math.log10(low)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in _TICK_STEPS:
        found = [t for e in exponents for m in steps if low <= (t := float(f"{m}e{e}")) <= high]
        if len(found) < 3 and span < 1:
            # Less than a decade may hold too few of these; there a linear division is nearly even.
            even = (
                [float(t) for t in MaxNLocator(n).tick_values(low, high) if low <= t <= high] for n in range(6, 0, -1)
            )
            return next((ticks for ticks in even if _apart(ticks, span)), found)
        if _apart(found, span):
            return found
    powers = ([float(f"1e{e}") for e in exponents if e % every == 0] for every in range(1, len(exponents) + 1))
    return next([t for t in ticks if low <= t <= high] for ticks in powers if _apart(ticks, span))


def _apart(ticks: Sequence[float], span: float) -> bool:
    """Check whether the labels of ticks do not touch on an axis that spans so many decades."""
    return all(
        math.log10(b) - math.log10(a) >= span * _CHARACTER * ((len(_ratio(a)) + len(_ratio(b))) / 2 + 1.5)
        for a, b in pairwise(ticks)
    )


def _ratio(value: float) -> str:
    return f"{value:.6g}x"


def _legend_above(figure: Figure) -> None:
    """Add a legend above the plot, in as many lines as its labels need, in reading order."""
    found = [axes.get_legend_handles_labels() for axes in figure.axes]
    handles, labels = [h for hs, _ in found for h in hs], [str(label) for _, ls in found for label in ls]
    widest = max((len(label) for label in labels), default=0) + 6
    columns = max(1, min(len(labels), _LEGEND_WIDTH // widest))
    figure.set_figheight(figure.get_figheight() + 0.22 * (math.ceil(len(labels) / columns) - 1))
    # Matplotlib fills one column after the other; readers take one line after the other.
    order = [n for column in range(columns) for n in range(column, len(labels), columns)]
    figure.legend([handles[n] for n in order], [labels[n] for n in order], loc="outside upper left", ncols=columns)


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
    return [
        [max(0.0, s.value - max(s.low, s.value / _WIDEST_ERROR)) for s in known],
        [max(0.0, s.high - s.value) for s in known],
    ]
