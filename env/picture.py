"""Pictures of an episode for the render mode "rgb_array": the program's graph, the decisions, and the speedup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import MaxNLocator

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from env.compilation import Compilation

__all__ = ["HEIGHT", "WIDTH", "draw_episode"]

WIDTH, HEIGHT = 1120, 630
"""Size of a picture in pixels."""
_DPI = 100
MAX_BOXES = 120
MAX_ROWS = 48
"""A larger computation is drawn up to this many instructions and rows of them, those nearest to its result."""
_LABELLED = 40
_LINES = 13
_HIDDEN = frozenset({Opcode.CONSTANT, Opcode.TUPLE, Opcode.GET_TUPLE_ELEMENT})
_LIBRARY = frozenset({Opcode.DOT, Opcode.CONVOLUTION, Opcode.SORT, Opcode.CUSTOM_CALL, Opcode.FFT})
_CONTROL = frozenset({Opcode.WHILE, Opcode.CONDITIONAL, Opcode.CALL})
_LEGEND = {"fusion": "#9fd8b4", "library": "#f6c177", "control flow": "#9ec5fe", "argument": "#e3e7ea", "op": "#ffffff"}
_INK, _SOFT = "#22292f", "#6b7680"


def draw_episode(compilation: Compilation, speedups: Sequence[float], summary: str) -> npt.NDArray[np.uint8]:
    """Return a picture of an episode, [HEIGHT, WIDTH, 3]: the graph on the left, decisions and speedups on the right.

    Args:
        compilation: the compilation of the episode.
        speedups: over the baseline, at the start and after each decision.
        summary: the state of the episode in a few words.
    """
    figure = Figure(figsize=(WIDTH / _DPI, HEIGHT / _DPI), dpi=_DPI, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    module = compilation.module
    shown = _largest(module)
    _text(figure, 0.02, 0.955, _cut(compilation.program.name, 60), size=13, weight="bold")
    instructions = [i for i in shown.post_order() if i.opcode not in _HIDDEN]
    level = _levels(instructions[-MAX_BOXES:])
    last = f", the last {len(level)} shown" if len(level) < len(instructions) else ""
    _text(figure, 0.02, 0.92, f"%{_cut(shown.name, 60)}: {len(shown)} instructions{last}", size=9, color=_SOFT)
    _draw_graph(figure.add_axes((0.01, 0.07, 0.61, 0.83)), shown, level)
    _draw_legend(figure)
    _draw_decisions(figure, compilation, summary)
    _draw_speedups(figure.add_axes((0.69, 0.09, 0.29, 0.24)), speedups)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba(), dtype=np.uint8)  # type: ignore[no-untyped-call]
    return np.ascontiguousarray(pixels[:, :, :3])


def _largest(module: HloModule) -> HloComputation:
    """Return the computation with most instructions among those that run as sequences; a loop's body may be it."""
    return max(module.control_flow_computations(), key=len)


# ---- the graph


def _levels(instructions: Sequence[HloInstruction]) -> dict[HloInstruction, int]:
    """Return the rows of instructions, each below its operands; those more than MAX_ROWS above the last are left out.

    Args:
        instructions: in post-order.
    """
    level: dict[HloInstruction, int] = {}
    for i in instructions:
        level[i] = 1 + max((level[s] for s in _shown_operands(i) if s in level), default=-1)
    first = max(0, max(level.values(), default=0) + 1 - MAX_ROWS)
    return {i: n - first for i, n in level.items() if n >= first}


