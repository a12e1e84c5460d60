"""`hlogym view`: write the graph of a compiled program, with its fusions and times, as one HTML page."""

from __future__ import annotations

import tempfile
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.plan import CompilationPlan
from compiler.support.safe_names import html_text as escape
from experiments.console import duration, stdout
from experiments.inputs import entry_inputs, program_of, read_valid_module
from experiments.results import check_output, write_text
from experiments.run import compile_program

__all__ = ["draw_module", "view_program"]

WIDTH, HEIGHT, GAP_X, GAP_Y = 190, 46, 18, 40
_COLORS = {"fusion": "#d7ecdf", "library": "#fbe6cf", "control": "#dfe3fb", "leaf": "#eef0f2", "other": "#ffffff"}
_HIDDEN = frozenset({Opcode.CONSTANT, Opcode.TUPLE, Opcode.GET_TUPLE_ELEMENT})
_CSS = """
body { margin: 0; font: 14px/1.45 system-ui, sans-serif; color: #1d2329; }
main { max-width: 80rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
.graph { overflow: auto; border: 1px solid #dfe3e7; border-radius: .5rem; max-height: 75vh; background: #fcfcfd; }
svg text { font: 11px system-ui, sans-serif; } svg text.small { fill: #5d6872; font-size: 10px; }
details { margin: .3rem 0; } summary { cursor: pointer; }
pre { background: #f6f8f9; padding: .6rem; overflow-x: auto; border-radius: .4rem; font-size: 12px; }
.soft { color: #5d6872; }
"""


def view_program(
    name: str, plan: Path | None, policy: str | None, output: Path | None, times: bool, backend: str
) -> None:
    """Run `hlogym view`; see its `--help`."""
    program = program_of(name)
    if output is not None:
        check_output(output, program.path)
    module = read_valid_module(program)
    executable = compile_program(module, backend, policy, plan)
    seconds: dict[str, float] = {}
    if times:
        for row in executable.profile(*entry_inputs(program, module, 0)):
            seconds[row.name] = seconds.get(row.name, 0.0) + row.seconds * row.executions
    page = draw_module(executable.module, seconds, executable.plan)
    if output is not None:
        write_text(output, page)
        stdout.print(f"page      {output}", soft_wrap=True)
        return
    with tempfile.NamedTemporaryFile("w", suffix=".html", prefix="hlogym-", delete=False, encoding="utf-8") as file:
        file.write(page)
    stdout.print(f"page      {file.name}", soft_wrap=True)
    webbrowser.open(Path(file.name).as_uri())


def draw_module(module: HloModule, seconds: Mapping[str, float], plan: CompilationPlan | None = None) -> str:
    """Return an HTML page with one graph per control-flow computation, followed by the bodies of its fusions.

    Args:
        module: the compiled module, with its fusions.
        seconds: time per call of each instruction, by name; may be empty.
        plan: names the kernels that do not have their default implementation and schedule.
    """
    choices = plan.kernels if plan is not None else {}
    parts = [f"<h1>{escape(module.name)}</h1>", f"<p class='soft'>{_total(seconds)}</p>"]
    for computation in reversed(module.control_flow_computations()):
        parts.append(f"<h2>{escape(computation.name)}</h2><div class='graph'>{_draw(computation, seconds)}</div>")
        parts += [
            f"<p class='soft'>{escape(name)}: {escape(str(choice))}</p>"
            for name, choice in choices.get(computation.name, {}).items()
        ]
        parts += [_body(i) for i in computation.post_order() if i.opcode is Opcode.FUSION]
    head = f"<meta charset='utf-8'><title>{escape(module.name)}</title><style>{_CSS}</style>"
    body = "".join(parts)
    return f"<!doctype html><html lang='en'><head>{head}</head><body><main>{body}</main></body></html>"


def _total(seconds: Mapping[str, float]) -> str:
    if not seconds:
        return "Green: fusions; orange: library calls; blue: control flow."
    return (
        f"{duration(sum(seconds.values()))} per call, summed over all kernels. "
        "Green: fusions; orange: library calls; blue: control flow."
    )


@dataclass(frozen=True)
class _Place:
    x: int
    y: int


