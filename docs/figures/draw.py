"""Draw the figures of the documentation as SVG: `python -m docs.figures.draw` writes them beside this file.

Colours are CSS variables. A page that contains the figure sets them to the colours of its theme; a file that is viewed
alone follows the system's light or dark mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

__all__ = ["FIGURES"]

FOLDER = Path(__file__).parent
STYLE = """
.hf { --hf-ink: #1f2430; --hf-soft: #5d6675; --hf-line: #8b94a5; --hf-fill: #ffffff; --hf-tint: #e8ebfa;
  --hf-accent: #3f51b5; font: 14px system-ui, sans-serif; }
@media (prefers-color-scheme: dark) {
  .hf { --hf-ink: #e6e9f0; --hf-soft: #a7b0c0; --hf-line: #6f7a8c; --hf-fill: #22262f; --hf-tint: #2c3350;
    --hf-accent: #8c9eff; }
}
.hf text { fill: var(--hf-ink); }
.hf text.soft { fill: var(--hf-soft); font-size: 12px; }
.hf text.title { font-weight: 600; }
.hf text.accent { fill: var(--hf-accent); font-weight: 600; }
.hf rect { fill: var(--hf-fill); stroke: var(--hf-line); }
.hf rect.tint { fill: var(--hf-tint); stroke: var(--hf-accent); }
.hf rect.frame { fill: none; stroke-dasharray: 5 4; }
.hf path { fill: none; stroke: var(--hf-line); stroke-width: 1.5; }
.hf path.accent { stroke: var(--hf-accent); }
.hf polygon { fill: var(--hf-line); }
.hf polygon.accent { fill: var(--hf-accent); }
""".strip()


@dataclass
class Drawing:
    """An SVG under construction.

    Attributes:
        width, height: of the whole, in pixels.
        title: for readers that do not see the figure.
    """

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: int, y: int, w: int, h: int, title: str, *lines: str, kind: str = "") -> None:
        """Add a box with a title and smaller lines below it, centred."""
        self.parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{w}" height="{h}" rx="6"/>')
        top = y + h / 2 - 8 * len(lines) + 5
        self.text(x + w / 2, top, title, "title")
        for n, line in enumerate(lines):
            self.text(x + w / 2, top + 18 + 16 * n, line, "soft")

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> None:
        """Add a line of text."""
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>')

    def frame(self, x: int, y: int, w: int, h: int, title: str) -> None:
        """Add a dashed frame with its title in the upper left corner."""
        self.parts.append(f'<rect class="frame" x="{x}" y="{y}" width="{w}" height="{h}" rx="8"/>')
        self.text(x + 12, y + 20, title, "soft", "start")

    def arrow(
        self, *points: tuple[int, int], kind: str = "", label: str = "", at: tuple[int, int] | None = None
    ) -> None:
        """Add a line through points with a head at the last one, and a label."""
        path = " L".join(f"{x} {y}" for x, y in points)
        self.parts.append(f'<path class="{kind}" d="M{path}"/>')
        (x0, y0), (x, y) = points[-2:]
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        corners = [(x, y), (x - 8 * dx - 4 * dy, y - 8 * dy - 4 * dx), (x - 8 * dx + 4 * dy, y - 8 * dy + 4 * dx)]
        self.parts.append(f'<polygon class="{kind}" points="{" ".join(f"{a},{b}" for a, b in corners)}"/>')
        if label:
            lx, ly = at or ((points[0][0] + x) // 2, (points[0][1] + y) // 2 - 6)
            self.text(lx, ly, label, "soft")

    def svg(self) -> str:
        """Return the document."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="hf" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img">'
        )
        return "\n".join(
            [head, f"<title>{escape(self.title)}</title>", f"<style>{STYLE}</style>", *self.parts, "</svg>\n"]
        )


def compilation() -> Drawing:
    """Draw the stages of a compilation, and where policies decide."""
    d = Drawing(920, 300, "HLO text becomes an executable in stages; policies decide in four of them")
    d.box(320, 10, 400, 50, "Policy", "rules, your function, search, a network, or a recorded plan", kind="tint")
    stages = [
        ("HLO text", ("parse, verify",), ""), ("Passes", ("which, in what order",), "tint"),
        ("Loops", ("keep, unroll, kernel",), "tint"), ("Lowering", ("ops without kernels",), ""),
        ("Fusion", ("what shares a kernel",), "tint"), ("Kernels", ("schedule",), "tint"),
    ]  # fmt: skip
    for n, (title, lines, kind) in enumerate(stages):
        x = 10 + 152 * n
        d.box(x, 120, 140, 56, title, *lines, kind=kind)
        if n:
            d.arrow((x - 12, 148), (x, 148))
        if kind:
            d.arrow((x + 70, 90), (x + 70, 120), kind="accent")
    d.parts.append('<path class="accent" d="M520 60 L520 90 M232 90 L840 90"/>')
    below = [
        ("Loop nest", "loops and scalars"), ("C or CUDA C++", "one function per kernel"),
        ("Thunks, buffers", "steps, one arena"), ("Executable", "call, profile, save"),
    ]  # fmt: skip
    for n, (title, line) in enumerate(below):
        x = 750 - 220 * n
        d.box(x, 226, 160, 56, title, line)
        if n:
            d.arrow((x + 220, 254), (x + 160, 254))
    d.arrow((840, 176), (840, 226))
    return d


def packages() -> Drawing:
    """Draw the packages as floors, imports going down only."""
    d = Drawing(760, 430, "Packages as floors; imports go down only")
    floors = [
        ("experiments/", "command line, training runs, MLflow, reports"),
        ("agents/", "SB3 agents, networks, search, export of policies"),
        ("env/", "Gymnasium environments, rewards, measurement, suites"),
    ]
    for n, (title, line) in enumerate(floors):
        d.box(10, 10 + 62 * n, 660, 52, title, line, kind="tint")
    d.frame(10, 200, 660, 220, "compiler/  (NumPy, SciPy and ml_dtypes alone)")
    rows = [
        [
            ("api, session, plan", "decisions one by one"),
            ("learned/", "policies in NumPy"),
            ("runtime/", "thunks, executables"),
        ],
        [
            ("backends/", "cpu, cuda, interpreter"),
            ("fusion/", "legality, policies"),
            ("codegen/", "loop nests, C, CUDA"),
        ],
        [
            ("passes/", "rewrites, pipelines"),
            ("analysis/", "facts, cost model"),
            ("interpreter/", "definition of every op"),
        ],
        [("frontends/", "JAX, PyTorch, StableHLO"), ("text/", "HLO text in"), ("ir/", "ops, modules, verifier")],
    ]
    for r, row in enumerate(rows):
        for c, (title, line) in enumerate(row):
            d.box(24 + 214 * c, 230 + 47 * r, 204, 42, title, line)
    d.arrow((715, 20), (715, 410), kind="accent")
    d.text(715, 424, "imports", "accent")
    return d


def environment_loop() -> Drawing:
    """Draw the loop of agent and environment, with the session inside."""
    d = Drawing(820, 300, "The agent chooses among legal moves; the environment takes them in a compilation session")
    d.box(10, 120, 150, 80, "Agent", "MaskablePPO, search,", "your code", kind="tint")
    d.frame(300, 40, 510, 232, "hlogym/Fusion-v0 and the other ids")
    d.box(320, 76, 200, 64, "Episode", "the decision that is due,", "its legal moves")
    d.box(320, 190, 200, 64, "CompilationSession", "module, plan, undo, fork")
    d.box(590, 76, 200, 64, "Observation", "graph, candidates, mask")
    d.box(590, 190, 200, 64, "Reward", "estimated or measured")
    d.arrow((420, 140), (420, 190), label="take the move", at=(372, 169))
    d.arrow((520, 108), (590, 108))
    d.arrow((520, 222), (590, 222), label="plan", at=(555, 214))
    d.arrow((160, 160), (240, 160), (240, 108), (320, 108), kind="accent", label="action", at=(200, 152))
    d.arrow((690, 76), (690, 22), (85, 22), (85, 120), label="observation, action_masks()", at=(185, 14))
    d.arrow((690, 254), (690, 288), (85, 288), (85, 200), label="reward, info", at=(185, 280))
    return d


def measurement() -> Drawing:
    """Draw the processes of a measurement."""
    d = Drawing(
        890, 310, "The measurer asks a worker process that compiles, checks and times; times of plans are stored"
    )
    d.frame(10, 10, 330, 290, "process of the environment")
    d.box(40, 50, 270, 60, "Measurer", "asks again in a new process when the", "machine is to blame", kind="tint")
    d.box(40, 210, 270, 60, "PlanStore (SQLite)", "speedup of each plan by program, code,", "compiler and machine")
    d.arrow((110, 210), (110, 110), label="known times", at=(68, 164))
    d.arrow((240, 110), (240, 210), label="new times", at=(276, 164))
    d.frame(470, 10, 410, 290, "worker process: may crash, hang or be killed")
    steps = [
        ("interpret", "the outputs that the program should have"),
        ("prepare", "compile the plan, run, compare the outputs"),
        ("race", "the plan beside the default plan, in ABBA blocks"),
        ("compare", "whole programs in turns"),
    ]
    for n, (title, line) in enumerate(steps):
        d.box(500, 42 + 64 * n, 350, 52, title, line)
    d.arrow((310, 68), (470, 68), kind="accent", label="program, plan", at=(405, 60))
    d.arrow((470, 96), (310, 96), kind="accent", label="times, or a reason", at=(406, 114))
    return d


FIGURES: Mapping[str, Callable[[], Drawing]] = {
    "compilation": compilation,
    "packages": packages,
    "environment_loop": environment_loop,
    "measurement": measurement,
}
"""Every figure by the name of its file."""


def main() -> None:
    """Write the files."""
    for name, make in FIGURES.items():
        (FOLDER / f"{name}.svg").write_text(make().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
