"""One HTML page of verified entries, a board for those that can be compared: a table, a plot, and every program."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from compiler.support.safe_names import html_text as escape
from env.statistics import Interval
from experiments.console import bounds, duration, ratio
from experiments.html_page import html_facts, html_page
from experiments.leaderboard.result import ProgramRow, Verified, ranked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["board_figure", "leaderboard_page"]

_SOURCES = {"plans": "plans, searched per program", "policy": "exported policy", "builtin": "policy of the compiler"}
_INTRO = (
    "Entries are plans or policies, never code. Each was compiled on this machine; its outputs were compared with the "
    "interpreter's before and after the timing; and it was timed in turns with the default plan of each program, in "
    "fresh processes. A speedup is the default plan's time over the entry's. Results of other machines and files that "
    "were edited are refused. A page from another machine is a claim: verify the entries on your own."
)


def leaderboard_page(results: Sequence[Verified]) -> str:
    """Return the page of results; those with the same programs, machine, commit and settings share a board."""
    keyed = sorted(((_board_key(r), n) for n, r in enumerate(results)))
    boards = [[results[n] for _, n in board] for _, board in groupby(keyed, key=lambda item: item[0])]
    body = "\n".join(_board(ranked(board), number) for number, board in enumerate(boards))
    return html_page("hlogym leaderboard", f"<h1>hlogym leaderboard</h1><p class='soft'>{_INTRO}</p>{body}")


def _board_key(result: Verified) -> str:
    e, p = result.entry, result.provenance
    programs = hashlib.sha256("".join(sorted(r.program + r.text for r in result.rows)).encode()).hexdigest()
    compared = [e["suite"], e["backend"], p.get("machine"), p.get("commit"), dict(result.measured), programs]
    return json.dumps(compared, sort_keys=True)


def _board(results: Sequence[Verified], number: int) -> str:
    from experiments.plots import svg

    first = results[0]
    e, p, m = first.entry, first.provenance, first.measured
    how = (
        f"{len(first.rows)} programs, {m.get('processes')} processes each, at most {m.get('rounds')} ABBA blocks; "
        f"{p.get('machine')}; commit {p.get('commit')}. A difference counts {m.get('gate')}."
    )
    if noisy := max(r.noisy for r in results):
        many = f"{noisy} of {len(first.rows)} programs"
        how += f" Noisy: on {many} the default plan may have differed from itself by over 3%."
    title = f"{e['suite']} on {e['backend']}"
    return (
        f"<h2 id='board-{number}'>{escape(title)}</h2><p class='soft'>{escape(how)}</p>"
        f"{_entries(results)}<figure>{svg(board_figure(results))}</figure>"
        "<p class='soft'>Diamonds: geometric means with 95% intervals; points: programs. Do not rank entries "
        "whose intervals overlap.</p>"
        f"<h2>{escape(title)}: programs</h2>{_programs(results)}"
        "<p class='soft'>Bold: the difference counts in every process. Red: over 3% slower. A/A: the default plan "
        "against itself. *: in the training of the policy.</p>" + "".join(_provenance(r) for r in results)
    )


_HEAD = ("entry", "decides", "geometric mean", "median", "worst", "best", "over 3% slower", "faster", "held out")


def _entries(results: Sequence[Verified]) -> str:
    body = []
    for place, r in enumerate(results, 1):
        e, s = r.entry, r.summary
        about = f"<br><small>{escape(str(e['about']))}</small>" if e.get("about") else ""
        source = _SOURCES.get(str(e.get("source")), "")
        faster = sum(row.counts and row.ratio.value > 1 for row in r.rows)
        cells = [
            f"<td>{place}. <b>{escape(str(e['name']))}</b> <small>by {escape(str(e['author']))}</small>{about}</td>",
            f"<td>{escape(', '.join(map(str, e['decides'])))}<br><small>{source}</small></td>",
            f"<td>{_ratio(s.mean)}</td>", f"<td>{ratio(s.median.value, 3)}</td>", f"<td>{ratio(s.worst, 3)}</td>",
            f"<td>{ratio(s.best, 3)}</td>", f"<td>{r.slower:.0%}</td>", f"<td>{faster} of {len(r.rows)}</td>",
            f"<td>{_held_out(r)}</td>",
        ]  # fmt: skip
        body.append(f"<tr>{''.join(cells)}</tr>")
    return _table(_HEAD, body, "entries")


def _held_out(result: Verified) -> str:
    """Return how many programs were not in the training of a policy; plans are made for their programs."""
    return "-" if result.entry.get("source") == "plans" else str(sum(not row.seen for row in result.rows))


def _programs(results: Sequence[Verified]) -> str:
    names = [str(r.entry["name"]) for r in results]
    by_program = {row.program: {} for r in results for row in r.rows}  # type: dict[str, dict[int, ProgramRow]]
    for n, r in enumerate(results):
        for row in r.rows:
            by_program[row.program][n] = row
    body = []
    for program, rows in sorted(by_program.items()):
        one = next(iter(rows.values()))
        cells = "".join(_cell(rows.get(n)) for n in range(len(results)))
        body.append(
            f"<tr><td>{escape(program)}</td><td>{escape(duration(one.seconds))}</td>"
            f"<td>{_ratio(one.noise)}</td>{cells}</tr>"
        )
    return _table(("program", "default", "A/A", *names), body, "programs")


def _cell(row: ProgramRow | None) -> str:
    if row is None:
        return "<td>-</td>"
    shown = _ratio(row.ratio) + ("*" if row.seen else "")
    css = " class='bad'" if row.slower else ""
    return f"<td{css}>{f'<b>{shown}</b>' if row.counts else shown}</td>"


def _table(head: Sequence[str], body: Sequence[str], css: str) -> str:
    cells = "".join(f"<th>{escape(c)}</th>" for c in head)
    return (
        f"<div class='scroll'><table class='{css}'><thead><tr>{cells}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _ratio(interval: Interval) -> str:
    """Return a ratio above its interval, which is left out where the plan leads to the code of the default plan."""
    small = bounds(interval, 3) if interval.low < interval.high else ""
    return ratio(interval.value, 3) + (f"<br><small>{small}</small>" if small else "")


def _provenance(result: Verified) -> str:
    facts: dict[str, Any] = {"entry": result.entry["name"], "checksum": result.entry["checksum"], **result.provenance}
    return f"<details><summary>{escape(str(result.entry['name']))}</summary>{html_facts(facts)}</details>"


def board_figure(results: Sequence[Verified]) -> Figure:
    """Plot for each entry its programs, and their geometric mean with its interval, the best entry on top."""
    from experiments.plots import dots_with_mean

    rows = [(str(r.entry["name"]), r.summary.mean, [row.ratio.value for row in r.rows]) for r in results]
    return dots_with_mean(rows, "speedup over the default plan")