def _draw(computation: HloComputation, seconds: Mapping[str, float]) -> str:
    nodes = [i for i in computation.post_order() if i.opcode not in _HIDDEN]
    sources = {i: _shown_sources(i) for i in nodes}
    level: dict[HloInstruction, int] = {}
    for i in nodes:
        level[i] = 1 + max((level[s] for s in sources[i] if s in level), default=-1)
    rows: dict[int, list[HloInstruction]] = {}
    for i in nodes:
        rows.setdefault(level[i], []).append(i)
    place: dict[HloInstruction, _Place] = {}
    for y, row in rows.items():
        # Placing each node near the mean position of its operands keeps most edges short and separate.
        row.sort(key=lambda i: _mean([place[s].x for s in sources[i] if s in place]))
        for x, i in enumerate(row):
            place[i] = _Place(x, y)
    width = max((len(r) for r in rows.values()), default=1) * (WIDTH + GAP_X) + GAP_X
    height = len(rows) * (HEIGHT + GAP_Y) + GAP_Y
    edges = "".join(_edge(place[s], place[i]) for i in nodes for s in sources[i] if s in place)
    boxes = "".join(_box(i, place[i], seconds) for i in nodes)
    return f"<svg width='{width}' height='{height}' viewBox='0 0 {width} {height}'>{edges}{boxes}</svg>"


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0


def _shown_sources(i: HloInstruction) -> list[HloInstruction]:
    """Return the operands of an instruction, looking through tuples; constants are omitted."""
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


def _corner(place: _Place) -> tuple[int, int]:
    return GAP_X + place.x * (WIDTH + GAP_X), GAP_Y // 2 + place.y * (HEIGHT + GAP_Y)


def _edge(source: _Place, target: _Place) -> str:
    (x0, y0), (x1, y1) = _corner(source), _corner(target)
    x0, x1, y0 = x0 + WIDTH // 2, x1 + WIDTH // 2, y0 + HEIGHT
    middle = (y0 + y1) // 2
    return f"<path d='M{x0},{y0} C{x0},{middle} {x1},{middle} {x1},{y1}' fill='none' stroke='#b6bec6'/>"


def _box(i: HloInstruction, place: _Place, seconds: Mapping[str, float]) -> str:
    x, y = _corner(place)
    time = f" {duration(seconds[i.name])}" if seconds.get(i.name) else ""
    shape = str(i.shape)
    stroke = "#1f7a4d" if i.is_root else "#aab3bb"
    return (
        f"<g><title>{escape(f'%{i.name} = {shape} {i.opcode.text}')}</title>"
        f"<rect x='{x}' y='{y}' width='{WIDTH}' height='{HEIGHT}' rx='6' fill='{_color(i)}' stroke='{stroke}'/>"
        f"<text x='{x + 8}' y='{y + 18}'>{escape(_cut(i.name, 22))}<tspan font-weight='600'>{time}</tspan></text>"
        f"<text class='small' x='{x + 8}' y='{y + 35}'>{escape(_cut(f'{i.opcode.text} {shape}', 34))}</text></g>"
    )


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _color(i: HloInstruction) -> str:
    if i.opcode is Opcode.FUSION:
        return _COLORS["fusion"]
    if i.opcode in (Opcode.DOT, Opcode.CONVOLUTION, Opcode.SORT, Opcode.CUSTOM_CALL, Opcode.FFT):
        return _COLORS["library"]
    if i.opcode in (Opcode.WHILE, Opcode.CONDITIONAL, Opcode.CALL):
        return _COLORS["control"]
    return _COLORS["leaf"] if i.opcode in (Opcode.PARAMETER, Opcode.IOTA) else _COLORS["other"]


def _body(fusion: HloInstruction) -> str:
    body: HloComputation = fusion.attributes["calls"]
    lines = "\n".join(f"%{i.name} = {i.shape} {i.opcode.text}({_names(i)})" for i in body.post_order())
    title = f"{escape(fusion.name)}: {len(body)} instructions"
    return f"<details><summary>{title}</summary><pre>{escape(lines)}</pre></details>"


def _names(i: HloInstruction) -> str:
    return ", ".join(f"%{o.name}" for o in i.operands)