def _draw_graph(axes: Axes, computation: HloComputation, level: Mapping[HloInstruction, int]) -> None:
    nodes = list(level)
    sources = {i: _shown_operands(i) for i in nodes}
    rows: dict[int, list[HloInstruction]] = {}
    for i in sorted(nodes, key=level.__getitem__):
        rows.setdefault(level[i], []).append(i)
    place: dict[HloInstruction, tuple[float, float]] = {}
    for row_number, row in rows.items():
        # An instruction near the mean position of its operands keeps most edges short.
        row.sort(key=lambda i: _mean([place[s][0] for s in sources[i] if s in place]))
        for n, i in enumerate(row):
            place[i] = (n + 0.5) / len(row), float(row_number)
    widest = max(map(len, rows.values()), default=1)
    width, height = min(0.19, 0.9 / widest), 0.55
    for i in nodes:
        for s in sources[i]:
            if s in place:
                (x0, y0), (x1, y1) = place[s], place[i]
                axes.plot([x0, x1], [y0 + height / 2, y1 - height / 2], color="#b6bec6", linewidth=0.8, zorder=1)
    root = computation.root
    results = set(_shown_operands(root)) if root.opcode in _HIDDEN else {root}
    for i, (x, y) in place.items():
        edge, line = ("#1f7a4d", 1.6) if i in results else ("#8a949d", 0.8)
        box = FancyBboxPatch(
            (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0,rounding_size=0.01",
            facecolor=_LEGEND[_kind(i)], edgecolor=edge, linewidth=line, zorder=2,
        )  # fmt: skip
        axes.add_patch(box)
        if len(nodes) <= _LABELLED and widest <= 8:
            label = _cut(_label(i), max(5, int(105 * width)))
            axes.text(x, y, label, ha="center", va="center", fontsize=7, color=_INK, zorder=3, parse_math=False)
    axes.set_xlim(0, 1)
    axes.set_ylim(max(len(rows), 4) - 0.4, -0.6)
    axes.axis("off")


def _shown_operands(i: HloInstruction) -> list[HloInstruction]:
    """Return the operands of an instruction, looking through tuples; constants are left out."""
    found: dict[HloInstruction, None] = {}
    stack, seen = list(i.operands), set(i.operands)
    while stack:
        o = stack.pop()
        if o.opcode not in _HIDDEN:
            found[o] = None
            continue
        fresh = [p for p in o.operands if p not in seen]
        seen.update(fresh)
        stack += fresh
    return list(found)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.5


def _kind(i: HloInstruction) -> str:
    if i.opcode is Opcode.FUSION:
        return "fusion"
    if i.opcode in _LIBRARY:
        return "library"
    if i.opcode in _CONTROL:
        return "control flow"
    return "argument" if i.opcode in (Opcode.PARAMETER, Opcode.IOTA) else "op"


def _label(i: HloInstruction) -> str:
    if i.opcode is not Opcode.FUSION:
        return i.opcode.text
    body: HloComputation = i.attributes["calls"]
    ops = [o.opcode.text for o in body.post_order() if o.opcode not in _HIDDEN and o.opcode is not Opcode.PARAMETER]
    return f"{len(ops)}: {'+'.join(ops)}"


def _draw_legend(figure: Figure) -> None:
    x = 0.02
    for name, color in _LEGEND.items():
        figure.patches.append(
            FancyBboxPatch(
                (x, 0.03),
                0.012,
                0.018,
                boxstyle="square,pad=0",
                transform=figure.transFigure,
                facecolor=color,
                edgecolor="#8a949d",
                linewidth=0.8,
                figure=figure,
            )
        )
        _text(figure, x + 0.018, 0.03, name, size=8, color=_SOFT)
        x += 0.035 + 0.0085 * len(name)


# ---- decisions and speedups


def _draw_decisions(figure: Figure, compilation: Compilation, summary: str) -> None:
    taken = compilation.decisions
    phase = "done" if compilation.done else f"next: {compilation.phase}"
    _text(figure, 0.64, 0.955, f"{len(taken)} decision{'s' * (len(taken) != 1)}", size=11, weight="bold")
    _text(figure, 0.98, 0.955, f"{phase}; {summary}", size=9, color=_SOFT, ha="right")
    first = max(0, len(taken) - _LINES)
    lines = [f"... {first} earlier"] if first else []
    lines += [f"{first + n + 1}. {_cut(text, 60)}" for n, text in enumerate(taken[first:])]
    for n, line in enumerate(lines or ["none yet"]):
        last = n == len(lines) - 1
        color = _INK if last else _SOFT
        _text(figure, 0.64, 0.915 - 0.034 * n, line, size=7.5, color=color, weight="bold" if last else "normal")


def _draw_speedups(axes: Axes, speedups: Sequence[float]) -> None:
    axes.step(range(len(speedups)), speedups, where="post", color="#2f6fb7", linewidth=1.6)
    axes.plot([len(speedups) - 1], speedups[-1:], "o", color="#2f6fb7", markersize=4)
    axes.axhline(1.0, color="#b6bec6", linewidth=0.8, linestyle="--")
    axes.set_title(f"speedup over the baseline: {speedups[-1]:.2f}x", fontsize=9, loc="left", color=_INK)
    axes.set_xlabel("decisions", fontsize=8, color=_SOFT)
    margin = 0.03 * max(1, len(speedups) - 1)
    axes.set_xlim(-margin, max(1, len(speedups) - 1) + margin)  # Matplotlib's limits for one point are of no use
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelsize=7, colors=_SOFT)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _text(figure: Figure, x: float, y: float, text: str, **how: Any) -> None:
    # Names of a program's instructions may hold dollar signs, which are no formulas.
    figure.text(x, y, text, parse_math=False, **{"color": _INK, **how})


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
