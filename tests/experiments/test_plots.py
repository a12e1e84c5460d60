"""Plots are readable at any values: labels lie inside the figure, and none overprints another."""

from __future__ import annotations

import itertools
import math

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from env.statistics import Interval
from experiments.console import bounds, factor, ratio
from experiments.plots import dots_with_mean, learning_curve, order_bars, profile_lines, ratio_ticks, speedup_bars
from experiments.results import Evaluation, ProgramResult, StrategyResult

RANGES = (
    (0.999999, 1.000001), (1.0, 1.0), (0.9, 1.1), (0.5, 2.0), (1.0, 3.0), (0.97, 12.0), (1e-3, 1e3), (1e-30, 1e30),
    (1e-12, 1.0), (1.0, 1e9), (123.4, 123.9), (1e-9, 1.1e-9), (4e8, 5e8),
)  # fmt: skip
LONG = "a name that is much too long for the margin of a figure of this width {x=1,y=2,z=3}"


def evaluation(values: list[float], strategies: int = 3, name: str = f"{LONG} ") -> Evaluation:
    names = ("default", *(f"{name}{k}" for k in range(strategies)))

    def result(v: float) -> StrategyResult:
        return StrategyResult(Interval(v, v, v), Interval(v, 0.0, v * 1.5), 3, 2, ratios=(v, v * 1.1, v * 0.9))

    programs = tuple(
        ProgramResult(f"{LONG} {n}", "test", False, Interval(1.0, 0.9, 1.1), {s: result(v) for s in names})
        for n, v in enumerate(values)
    )
    return Evaluation("cpu", 4, names, programs)


def boxes(labels: list[Text], figure: Figure) -> list[tuple[str, float, float, float, float]]:
    """Return the labels that are drawn, with their boxes."""
    drawn = [t for t in labels if t.get_text() and t.get_visible()]
    return [(t.get_text(), *t.get_window_extent(figure.canvas.get_renderer()).extents) for t in drawn]  # type: ignore[attr-defined]


def check_readable(figure: Figure) -> None:
    FigureCanvasAgg(figure).draw()  # type: ignore[no-untyped-call]
    width, height = figure.bbox.width, figure.bbox.height
    labels = []
    for axes in figure.axes:
        (left, right), (low, high) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
        shown = [t for t in axes.xaxis.get_major_ticks() if left <= t.get_loc() <= right]
        shown += [t for t in axes.yaxis.get_major_ticks() if low <= t.get_loc() <= high]
        minor = [t.label1 for axis in (axes.xaxis, axes.yaxis) for t in axis.get_minor_ticks()]
        assert all(not t.get_text() for t in minor)
        labels += [t.label1 for t in shown] + [axes.xaxis.label, axes.yaxis.label]
    labels += [t for legend in figure.legends for t in legend.get_texts()]
    found = boxes(labels, figure)
    assert len(found) >= 2
    for text, x0, y0, x1, y1 in found:
        assert -1 <= x0 < x1 <= width + 1, text
        assert -1 <= y0 < y1 <= height + 1, text
    for (one, a0, b0, a1, b1), (other, c0, d0, c1, d1) in itertools.combinations(found, 2):
        assert a1 <= c0 or c1 <= a0 or b1 <= d0 or d1 <= b0, f"{one!r} overprints {other!r}"


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_ticks_are_in_range_and_round(low: float, high: float) -> None:
    if low == high:
        return
    ticks = ratio_ticks(low, high)
    assert ticks == sorted(ticks)
    assert all(low <= t <= high for t in ticks)
    assert len(ticks) <= 12
    if math.log10(high / low) > 0.3:
        assert len(ticks) >= 2


def test_ticks_of_usual_ranges() -> None:
    assert ratio_ticks(0.8, 2.2) == [1.0, 1.5, 2.0]
    assert ratio_ticks(0.9, 40.0) == [1.0, 2.0, 5.0, 10.0, 20.0]
    assert ratio_ticks(1e-3, 1e3) == [1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0]


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_speedups_of_any_size_are_readable(low: float, high: float) -> None:
    found = evaluation([low, math.sqrt(low) * math.sqrt(high), high])
    check_readable(speedup_bars(found))
    profile = profile_lines(found)
    assert profile is not None
    check_readable(profile)
    rows = [(f"{LONG} {n}", Interval(v, v / 2, v * 2), [low, v, high]) for n, v in enumerate((low, high))]
    check_readable(dots_with_mean(rows, "speedup"))
    check_readable(order_bars({"a": Interval(low, low, high), LONG: Interval(high, low, high)}))
    curve = learning_curve([{"timesteps": n * 1000, "speedup": v} for n, v in enumerate((low, high, low))])
    assert curve is not None
    check_readable(curve)


def test_many_strategies_have_a_legend_above_the_plot() -> None:
    check_readable(speedup_bars(evaluation([0.5, 2.0], strategies=9)))


def test_a_legend_of_several_lines_is_read_line_by_line() -> None:
    figure = speedup_bars(short := evaluation([0.5, 2.0], strategies=9, name="strategy "))
    FigureCanvasAgg(figure).draw()  # type: ignore[no-untyped-call]
    (legend,) = figure.legends
    drawn = boxes(legend.get_texts(), figure)
    assert len({round(y) for _, _, y, _, _ in drawn}) > 1
    in_order = [text for text, _, _, _, _ in sorted(drawn, key=lambda box: (-round(box[2]), box[1]))]
    assert in_order == list(short.contenders)


def test_bars_below_one_are_drawn_down_to_their_value() -> None:
    figure = speedup_bars(evaluation([1e-30], strategies=1))
    (axes,) = figure.axes
    (bar,) = axes.patches
    left = bar.get_x()  # type: ignore[attr-defined]
    assert left == pytest.approx(1e-30)
    assert left + bar.get_width() == pytest.approx(1.0)  # type: ignore[attr-defined]
    assert axes.get_xlim()[0] < 1e-30


def test_ratios_as_text() -> None:
    assert [ratio(v) for v in (1.0, 0.456, 12.3, 999.0)] == ["1.00x", "0.46x", "12.30x", "999.00x"]
    assert [ratio(v) for v in (1e-9, 0.001, 123456.0, 1e30)] == ["1e-09x", "0.001x", "1.23e+05x", "1e+30x"]
    assert bounds(Interval(1.0, 1e-9, 1e9)) == "[1e-09, 1e+09]"
    assert factor(Interval(1e9, -math.inf, math.inf)) == "1e+09x"
