"""One self-contained HTML page with the tables and plots of the latest results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from experiments.console import factor, stdout
from experiments.plots import learning_curve, speedup_bars, svg
from experiments.results import Evaluation, ResultError, evaluation_rows, newest, write_text

__all__ = ["build_report", "latest_evaluation", "read_progress", "report_latest"]

_CSS = """
:root { --ink: #1d2329; --soft: #5d6872; --line: #dfe3e7; --paper: #ffffff; --panel: #f6f8f9; --accent: #1f7a4d; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
p { margin: .4rem 0; max-width: 52rem; } .soft { color: var(--soft); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; padding: .8rem 1rem; }
.card b { display: block; font-size: 1.5rem; color: var(--accent); font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: .85rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { background: var(--panel); font-weight: 600; } th:first-child, td:first-child { text-align: left; }
th:nth-child(2), td:nth-child(2) { text-align: left; color: var(--soft); }
tr:last-child td { border-bottom: 0; } tr.sum td { background: var(--panel); font-weight: 600; }
small { color: var(--soft); font-weight: 400; } td.bad { color: #b3261e; }
figure { margin: 0; overflow-x: auto; } svg { max-width: 100%; height: auto; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .85rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
"""


def latest_evaluation(results: Path) -> Evaluation:
    """The newest evaluation in a folder.

    Raises:
        ResultError: there is none.
    """
    path = newest(results.glob("**/evaluation*.json"))
    if path is None:
        raise ResultError(f"no evaluation in {results}; make one with: hlogym evaluate POLICY")
    return Evaluation.read(path)


def report_latest(output: Path, results: Path, runs: Path) -> None:
    """See `hlogym report --help`: the newest evaluation, with the curve of the newest training run."""
    evaluation = latest_evaluation(results)
    curve = newest(runs.glob("*/progress.jsonl")) if runs.is_dir() else None
    build_report(evaluation, [] if curve is None else read_progress(curve), output)
    stdout.print(f"report    {output}", soft_wrap=True)


def read_progress(file: Path) -> list[dict[str, Any]]:
    """The points of a learning curve; a last line cut short by a kill is left out."""
    if not file.is_file():
        return []
    points: list[dict[str, Any]] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            points.append(json.loads(line))
        except ValueError:
            continue
    return points


def build_report(evaluation: Evaluation, progress: Sequence[Mapping[str, Any]], to: Path) -> None:
    """Write the page.

    Args:
        evaluation: what the tables and bars show.
        progress: points of the training run, empty when there was none.
        to: the HTML file.

    Raises:
        ResultError: the file cannot be written.
    """
    sections = [
        _headline(evaluation),
        "<h2>Speedup of each program</h2><figure>" + svg(speedup_bars(evaluation)) + "</figure>",
        _times(evaluation),
    ]
    if (curve := learning_curve(progress)) is not None:
        sections.append("<h2>Learning</h2><figure>" + svg(curve) + "</figure>")
    sections += [_noise(evaluation), _provenance(evaluation)]
    body = "\n".join(sections)
    write_text(
        to,
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>hlogym report</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<style>{_CSS}</style></head><body><main>{body}</main></body></html>\n",
    )


def _headline(evaluation: Evaluation) -> str:
    held_out = sum(not p.seen for p in evaluation.programs)
    cards = []
    for strategy in evaluation.strategies[1:]:
        summary = evaluation.summary(strategy, seen=False) or evaluation.summary(strategy, seen=True)
        if summary is not None:
            cards.append(
                f"<div class='card'><span>{escape(strategy)}</span><b>{summary.speedup.value:.2f}x</b>"
                f"<span>[{summary.speedup.low:.2f}, {summary.speedup.high:.2f}]<br>"
                f"{summary.slower:.0%} of the programs made slower; the worst {summary.worst:.2f}x</span></div>"
            )
    which = f"the {held_out} held-out programs" if held_out else "the programs"
    return (
        "<h1>hlogym: learned fusion, measured</h1>"
        f"<p class='soft'>{escape(str(evaluation.provenance.get('date', '')))} &middot; backend "
        f"{escape(evaluation.backend)} &middot; {escape(str(evaluation.provenance.get('machine', '')))}</p>"
        f"<p>Geometric mean speedup on {which} over the same program without fusion, with a 95% bootstrap interval. "
        f"Strategies that search measured {evaluation.budget} plans a program each. "
        "All outputs were equal to the interpreter's before a time was taken.</p>"
        f"<div class='cards'>{''.join(cards)}</div>{_legend(evaluation)}"
    )


_MEANINGS = {
    "none": "every instruction a kernel of its own, loops as they are",
    "greedy": "fuse whatever is legal",
    "priority": "XLA's heuristic: the producer with the greatest expected saving first",
    "default": "the compiler's default: priority, then any kind of fusion that is expected to save",
    "random": "random plans, the fastest measured one kept",
    "beam": "a beam search by the cost model, the fastest measured one kept",
    "learned": "the exported policy's first choice, nothing measured",
    "learned+search": "that plan and draws from the policy, the fastest measured one kept",
}


def _legend(evaluation: Evaluation) -> str:
    known = [(s, _MEANINGS[s]) for s in evaluation.strategies if s in _MEANINGS]
    return "<dl>" + "".join(f"<dt>{escape(s)}</dt><dd>{escape(m)}</dd>" for s, m in known) + "</dl>"


def _times(evaluation: Evaluation) -> str:
    rows = evaluation_rows(evaluation)
    head = "".join(f"<th>{escape(c)}</th>" for c in rows[0])
    body = "".join(_row(row) for row in rows[1:])
    return (
        "<h2>Time of a call</h2><p>Median of calls taken in turns, with its 95% interval.</p>"
        f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(row: Sequence[str]) -> str:
    summary = row[0].startswith(("speedup", "share"))
    cells = "".join(_cell(c) for c in row)
    return f"<tr class='sum'>{cells}</tr>" if summary else f"<tr>{cells}</tr>"


def _cell(text: str) -> str:
    value, bracket, interval = text.partition(" [")
    css = " class='bad'" if value.startswith("failed") else ""
    small = f" <small>[{escape(interval)}</small>" if bracket else ""
    return f"<td{css}>{escape(value)}{small}</td>"


def _noise(evaluation: Evaluation) -> str:
    rows = "".join(
        f"<tr><td>{escape(p.program)}</td><td>{'seen' if p.seen else 'held out'}</td><td>{factor(p.noise)}</td></tr>"
        for p in evaluation.programs
    )
    return (
        "<h2>Noise floor</h2><p>Each unfused program against itself, measured like any two candidates: a difference "
        "within this interval is none.</p><div class='scroll'><table><thead><tr><th>program</th><th></th>"
        f"<th>A/A ratio</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _provenance(evaluation: Evaluation) -> str:
    entries = {**evaluation.provenance, **{f"policy: {k}": v for k, v in evaluation.policy.items()}}
    items = "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd>" for k, v in entries.items())
    return f"<h2>How this was made</h2><dl>{items}</dl>"
