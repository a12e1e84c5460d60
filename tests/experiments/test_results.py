"""Results: files of other programs are skipped, damaged files raise one error, and any name can appear in tables."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest

from env.statistics import Interval
from experiments.console import PlainConsole
from experiments.plots import order_bars, speedup_bars, svg
from experiments.report import build_report, latest_evaluation, report_latest
from experiments.results import (
    Evaluation,
    ProgramResult,
    ResultError,
    StrategyResult,
    check_output,
    evaluation_rows,
    fresh_stem,
    markdown_table,
    read_newest,
    rich_table,
    write_text,
)

HOSTILE = (
    "a[b]|c<d>$x$", "[red]x[/red]", "[/]", ":smile:", "\x1b[2Jgone", "two\nlines", "<script>alert(1)</script>",
    "_hidden", "$\\frac{", "é" * 300, "[x](http://y)", "`x`", "{x}", "%s",
)  # fmt: skip
ONE = Interval(1.0, 1.0, 1.0)


def evaluation(*programs: str, strategies: tuple[str, ...] = ("default", "learned")) -> Evaluation:
    result = StrategyResult(Interval(1e-3, 9e-4, 1.1e-3), ONE, 3, 2, ratios=(0.99, 1.0, 1.02))
    failed = StrategyResult(None, None, failure="every plan failed")
    found = tuple(
        ProgramResult(
            p, "test", n % 2 == 0, Interval(1.0, 0.0, math.inf), dict.fromkeys(strategies, result) | {"x": failed}
        )
        for n, p in enumerate(programs)
    )
    facts = {"command": "hlogym evaluate [red]|<b>$", "commit": "\x1b[2J"}
    return Evaluation("cpu", 4, (*strategies, "x"), found, facts, {"trained": "<b>", "programs": list(programs)})


def test_an_evaluation_round_trips_through_json(tmp_path: Path) -> None:
    written = evaluation("a", *HOSTILE)
    text = json.dumps(written.to_json(), allow_nan=False)
    write_text(tmp_path / "evaluation.json", text)
    assert Evaluation.read(tmp_path / "evaluation.json") == written
    (tmp_path / "old.json").write_text(text.replace("[1.0, 0.0, null]", "[1.0, 0.0, Infinity]"))
    assert Evaluation.read(tmp_path / "old.json") == written
    data = written.to_json()
    del data["reference"]
    (tmp_path / "older.json").write_text(json.dumps(data))
    assert Evaluation.read(tmp_path / "older.json").reference == "none"


def test_the_summary_of_an_evaluation_by_hand() -> None:
    def result(*ratios: float) -> dict[str, StrategyResult]:
        each = Interval(ratios[0], ratios[0], ratios[0])
        return {"default": StrategyResult(ONE, ONE), "x": StrategyResult(ONE, each, ratios=ratios)}

    rows = [result(2.0, 2.0, 9.0), result(0.5, 0.5, 0.5), result(1.0, 1.005, 1.002), result(4.0, 4.0)]
    found = tuple(ProgramResult(str(n), "test", n == 3, ONE, r) for n, r in enumerate(rows))
    given = Evaluation("cpu", 4, ("default", "x"), found)
    summary = given.summary("x", seen=False)
    assert summary is not None
    assert summary.mean.value == pytest.approx(1.002 ** (1 / 3))
    assert [summary.median.value, summary.worst, summary.slower] == pytest.approx([1.002, 0.5, 1 / 3])
    table = {row[0]: row[3] for row in evaluation_rows(given) if row[1] == "held out"}
    assert table["speedup, worst"] == "0.50x"
    assert table["share of slower programs"] == "33%"
    # Wins all rounds of the first program, none of the second, and two of the third, with a tie in the other.
    assert table["share of faster rounds"] == f"{(1 + 0 + 2.5 / 3) / 3:.0%}"


def _changed(path: tuple[Any, ...], value: Any) -> bytes:
    data = evaluation("a").to_json()
    at: Any = data
    for key in path[:-1]:
        at = at[key]
    if value is None and path[-1] not in at:
        raise KeyError(path)
    if value is KeyError:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return json.dumps(data).encode()


STRATEGY = ("programs", 0, "strategies", "learned")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{}", b"[" * 100_000, b'{"kind": "bench"}', b"\xff", b'{"kind": 1, "kind": 2}',
        _changed(("programs",), 3), _changed(("programs",), [3]), _changed(("programs", 0, "program"), 3),
        _changed(("programs", 0, "seen"), 1), _changed(("programs", 0, "noise"), [1, 2]),
        _changed(("programs", 0, "noise"), "123"), _changed(("programs", 0, "noise"), [True, 1, 1]),
        _changed(("programs", 0, "strategies"), []), _changed(("strategies",), "none"), _changed(("strategies",), [3]),
        _changed((*STRATEGY, "seconds"), [0, 0, 0]), _changed((*STRATEGY, "speedup"), [-1, -1, -1]),
        _changed((*STRATEGY, "speedup"), ["1", 1, 1]), _changed((*STRATEGY, "speedup"), 0),
        _changed((*STRATEGY, "kernels"), "3"), _changed((*STRATEGY, "failure"), KeyError),
        _changed(("provenance",), []), _changed(("policy",), None), _changed(("backend",), KeyError),
        _changed(("budget",), True),
    ],
)  # fmt: skip
def test_a_damaged_evaluation_raises_one_error(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "evaluation.json"
    file.write_bytes(data)
    with pytest.raises(ResultError, match=re.escape(str(file))) as caught:
        Evaluation.read(file)
    assert len(str(caught.value)) < 400


def test_files_of_other_programs_are_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = tmp_path / "deep" / "evaluation-1.json"
    write_text(ours, json.dumps(evaluation("ours").to_json()))
    os.utime(ours, (1000, 1000))
    (tmp_path / "evaluation-notes.json").write_text('{"mine": 1}')
    (tmp_path / "evaluation-empty.json").write_text("")
    file, found = latest_evaluation(tmp_path)
    assert (file, [p.program for p in found.programs]) == (ours, ["ours"])
    assert "evaluation-notes.json" in capsys.readouterr().err
    report_latest(tmp_path / "report.html", tmp_path, tmp_path / "runs", as_json=True)
    assert json.loads(capsys.readouterr().out)["evaluation"] == str(ours)
    ours.unlink()
    with pytest.raises(ResultError, match=r"evaluation-notes\.json"):
        latest_evaluation(tmp_path)
    assert read_newest([], Evaluation.read) is None


def _trained(folder: Path, age: int, **settings: object) -> None:
    folder.mkdir(parents=True)
    config = {"suite": "train", "env": "hlogym/Unroll-v0", "agent": "maskable-ppo", "checkpoint_every": 512}
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    points = [{"timesteps": n, "speedup": 1.0 + n} for n in range(3)]
    (folder / "progress.jsonl").write_text("\n".join(map(json.dumps, points)))
    os.utime(folder / "progress.jsonl", (1e9 - age, 1e9 - age))


def test_a_report_leaves_out_damaged_runs_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(tmp_path / "results" / "evaluation-1.json", json.dumps(evaluation("a").to_json()))
    runs = tmp_path / "runs"
    _trained(runs / "damaged", 1, env=3)
    _trained(runs / "half", 2)
    (runs / "half" / "config.json").write_text('{"suite": "tr')
    _trained(runs / "good", 3)

    def reported() -> tuple[object, list[str]]:
        report_latest(tmp_path / "report.html", tmp_path / "results", runs, as_json=True)
        printed = capsys.readouterr()
        return json.loads(printed.out)["training"], printed.err.splitlines()

    training, said = reported()
    assert training == str(runs / "good")
    assert said == [
        f"skipped: {runs / 'damaged' / 'config.json'}: env must be of type str, not 3",
        f"skipped: {runs / 'half' / 'config.json'}: not JSON, line 1 column 11: Unterminated string starting at",
    ]
    (runs / "good" / "config.json").unlink()
    training, said = reported()
    assert training is None
    assert len(said) == 1
    (tmp_path / "results" / "pass-order-1.json").write_text("damaged")
    training, said = reported()
    assert len(said) == 2
    assert "Speedup of each program" in (tmp_path / "report.html").read_text()


def test_results_get_unique_names(tmp_path: Path) -> None:
    stems = [fresh_stem(tmp_path / "new", "evaluation-1", ".json") for _ in range(3)]
    assert stems == ["evaluation-1", "evaluation-1-2", "evaluation-1-3"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultError, match="cannot write"):
        fresh_stem(tmp_path / "file", "x", ".json")


def test_output_files_are_checked(tmp_path: Path) -> None:
    (tmp_path / "in.hlo").write_text("mine")
    (tmp_path / "link.hlo").symlink_to("in.hlo")
    for output, reason in (
        (tmp_path, "is a folder"), (tmp_path / "in.hlo", "would be overwritten"),
        (tmp_path / "link.hlo", "would be overwritten"), (tmp_path / "in.hlo" / "x", "cannot write"),
    ):  # fmt: skip
        with pytest.raises(ResultError, match=reason):
            check_output(output, tmp_path / "in.hlo")
    check_output(tmp_path / "not" / "there" / "yet.json", tmp_path / "in.hlo")
    check_output(Path(os.devnull))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.hlo", "link.hlo"]


# ---- tables, pages and plots


@pytest.mark.parametrize("name", HOSTILE)
def test_a_terminal_table_shows_names_verbatim(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    console = PlainConsole(width=1000)
    console.print(rich_table(evaluation_rows(evaluation(name)), "title"))
    out = capsys.readouterr().out
    assert not any(ord(c) < 32 and c != "\n" for c in out)
    if name.isprintable() and len(name) < 60:
        assert out.count(name) == 1
    console.print(rich_table(evaluation_rows(evaluation("plain")), "title"))
    assert len(out.splitlines()) == len(capsys.readouterr().out.splitlines())  # each name is on one line


def test_a_markdown_table_keeps_its_columns() -> None:
    rows = evaluation_rows(evaluation(*HOSTILE, strategies=("none", "a|b")))
    lines = markdown_table(rows).splitlines()
    assert len(lines) == len(rows) + 1
    for line in lines:
        assert len(re.split(r"(?<!\\)\|", line)) == len(rows[0]) + 2


def test_names_are_escaped_in_the_report(tmp_path: Path) -> None:
    build_report(evaluation(*HOSTILE, strategies=("none", "<i>", "_s")), [], tmp_path / "r.html", what="<u>")
    page = (tmp_path / "r.html").read_text()
    assert "<script" not in page
    assert "<i>" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page


def test_a_speedup_in_the_report_is_green_only_if_it_is_one(tmp_path: Path) -> None:
    means = {"none": (0.5, 0.4, 0.6), "faster": (1.5, 1.4, 1.6), "unclear": (1.0, 0.9, 1.1)}
    rows = {n: StrategyResult(ONE, ONE, ratios=(v, low, high)) for n, (v, low, high) in means.items()}
    rows["default"] = StrategyResult(ONE, ONE)
    programs = tuple(ProgramResult(str(n), "test", False, ONE, rows) for n in range(9))
    build_report(Evaluation("cpu", 4, ("default", *means), programs), [], tmp_path / "r.html")
    shown = dict(re.findall(r"<span>(\w+)</span><b class='(\w*)'>", (tmp_path / "r.html").read_text()))
    assert shown == {"none": "red", "faster": "green", "unclear": ""}


@pytest.mark.filterwarnings("error")
def test_plots_accept_any_name() -> None:
    figure = speedup_bars(evaluation(*HOSTILE, strategies=("default", "_s", "$\\frac{")))
    labels = [t.get_text() for t in figure.axes[0].get_yticklabels()]
    assert len(labels) == len(HOSTILE)
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 3
    assert "<svg" in svg(figure)
    bars = order_bars(dict.fromkeys(HOSTILE, ONE))
    assert len(bars.axes[0].patches) == len(HOSTILE)
    assert "<svg" in svg(bars)
