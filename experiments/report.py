"""`hlogym report`: one self-contained HTML page with tables and plots of the latest results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from compiler.errors import HlogymError
from compiler.support.safe_names import html_text as escape
from experiments.answer import give_answer, print_fields
from experiments.config import TrainConfig
from experiments.console import bounds, factor, ratio
from experiments.html_page import html_facts, html_page
from experiments.noise import style_of
from experiments.pass_orders.evaluation import BASELINE, OrderEvaluation
from experiments.pass_orders.tables import SUMMARY_HEADER, summary_rows
from experiments.plots import learning_curve, order_bars, profile_lines, speedup_bars, svg
from experiments.results import (
    Evaluation,
    ResultError,
    check_output,
    evaluation_rows,
    print_skipped,
    read_newest,
    write_text,
)
from experiments.run_folder import RunFolder, is_run, read_progress

__all__ = ["build_report", "latest_evaluation", "read_progress", "report_latest"]


T = TypeVar("T")


def latest_evaluation(results: Path) -> tuple[Path, Evaluation]:
    """Return the newest evaluation in a folder, and its file.

    Raises:
        ResultError: there is none, or none can be read.
    """
    found = read_newest(_evaluations(results), Evaluation.read)
    if found is None:
        raise ResultError(f"no evaluation in {results}; create one with: hlogym evaluate POLICY")
    return found


def _evaluations(results: Path) -> Iterable[Path]:
    return results.glob("**/evaluation*.json")


def report_latest(output: Path, results: Path, runs: Path, as_json: bool = False) -> None:
    """Run `hlogym report`: write a page with the newest evaluations and the curve of the newest training run.

    Raises:
        ResultError: there is no evaluation, or the page cannot be written.
    """
    check_output(output)
    orders = _newest_of([*results.glob("**/pass-order*.json"), *results.glob("**/ordering.json")], OrderEvaluation.read)
    extra = [] if orders is None else [order_section(orders[1])]
    # Without pass orders, an evaluation is all there is to report.
    shown = _newest_of(_evaluations(results), Evaluation.read) if extra else latest_evaluation(results)
    file, evaluation = shown or (None, None)
    training = _newest_of(runs.glob("*/progress.jsonl"), _read_training)
    run, (points, what) = (None, ([], "")) if training is None else (training[0].parent, training[1])
    build_report(evaluation, points, output, extra, what, "" if run is None else run.name)
    facts = {
        "report": str(output),
        "evaluation": None if file is None else str(file),
        "training": None if run is None else str(run),
    }
    give_answer(facts, lambda: print_fields(facts), as_json)


def _newest_of(paths: Iterable[Path], read: Callable[[Path], T]) -> tuple[Path, T] | None:
    """Return what `read_newest` does; None with a printed reason if no file can be read."""
    try:
        return read_newest(paths, read)
    except HlogymError as error:
        print_skipped(error)
        return None


def _read_training(progress: Path) -> tuple[list[dict[str, Any]], str]:
    """Return the points of the learning curve of a run, and what its speedups mean.

    Raises:
        ResultError: it is no run.
        ConfigError: a setting is damaged.
    """
    run = RunFolder(progress.parent)
    config = run.config()
    if not is_run(run.path):
        raise ResultError(f"{run.path} is not a training run: its config.json has no settings of one")
    return read_progress(progress), meaning_of_speedup(config)


_AGAINST_DEFAULT = ("measured-time", "emulated-time")
"""Rewards by which a plan is compared with the default plan."""


def meaning_of_speedup(config: TrainConfig) -> str:
    """Return the axis label for the speedups that a training run with these settings records."""
    if config.reward == "op-count":
        return "ops of the default passes over ops"
    if "PassOrder" in config.env:
        return "speedup over the default passes"
    measured = any(k in config.env for k in ("Measured", "Emulated")) or config.reward in _AGAINST_DEFAULT
    decides_fusion = config.env.rpartition("/")[2].startswith(("Fusion", "Compile"))
    return "speedup over no fusion" if decides_fusion and not measured else "speedup over the default"


def order_section(evaluation: OrderEvaluation) -> str:
    """Return the HTML section on pass orders: a bar plot, and a table with one row per contender."""
    held_out = sum(not r.seen for r in evaluation.rows)
    head = "".join(f"<th>{escape(c)}</th>" for c in SUMMARY_HEADER)
    body = "".join(f"<tr>{''.join(_cell(c) for c in row)}</tr>" for row in summary_rows(evaluation))
    ratios = {name: evaluation.ratio(name, BASELINE) for name in evaluation.names if name != BASELINE}
    return (
        f"<h2>Pass orders</h2><p>Op counts on {len(evaluation.rows)} programs, {held_out} of them held out. "
        "All contenders choose from the same passes, and one application of a pass is one sweep over the module. "
        f"Policies and searches had {evaluation.budget} applications, or the number given in parentheses.</p>"
        f"<figure>{svg(order_bars(ratios))}</figure>"
        f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        + html_facts(evaluation.provenance)
    )


def build_report(
    evaluation: Evaluation | None,
    progress: Sequence[Mapping[str, Any]],
    to: Path,
    extra: Sequence[str] = (),
    what: str = "speedup over no fusion",
    run: str = "",
) -> None:
    """Write the page.

    Args:
        evaluation: the evaluation of fusion policies for the tables and bars, or None.
        progress: points of the training run's learning curve; may be empty.
        to: the HTML file to write.
        extra: further sections of HTML, appended to the page.
        what: the axis label of the learning curve.
        run: the name of the training run whose curve it is; an evaluation may be of another policy.

    Raises:
        ResultError: the file cannot be written.
    """
    sections = ["<h1>hlogym</h1>"]
    if evaluation is not None:
        bars = svg(speedup_bars(evaluation))
        sections = [
            _headline(evaluation), f"<h2>Speedup of each program</h2><figure>{bars}</figure>", _times(evaluation),
        ]  # fmt: skip
        if (profile := profile_lines(evaluation)) is not None:
            sections.append(f"<h2>Performance profile</h2><figure>{svg(profile)}</figure>")
    if (curve := learning_curve(progress, what)) is not None:
        name = f"<p class='soft'>Training run {escape(run)}</p>" if run else ""
        sections.append(f"<h2>Learning</h2>{name}<figure>{svg(curve)}</figure>")
    if evaluation is not None:
        sections += [_noise(evaluation), _provenance(evaluation)]
    body = "\n".join([*sections, *extra])
    write_text(to, html_page("hlogym report", body))


def _headline(evaluation: Evaluation) -> str:
    held_out = sum(not p.seen for p in evaluation.programs)
    cards = []
    for strategy in evaluation.contenders:
        summary = evaluation.summary(strategy, seen=False) or evaluation.summary(strategy, seen=True)
        if summary is not None:
            cards.append(
                f"<div class='card'><span>{escape(strategy)}</span>"
                f"<b class='{style_of(summary.mean)}'>{ratio(summary.mean.value)}</b>"
                f"<span>{bounds(summary.mean) or 'one program'}<br>median {ratio(summary.median.value)}; "
                f"{summary.slower:.0%} of the programs are slower; worst case {ratio(summary.worst)}</span></div>"
            )
    which = f"the {held_out} held-out programs" if held_out else "the programs"
    return (
        "<h1>hlogym: learned fusion, measured</h1>"
        f"<p class='soft'>{escape(str(evaluation.provenance.get('date', '')))} &middot; backend "
        f"{escape(evaluation.backend)} &middot; {escape(str(evaluation.provenance.get('machine', '')))}</p>"
        f"<p>Geometric mean speedup on {which} over {escape(evaluation.reference)}, with a 95% "
        "bootstrap interval over programs and rounds. "
        f"Each strategy that searches measured {evaluation.budget} plans per program. "
        "All outputs were compared with the interpreter's before timing.</p>"
        f"<div class='cards'>{''.join(cards)}</div>{_legend(evaluation)}"
    )


_MEANINGS = {
    "none": "no fusion: one kernel per instruction, loops unchanged",
    "greedy": "apply every legal fusion",
    "priority": "XLA's heuristic: fuse the producer with the greatest expected saving first",
    "default": "what compile does without arguments: priority fusion, then every other fusion with an expected saving",
    "random": "the fastest of several random plans, by measured time",
    "beam": "the fastest of several plans of a beam search with the cost model, by measured time",
    "learned": "the most likely plan of the exported policy, without measurements",
    "learned+search": "the fastest of that plan and plans sampled from the policy, by measured time",
}


def _legend(evaluation: Evaluation) -> str:
    known = [(s, _MEANINGS[s]) for s in evaluation.strategies if s in _MEANINGS]
    return "<dl>" + "".join(f"<dt>{escape(s)}</dt><dd>{escape(m)}</dd>" for s, m in known) + "</dl>"


def _times(evaluation: Evaluation) -> str:
    rows = evaluation_rows(evaluation)
    head = "".join(f"<th>{escape(c)}</th>" for c in rows[0])
    body = "".join(_row(row) for row in rows[1:])
    return (
        "<h2>Time per call</h2><p>Median of interleaved timings with its 95% interval.</p>"
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
        "<h2>Noise floor</h2><p>The reference plan of each program compared with itself, like two candidates. "
        "Differences within this interval are not significant.</p>"
        "<div class='scroll'><table><thead><tr><th>program</th><th></th>"
        f"<th>A/A ratio</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _provenance(evaluation: Evaluation) -> str:
    entries = {**evaluation.provenance, **{f"policy: {k}": v for k, v in evaluation.policy.items()}}
    return "<h2>Provenance</h2>" + html_facts(entries)
