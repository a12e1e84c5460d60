"""`hlogym diff`: print or write in what two plans of a program differ, and what each difference is worth."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from compiler.backends.registry import find_backend
from compiler.support.safe_names import html_text as escape
from compiler.support.safe_names import one_line
from env.measurement import Measurer, MeasurerOptions
from env.statistics import Interval
from env.store import PlanStore
from env.suites import Program
from experiments.console import duration, factor, stdout
from experiments.differences.finding import Difference, find_differences
from experiments.differences.measuring import Worth, measure_worth
from experiments.differences.sides import Side, side_of
from experiments.html_page import html_facts, html_page
from experiments.inputs import program_of, read_valid_module
from experiments.provenance import provenance
from experiments.results import check_output, write_text

__all__ = ["compare_plans", "differences_page"]


def compare_plans(
    name: str, first: str, second: str, backend: str, measure: bool, rounds: int, seed: int, output: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Run `hlogym diff`; see its `--help`."""
    program = program_of(name)
    if output is not None:
        check_output(output, program.path, *(p for p in (Path(first), Path(second)) if p.is_file()))
    module = read_valid_module(program)
    backend = find_backend(backend).name
    a, b = side_of(first, module, backend), side_of(second, module, backend)
    differences = find_differences(module, backend, a, b)
    worth = None
    if measure:
        options = MeasurerOptions(backend, rounds, seed=seed)
        with Measurer(PlanStore(":memory:"), options) as measurer:
            worth = measure_worth(measurer, program, a, b, differences)
    text = json.dumps(_to_json(program, a, b, differences, worth), indent=1)
    if output is not None:
        page = output.suffix in (".html", ".htm")
        write_text(output, differences_page(program, a, b, differences, worth) if page else text + "\n")
    if as_json:
        print(text)
        return
    for line in _lines(program, a, b, differences, worth):
        stdout.print(line, soft_wrap=True)
    if output is not None:
        stdout.print(f"written to {output}", soft_wrap=True)


def _lines(
    program: Program, a: Side, b: Side, differences: Sequence[Difference], worth: Worth | None
) -> Iterator[str | Text]:
    what = f"{len(differences)} difference{'s' if len(differences) != 1 else ''}" if differences else "no differences"
    yield f"{program.name}: {a.label} beside {b.label}: {what}"
    if worth is not None:
        yield f"{a.label} is {_worth(worth, worth.whole)}; noise of the machine {factor(worth.noise)}"
    width = max(len(a.label), len(b.label), 8) if max(len(a.label), len(b.label)) <= 24 else 8
    labels = (a.label, b.label) if width > 8 or len(a.label) <= 8 else ("first", "second")
    for n, d in enumerate(differences):
        yield ""
        yield Text(one_line(f"{n + 1}. {d.phase}: {d.where}"), style="bold")
        yield f"   {labels[0]:{width}}  {d.first}"
        yield f"   {labels[1]:{width}}  {d.second}"
        for label, shown in _facts(n, d, worth):
            yield f"   {label:{width}}  {shown}"


def _facts(n: int, d: Difference, worth: Worth | None) -> Iterator[tuple[str, str]]:
    if worth is not None:
        found = worth.each.get(n)
        yield "worth", worth.failures.get(n, "not measured") if found is None else _worth(worth, found)
    if d.estimate is not None and d.phase != "kernels":
        yield "estimate", f"{'saves' if d.estimate >= 0 else 'loses'} {duration(abs(d.estimate))} by the cost model"
    if d.reason:
        yield "why", d.reason
    if d.note:
        yield "note", d.note


def _worth(worth: Worth, speedup: Interval | None) -> str:
    if speedup is None:
        return "not measured"
    if not worth.counts(speedup):
        return f"{factor(speedup)}, within the noise"
    return f"{factor(speedup)}, {'faster' if speedup.value > 1 else 'slower'}"


def _to_json(
    program: Program, a: Side, b: Side, differences: Sequence[Difference], worth: Worth | None
) -> dict[str, Any]:
    each = [
        {
            "phase": d.phase, "where": d.where, "first": d.first, "second": d.second, "why": d.reason,
            "estimate": d.estimate, "note": d.note,
            "worth": None if worth is None or n not in worth.each else worth.each[n].to_json(),
            "counts": None if worth is None or n not in worth.each else worth.counts(worth.each[n]),
        }
        for n, d in enumerate(differences)
    ]  # fmt: skip
    measured = None
    if worth is not None:
        measured = {
            "speedup": None if worth.whole is None else worth.whole.to_json(),
            "noise": worth.noise.to_json(),
            "failures": dict(worth.failures),
        }
    facts = {"program": program.name, "first": a.label, "second": b.label}
    return {**facts, "differences": each, "measured": measured, "provenance": provenance()}


# ---- the page


def differences_page(program: Program, a: Side, b: Side, differences: Sequence[Difference], worth: Worth | None) -> str:
    """Return the comparison as an HTML page: a table of the differences, and a plot of what they are worth."""
    from experiments.plots import dots_with_mean, svg

    parts = [f"<h1>{escape(program.name)}: {escape(a.label)} beside {escape(b.label)}</h1>"]
    if worth is not None:
        whole = f"{a.label} is {_worth(worth, worth.whole)}. Noise of the machine: {factor(worth.noise)}."
        parts.append(
            f"<p>{escape(whole)}</p><p class='soft'>The worth of a difference is the time of {escape(a.label)} without "
            "it over the time with it: above 1, the difference makes the program faster. Outputs were checked, and the "
            "plans were timed in turns.</p>"
        )
        dots: list[tuple[str, Interval, list[float]]] = [
            (f"{n + 1}. {differences[n].phase}", speedup, []) for n, speedup in worth.each.items()
        ]
        if dots:
            parts.append(f"<figure>{svg(dots_with_mean(dots, 'worth of each difference'))}</figure>")
    heads = ("difference", "phase", a.label, b.label, "worth", "reason")
    rows = [_row(n, d, worth) for n, d in enumerate(differences)]
    shown = [n for n, h in enumerate(heads) if h not in ("worth", "reason") or any(row[n] for row in rows)]
    head = "".join(f"<th>{escape(heads[n])}</th>" for n in shown)
    body = "".join(f"<tr>{''.join(f'<td>{row[n]}</td>' for n in shown)}</tr>" for row in rows)
    if differences:
        table = f"<table class='prose'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        parts.append(f"<div class='scroll'>{table}</div>")
    else:
        parts.append("<p>The plans do not differ.</p>")
    parts.append(html_facts(provenance()))
    return html_page(f"hlogym diff: {program.name}", "\n".join(parts))


def _row(n: int, d: Difference, worth: Worth | None) -> list[str]:
    """Return the cells of a difference, as HTML."""
    facts = dict(_facts(n, d, worth))
    shown = [facts[k] for k in ("worth", "estimate") if k in facts]
    why = [facts[k] for k in ("why", "note") if k in facts]
    cells = [f"{n + 1}. {d.where}", d.phase, d.first, d.second]
    return [*map(escape, cells), *("<br>".join(map(escape, lines)) for lines in (shown, why))]
